"""Metrics of a run: what they count, how often Ray is told, and that Prometheus gets them."""

from __future__ import annotations

import json
import logging
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

from rayfbnn.run.on_ray import metrics
from rayfbnn.run.on_ray.metrics import RayMetrics, warn_without_agent
from rayfbnn.run.sampler import Sampler
from rayfbnn.store.store import Store
from tests.support.drivers import finish, slow_spec, start, wait_until
from tests.support.pages import ROOT
from tests.support.small import make_store, small_spec

CONFIGURATION = ROOT / "cluster" / "prometheus" / "prometheus.yml"


class Recorder:
    """A metric of Ray that keeps what it was told, by name and tags, and how often."""

    values: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    n_calls = 0

    def __init__(self, name: str, description: str, tag_keys: tuple[str, ...]) -> None:
        self._series = self.values.setdefault(name, {})
        self._tag_keys = set(tag_keys)

    def inc(self, value: float, tags: dict[str, str]) -> None:
        assert value > 0 and set(tags) == self._tag_keys  # as Ray demands
        key = tuple(sorted(tags.items()))
        self._series[key] = self._series.get(key, 0) + value
        Recorder.n_calls += 1

    def set(self, value: float, tags: dict[str, str]) -> None:
        assert set(tags) == self._tag_keys
        self._series[tuple(sorted(tags.items()))] = value
        Recorder.n_calls += 1


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> type[Recorder]:
    """Put recorders in the place of Ray's metrics, and an agent that offers them."""
    module = ModuleType("ray.util.metrics")
    module.Counter = module.Gauge = Recorder  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray.util.metrics", module)
    monkeypatch.setattr("ray.util.metrics", module, raising=False)
    monkeypatch.setattr(metrics, "_somebody_offers_metrics", lambda: True)
    monkeypatch.setattr(Recorder, "values", {})
    monkeypatch.setattr(Recorder, "n_calls", 0)
    return Recorder


def totals(told: type[Recorder]) -> dict[str, float]:
    return {name: sum(series.values()) for name, series in told.values.items()}


def run_blocks(store: Store, n_blocks: int) -> None:
    """Run so many blocks of each batch; the small run has seven."""
    sampler = Sampler(store, worker="here")
    for batch in range(store.n_batches):
        for _ in range(n_blocks):
            list(sampler.run_block(batch))


def test_metrics_count_what_is_committed_meanwhile(tmp_path: Path, told: type[Recorder]) -> None:
    store, failures = make_store(tmp_path / "run.zarr", small_spec(tmp_path)), 0
    run_blocks(store, 4)
    before = [store.progress(batch) for batch in range(store.n_batches)]
    with RayMetrics(store, lambda: failures) as observer:
        run_blocks(store, 1)
        failures = 2
        observer._tell()
        assert min(told.values["rayfbnn_seconds_behind"].values()) > 0
        n_calls = told.n_calls
        observer._tell()
        assert told.n_calls == n_calls + 2 * store.n_batches  # no counter is told that nothing has changed
        run_blocks(store, 10)
    found = totals(told)
    assert found["rayfbnn_iterations"] == 5 * (18 - before[0].iteration)
    assert found["rayfbnn_draws"] == 5 * (10 - before[0].draws)
    blocks = [store.commits.n_blocks(batch) for batch in range(store.n_batches)]
    assert found["rayfbnn_commits"] == sum(blocks) - sum(one.blocks for one in before)
    assert found["rayfbnn_failures"] == 2
    assert len(told.values["rayfbnn_acceptance"]) == store.n_batches
    assert set(told.values["rayfbnn_seconds_behind"].values()) == {0.0}  # nobody waits any more


