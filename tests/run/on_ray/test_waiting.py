"""A run whose workers find no room says what it waits for, and ends if none can ever start."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rayfbnn.errors import ClusterGoneError
from rayfbnn.run.on_ray import executor as ray_executor
from rayfbnn.run.on_ray import nodes
from rayfbnn.run.on_ray.executor import RayExecutor
from rayfbnn.run.on_ray.nodes import Waiting
from tests.support.small import assert_same_draws, make_store, small_spec

pytest.importorskip("ray")
from tests.support.cluster.standin_ray import StandinRay  # noqa: E402, it imports Ray


@pytest.fixture
def pass_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return a function that lets so many seconds pass."""
    now = [1.0]
    monkeypatch.setattr(nodes.time, "monotonic", lambda: now[0])

    def pass_seconds(seconds: float) -> None:
        now[0] += seconds

    return pass_seconds


def cluster_of(total: dict[str, float], free: dict[str, float]) -> Any:
    return SimpleNamespace(available_resources=lambda: free, cluster_resources=lambda: total)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    messages = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return messages


def test_one_line_after_ten_seconds_then_rarely_and_again_when_it_goes_on(
    pass_time: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    room = Waiting(cluster_of({"CPU": 4}, {"CPU": 0.5}))
    room.starting()
    said = []
    for second in range(1500):
        room.note(2, 0)
        said += [second] * len(caplog.records)
        text = "".join(lines(caplog))
        assert text.startswith("waiting for 2 workers with 1 core each: 0.5 of 4 cores") or not text
        assert not text or ("another cluster" in text and "--workers 0" in text and "\n" not in text)
        pass_time(1)
    assert said == [10, 610, 1210]
    room.note(1, 1)
    assert lines(caplog) == ["the run goes on with 1 worker"]
    room.note(0, 2)
    pass_time(100)
    room.note(0, 2)
    assert lines(caplog) == []


def test_workers_that_fit_are_expected_to_start_within_a_minute(
    pass_time: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    free = {"CPU": 2.0}
    room = Waiting(cluster_of({"CPU": 2}, free))
    room.starting()
    free["CPU"] = 0  # its own workers have it, and are starting
    for _ in range(59):
        room.note(2, 0)
        pass_time(1)
    assert lines(caplog) == []
    pass_time(5)
    room.note(2, 0)
    assert len(lines(caplog)) == 1


def test_others_that_work_are_named(
    pass_time: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    room = Waiting(cluster_of({"CPU": 4, "GPU": 1}, {"CPU": 3}), gpus=0.5)
    room.starting()
    for _ in range(2000):
        room.note(1, 2)
        pass_time(1)
    (line,) = lines(caplog)
    assert "1 worker with 1 core and 0.5 GPU each: 3 of 4 cores and 0 of 1 GPUs" in line
    assert line.endswith("the run goes on with 2 workers meanwhile")


def test_a_session_that_a_cleaner_removed(
    tmp_path: Path, pass_time: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "session"
    folder.mkdir()
    room = Waiting(None, session=str(folder))
    room.starting()
    for working in (1, 1, 0):
        room.note(1, working)
        pass_time(700)
    assert lines(caplog) == []
    folder.rmdir()
    room.note(1, 1)
    (line,) = lines(caplog)
    assert str(folder) in line and "goes on with 1 worker meanwhile" in line
    room.note(0, 1)
    room.note(2, 0)
    pass_time(11)
    with pytest.raises(ClusterGoneError, match="RAY_TMPDIR") as raised:
        room.note(2, 0)
    assert raised.value.exit_code == 75 and str(folder) in str(raised.value)


def test_a_run_on_a_busy_cluster_says_so_and_goes_on(
    tmp_path: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(tmp_path / "run.zarr", small_spec(tmp_path))
    ray = StandinRay(a=2)
    others = [SimpleNamespace(node="a", cpus=1, is_dead=False, name="") for _ in range(2)]
    ray.handles += others  # type: ignore[arg-type]
    monkeypatch.setattr(ray_executor, "connect", lambda workers, address: (ray, False))
    monkeypatch.setattr(nodes, "_QUIET_SECONDS", 0.1)
    said = []

    def note(record: logging.LogRecord) -> None:
        said.append(record.getMessage())
        for other in others:
            other.is_dead = True

    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", note)
    monkeypatch.setattr(nodes._log, "handlers", [handler])
    with RayExecutor(workers=2, address="auto") as executor:
        list(executor.run(store.path, range(store.n_batches)))
    assert len(said) == 2 and "0 of 2 cores" in said[0] and "goes on" in said[1]
    assert_same_draws(store.path, undisturbed)
