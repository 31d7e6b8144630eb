"""The parts of the training cases follow the nodes of a cluster, and the draws are those of one process.

Ray is a stand-in here, whose nodes change at chosen reports; test_nodes_on_ray.py has true ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rayfbnn.errors import SamplingError
from rayfbnn.run.executor import InProcess
from rayfbnn.run.on_ray import actors as ray_worker
from rayfbnn.run.on_ray import executor as ray_executor
from rayfbnn.run.on_ray import nodes as ray_nodes
from rayfbnn.run.on_ray import owners as ray_owners
from rayfbnn.run.on_ray import transport as ray_transport
from rayfbnn.run.on_ray.actors import PartsWorker
from rayfbnn.run.on_ray.executor import RayExecutor
from rayfbnn.run.on_ray.transport import shares
from rayfbnn.store.store import Store
from tests.support.small import SMALL, assert_same_draws, make_store, small_spec

pytest.importorskip("ray")
from tests.support.cluster.standin_ray import Death, Handle, StandinRay  # noqa: E402, it imports Ray

N_PARTS = 4
OPERATIONS: list[dict[str, Any]] = [
    {"op": "sample-sigmas"},
    {"op": "heatbath"},
    {"op": "hybrid", "steps": 2, "stepsize": 0.2, "partitions": N_PARTS, "order": "cyclic"},
    {"op": "hybrid", "steps": 1, "stepsize": 0.1},
]
Event = Callable[[], object]


def new_store(folder: Path) -> Store:
    data = {**SMALL["data"], "parts": N_PARTS}
    phase = [{"iterations": 12, "operations": OPERATIONS}]
    return make_store(folder / "run.zarr", small_spec(folder, data=data, phase=phase, draws_per_block=2))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = new_store(tmp_path_factory.mktemp("alone"))
    with InProcess() as executor:
        list(executor.run(store.path, range(store.n_batches)))
    return store.path  # type: ignore[return-value]


class Scene:
    """A run on a stand-in for Ray, with events after so many reports."""

    def __init__(self, store: Store, patch: pytest.MonkeyPatch) -> None:
        self.store, self.patch = store, patch
        patch.setattr(ray_nodes, "_ASK_SECONDS", 0.001)
        patch.setattr(ray_owners, "_ASK_SECONDS", 0.0)
        patch.setattr(ray_owners, "_SETTLE_SECONDS", 0.05)
        patch.setattr(ray_worker, "NEWS_SECONDS", 0.0)

    def run(self, ray: StandinRay, events: dict[int, Event], workers: int | None = None) -> RayExecutor:
        """Run the store to its end; nodes come and go while the driver and the homes are at work."""
        self.patch.setattr(ray_executor, "connect", lambda workers, address: (ray, False))
        self.patch.setattr("ray.get", ray.get)
        self.ray = ray
        settings = {"workers": workers, "address": "of the stand-in", "max_failures": 0}
        with RayExecutor(n_parts=N_PARTS, **settings) as self.executor:
            executor = self.executor
            self.let_driver_go_on_while_homes_wait()
            remove_dead = executor._remove_dead
            is_known = executor._actors._all.__contains__  # a home that the driver ended is no longer
            self.patch.setattr(
                executor, "_remove_dead", lambda actor, why: is_known(actor) and remove_dead(actor, why)
            )
            for number, _ in enumerate(executor.run(self.store.path, range(self.store.n_batches))):
                if number in events:
                    events[number]()
                    executor._watch.look_again()
            self.present = executor._owners.present if executor._owners else ()
            self.alive = [handle for handle in owners(ray) if not handle.is_dead]
        return executor

    def let_driver_go_on(self) -> None:
        """Let the driver follow the nodes once; Death if it ends the home that waits."""
        n_actors = len(self.executor._actors)
        self.executor._watch.look_again()
        self.executor._follow_owners()
        if len(self.executor._actors) < n_actors:
            raise Death

    def let_driver_go_on_while_homes_wait(self) -> None:
        """Homes run in the driver's thread here, so that it has no other moment to go on."""
        clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: self.let_driver_go_on())

        def wait(references: list[Any], **options: Any) -> tuple[list[Any], list[Any]]:
            while not (answer := self.ray.wait(references, **options))[0]:
                self.let_driver_go_on()
            return answer

        self.patch.setattr(ray_transport, "time", clock)
        self.patch.setattr("ray.wait", wait)

    def parts(self) -> dict[str, tuple[int, ...]]:
        """The parts of each node in the division at the end, which every owner must hold."""
        for owner in self.present:
            assert set(owner.handle.worker._owner.parts) >= set(owner.parts)
        return {owner.handle.node: owner.parts for owner in self.present}


def owners(ray: StandinRay) -> list[Handle]:
    return [handle for handle in ray.handles if handle.worker_class is PartsWorker]


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(new_store(tmp_path), monkeypatch)


