"""Ray is not started where it would wait for ever, and does not change what SIGTERM does."""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from rayfbnn import api
from rayfbnn.errors import ClusterGoneError, ConfigError, WorkerError
from rayfbnn.run.on_ray import cluster
from rayfbnn.run.signals import interrupt_on_signal
from tests.support.drivers import descendants, finish, slow_spec, start, wait_until
from tests.support.small import assert_same_draws, make_store, small_spec


def test_too_few_open_files_for_ray_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = small_spec(tmp_path)
    make_store(tmp_path / "run.zarr", spec)
    limit_of = resource.getrlimit
    limits = {resource.RLIMIT_NOFILE: (64, 64)}
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits.get(which) or limit_of(which))
    # Other tests may have started it in this process.
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    refused = r"Ray needs 512 open files, but this shell allows 64 .*--workers 0"
    with pytest.raises(ConfigError, match=refused):
        api.sample(spec, tmp_path / "new.zarr", workers=2, progress=False)
    with pytest.raises(ConfigError, match="Ray needs 512 open files"):
        api.resume(tmp_path / "run.zarr", workers=2, progress=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.zarr", "train.csv"]


def test_the_limit_of_open_files_is_raised_as_far_as_ray_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (64, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limit: limits.append(limit))
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    cluster.check_ray(2, None)
    assert limits == [(512, 4096)]
    cluster.check_ray(0, None)
    assert limits == [(512, 4096)]


@pytest.fixture
def guards(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Guards of stand-ins for Ray, which end nothing: the Ray that other tests share is of this process."""
    ended: list[str] = []
    monkeypatch.setattr(cluster, "_guards", [])
    monkeypatch.setattr(cluster, "Guard", lambda: SimpleNamespace(end=lambda: ended.append("ended")))
    return ended


class RayThatCannotStart:
    """A stand-in for Ray whose first starts raise an error."""

    def __init__(self, error: BaseException, times: int = 2) -> None:
        self.error, self.times = error, times

    def is_initialized(self) -> bool:
        return False

    def init(self, **options: object) -> None:
        self.times -= 1
        if self.times >= 0:
            raise self.error

    def shutdown(self) -> None:
        pass


ERRORS = [
    OSError(28, "No space left on device"),
    RuntimeError("two\nlines"),
    Exception("The current node timed out"),
    AssertionError(),
    KeyError("node"),
    SystemExit(15),
]


@pytest.mark.parametrize("address", [None, "auto"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_whatever_ray_raises_as_it_starts_is_one_line(
    monkeypatch: pytest.MonkeyPatch, guards: list[str], error: BaseException, address: str | None
) -> None:
    monkeypatch.setattr(cluster, "_import_ray", lambda address: RayThatCannotStart(error))
    with interrupt_on_signal(), pytest.raises(WorkerError) as raised:
        cluster.connect(1, address)
    assert "\n" not in str(raised.value)
    assert ("cannot join" if address else "--workers 0") in str(raised.value)
    assert not any(thread.name == "rayfbnn-ray" for thread in threading.enumerate())
    assert guards == ([] if address else ["ended", "ended"])


_TIMED_OUT = RuntimeError("The current node timed out during startup. This could happen because ...\nmore")


@pytest.mark.usefixtures("guards")
def test_ray_is_started_once_more(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    ray = RayThatCannotStart(_TIMED_OUT, times=1)
    monkeypatch.setattr(cluster, "_import_ray", lambda address: ray)
    assert cluster.connect(1, None) == (ray, True)
    cluster.stop_ray(ray)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "timed out during startup" in line and "once more" in line and "\n" not in line


@pytest.mark.usefixtures("guards")
def test_without_ray_one_process_does_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spec, path = small_spec(tmp_path), tmp_path / "run.zarr"
    monkeypatch.setattr(cluster, "_import_ray", lambda address: RayThatCannotStart(_TIMED_OUT))
    assert api.sample(spec, path, workers=2, progress=False).draws == 10
    assert "goes on without Ray, in one process" in caplog.text
    expected = tmp_path / "expected.zarr"
    api.sample(spec, expected, workers=0, progress=False)
    assert_same_draws(path, expected)
    caplog.clear()
    api.predict(path, data=tmp_path / "train.csv", workers=2)
    assert "goes on without Ray, in one process" in caplog.text
    with pytest.raises(WorkerError, match="cannot join"):
        api.resume(path, iterations=12, address="auto", progress=False)


@pytest.fixture
def sigterm() -> Iterator[None]:
    """Put back what SIGTERM and SIGALRM did before the test."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGALRM)}
    timer = signal.getitimer(signal.ITIMER_REAL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    signal.setitimer(signal.ITIMER_REAL, *timer)


def test_a_cluster_that_was_joined_and_is_gone_is_not_taken_for_a_wrong_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A study connects again before each member."""
    context = SimpleNamespace(gcs_address="127.0.0.1:1")  # where nobody listens
    ray = SimpleNamespace(is_initialized=lambda: True, get_runtime_context=lambda: context)
    monkeypatch.setattr(cluster, "_import_ray", lambda address: ray)
    for address in ("auto", "127.0.0.1:1"):
        with pytest.raises(ClusterGoneError, match="its head does not answer at 127.0.0.1:1") as raised:
            cluster.connect(None, address)
        assert raised.value.exit_code == 75


class RayThatHandlesSigterm:
    """A stand-in for Ray: in the main thread its start sets a handler; the signal may come meanwhile."""

    def __init__(self, *, comes: bool) -> None:
        self.comes = comes
        self.is_started = self.is_stopped = False

    def is_initialized(self) -> bool:
        return False

    def init(self, **options: object) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))
        if self.comes:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.2)
        self.is_started = True

    def shutdown(self) -> None:
        self.is_stopped = self.is_started


@pytest.mark.usefixtures("sigterm", "guards")
@pytest.mark.parametrize("address", [None, "auto"])
def test_the_handler_of_sigterm_outlives_the_start_of_ray(
    monkeypatch: pytest.MonkeyPatch, address: str | None
) -> None:
    monkeypatch.setattr(cluster, "_import_ray", lambda address: RayThatHandlesSigterm(comes=False))
    with interrupt_on_signal():
        ours = signal.getsignal(signal.SIGTERM)
        cluster.connect(1, address)
        assert signal.getsignal(signal.SIGTERM) is ours
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    cluster.connect(1, address)  # without one of ours that of Ray stays, which stops its processes
    assert callable(signal.getsignal(signal.SIGTERM))


@pytest.mark.usefixtures("sigterm", "guards")
@pytest.mark.parametrize("address", [None, "auto"])
def test_sigterm_while_ray_starts_stops_it_once_it_has_started(
    monkeypatch: pytest.MonkeyPatch, address: str | None
) -> None:
    ray = RayThatHandlesSigterm(comes=True)
    monkeypatch.setattr(cluster, "_import_ray", lambda address: ray)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(60)
    with interrupt_on_signal(), pytest.raises(KeyboardInterrupt, match="while Ray was starting"):
        cluster.connect(1, address)
    assert ray.is_stopped and signal.alarm(0) == 0


@pytest.mark.long
@pytest.mark.ray
def test_a_job_that_is_told_to_stop_while_ray_starts_ends_with_75(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(slow_spec(tmp_path).to_toml())
    driver = start("run", tmp_path / "run.toml", tmp_path / "run.zarr", "--workers", 1)
    wait_until(lambda: any("raylet/raylet" in command for _, command in descendants(driver.pid)), driver)
    for _ in range(4000):  # some come while Ray's own handler of SIGTERM, which prints stack traces, is set
        if driver.poll() is None:
            driver.send_signal(signal.SIGTERM)
            time.sleep(0.003)
    code, _, errors = finish(driver)
    assert code == 75, errors
    assert "SIGTERM received" not in errors, errors
