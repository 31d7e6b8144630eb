"""Spot workers that Ray's autoscaler makes, and that are taken away, during a run and during a study."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rayfbnn import api
from rayfbnn.store.store import Store
from rayfbnn.study import Rule, Study
from rayfbnn.study.plan import Member
from tests.support.cluster.nodes import NODE, PATIENCE, drain, free_port, processes, session_folder, variables
from tests.support.drivers import descendants, slow_spec, wait_until
from tests.support.pages import ROOT
from tests.support.small import assert_same_draws

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.ray,
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="finds the processes of nodes in /proc"),
]


@pytest.fixture
def spot() -> Iterator[Autoscaler]:
    with autoscaler(2) as cluster:
        yield cluster


def start(spot: Autoscaler, *arguments: object) -> subprocess.Popen[str]:
    """Start `rayfbnn` on the cluster."""
    code = "from rayfbnn.cli import main; main()"
    options = ("--address", spot.address, "--max-failures", 0)
    environment = {**variables(spot.folder), "PYTHONPATH": os.getcwd(), "RAY_AUTH_MODE": "disabled"}
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, (*arguments, *options))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def wait(condition: Any, driver: subprocess.Popen[str]) -> None:
    wait_until(condition, driver, patience=PATIENCE)


def workers(store: Path) -> set[str]:
    """The workers that have committed a block, as the log of a run names them."""
    log = store.with_name(f"{store.name}.log.jsonl")
    lines = map(json.loads, log.read_text().splitlines()) if log.exists() else ()
    return {line["worker"] for line in lines if line["event"] == "block"}


@pytest.mark.parametrize("is_told", [True, False], ids=["with notice", "without"])
def test_spot_workers_come_and_go_during_a_run(spot: Autoscaler, tmp_path: Path, is_told: bool) -> None:
    spec, path = slow_spec(tmp_path, chains=6), tmp_path / "run.zarr"
    (tmp_path / "run.toml").write_text(spec.to_toml())
    assert spot.nodes() == {}
    driver = start(spot, "run", tmp_path / "run.toml", path, "--workers", 2, "--log-format", "json")
    try:
        wait(lambda: len(workers(path)) == 2, driver)
        before = spot.nodes()
        first = min(before)
        if is_told:
            spot.give_notice(first, 60)
            wait(lambda: not spot.runs(first, "Worker"), driver)
        spot.take_away(first)
        wait(lambda: len(workers(path)) == 3, driver)
        assert len(spot.nodes().keys() - before.keys()) == 1, "the autoscaler has made no other node"
        driver.send_signal(signal.SIGTERM)
        output, errors = driver.communicate(timeout=PATIENCE)
    finally:
        driver.kill()
    assert (driver.returncode, output) == (75, ""), errors
    store = Store.open(path)
    length = max(store.progress(batch).iteration for batch in range(store.n_batches)) + 2
    api.resume(path, iterations=length, workers=0, progress=False)
    api.sample(spec.with_iterations(length), tmp_path / "alone.zarr", workers=0, progress=False)
    assert api.verify(path).ok
    assert_same_draws(path, tmp_path / "alone.zarr")


def at_work(spot: Autoscaler, nodes: Iterable[str]) -> list[str]:
    """The nodes that have a worker of a study."""
    return [node for node in nodes if spot.runs(node, "MemberWorker")]


def test_spot_workers_come_and_go_during_a_study(spot: Autoscaler, tmp_path: Path) -> None:
    spec = slow_spec(tmp_path, iterations=5000, chains=2)
    study = Study.create(tmp_path / "study", spec, seeds=3, rule=Rule(looks=1, least_draws=5, cases=3))
    shutil.copytree(str(study.place), tmp_path / "alone")
    driver = start(spot, "study", "run", study.place, "--workers", 2)
    try:
        wait(lambda: any(spot.runs(node, "MemberWorker") for node in spot.nodes()), driver)
        before = spot.nodes()
        spot.take_away(next(node for node in before if spot.runs(node, "MemberWorker")))
        wait(
            lambda: any(spot.runs(node, "MemberWorker") for node in spot.nodes().keys() - before.keys()),
            driver,
        )
        _, errors = driver.communicate(timeout=PATIENCE)
    finally:
        driver.kill()
    assert driver.returncode in (0, 3), errors
    alone = Study.open(tmp_path / "alone")
    alone.run(workers=2, progress=False)
    looks = [sorted((tmp_path / name / "looks").rglob("*.json")) for name in ("study", "alone")]
    assert [file.read_bytes() for file in looks[0]] == [file.read_bytes() for file in looks[1]] != []
    for seed in study.seeds():
        ours, theirs = (str(one.members.place(Member(0, seed))) for one in (study, alone))
        assert api.verify(ours).ok
        assert_same_draws(Path(ours), Path(theirs))


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