@pytest.mark.parametrize(
    ("holdings", "expected"),
    [
        ([(), ()], [(0, 1), (2, 3)]),
        ([(), (0, 1)], [(2, 3), (0, 1)]),
        ([(0, 1, 2, 3), ()], [(0, 1), (2, 3)]),
        ([(2, 3)], [(0, 1, 2, 3)]),
        ([(3,), (), (0, 1)], [(2, 3), (1,), (0,)]),
    ],
)
def test_owners_keep_what_they_have_as_far_as_shares_are_equal(
    holdings: list[tuple[int, ...]], expected: list[tuple[int, ...]]
) -> None:
    assert shares(holdings, N_PARTS) == expected


def test_a_node_that_joins_gets_parts(scene: Scene, alone: Path) -> None:
    ray = StandinRay(first=1)
    scene.run(ray, {5: lambda: ray.add("second", 1)})
    assert scene.parts() == {"first": (0, 1), "second": (2, 3)}
    assert_same_draws(scene.store.path, alone)


@pytest.mark.parametrize("room", [0, 1])
def test_parts_leave_a_node_that_will_be_taken_away(
    scene: Scene, alone: Path, caplog: pytest.LogCaptureFixture, room: int
) -> None:
    ray = StandinRay(first=1, second=1)

    def drain() -> None:
        if room:
            ray.add("third", room)
        ray.draining.add("first")

    left: list[bool] = []

    def lose() -> None:
        left.append(all(handle.is_dead for handle in owners(ray) if handle.node == "first"))
        ray.lose("first")

    executor = scene.run(ray, {8: drain, 30: lose}, workers=None if room == 0 else 2)
    assert left == [True] and executor.failures == 0
    assert scene.parts() == ({"second": (0, 1, 2, 3)} if room == 0 else {"second": (2, 3), "third": (0, 1)})
    assert [line for line in caplog.messages if "will be taken away" in line] == caplog.messages
    assert len(caplog.messages) == 1
    assert_same_draws(scene.store.path, alone)


def test_others_take_the_parts_of_a_node_that_dies(scene: Scene, alone: Path) -> None:
    ray = StandinRay(first=1, second=1)
    scene.run(ray, {8: lambda: ray.lose("second")})
    assert scene.parts() == {"first": (0, 1, 2, 3)}
    assert_same_draws(scene.store.path, alone)


def test_an_owner_of_a_node_that_dies_is_started_again_where_there_is_room(scene: Scene, alone: Path) -> None:
    ray = StandinRay(first=1, second=1, third=1)
    scene.run(ray, {8: lambda: ray.lose("second")}, workers=2)
    assert scene.parts() == {"first": (0, 1), "third": (2, 3)}
    assert_same_draws(scene.store.path, alone)


def test_owners_for_which_there_is_no_room_get_no_parts(scene: Scene, alone: Path) -> None:
    ray = StandinRay(first=1)
    scene.run(ray, {30: lambda: ray.add("second", 1)}, workers=2)
    assert scene.parts() == {"first": (0, 1), "second": (2, 3)}
    assert_same_draws(scene.store.path, alone)


def test_a_node_may_come_and_go_again_and_again(scene: Scene, alone: Path) -> None:
    ray = StandinRay(first=1, second=1)
    events: dict[int, Event] = {}
    for turn, number in enumerate(range(4, 80, 8)):
        node = f"node {turn}"
        events[number] = lambda node=node: ray.add(node, 1)
        events[number + 2] = lambda node=node: ray.draining.add(node)
        events[number + 4] = lambda node=node: ray.lose(node)
    executor = scene.run(ray, events)
    assert executor.failures == 0 and scene.parts() == {"first": (0, 1), "second": (2, 3)}
    assert len(scene.alive) == 2
    assert_same_draws(scene.store.path, alone)


def test_all_owners_may_change_between_two_blocks(scene: Scene, alone: Path) -> None:
    ray = StandinRay(head=0, first=1)  # homes need no core, and are on the head
    executor = scene.run(ray, {8: lambda: (ray.add("second", 1), ray.draining.add("first"))})
    assert executor.failures == 0 and scene.parts() == {"second": (0, 1, 2, 3)}
    assert [handle.node for handle in scene.alive] == ["second"]
    assert_same_draws(scene.store.path, alone)


def test_an_error_of_an_owner_that_reads_ends_the_run(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = StandinRay(first=1)

    def fail(worker: PartsWorker, parts: object) -> None:
        raise SamplingError("no such cases")

    def join() -> None:
        monkeypatch.setattr(PartsWorker, "hold", fail)
        ray.add("second", 1)

    with pytest.raises(SamplingError, match="no such cases"):
        scene.run(ray, {5: join})
