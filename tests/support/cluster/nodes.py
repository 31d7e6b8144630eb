"""A Ray cluster of several nodes on the loopback interface of this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tests.support.drivers import descendants

NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}  # bytes, near the least that Ray takes


@contextmanager
def cluster_of_nodes() -> Iterator[Any]:
    """Start a head without cores, and stop it at the end with all nodes that were added."""
    from ray.cluster_utils import Cluster

    head = {**NODE, "num_cpus": 0, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        yield cluster
    finally:
        cluster.shutdown()


def drain(cluster: Any, node: Any, seconds: int) -> None:
    """Say that a node will be taken away in so many seconds."""
    why = ("--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "spot")
    where = ("--address", cluster.address, "--node-id", node.node_id)
    ray = (sys.executable, "-m", "ray.scripts.scripts", "drain-node")
    subprocess.run([*ray, *where, *why, "--deadline-remaining-seconds", str(seconds)], check=True)


def runs(node: Any, name: str) -> bool:
    """Return True if an actor or a task of this name is on a node."""
    return any(line.startswith(f"ray::{name}") for _, line in _processes(node))


@contextmanager
def halted(node: Any) -> Iterator[None]:
    """Stop the actors and tasks of a node, which lose nothing by it, and let them go on at the end."""
    pids = [pid for pid, line in _processes(node) if line.startswith("ray::")]
    _send(pids, signal.SIGSTOP)
    try:
        yield
    finally:
        _send(pids, signal.SIGCONT)


def _processes(node: Any) -> Iterator[tuple[int, str]]:
    return descendants(node.all_processes["raylet"][0].process.pid)


def _send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # it has ended by itself
            os.kill(pid, number)
