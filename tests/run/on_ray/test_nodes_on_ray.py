"""A driver on a Ray cluster of up to three nodes, which are killed, drained and added beneath it."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rayfbnn import api
from rayfbnn.store.store import Store
from tests.support.cluster.nodes import NODE, cluster_of_nodes, drain, runs
from tests.support.drivers import iterations_done, slow_spec, start
from tests.support.small import SMALL, assert_same_draws

pytestmark = [pytest.mark.ray, pytest.mark.long]
pytest.importorskip("ray")
_PATIENCE = 300.0  # seconds; on an idle machine nothing here takes a tenth of that but the end of a head
_AGAIN_SECONDS = 30.0  # from the moment at which the head knows of a death, until every batch has gone on
_USED_SECONDS = 60.0  # from the moment at which a node is there, until it has done a block


class Scene:
    """A cluster on the loopback interface, and a driver that works on it until it is told to stop."""

    def __init__(self, cluster: Any, folder: Path) -> None:
        self.cluster, self.path = cluster, folder / "run.zarr"
        self.spec = slow_spec(folder, chains=6)

    def begin(self, n_nodes: int, n_workers: int | None = None) -> list[Any]:
        """Start a driver on so many nodes, and wait until so many workers (as nodes) have done a block."""
        n_workers = n_workers or n_nodes
        nodes = [self.cluster.add_node(**NODE) for _ in range(n_nodes)]
        config = self.path.parent / "run.toml"
        config.write_text(self.spec.to_toml())
        options = ("--max-failures", 0, "--log-format", "json", "--no-progress")
        self.driver = start("run", config, self.path, "--address", self.cluster.address, *options)
        self.wait_until(lambda: len({line["worker"] for line in self.log("block")}) == n_workers)
        return nodes

    def kill(self, node: Any) -> float:
        """Kill a node; return the seconds from when the head knows it until every batch has gone on."""
        self.cluster.remove_node(node, allow_graceful=False)
        self.wait_until(lambda: node.node_id not in self.alive())
        known = time.monotonic()
        self.wait_for_all_batches()
        return time.monotonic() - known

    def alive(self) -> set[str]:
        """Ids of the nodes that the head takes to be alive."""
        return {node["NodeID"] for node in self.cluster.global_state.node_table() if node["Alive"]}

    def log(self, event: str) -> list[dict[str, Any]]:
        """Lines of the driver's log about an event."""
        file = self.path.parent / "run.zarr.log.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line for line in map(json.loads, lines) if line["event"] == event]

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition while the driver runs."""
        deadline = time.monotonic() + _PATIENCE
        while not condition():
            assert self.driver.poll() is None, self.driver.communicate()
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.1)

    def wait_for_all_batches(self) -> None:
        """Wait until every batch has committed more than it has now."""
        before = self.done()
        self.wait_until(lambda: all(now > then for now, then in zip(self.done(), before, strict=True)))

    def done(self) -> list[int]:
        """Iterations that each batch has committed."""
        store = Store.open(self.path)
        return [store.progress(batch).iteration for batch in range(store.n_batches)]

    def end(self, *, is_told: bool = True) -> list[str]:
        """Wait for the driver's end, after a signal or without; return its lines on standard error."""
        if is_told:
            self.driver.send_signal(signal.SIGTERM)
        output, errors = self.driver.communicate(timeout=_PATIENCE)
        assert (self.driver.returncode, output) == (75, ""), errors
        return [line for line in errors.splitlines() if line.strip()]

    def compare(self) -> None:
        """Resume the run without Ray, and compare its draws with those of a run that nothing disturbed."""
        length = max(self.done()) + 2
        api.resume(self.path, iterations=length, workers=0, progress=False)
        other = self.path.parent / "other.zarr"
        api.sample(self.spec.with_iterations(length), other, workers=0, progress=False)
        assert_same_draws(self.path, other)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with cluster_of_nodes() as cluster:
        scene = Scene(cluster, tmp_path)
        try:
            yield scene
        finally:
            scene.driver.kill()