def test_a_resumed_run_counts_only_divergences_of_its_own(
    tmp_path: Path, told: type[Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, read = make_store(tmp_path / "run.zarr", small_spec(tmp_path)), metrics.status_of
    counts = iter((4, 11))
    monkeypatch.setattr(
        metrics, "status_of", lambda *_, **given: replace(read(*_, **given), divergences=next(counts))
    )
    with RayMetrics(store, lambda: 0):
        pass
    assert totals(told)["rayfbnn_divergences"] == 7


def test_the_seconds_grow_while_no_worker_says_anything(
    tmp_path: Path, told: type[Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "_SECONDS", 0.02)
    store = make_store(tmp_path / "run.zarr", small_spec(tmp_path))
    run_blocks(store, 1)
    with RayMetrics(store, lambda: 0):
        seen = set[float]()
        deadline = time.monotonic() + 30
        while len(seen) < 4 and time.monotonic() < deadline:
            seen |= set(told.values["rayfbnn_seconds_behind"].values())
            time.sleep(0.01)
        assert len(seen) >= 4 and max(seen) > 0


@pytest.mark.parametrize(
    ("missing", "is_offered", "is_warned"),
    [
        ("prometheus_client", False, True),
        ("aiohttp", False, True),
        ("opencensus", True, False),
        ("", False, False),
    ],
)
def test_one_line_says_that_there_will_be_no_metrics(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    missing: str,
    is_offered: bool,
    is_warned: bool,
) -> None:
    """Where the agent answers all the same, other Python packages are on its side."""
    monkeypatch.setattr(metrics, "find_spec", lambda name: None if name == missing else object())
    monkeypatch.setattr(metrics, "_somebody_offers_metrics", lambda: is_offered)
    warn_without_agent.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            warn_without_agent()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == is_warned
    assert all(f"there will be no metrics: Ray's agent lacks {missing};" in line for line in lines)
    assert all("\n" not in line for line in lines)


def test_the_parts_that_are_looked_for_are_those_that_ray_imports() -> None:
    """Ray's agent of a node offers metrics if this file can be imported."""
    imported = (
        Path(pytest.importorskip("ray").__file__).parent / "dashboard" / "optional_deps.py"
    ).read_text()
    for name in metrics._PARTS:
        assert f"import {name}" in imported, name


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def cluster_with_metrics(port: int) -> Iterator[str]:
    """Start a node of two cores on the loopback interface whose agent offers metrics; yield its address."""
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 2, "object_store_memory": 80 * 2**20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "metrics_export_port": port})
    try:
        yield cluster.address
    finally:
        cluster.shutdown()


@contextmanager
def prometheus(program: str, folder: Path, target: int) -> Iterator[str]:
    """Run Prometheus on the documented file, but for its target and a shorter interval; yield its address."""
    document = yaml.safe_load(CONFIGURATION.read_text())
    document["global"]["scrape_interval"] = "1s"
    document["scrape_configs"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{target}"]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(document))
    listen = f"127.0.0.1:{free_port()}"
    options = {
        "config.file": folder / "prometheus.yml",
        "storage.tsdb.path": folder / "data",
        "web.listen-address": listen,
        "log.level": "error",
    }
    process = subprocess.Popen([program, *(f"--{name}={value}" for name, value in options.items())])
    try:
        yield f"http://{listen}"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def asked(server: str, query: str) -> dict[str, float]:
    """Ask Prometheus, and return the values by the tag `batch`, "" without it; none before it answers."""
    try:
        with urlopen(f"{server}/api/v1/query?{urlencode({'query': query})}", timeout=10) as answer:
            results = json.load(answer)["data"]["result"]
    except OSError:
        return {}
    return {one["metric"].get("batch", ""): float(one["value"][1]) for one in results}


@pytest.mark.long
@pytest.mark.ray
def test_prometheus_scrapes_the_metrics_of_a_run(tmp_path: Path) -> None:
    """The run is stopped once they are there; what Prometheus has is then what is committed, or less."""
    program: Any = shutil.which("prometheus")
    if program is None:
        pytest.skip("needs Prometheus: Debian's package prometheus")
    if missing := [name for name in metrics._PARTS if find_spec(name) is None]:
        pytest.skip(f'needs {", ".join(missing)}: the extra "metrics"')
    (tmp_path / "run.toml").write_text(slow_spec(tmp_path).to_toml())
    store, port = tmp_path / "run.zarr", free_port()
    where = f'{{store="{store}"}}'
    with cluster_with_metrics(port) as address, prometheus(program, tmp_path, port) as server:
        arguments = ("sample", tmp_path / "run.toml", store, "--address", address, "--no-progress")
        driver = start(*arguments)
        wait_until(lambda: len(asked(server, f"ray_rayfbnn_seconds_behind{where}")) == 2, driver)
        first = asked(server, f"ray_rayfbnn_draws_total{where}")[""]
        wait_until(lambda: asked(server, f"ray_rayfbnn_draws_total{where}")[""] > first, driver)
        last = asked(server, f"ray_rayfbnn_draws_total{where}")[""]
        accepted = asked(server, f"ray_rayfbnn_acceptance{where}")
        names = asked(server, 'count({job="rayfbnn",__name__!~"ray_rayfbnn_.*|up|scrape_.*"})')
        driver.send_signal(signal.SIGTERM)
        code, _, errors = finish(driver)
    assert code == 130 and "there will be no metrics" not in errors
    opened = Store.open(store)
    draws = [opened.progress(batch).draws for batch in range(2)]
    assert 0 < first < last <= sum(2 * n for n in draws)
    assert first % 10 == 0  # blocks of ten draws
    assert set(accepted) == {"0", "1"} and all(0 < share <= 1 for share in accepted.values())
    assert names == {}  # Ray's own metrics are left out


@pytest.mark.long
@pytest.mark.ray
def test_a_run_without_the_extra_says_so_in_one_line(tmp_path: Path) -> None:
    if all(find_spec(name) for name in metrics._PARTS):
        pytest.skip('needs an environment without the extra "metrics"')
    (tmp_path / "run.toml").write_text(small_spec(tmp_path).to_toml())
    with cluster_with_metrics(free_port()) as address:
        driver = start("sample", tmp_path / "run.toml", tmp_path / "run.zarr", "--address", address)
        code, _, errors = finish(driver)
    assert code == 0, errors
    assert errors.count("there will be no metrics") == 1


def test_the_page_shows_the_file_of_cluster() -> None:
    page = (ROOT / "docs" / "running.md").read_text()
    (shown,) = re.findall(r"^    scrape_configs:\n(?:    .*\n)+", page, flags=re.MULTILINE)
    assert textwrap.dedent(shown) in CONFIGURATION.read_text()
    for name in (*metrics._COUNTS, "rayfbnn_acceptance", "rayfbnn_seconds_behind"):
        assert f"`ray_{name}" in page


def test_prometheus_takes_the_file_of_cluster() -> None:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("needs promtool, which Debian's package prometheus has")
    checked = subprocess.run([program, "check", "config", CONFIGURATION], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
