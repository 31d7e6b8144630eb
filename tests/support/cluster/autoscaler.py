"""Ray's autoscaler with its provider of fake nodes: each node is a raylet on the loopback interface."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.support.cluster.nodes import NODE, drain
from tests.support.cluster.session import free_port, processes, session_folder, variables
from tests.support.drivers import descendants, wait_until
from tests.support.pages import ROOT

_HEAD = "f" * 51 + "00000"  # the provider numbers its nodes from 1 on
_LISTS = "initialization setup head_setup worker_setup head_start_ray worker_start_ray".split()


def _configuration(port: int, n_nodes: int) -> dict[str, Any]:
    """A configuration of the autoscaler; ray.cluster_utils.AutoscalingCluster would stop every Ray here."""
    nodes = {"resources": {"CPU": 1, "object_store_memory": NODE["object_store_memory"]}, "node_config": {}}
    return {
        "cluster_name": "fake",
        "max_workers": n_nodes,
        "idle_timeout_minutes": 60,
        "upscaling_speed": 1.0,
        "provider": {
            "type": "external",
            "module": "tests.support.cluster.spot_provider.SpotProvider",
            "gcs_address": f"127.0.0.1:{port}",
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
            "use_node_id_as_ip": True,
        },
        "head_node_type": "ray.head.default",
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "spot": {**nodes, "min_workers": 0, "max_workers": n_nodes},
        },
        **{f"{name}_commands": [] for name in _LISTS},
        **{name: {} for name in ("auth", "docker", "file_mounts")},
        **{name: [] for name in ("cluster_synced_files", "rsync_exclude", "rsync_filter")},
        "file_mounts_sync_continuously": False,
    }


class Autoscaler:
    """A cluster whose nodes the autoscaler makes as work needs them, and which may be taken away."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.address = folder, f"127.0.0.1:{port}"

    def nodes(self) -> dict[str, int]:
        """The fake nodes whose raylet is alive: their Ray ids, and the process ids of the raylets."""
        ids = {pid: _node_id(pid) for pid, _ in processes(self.folder, "/raylet ")}
        return {name: pid for pid, name in ids.items() if name and name != _HEAD}

    def runs(self, node: str, name: str) -> bool:
        """Return True if an actor or a task of this name is on a node."""
        pid = self.nodes().get(node)
        return pid is not None and any(line.startswith(f"ray::{name}") for _, line in descendants(pid))

    def take_away(self, node: str) -> None:
        """Kill a node with all its processes, as a cloud does, unless it has drained and ended by itself."""
        raylet = self.nodes().get(node)
        if raylet is None:
            return
        for pid in (*(pid for pid, _ in descendants(raylet)), raylet):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def give_notice(self, node: str, seconds: int) -> None:
        """Say that a node will be taken away in so many seconds."""
        drain(self, SimpleNamespace(node_id=node), seconds)


def _node_id(pid: int) -> str:
    try:
        given = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    mark = b"RAY_OVERRIDE_NODE_ID_FOR_TESTING="
    return next((name.removeprefix(mark).decode() for name in given if name.startswith(mark)), "")


@contextmanager
def autoscaler(n_nodes: int) -> Iterator[Autoscaler]:
    """Start a head without cores whose autoscaler may make so many nodes of one core; end all of it."""
    with session_folder() as folder:
        port = free_port()
        (folder / "autoscaler.json").write_text(json.dumps(_configuration(port, n_nodes)))
        fake = {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
        options = [
            f"--port={port}",
            "--node-ip-address=127.0.0.1",
            "--num-cpus=0",
            f"--object-store-memory={NODE['object_store_memory']}",
            "--include-dashboard=false",
            f"--autoscaling-config={folder}/autoscaler.json",
        ]
        with (folder / "head.log").open("w") as log:
            head = subprocess.Popen(
                [*command, *options],
                env={**os.environ, **variables(folder), **fake, "RAY_AUTH_MODE": "disabled"},
                stdout=log,
                stderr=log,
            )
        wait_until(lambda: "block forever" in (folder / "head.log").read_text(), head)
        try:
            yield Autoscaler(folder, port)
        finally:
            head.terminate()
            try:
                head.wait(20)
            except subprocess.TimeoutExpired:
                head.kill()
                head.wait()
