"""A Ray cluster of several nodes on the loopback interface of this machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
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


PATIENCE = 300.0  # seconds; on an idle machine nothing takes a fifth of it


@contextmanager
def session_folder() -> Iterator[Path]:
    """Make a folder with a short path, as sockets need; kill at the end whoever has it as RAY_TMPDIR."""
    with tempfile.TemporaryDirectory(prefix="rf", dir="/tmp", ignore_cleanup_errors=True) as folder:
        try:
            yield Path(folder)
        finally:
            while pids := list(processes(Path(folder))):
                for pid, _ in pids:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                time.sleep(0.1)


def variables(folder: Path) -> dict[str, str]:
    """Variables by which Ray stays on the loopback interface, in a folder, with a token of its own."""
    return {
        "RAY_TMPDIR": str(folder),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def processes(folder: Path, kind: str = "") -> Iterator[tuple[int, str]]:
    """Process id and command of whoever has a folder as RAY_TMPDIR, and the word `kind` in its command."""
    mark = f"RAY_TMPDIR={folder}".encode()
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            with suppress(OSError):  # it has ended, or is another user's
                if mark in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                    line = Path(f"/proc/{entry}/cmdline").read_text().replace("\0", " ").strip()
                    if kind in line:
                        yield int(entry), line


def free_port() -> int:
    """A port of the loopback interface at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
