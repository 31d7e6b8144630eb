"""A signal in a command's first or last moments ends it with an exit code that a scheduler understands."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.drivers import finish, iterations_done, slow_spec, start, wait_until
from tests.support.marks import some_long

pytestmark = pytest.mark.usefixtures("usual_signals")

# Programs that say when Python imports the commands, or when their work is done, and then wait for a signal.
_IMPORTING = """
import sys, time
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "rayfbnn.cli.commands":
            print("now", flush=True)
            time.sleep(60)
sys.meta_path.insert(0, Slow())
from rayfbnn.cli import main
main()
"""
_ENDING = """
import atexit, os, sys, time
def wait(write=os.write, sleep=time.sleep):
    write(1, b"now\\n")
    sleep(1)
class AsModulesEnd:
    __del__ = lambda self: wait()
when = sys.argv.pop()
if when == "in the last of atexit":
    atexit.register(wait)
if when == "as modules end":
    kept = AsModulesEnd()
from rayfbnn.cli import main, app
if when == "in the first of atexit":
    app.callback()(lambda: atexit.register(wait))
main()
"""


def _signalled(code: str, number: signal.Signals, *arguments: object) -> tuple[int, str]:
    """Send a signal when the program says "now"; return its exit code and standard error."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert any(line == "now\n" for line in process.stdout)  # reads no further
    process.send_signal(number)
    exit_code, _, errors = finish(process)
    return exit_code, errors


@pytest.mark.parametrize(
    ("number", "command", "code"),
    [
        (signal.SIGTERM, ("run", "a", "b"), 75),
        (signal.SIGHUP, ("study", "run", "a"), 75),
        (signal.SIGINT, ("sample", "a", "b"), 130),
    ],
)
def test_a_signal_while_python_imports_ends_with_the_usual_code(
    number: signal.Signals, command: tuple[str, ...], code: int
) -> None:
    assert _signalled(_IMPORTING, number, *command) == (code, "rayfbnn: stopped before it started\n")


@pytest.mark.parametrize(
    ("number", "when"),
    [
        (signal.SIGTERM, "in the first of atexit"),
        (signal.SIGTERM, "in the last of atexit"),
        (signal.SIGUSR2, "as modules end"),
    ],
)
def test_a_signal_after_the_result_does_not_change_the_exit_code(number: signal.Signals, when: str) -> None:
    arguments = ("study", "--help") if "first" in when else ("--help",)
    assert _signalled(_ENDING, number, *arguments, when) == (0, "")


def test_a_run_that_nohup_started_survives_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(slow_spec(tmp_path).to_toml())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    process = start("run", tmp_path / "run.toml", tmp_path / "run.zarr", "--workers", 0)
    assert process.stderr is not None
    process.stderr.readline()  # the first line of progress
    process.send_signal(signal.SIGHUP)
    done = iterations_done(tmp_path / "run.zarr")
    wait_until(lambda: iterations_done(tmp_path / "run.zarr") > done, process)
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] == 75


@pytest.mark.parametrize(
    "number", some_long([signal.SIGHUP, signal.SIGXCPU, signal.SIGUSR1], [signal.SIGHUP, signal.SIGUSR1])
)
def test_a_run_under_way_ends_with_75_at_every_signal(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "run.toml").write_text(slow_spec(tmp_path).to_toml())
    process = start("run", tmp_path / "run.toml", tmp_path / "run.zarr", "--workers", 0)
    assert process.stderr is not None
    process.stderr.readline()  # the first line of progress
    process.send_signal(number)
    code, _, errors = finish(process)
    assert code == 75, errors
    assert "start it again" in errors