def test_a_node_that_is_killed_is_one_line_and_its_batch_goes_on(scene: Scene) -> None:
    first, _ = scene.begin(2)
    seconds = scene.kill(first)
    scene.wait_until(lambda: scene.log("block")[-1]["failures"] == 1)
    errors = scene.end()
    assert seconds < _AGAIN_SECONDS
    assert len([line for line in errors if "died with 1 worker: other workers continue" in line]) == 1, errors
    assert len(errors) <= 4, errors  # beside it the two of the stop
    assert scene.log("end")[-1]["failures"] == 1
    scene.compare()


@pytest.fixture
def in_parts(scene: Scene) -> Scene:
    data = {**SMALL["data"], "parts": 2}
    scene.spec = slow_spec(scene.path.parent, steps=20, chains=6, data=data)
    return scene


@pytest.mark.parametrize("has_room", [True, False])
def test_owners_leave_a_node_that_will_be_taken_away_before_it_goes(in_parts: Scene, has_room: bool) -> None:
    first, _ = in_parts.begin(2, n_workers=3)
    if has_room:
        in_parts.cluster.add_node(**NODE)
    deadline = time.monotonic() + 120
    drain(in_parts.cluster, first, 120)
    in_parts.wait_until(lambda: not runs(first, "PartsWorker"))
    left = time.monotonic()
    in_parts.cluster.remove_node(first, allow_graceful=False)
    in_parts.wait_for_all_batches()
    errors = in_parts.end()
    assert left < deadline
    assert len([line for line in errors if "will be taken away" in line]) == 1, errors
    assert in_parts.log("end")[-1]["failures"] == 0
    in_parts.compare()


def test_a_node_that_joins_owns_parts(in_parts: Scene) -> None:
    in_parts.begin(1, n_workers=2)
    added = time.monotonic()
    second = in_parts.cluster.add_node(**NODE)
    in_parts.wait_until(lambda: runs(second, "PartsWorker"))
    seconds = time.monotonic() - added
    in_parts.wait_for_all_batches()
    in_parts.end()
    assert seconds < _USED_SECONDS
    assert in_parts.log("end")[-1]["failures"] == 0
    in_parts.compare()


def test_an_owner_whose_node_is_killed_goes_on_elsewhere_with_the_same_draws(in_parts: Scene) -> None:
    scene = in_parts
    first, _ = scene.begin(2, n_workers=3)  # each node has a part, and homes need no core
    scene.cluster.add_node(**NODE)  # this one has none
    seconds = scene.kill(first)
    scene.end()
    assert seconds < _AGAIN_SECONDS
    scene.compare()


def test_a_node_that_will_be_taken_away_is_left_before_it_goes(scene: Scene) -> None:
    first, _ = scene.begin(2)
    drain(scene.cluster, first, 300)
    time.sleep(5)  # twice what the driver needs to see it
    scene.wait_for_all_batches()
    scene.cluster.remove_node(first, allow_graceful=False)
    scene.wait_for_all_batches()
    errors = scene.end()
    assert len([line for line in errors if "will be taken away" in line]) == 1, errors
    assert scene.log("end")[-1]["failures"] == 0
    scene.compare()


def test_a_node_that_joins_is_used(scene: Scene) -> None:
    scene.begin(1)
    scene.cluster.add_node(**NODE)
    added = time.monotonic()
    scene.wait_until(lambda: len({line["worker"] for line in scene.log("block")}) == 2)
    seconds = time.monotonic() - added
    scene.end()
    assert seconds < _USED_SECONDS
    assert scene.log("end")[-1]["failures"] == 0
    scene.compare()


def test_a_head_that_is_killed_ends_the_driver_and_the_run_goes_on_elsewhere(scene: Scene) -> None:
    scene.begin(2)
    scene.cluster.remove_node(scene.cluster.head_node, allow_graceful=False)
    before = iterations_done(scene.path)
    errors = scene.end(is_told=False)
    assert "the Ray cluster is gone: its head has not answered for 4" in errors[-1], errors
    assert iterations_done(scene.path) > before  # the workers went on meanwhile
    scene.compare()
