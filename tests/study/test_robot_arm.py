"""A study of twenty seeds on Neal's robot arm: a verdict, whoever runs it and however often it is killed."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from rayfbnn.study import Study
from tests.support.drivers import finish, start, wait_until
from tests.support.pages import ROOT

RUN = """
chains = 4
iterations = 400
data = { train = "train.csv", inputs = ["x1", "x2"], targets = ["y1", "y2"] }
model = { kind = "real", noise = "0.1:0.2" }
network.hidden = [{ units = 16, activation = "tanh" }]
network.priors = { ih0 = "1:0.2", bh0 = "1:0.2", ho0 = "x1:0.2", bo = "1" }
"""


def n_begun(study: Path) -> int:
    return len(list((study / "members").glob("c*.zarr")))


@pytest.mark.long
def test_twenty_seeds_agree_and_two_drivers_of_which_one_is_killed_decide_the_same(tmp_path: Path) -> None:
    shutil.copy(ROOT / "examples" / "robot_arm" / "train.csv", tmp_path)
    (tmp_path / "run.toml").write_text(RUN)
    one, two = tmp_path / "one", tmp_path / "two"
    Study.create(one, tmp_path / "run.toml", seeds=20)
    shutil.copytree(one, two)
    assert Study.open(one).run(workers=2, progress=False).ok is True
    killed, other = (start("study", "run", two, "--workers", 0) for _ in range(2))
    wait_until(lambda: n_begun(two) >= 4, killed)
    time.sleep(1)
    killed.kill()
    killed.wait()
    other.wait(1200)
    code, output, errors = finish(other)
    assert code == 0 and "ok: all members agree" in output, errors
    again = start("study", "run", two, "--workers", 0)
    assert finish(again)[0] == 0
    records = [file.relative_to(one) for file in sorted((one / "looks").rglob("*.json"))]
    assert records
    for record in records:
        assert (one / record).read_bytes() == (two / record).read_bytes()
