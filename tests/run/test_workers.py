"""The executor in this process, and what a Ray actor does, without Ray."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path

import pytest

from rayfbnn.errors import StoreError
from rayfbnn.run.store import Store
from rayfbnn.run.workers import InProcess, Worker
from tests.run.small import assert_same_draws, make_store, small_spec


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    store = make_store(folder / "run.zarr", small_spec(folder))
    with InProcess() as executor:
        last = {progress.batch: progress for progress in executor.run(store.path, range(store.n_batches))}
    assert sorted(last) == [0, 1, 2] and all(progress.is_complete for progress in last.values())
    return store.path


def test_batches_advance_in_turn(tmp_path: Path) -> None:
    store = make_store(tmp_path / "run.zarr", small_spec(tmp_path))
    with InProcess() as executor:
        commits = [p.batch for p in executor.run(store.path, range(3)) if p.committed]
    assert commits[:6] == [0, 1, 2, 0, 1, 2]


def test_a_stop_commits_what_is_done_and_a_second_run_goes_on(tmp_path: Path, undisturbed: Path) -> None:
    store = make_store(tmp_path / "run.zarr", small_spec(tmp_path))
    n_runs = 0
    while any(store.progress(batch).iteration < 18 for batch in range(3)):
        n_runs += 1
        with InProcess() as executor:
            for number, progress in enumerate(executor.run(store.path, range(3))):
                if number == 4:
                    executor.request_stop()
                elif number > 4:
                    assert progress.committed  # nothing is begun after the stop
                    assert store.progress(progress.batch).iteration == progress.iteration
    assert n_runs > 3
    assert_same_draws(store.path, undisturbed)


def test_a_worker_runs_block_after_block_of_any_batch(tmp_path: Path, undisturbed: Path) -> None:
    store = make_store(tmp_path / "run.zarr", small_spec(tmp_path))
    workers = [Worker(str(store.path)) for _ in range(2)]
    turn = 0
    for batch in (2, 0, 1):
        while not workers[turn % 2].run_block(batch).is_complete:
            turn += 1
    assert_same_draws(store.path, undisturbed)


def test_a_worker_can_be_asked_how_far_it_is(tmp_path: Path) -> None:
    store = make_store(tmp_path / "run.zarr", small_spec(tmp_path))
    worker = Worker(str(store.path))
    assert worker.peek() is None
    result = worker.run_block(0)
    assert worker.peek() == result
    assert "pid" in worker.ready()


def test_a_worker_told_to_stop_commits_after_one_iteration(tmp_path: Path) -> None:
    store = make_store(tmp_path / "run.zarr", small_spec(tmp_path))
    worker = Worker(str(store.path))
    worker.stop()
    progress = worker.run_block(0)
    assert (progress.iteration, progress.committed, progress.is_complete) == (1, True, False)
    assert store.progress(0).iteration == 1


def test_a_worker_says_when_its_store_is_missing(tmp_path: Path) -> None:
    worker = Worker(str(tmp_path / "none.zarr"))
    with pytest.raises(StoreError, match=r"none\.zarr"):
        worker.run_block(0)


def test_progress_is_small_enough_to_send_after_every_iteration(tmp_path: Path) -> None:
    store = make_store(tmp_path / "run.zarr", small_spec(tmp_path))
    progress = Worker(str(store.path)).run_block(0)
    assert len(pickle.dumps(progress)) < 1000
    assert all(isinstance(value, int | float | str) for value in dataclasses.asdict(progress).values())


def test_a_finished_run_is_left_alone(undisturbed: Path) -> None:
    blocks = [Store.open(undisturbed).progress(batch).blocks for batch in range(3)]
    with InProcess() as executor:
        assert all(progress.is_complete for progress in executor.run(undisturbed, range(3)))
    assert [Store.open(undisturbed).progress(batch).blocks for batch in range(3)] == blocks
