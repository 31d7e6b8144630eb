"""Spot workers that Ray's autoscaler makes, and that are taken away, during a run and during a study."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rayfbnn import api
from rayfbnn.store.store import Store
from rayfbnn.study import Rule, Study
from rayfbnn.study.members import Member
from tests.support.cluster.autoscaler import Autoscaler, autoscaler
from tests.support.cluster.session import PATIENCE, variables
from tests.support.drivers import slow_spec, wait_until
from tests.support.small import assert_same_draws

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.ray,
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="finds the processes of nodes in /proc"),
]


@pytest.fixture
def spot() -> Iterator[Autoscaler]:
    with autoscaler(2) as cluster:
        yield cluster


def start(spot: Autoscaler, *arguments: object) -> subprocess.Popen[str]:
    """Start `rayfbnn` on the cluster."""
    code = "from rayfbnn.cli import main; main()"
    options = ("--address", spot.address, "--max-failures", 0)
    environment = {**variables(spot.folder), "PYTHONPATH": os.getcwd(), "RAY_AUTH_MODE": "disabled"}
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, (*arguments, *options))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def wait(condition: Any, driver: subprocess.Popen[str]) -> None:
    wait_until(condition, driver, patience=PATIENCE)


def workers(store: Path) -> set[str]:
    """The workers that have committed a block, as the log of a run names them."""
    log = store.with_name(f"{store.name}.log.jsonl")
    lines = map(json.loads, log.read_text().splitlines()) if log.exists() else ()
    return {line["worker"] for line in lines if line["event"] == "block"}


@pytest.mark.parametrize("is_told", [True, False], ids=["with notice", "without"])
def test_spot_workers_come_and_go_during_a_run(spot: Autoscaler, tmp_path: Path, is_told: bool) -> None:
    spec, path = slow_spec(tmp_path, chains=6), tmp_path / "run.zarr"
    (tmp_path / "run.toml").write_text(spec.to_toml())
    assert spot.nodes() == {}
    driver = start(spot, "run", tmp_path / "run.toml", path, "--workers", 2, "--log-format", "json")
    try:
        wait(lambda: len(workers(path)) == 2, driver)
        before = spot.nodes()
        first = min(before)
        if is_told:
            spot.give_notice(first, 60)
            wait(lambda: not spot.runs(first, "Worker"), driver)
        spot.take_away(first)
        wait(lambda: len(workers(path)) == 3, driver)
        assert len(spot.nodes().keys() - before.keys()) == 1, "the autoscaler has made no other node"
        driver.send_signal(signal.SIGTERM)
        output, errors = driver.communicate(timeout=PATIENCE)
    finally:
        driver.kill()
    assert (driver.returncode, output) == (75, ""), errors
    store = Store.open(path)
    length = max(store.progress(batch).iteration for batch in range(store.n_batches)) + 2
    api.resume(path, iterations=length, workers=0, progress=False)
    api.sample(spec.with_iterations(length), tmp_path / "alone.zarr", workers=0, progress=False)
    assert api.verify(path).ok
    assert_same_draws(path, tmp_path / "alone.zarr")


def test_spot_workers_come_and_go_during_a_study(spot: Autoscaler, tmp_path: Path) -> None:
    spec = slow_spec(tmp_path, iterations=5000, chains=2)
    study = Study.create(tmp_path / "study", spec, seeds=3, rule=Rule(looks=1, least_draws=5, cases=3))
    shutil.copytree(str(study.place), tmp_path / "alone")
    driver = start(spot, "study", "run", study.place, "--workers", 2)
    try:
        wait(lambda: any(spot.runs(node, "_lines") for node in spot.nodes()), driver)
        before = spot.nodes()
        spot.take_away(next(node for node in before if spot.runs(node, "_lines")))
        wait(lambda: any(spot.runs(node, "_lines") for node in spot.nodes().keys() - before.keys()), driver)
        _, errors = driver.communicate(timeout=PATIENCE)
    finally:
        driver.kill()
    assert driver.returncode in (0, 3), errors
    alone = Study.open(tmp_path / "alone")
    alone.run(workers=2, progress=False)
    looks = [sorted((tmp_path / name / "looks").rglob("*.json")) for name in ("study", "alone")]
    assert [file.read_bytes() for file in looks[0]] == [file.read_bytes() for file in looks[1]] != []
    for seed in study.seeds():
        ours, theirs = (str(one.members.place(Member(0, seed))) for one in (study, alone))
        assert api.verify(ours).ok
        assert_same_draws(Path(ours), Path(theirs))
