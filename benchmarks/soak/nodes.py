"""A run on a Ray cluster of this machine, whose nodes are killed and added beneath it."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.soak.disturbed import Disturbed
from benchmarks.soak.processes import has_ended, megabytes, send, start_driver, wait_for_end

_MOST_NODES = 2
_TURNS = 40  # of nodes, before the driver is replaced by one that asks for another number of workers
_OBJECT_STORE = 80 * 2**20  # bytes, near the least that Ray takes


class OnACluster:
    """A driver with `--address` that works on, turn after turn, while the nodes of the cluster change."""

    def __init__(self, cluster: Any, config: Path, store: Disturbed, generator: random.Random) -> None:
        self._cluster, self._store, self._generator = cluster, store, generator
        self._config, self._log = config, config.parent / "cluster.log"
        self._workers = 1
        self._nodes = [self._add()]
        self._start()

    def turn(self) -> None:
        """Kill a node or add one; after some turns, kill or stop the driver and start another."""
        assert not has_ended(self._driver), f"the driver ended: {self._log.read_text()[-2000:]}"
        self._life.append(megabytes(self._driver))
        if len(self._life) == _TURNS:
            self.end("driver killed" if self._generator.random() < 0.5 else "driver stopped")
            self._workers = 1 + self._workers % 3
            self._start()
        elif len(self._nodes) == _MOST_NODES or (self._nodes and self._generator.random() < 0.5):
            node = self._nodes.pop(self._generator.randrange(len(self._nodes)))
            self._cluster.remove_node(node, allow_graceful=False)
            self._store.turns["node killed"] += 1
        else:
            self._nodes.append(self._add())
            self._store.turns["node added"] += 1

    def end(self, how: str = "driver stopped") -> None:
        """End the driver, and see that its exit code is right."""
        send(self._driver, signal.SIGKILL if how == "driver killed" else signal.SIGTERM)
        exit_code, _ = wait_for_end(self._driver)
        self._store.note_end(exit_code, how, self._log)
        self._store.memory = max(self._store.memory, self._life, key=len)

    def _start(self) -> None:
        self._life: list[float] = []  # megabytes of the driver, turn by turn
        where = ("--address", self._cluster.address, "--workers", self._workers, "--max-failures", 1000)
        arguments = (self._config, self._store.address, *where)
        self._driver = start_driver(*arguments, log=self._log, environment=dict(os.environ))

    def _add(self) -> Any:
        return self._cluster.add_node(num_cpus=1, object_store_memory=_OBJECT_STORE)


@contextmanager
def on_a_cluster(config: Path, store: Disturbed, generator: random.Random) -> Iterator[OnACluster]:
    """Start a cluster on the loopback interface, and a driver that runs `store` on it."""
    os.environ.update(RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0", RAY_USAGE_STATS_ENABLED="0")
    from ray.cluster_utils import Cluster  # after the environment that keeps Ray on loopback

    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": _OBJECT_STORE}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        yield OnACluster(cluster, config, store, generator)
    finally:
        cluster.shutdown()
