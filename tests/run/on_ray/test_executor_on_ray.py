"""The Ray executor: one session for all tests, actors that are killed at chosen points."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rayfbnn.errors import SamplingError, StoreError, WorkerError
from rayfbnn.run.job import Progress
from rayfbnn.run.on_ray.actors import Worker
from rayfbnn.run.on_ray.executor import RayExecutor
from rayfbnn.store.store import Store
from tests.support.small import assert_same_draws, make_store, small_spec

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]
pytest.importorskip("ray")


class DyingWorker(Worker):
    """A worker that kills its process between iterations, once for each file in a folder beside the store."""

    def may_die(self) -> None:
        for life in sorted((Path(self._store_path).parent / "deaths").iterdir()):
            with suppress(FileNotFoundError):  # another worker has just died of it
                life.unlink()
                os.kill(os.getpid(), signal.SIGKILL)

    def should_stop(self) -> bool:
        self.may_die()
        return super().should_stop()


class DyingBeforeReply(DyingWorker):
    """A worker that kills its process after a commit, before it reports."""

    def run_block(self, *arguments: Any) -> Iterator[Progress]:
        for progress in super().run_block(*arguments):
            if progress.committed:
                self.may_die()
            yield progress

    def should_stop(self) -> bool:
        return Worker.should_stop(self)


class Refusing(Worker):
    """A worker that finds that a batch cannot continue."""

    def run_block(self, batch: int, *arguments: Any) -> Iterator[Progress]:
        if batch == 1:
            raise SamplingError(f"chain 2 of batch 1: its energy is not finite, niceness {os.nice(0)}")
        yield from super().run_block(batch, *arguments)


class Slow(Worker):
    """A worker that takes half a second for each iteration."""

    def should_stop(self) -> bool:
        time.sleep(0.5)
        return super().should_stop()


def _run(store: Store, **settings: Any) -> tuple[list[Progress], RayExecutor]:
    with RayExecutor(**settings) as executor:
        return list(executor.run(store.path, range(store.n_batches))), executor


def _deaths(folder: Path, count: int) -> None:
    (folder / "deaths").mkdir()
    for number in range(count):
        (folder / "deaths" / str(number)).touch()


@pytest.mark.parametrize("n_workers", [pytest.param(1, marks=pytest.mark.long), 3])
def test_any_number_of_workers_draws_the_same_bits(tmp_path: Path, undisturbed: Path, n_workers: int) -> None:
    store = make_store(tmp_path / "run.zarr", small_spec(tmp_path))
    _run(store, workers=n_workers)
    assert_same_draws(store.path, undisturbed)


# The next test has workers that die before they reply in the quick tests too.
@pytest.mark.parametrize("kind", [DyingWorker, pytest.param(DyingBeforeReply, marks=pytest.mark.long)])
def test_a_killed_worker_is_replaced_and_the_bits_are_the_same(
    tmp_path: Path, undisturbed: Path, kind: type[Worker]
) -> None:
    store = make_store(tmp_path / "run.zarr", small_spec(tmp_path))
    _deaths(tmp_path, 2)
    _, executor = _run(store, workers=2, worker_class=kind, max_failures=2)
    assert executor.failures == 2
    assert_same_draws(store.path, undisturbed)


@pytest.mark.long
def test_too_many_deaths_end_the_run_and_keep_what_others_finished(tmp_path: Path, undisturbed: Path) -> None:
    store = make_store(tmp_path / "run.zarr", small_spec(tmp_path))
    _deaths(tmp_path, 100)
    with pytest.raises(WorkerError, match=r"2 workers died running batch \d, .* max_failures = 1 allows"):
        _run(store, workers=2, worker_class=DyingBeforeReply, max_failures=1)
    assert sum(store.progress(batch).iteration for batch in range(3)) > 0
    _run(store, workers=2)
    assert_same_draws(store.path, undisturbed)


def test_an_error_in_a_worker_arrives_as_it_was_raised(tmp_path: Path) -> None:
    store = make_store(tmp_path / "run.zarr", small_spec(tmp_path))
    as_nice = f"niceness {os.nice(0)}$"  # as this process; Ray would make its workers nicer
    with pytest.raises(SamplingError, match=f"chain 2 of batch 1: .* {as_nice}"):
        _run(store, workers=2, worker_class=Refusing)
    with pytest.raises(StoreError, match=r"none\.zarr"), RayExecutor(workers=1) as executor:
        list(executor.run(tmp_path / "none.zarr", [0]))


def test_progress_arrives_within_a_block_and_a_stop_ends_it(tmp_path: Path) -> None:
    store = make_store(tmp_path / "run.zarr", small_spec(tmp_path))
    with RayExecutor(workers=3, worker_class=Slow) as executor:
        seen = []
        for progress in executor.run(store.path, range(3)):
            seen.append(progress)
            if len({item.batch for item in seen}) == 3:  # the last worker to start has just begun
                executor.request_stop()
    assert not seen[0].committed  # the first news came before the first commit
    last = {progress.batch: progress for progress in seen}
    assert [last[batch].committed for batch in range(3)] == [True] * 3
    for batch in range(3):
        assert 0 < store.progress(batch).iteration == last[batch].iteration
    assert min(progress.iteration for progress in last.values()) < 18
