"""Workers follow the nodes of a cluster: nodes that join, that are taken away, that die, and no head at all.

Ray is a stand-in here, whose nodes change at chosen commits; test_nodes_on_ray.py has true ones.
"""

from __future__ import annotations

import inspect
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rayfbnn.errors import ClusterGoneError, WorkerError
from rayfbnn.run.executor import InProcess
from rayfbnn.run.job import Progress
from rayfbnn.run.on_ray import actors as ray_actors
from rayfbnn.run.on_ray import actors as ray_worker
from rayfbnn.run.on_ray import executor as ray_executor
from rayfbnn.run.on_ray import nodes as ray_nodes
from rayfbnn.run.on_ray.actors import Worker
from rayfbnn.run.on_ray.cluster import result_alone_on_stdout
from rayfbnn.run.on_ray.executor import RayExecutor
from rayfbnn.run.on_ray.nodes import look_at_nodes
from rayfbnn.store.store import Store
from tests.support.small import assert_same_draws, make_store, small_spec

pytest.importorskip("ray")
from tests.support.cluster.standin_ray import Death, StandinRay  # noqa: E402, it imports Ray


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the nodes be looked at all the time, and every iteration be reported."""
    monkeypatch.setattr(ray_actors, "_ASK_AGAIN_SECONDS", 0.001)
    monkeypatch.setattr(ray_nodes, "_ASK_SECONDS", 0.001)
    monkeypatch.setattr(ray_worker, "NEWS_SECONDS", 0.0)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_store(tmp_path / "run.zarr", small_spec(tmp_path))


Event = Callable[[], object]


def run(
    ray: StandinRay, store: Store, monkeypatch: pytest.MonkeyPatch, events: dict[int, Event], **settings: Any
) -> RayExecutor:
    """Run a store to its end, with events after so many reports; return the executor."""
    monkeypatch.setattr(ray_executor, "connect", lambda workers, address: (ray, False))
    with RayExecutor(**settings) as executor:
        for number, _ in enumerate(executor.run(store.path, range(store.n_batches))):
            if number in events:
                events[number]()
                executor._watch.look_again()
    return executor


def test_a_node_that_joins_is_used(store: Store, undisturbed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = StandinRay(first=1)
    run(ray, store, monkeypatch, {5: lambda: ray.add("second", 1)})
    assert len(ray.handles) == 2 and ray.blocks["second"] > 1
    assert_same_draws(store.path, undisturbed)


def test_there_are_no_more_workers_than_batches_or_than_were_asked_for(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = StandinRay(first=1)
    run(ray, store, monkeypatch, {5: lambda: ray.add("second", 50)})
    assert len(ray.handles) == store.n_batches == 3
    ray = StandinRay(first=50)
    run(ray, make_store(tmp_path / "two.zarr", small_spec(tmp_path)), monkeypatch, {}, workers=2)
    assert len(ray.handles) == 2


def test_a_node_that_will_be_taken_away_commits_and_is_left(
    store: Store, undisturbed: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ray = StandinRay(first=1, second=1)
    done: list[int] = []

    def drain() -> None:
        ray.draining.add("first")
        done.append(ray.blocks["first"])

    executor = run(ray, store, monkeypatch, {4: drain, 20: lambda: ray.lose("first")}, max_failures=0)
    assert executor.failures == 0
    assert ray.blocks["first"] - done[0] in (0, 1)  # the block under way, if there was one
    assert caplog.messages == [
        "node first will be taken away: its 1 worker will commit and stop, and others continue elsewhere"
    ]
    assert_same_draws(store.path, undisturbed)


def test_a_block_is_not_run_to_its_end_on_a_node_that_will_be_taken_away(
    store: Store, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = StandinRay(first=1)
    run(ray, store, monkeypatch, {0: lambda: (ray.draining.add("first"), ray.add("second", 1))})
    assert store.commits.read(0, 0).n_iterations == 2 < 3  # stopped in the second; the phase has three
    assert_same_draws(store.path, undisturbed)


def test_a_node_that_dies_counts_for_no_block(
    store: Store, undisturbed: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ray = StandinRay(first=2, second=1)
    executor = run(ray, store, monkeypatch, {7: lambda: ray.lose("first")}, max_failures=0)
    assert executor.failures == 2
    assert caplog.messages == ["node first died with 2 workers: other workers continue"]
    assert_same_draws(store.path, undisturbed)


@pytest.mark.parametrize("is_dead", [True, False])
def test_workers_that_cannot_be_reached_are_waited_for(
    store: Store,
    undisturbed: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_dead: bool,
) -> None:
    ray = StandinRay(first=2, second=1)
    fate = ray.lose if is_dead else ray.cut_off.discard
    events = {7: lambda: ray.cut_off.add("first"), 12: lambda: fate("first")}
    executor = run(ray, store, monkeypatch, events, max_failures=0)
    assert executor.failures == (2 if is_dead else 0)
    assert caplog.messages == (["node first died with 2 workers: other workers continue"] if is_dead else [])
    assert_same_draws(store.path, undisturbed)


def test_a_worker_that_cannot_be_reached_for_too_long_counts_as_dead(
    store: Store, undisturbed: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ray_executor, "_FATE_SECONDS", 0.05)
    ray = StandinRay(first=1, second=3)
    executor = run(ray, store, monkeypatch, {7: lambda: ray.cut_off.add("first")}, max_failures=1)
    assert executor.failures == 1
    assert ["it cannot be reached" in line for line in caplog.messages] == [True]
    assert_same_draws(store.path, undisturbed)


class Mortal(Worker):
    """A worker that dies in its first try of every block, and of batch 1 in as many tries as `tries` says."""

    tries = 1
    died: Counter[tuple[int, int]] = Counter()

    def run_block(self, batch: int, *arguments: Any) -> Iterator[Progress]:
        block = batch, Store.open(self._store_path).progress(batch).blocks
        self.died[block] += 1
        if self.died[block] <= (self.tries if batch == 1 else 1):
            raise Death
        yield from super().run_block(batch, *arguments)


@pytest.fixture
def mortal(monkeypatch: pytest.MonkeyPatch) -> type[Mortal]:
    monkeypatch.setattr(Mortal, "died", Counter())
    return Mortal


def test_every_block_may_lose_as_many_workers_as_max_failures(
    store: Store, undisturbed: Path, monkeypatch: pytest.MonkeyPatch, mortal: type[Mortal]
) -> None:
    executor = run(StandinRay(first=2), store, monkeypatch, {}, max_failures=1, worker_class=mortal)
    assert executor.failures == len(mortal.died) > 9
    assert_same_draws(store.path, undisturbed)


def test_a_block_that_loses_more_workers_ends_the_run(
    store: Store, monkeypatch: pytest.MonkeyPatch, mortal: type[Mortal]
) -> None:
    monkeypatch.setattr(mortal, "tries", 3)
    with pytest.raises(WorkerError, match="3 workers died running batch 1, .* max_failures = 2 allows"):
        run(StandinRay(first=2), store, monkeypatch, {}, max_failures=2, worker_class=mortal)


def test_a_head_that_is_gone_ends_the_run_with_75_and_the_run_goes_on_later(
    store: Store, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_nodes, "_GONE_SECONDS", 0.2)
    monkeypatch.setattr(ray_nodes, "_WAIT_SECONDS", 0.1)
    ray = StandinRay(first=2)
    slow = type("Slow", (Worker,), {"should_stop": lambda worker: time.sleep(0.05)})
    with pytest.raises(ClusterGoneError, match="continues from there") as raised:
        run(ray, store, monkeypatch, {4: ray.be_silent}, worker_class=slow)
    ray.speak()
    assert raised.value.exit_code == 75
    assert 0 < sum(store.progress(batch).iteration for batch in range(3)) < 3 * 18
    with InProcess() as executor:
        list(executor.run(store.path, range(3)))
    assert_same_draws(store.path, undisturbed)


def test_a_version_of_ray_that_names_no_such_nodes_gets_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    ray_nodes._warn_of_version.cache_clear()
    ray = StandinRay(first=3)
    del ray._private
    for _ in range(2):
        assert look_at_nodes(ray, 0).room == 3
    assert len(caplog.messages) == 1 and "which nodes will be taken away" in caplog.messages[0]


def test_workers_have_room_on_nodes_that_stay() -> None:
    ray = StandinRay(first=3, second=2, head=0)
    assert look_at_nodes(ray, 0).room == 5
    ray.draining.add("first")
    assert look_at_nodes(ray, 0).room == 2
    assert look_at_nodes(ray, 0.5).room == 1  # no GPUs: a worker that waits may make an autoscaler add one


def test_what_ray_prints_of_dead_nodes_goes_to_the_log(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    # Ray's own functions, as its thread `listen_error_messages` calls them.
    import ray._private.worker as ray_worker

    assert "print_to_stdstream(" in inspect.getsource(ray_worker.listen_error_messages)
    caplog.set_level(logging.DEBUG)
    report = {"lines": ["Raylet is terminated"], "pid": "raylet", "is_err": False}
    before = ray_worker.print_to_stdstream
    with result_alone_on_stdout():
        ray_worker.print_to_stdstream(report, ignore_prefix=False)
        print("of another thread")
    assert capsys.readouterr() == ("", "of another thread\n")
    assert caplog.messages == ["Ray: Raylet is terminated"]
    assert ray_worker.print_to_stdstream is before


def test_a_worker_is_as_nice_as_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    increments: list[int] = []
    monkeypatch.setattr(os, "nice", lambda increment: increments.append(increment) or 5)
    Worker(str(tmp_path), niceness=12)
    Worker(str(tmp_path), niceness=3)  # nobody may lower it
    assert [increment for increment in increments if increment] == [7]
