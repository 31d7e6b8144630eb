"""A study on Ray: each worker takes members, and the decisions are those of one driver."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rayfbnn import api
from rayfbnn.errors import StoreMismatchError, WorkerError
from rayfbnn.study import Rule, Study, driving
from rayfbnn.study.plan import Member
from tests.support.drivers import iterations_done, slow_spec, wait_until
from tests.support.small import small_spec

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]
pytest.importorskip("ray")

ON_CLUSTER: dict[str, Any] = {"address": "auto", "workers": 2, "progress": True}


def made(folder: Path, seeds: int, n_looks: int) -> Study:
    spec = small_spec(folder, chains=2, chains_per_batch=2, draws_per_block=10)
    rule = Rule(max_rhat=1.0000001, looks=n_looks, least_draws=5, cases=3)
    return Study.create(folder / "study", spec, seeds=seeds, rule=rule)


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return made(tmp_path, 4, 2)


def looks(study: Study) -> list[bytes]:
    return [file.read_bytes() for file in sorted((Path(str(study.place)) / "looks").rglob("*.json"))]


class Dying(driving.MemberWorker):
    """A worker that kills its process between iterations, once for each file in a folder beside the study."""

    def should_stop(self) -> bool:
        for life in sorted((Path(self._store_path).parent / "deaths").iterdir()):
            with suppress(FileNotFoundError):  # another worker has just died of it
                life.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        return super().should_stop()


@pytest.mark.parametrize(("seeds", "n_looks"), [(2, 1), pytest.param(4, 2, marks=pytest.mark.long)])
def test_workers_share_the_members_and_decide_as_one_driver(
    seeds: int, n_looks: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = made(tmp_path, seeds, n_looks)
    shutil.copytree(str(study.place), tmp_path / "alone")
    assert study.run(**ON_CLUSTER).ok is False
    lines = capsys.readouterr().err.splitlines()
    assert sum(": seed " in line for line in lines) >= seeds * n_looks
    assert any("not ok" in line for line in lines)
    alone = Study.open(tmp_path / "alone")
    alone.run(workers=0, progress=False)
    assert looks(study) == looks(alone) and len(looks(study)) == n_looks


@pytest.mark.long
def test_workers_that_die_are_replaced_as_often_as_they_may(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driving, "MemberWorker", Dying)
    deaths = tmp_path / "deaths"
    deaths.mkdir()
    for number in range(9):
        (deaths / str(number)).touch()
    with pytest.raises(WorkerError, match=r"2 workers died running member c0000-s000000000\d\.zarr, .* = 1"):
        study.run(**ON_CLUSTER, max_failures=1)
    assert not study.is_complete
    study.run(**ON_CLUSTER, max_failures=9)
    assert study.is_complete and len(study.looks()) == 2 and not list(deaths.iterdir())


@pytest.mark.long
def test_the_error_of_a_member_is_that_of_the_study(study: Study, tmp_path: Path) -> None:
    spec = small_spec(tmp_path, seed=9)
    api.sample(spec, study.members.place(Member(0, 3)), workers=0, progress=False)
    with pytest.raises(StoreMismatchError, match="is not a member of this study"):
        study.run(**ON_CLUSTER)
    assert not study.is_complete


@pytest.mark.long
def test_a_signal_lets_every_task_commit_what_it_has(tmp_path: Path) -> None:
    study = Study.create(tmp_path / "study", slow_spec(tmp_path), seeds=2, rule=Rule(looks=2))
    places = [study.members.place(Member(0, seed)) for seed in study.seeds()]

    def interrupt() -> None:
        wait_until(lambda: all(iterations_done(str(place)) > 0 for place in places), patience=240.0)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        study.run(**ON_CLUSTER)
    thread.join()
    done = [iterations_done(str(place)) for place in places]
    assert all(0 < iterations < 20_000 for iterations in done)
    assert all(api.verify(place).ok and not api.status(place).at_work for place in places)
