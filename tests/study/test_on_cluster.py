"""A study on a Ray cluster: each worker takes members, and the decisions are those of one driver."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rayfbnn import api
from rayfbnn.errors import StoreMismatchError, WorkerError
from rayfbnn.run.running import RunOptions
from rayfbnn.study import Rule, Study
from rayfbnn.study.driving import ClusterDrivers
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


def dies(folder: str, options: RunOptions) -> Iterator[str]:
    os.kill(os.getpid(), signal.SIGKILL)
    yield ""


def raises(folder: str, options: RunOptions) -> Iterator[str]:
    yield "a line"
    raise StoreMismatchError(f"{folder}: is of another version")


class StartsWith(ClusterDrivers):
    """Drivers whose first tasks do something else; those that replace one that died are as they should be."""

    def __init__(
        self, study: Study, task: Callable[[str, RunOptions], Iterator[str]], **options: Any
    ) -> None:
        super().__init__(study, RunOptions(workers=2, address="auto", **options))
        self._first = self._ray.remote(max_retries=0)(task)

    def _start(self) -> Any:
        if self._failures:
            return super()._start()
        return self._first.options(num_returns="streaming").remote(*self._arguments)


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
def test_tasks_that_die_are_replaced_as_often_as_they_may(study: Study) -> None:
    with pytest.raises(WorkerError, match="2 drivers of the study died, more than max_failures = 1 allows"):
        StartsWith(study, dies, max_failures=1).run()
    assert not study.is_complete
    StartsWith(study, dies, max_failures=2).run()
    assert study.is_complete and len(study.looks()) == 2


@pytest.mark.long
def test_the_error_of_a_task_is_that_of_the_study(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(StoreMismatchError, match="is of another version"):
        StartsWith(study, raises).run()
    assert "a line" in capsys.readouterr().err


@pytest.mark.long
def test_a_signal_lets_every_task_commit_what_it_has(tmp_path: Path) -> None:
    study = Study.create(tmp_path / "study", slow_spec(tmp_path), seeds=2, rule=Rule(looks=2))
    places = [study.members.place(Member(0, seed)) for seed in study.seeds()]

    def interrupt() -> None:
        wait_until(lambda: all(iterations_done(str(place)) > 0 for place in places))
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        study.run(**ON_CLUSTER)
    thread.join()
    done = [iterations_done(str(place)) for place in places]
    assert all(0 < iterations < 20_000 for iterations in done)
    assert all(api.verify(place).ok and not api.status(place).at_work for place in places)
