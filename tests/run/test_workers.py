"""The executor in this process, and the methods of a Ray actor, without Ray."""

from __future__ import annotations

import dataclasses
import math
import pickle
from pathlib import Path

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from rayfbnn.errors import StoreError
from rayfbnn.run.executor import InProcess
from rayfbnn.run.on_ray import actors as ray_worker
from rayfbnn.run.on_ray.actors import Worker
from rayfbnn.run.resuming import set_length
from rayfbnn.store.store import Store
from tests.support.small import assert_same_draws, make_store, small_spec


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
                    assert progress.committed  # nothing starts after the stop
                    assert store.progress(progress.batch).iteration == progress.iteration
    assert n_runs > 3
    assert_same_draws(store.path, undisturbed)


def test_a_worker_runs_block_after_block_of_any_batch(tmp_path: Path, undisturbed: Path) -> None:
    store = make_store(tmp_path / "run.zarr", small_spec(tmp_path))
    two = [Worker(str(store.path)) for _ in range(2)]
    turn = 0
    for batch in (2, 0, 1):
        while not list(two[turn % 2].run_block(batch))[-1].is_complete:
            turn += 1
    assert_same_draws(store.path, undisturbed)


def longer(store: Store) -> None:
    with store.lock():
        set_length(store, 33)


def test_a_run_that_has_become_longer_goes_on_where_it_was_open(tmp_path: Path) -> None:
    spec = small_spec(tmp_path)
    here, in_worker, whole = (
        make_store(tmp_path / name, spec.with_iterations(length))
        for name, length in (("here.zarr", 10), ("in_worker.zarr", 10), ("whole.zarr", 33))
    )
    total = whole.spec.total_iterations
    with InProcess() as executor:
        list(executor.run(whole.path, range(3)))
    with InProcess() as executor:
        list(executor.run(here.path, range(3), until=here.spec.total_iterations))
        longer(here)
        *_, last = executor.run(here.path, range(3), until=total)
    assert last.is_complete and last.total_iterations == total
    assert_same_draws(here.path, whole.path)
    worker = Worker(str(in_worker.path))
    for until in (in_worker.spec.total_iterations, total):
        for batch in range(3):
            while not list(worker.run_block(batch, None, until))[-1].has_done(until):
                pass
        longer(in_worker)
    assert_same_draws(in_worker.path, whole.path)


def test_a_worker_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store(tmp_path / "run.zarr", small_spec(tmp_path))
    worker = Worker(str(store.path))
    assert "pid" in worker.ready()[0]
    assert worker.latest() is None
    monkeypatch.setattr(ray_worker, "NEWS_SECONDS", math.inf)
    (last,) = worker.run_block(0)  # until then the only news is the end
    assert last.committed and worker.latest() == last
    monkeypatch.setattr(ray_worker, "NEWS_SECONDS", 0.0)
    news = list(worker.run_block(0))
    assert [item.committed for item in news] == [False] * (news[-1].block_iterations - 1) + [True]
    assert [item.block_iterations for item in news] == [*range(1, len(news)), len(news)]


def test_a_worker_told_to_stop_commits_after_one_iteration(tmp_path: Path) -> None:
    store = make_store(tmp_path / "run.zarr", small_spec(tmp_path))
    (progress,) = Worker(str(store.path), lambda: True).run_block(0)
    assert (progress.iteration, progress.committed, progress.is_complete) == (1, True, False)
    assert store.progress(0).iteration == 1


def test_a_worker_whose_news_nobody_takes_any_more_commits_what_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A generator of Ray is closed where it is told to stop while an item is on its way.
    monkeypatch.setattr(ray_worker, "NEWS_SECONDS", 0.0)
    store = make_store(tmp_path / "run.zarr", small_spec(tmp_path))
    worker = Worker(str(store.path))
    news = worker.run_block(0)
    assert not next(news).committed
    news.close()  # which the garbage collector may do inside anything else: nothing may be sampled here
    assert store.progress(0).iteration == 0
    assert worker.latest().committed
    assert store.progress(0).iteration == worker.latest().iteration == 2


def test_a_worker_says_when_its_store_is_missing(tmp_path: Path) -> None:
    worker = Worker(str(tmp_path / "none.zarr"))
    with pytest.raises(StoreError, match=r"none\.zarr"):
        list(worker.run_block(0))


def test_progress_is_small_enough_to_send_after_every_iteration(tmp_path: Path) -> None:
    store = make_store(tmp_path / "run.zarr", small_spec(tmp_path))
    (progress,) = Worker(str(store.path)).run_block(0)
    assert len(pickle.dumps(progress)) < 1000
    assert all(isinstance(value, int | float | str) for value in dataclasses.asdict(progress).values())


def test_a_finished_run_is_left_alone(undisturbed: Path) -> None:
    blocks = [Store.open(undisturbed).progress(batch).blocks for batch in range(3)]
    with InProcess() as executor:
        assert all(progress.is_complete for progress in executor.run(undisturbed, range(3)))
    assert [Store.open(undisturbed).progress(batch).blocks for batch in range(3)] == blocks


def test_blas_has_one_thread_while_this_process_samples(tmp_path: Path) -> None:
    """This process uses one thread, as workers do, because two threads would round differently."""

    def threads() -> dict[str, int]:
        return {library["filepath"]: library["num_threads"] for library in threadpool_info()}

    store = make_store(tmp_path / "run.zarr", small_spec(tmp_path))
    with threadpool_limits(limits=2):
        before = threads()
        with InProcess() as executor:
            for _ in executor.run(store.path, range(store.n_batches)):
                assert set(threads().values()) == {1}
        after = threads()
    assert 2 in before.values() and before.items() <= after.items()
