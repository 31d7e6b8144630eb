"""A driver that is interrupted or killed leaves a valid store, and resume produces the same bits."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from rayfbnn import api
from rayfbnn.store.store import Store
from tests.support.drivers import finish, iterations_done, slow_spec, start, wait_until
from tests.support.small import assert_same_draws

N_COMPARED = 30


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first draws of the slow run, from a run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    api.sample(slow_spec(folder, iterations=N_COMPARED), folder / "run.zarr", workers=0, progress=False)
    return folder / "run.zarr"


def _begin(folder: Path) -> tuple[Path, subprocess.Popen[str]]:
    """Start a driver as a child process; return after its first commit, in the middle of a later block."""
    (folder / "run.toml").write_text(slow_spec(folder).to_toml())
    path = folder / "run.zarr"
    process = start("sample", folder / "run.toml", path, "--workers", 0, "--no-progress")
    wait_until(lambda: iterations_done(path) >= 20, process)
    time.sleep(0.03)
    return path, process


def _is_a_prefix(path: Path, undisturbed: Path) -> None:
    """Check that every file is sound and that the committed draws are the first of the undisturbed run."""
    assert api.verify(path).ok
    store, whole = Store.open(path), Store.open(undisturbed)
    n = min(store.committed_draws, N_COMPARED)
    assert n > 0
    for read in ("read_positions", "read_precisions"):
        ours, theirs = (getattr(store_, read)(slice(0, n)) for store_ in (store, whole))
        assert np.ascontiguousarray(ours).tobytes() == np.ascontiguousarray(theirs).tobytes()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_commits_what_is_done_and_says_how_to_go_on(
    tmp_path: Path, undisturbed: Path, number: signal.Signals
) -> None:
    path, process = _begin(tmp_path)
    before = iterations_done(path)
    started = time.monotonic()
    process.send_signal(number)
    code, output, errors = finish(process)
    assert time.monotonic() - started < 10
    assert (code, output) == (130, "")
    assert "stopping: the current iterations will be finished" in errors
    assert f"continue with: rayfbnn resume {path}" in errors
    assert iterations_done(path) >= before
    _is_a_prefix(path, undisturbed)


def test_a_second_signal_within_two_seconds_counts_as_the_first(tmp_path: Path, undisturbed: Path) -> None:
    """Slurm sends SIGTERM to all processes of a job, and a script that passes it on makes two."""
    path, process = _begin(tmp_path)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.001)
    process.send_signal(signal.SIGTERM)
    code, _, errors = finish(process)
    assert code == 130
    assert errors.count("stopping: the current iterations") == 1
    assert f"continue with: rayfbnn resume {path}" in errors
    _is_a_prefix(path, undisturbed)


def test_a_stopped_job_asks_to_be_started_again_and_ends_with_the_draws_of_one_run(
    tmp_path: Path, undisturbed: Path
) -> None:
    spec = slow_spec(tmp_path, iterations=N_COMPARED)
    (tmp_path / "run.toml").write_text(spec.to_toml())
    path = tmp_path / "run.zarr"
    job = ("run", tmp_path / "run.toml", path, "--workers", 0, "--no-progress")
    process = start(*job)
    wait_until(lambda: iterations_done(path) >= 10, process)
    process.send_signal(signal.SIGTERM)
    code, output, errors = finish(process)
    assert (code, output) == (75, "")
    assert "rayfbnn run: stopped" in errors and "start it again" in errors
    assert finish(start(*job))[0] == 0
    assert_same_draws(path, undisturbed)


def test_a_killed_driver_leaves_a_store_that_another_takes_over(tmp_path: Path, undisturbed: Path) -> None:
    path, process = _begin(tmp_path)
    process.kill()
    assert finish(process)[0] == -signal.SIGKILL
    _is_a_prefix(path, undisturbed)
    before = iterations_done(path)
    follower = start("resume", path, "--workers", 0, "--no-progress")
    wait_until(lambda: iterations_done(path) > before, follower)
    follower.send_signal(signal.SIGINT)
    assert finish(follower)[0] == 130
    _is_a_prefix(path, undisturbed)


@pytest.mark.long
def test_a_run_stopped_by_signals_again_and_again_ends_with_the_same_bits(
    tmp_path: Path, undisturbed: Path
) -> None:
    (tmp_path / "run.toml").write_text(slow_spec(tmp_path, iterations=N_COMPARED).to_toml())
    path = tmp_path / "run.zarr"
    process = start("sample", tmp_path / "run.toml", path, "--workers", 0, "--no-progress")
    for target, number in ((3, signal.SIGINT), (25, signal.SIGKILL), (40, signal.SIGTERM)):
        wait_until(lambda target=target: iterations_done(path) >= target, process)  # type: ignore[misc]
        process.send_signal(number)
        finish(process)
        process = start("resume", path, "--workers", 0, "--no-progress")
    assert finish(process)[0] == 0
    assert api.verify(path).ok
    assert_same_draws(path, undisturbed)
