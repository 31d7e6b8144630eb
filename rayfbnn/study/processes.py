"""Runs several drivers of a study as processes on this machine, which share its members."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, NoReturn

from rayfbnn import errors
from rayfbnn.errors import RayFBNNError, WorkerError
from rayfbnn.output.printing import answer, guard_streams, say, say_from_handler
from rayfbnn.run.on_ray.cluster import ONE_THREAD
from rayfbnn.run.running import RunOptions
from rayfbnn.run.signals import GRACE_SECONDS, START_AGAIN, interrupt_on_signal, stop_on_signal
from rayfbnn.study.driving import drive, show
from rayfbnn.study.files import StudyFiles

_ROOT = str(Path(__file__).resolve().parents[2])
_LOOK_SECONDS = 0.2  # between two checks of the processes


class Drivers:
    """The processes. One that dies is replaced, because the others cannot tell which member it had."""

    def __init__(self, folder: str, options: RunOptions, *, count: int) -> None:
        """Take the study's folder, the options of each process, and the number of processes."""
        self._arguments = json.dumps({"folder": folder, "options": asdict(replace(options, workers=0))})
        self._max_failures = options.max_failures
        self._count = count
        self._is_stopping = self._is_stopped = False
        self._stop_by = math.inf  # on the monotonic clock
        self._processes: list[subprocess.Popen[str]] = []
        self._inputs: dict[int, IO[str] | None] = {}  # standard input of each process, kept open

    def run(self) -> None:
        """Run the processes to their end.

        Raises KeyboardInterrupt if they were stopped, the error of a process that failed, and WorkerError if
        more than max_failures died.
        """
        failures = 0
        with stop_on_signal(self._stop, say_from_handler):
            try:
                self._processes = [self._start() for _ in range(self._count)]
                while self._processes and time.monotonic() < self._stop_by:
                    process = self._processes[0]
                    try:
                        # This also reads, because a process waits while its pipe is full.
                        output, _ = process.communicate(timeout=_LOOK_SECONDS)
                    except subprocess.TimeoutExpired:
                        self._processes.append(self._processes.pop(0))
                        continue
                    self._processes.remove(process)
                    failures += self._ended(process, output)
                    if failures > self._max_failures:
                        raise WorkerError(
                            f"{failures} drivers of the study died, more than max_failures ="
                            f" {self._max_failures} allows; committed work is kept"
                        )
            finally:
                self._stop()
                self._wait()
        if self._is_stopped:
            raise KeyboardInterrupt("stopped; committed work is kept")

    def _start(self) -> subprocess.Popen[str]:
        # -P: nothing is imported from the current folder. The folder of this package is searched last, in
        # case Python does not find the package elsewhere.
        code = f"import sys; sys.path.append({_ROOT!r}); from rayfbnn.study.processes import main; main()"
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", code, self._arguments],
            stdin=subprocess.PIPE,  # ends with this process
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **ONE_THREAD},
        )
        self._inputs[process.pid], process.stdin = process.stdin, None  # communicate() would close it
        return process

    def _stop(self) -> None:
        """Ask the processes to commit their current work, and to end. A signal handler may call this."""
        self._is_stopping = True
        self._stop_by = min(self._stop_by, time.monotonic() + GRACE_SECONDS)
        for process in self._processes:
            if process.poll() is None:
                process.terminate()

    def _wait(self) -> None:
        """Wait for the processes, and kill any that do not end in time because they are stopped or hang."""
        for process in self._processes:
            try:
                process.communicate(timeout=max(0.0, self._stop_by - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._is_stopped = True
                process.kill()
                process.communicate()
                say(f"driver {process.pid} of the study: did not end in time after the signal, killed")

    def _ended(self, process: subprocess.Popen[str], output: str) -> int:
        """Handle the end of a process. Return 1 if it died and was replaced, otherwise 0."""
        del self._inputs[process.pid]
        if process.returncode == 0:
            return 0
        if process.returncode == START_AGAIN or self._is_stopping:
            self._is_stopped = True
            self._stop()
            return 0
        if process.returncode > 0:
            _raise(output)
        self._processes.append(self._start())
        return 1


def main() -> None:
    """Drive a study as a child process of `Drivers`. An error is sent to the parent on standard output."""
    guard_streams()
    arguments = json.loads(sys.argv[1])
    try:
        with interrupt_on_signal():
            threading.Thread(target=_end_with_parent, daemon=True).start()
            options = RunOptions(**arguments["options"])
            show(drive(StudyFiles.open(arguments["folder"]), options), options)
    except KeyboardInterrupt:
        sys.exit(START_AGAIN)
    except RayFBNNError as exc:
        answer(json.dumps([type(exc).__name__, str(exc)]), as_is=True)
        sys.exit(1)


def _end_with_parent() -> None:
    """End this process once its parent is gone: first as a signal ends it, then at once."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


def _raise(output: str) -> NoReturn:
    """Raise the error that a process has printed."""
    try:
        name, text = json.loads(output)
        kind = getattr(errors, name)
    except (ValueError, TypeError, AttributeError):
        raise WorkerError("a driver of the study failed; its error is above") from None
    raise kind(text)
