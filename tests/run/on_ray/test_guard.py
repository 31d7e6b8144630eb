"""Ray's processes end with the process that started Ray, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from rayfbnn.run.on_ray import cluster
from rayfbnn.run.on_ray.guard import processes_of_session
from rayfbnn.run.on_ray.nodes import Deadline
from tests.ends.command import is_alive
from tests.support.drivers import descendants, finish, iterations_done, slow_spec, start, wait_until

SLEEPER = "import sys, time; kept = open(sys.argv[1], 'w'); print(flush=True); time.sleep(60)"


DRIVER = (
    "from rayfbnn.run.on_ray.guard import Guard; guard = Guard(); print(flush=True); input(); guard.end()"
)


@pytest.fixture
def driver() -> Iterator[subprocess.Popen[str]]:
    """A process with a guard, which it calls at a line on standard input.

    It is not the process of the tests: the guard would end the session of Ray that other tests share.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


@pytest.fixture
def sleeper(tmp_path: Path, driver: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """A process that has a log open, as those of a session of Ray that the driver began have."""
    folder = tmp_path / f"session_2026-01-02_03-04-05_678901_{driver.pid}" / "logs"
    folder.mkdir(parents=True)
    command = [sys.executable, "-c", SLEEPER, str(folder / "raylet.out")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


@pytest.mark.parametrize("is_stopped", [False, True])
def test_the_guard_ends_what_is_left_of_the_session(
    driver: subprocess.Popen[str], sleeper: subprocess.Popen[str], is_stopped: bool
) -> None:
    if is_stopped:
        sleeper.send_signal(signal.SIGSTOP)
    driver.communicate("end\n", timeout=30)
    assert sleeper.wait(10) == -signal.SIGKILL


def test_the_guard_ends_the_session_of_a_driver_that_is_killed(
    driver: subprocess.Popen[str], sleeper: subprocess.Popen[str]
) -> None:
    driver.kill()
    assert sleeper.wait(30) == -signal.SIGKILL


@pytest.mark.parametrize("which", ["another", "a later one with the same number"])
def test_processes_of_other_sessions_are_left_alone(
    driver: subprocess.Popen[str], sleeper: subprocess.Popen[str], which: str
) -> None:
    pid = driver.pid + (which == "another")
    started = 0 if which == "another" else 2**62
    assert list(processes_of_session(pid, started)) == []
    assert list(processes_of_session(driver.pid, 0)) == [sleeper.pid]


def test_the_deadline_is_the_earliest_and_kills_once() -> None:
    kills: list[float] = []
    with Deadline(lambda: kills.append(time.monotonic())) as deadline:
        deadline.set(float("inf"))
        assert not deadline.is_past()
        deadline.set(0.0)
        deadline.set(60.0)
        wait_until(lambda: bool(kills))
    assert deadline.is_past() and len(kills) == 1


def test_no_deadline_kills_nothing() -> None:
    kills: list[int] = []
    with Deadline(lambda: kills.append(1)):
        pass
    assert not kills


class Died(Exception):
    """An error whose text is like that of Ray's ActorDiedError."""


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            "The actor died because of an error raised in its creation task, ray::Worker.__init__()\n"
            '  File "worker.py", line 9, in __init__\n    import nosuch\nModuleNotFoundError: No module named'
            " 'nosuch'",
            "ModuleNotFoundError: No module named 'nosuch'",
        ),
        (
            "The actor died unexpectedly before finishing this task.\n\tclass_name: Worker\n\tpid: 3092\n"
            "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR"
            " Worker exit detail: Worker exits with an exit code numpy of the folder.",
            "Worker exits with an exit code numpy of the folder.",
        ),
        (
            "The actor died unexpectedly before finishing this task.\n\tclass_name: Worker\n"
            "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR"
            " Worker exit detail: Connection error code 2. Some common causes include: (1) the OOM killer\n"
            "The actor never ran - it was cancelled before it started running.",
            "Connection error code 2.",
        ),
        ("The node is gone.", "The node is gone."),
    ],
)
def test_the_death_of_a_worker_names_its_cause(text: str, cause: str) -> None:
    assert cluster.cause_of(Died(text)) == cause


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.parametrize("when", ["at work", "while Ray starts", "with a stopped worker"])
def test_no_process_of_ray_outlives_a_driver_that_is_killed(tmp_path: Path, when: str) -> None:
    (tmp_path / "run.toml").write_text(slow_spec(tmp_path).to_toml())
    driver = start("run", tmp_path / "run.toml", tmp_path / "run.zarr", "--workers", 2)
    if when == "while Ray starts":
        wait_until(lambda: any("raylet" in command for _, command in descendants(driver.pid)), driver)
    else:
        wait_until(lambda: iterations_done(tmp_path / "run.zarr") > 0, driver)
    started = dict(descendants(driver.pid))
    if when == "with a stopped worker":
        worker = next(pid for pid, command in started.items() if command.startswith("ray::Worker"))
        os.kill(worker, signal.SIGSTOP)
    driver.kill()
    finish(driver)
    time.sleep(5)
    left = {pid: command for pid, command in started.items() if is_alive(pid)}
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert not left
