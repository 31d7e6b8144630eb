"""Signals that stop a run: the first ends it after the current iterations, a later one at once."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

TYPE_CHECKING = False  # as in the package's __init__.py
if TYPE_CHECKING:
    from typing import Any

# The signals that ask a program to end, and their senders. docs/running.md lists them with the exit codes.
STOPPING = {
    signal.SIGINT: "Ctrl-C; LSF (`bkill`)",
    signal.SIGTERM: "Slurm at the time limit, `scancel` and a preemption; Kubernetes; `docker stop`; `kill`",
    signal.SIGHUP: "a terminal that is closed, an ssh connection that is lost",
    signal.SIGXCPU: "the system at a limit of processor time (`ulimit -t`)",
    signal.SIGUSR1: "Slurm before the time limit (`--signal=USR1@180`); Grid Engine before a pause",
    signal.SIGUSR2: "Grid Engine before it kills (`qsub -notify`); LSF at the time limit",
}
INTERRUPTED = 130  # the exit code of a process that SIGINT ended
START_AGAIN = 75  # "try again later" of sysexits.h
GRACE_SECONDS = 15.0  # Slurm and Kubernetes send SIGKILL 30 seconds after SIGTERM, if nothing else is set
_ALWAYS_OURS = (signal.SIGINT, signal.SIGTERM)
_URGENT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # the others warn, SIGXCPU every second
_SAME_SECONDS = 2.0  # Slurm sends SIGTERM to every process of a job, and a script may send it again
_NOTE = (
    "stopping: the current iterations will be finished and committed;"
    f" signal again after {_SAME_SECONDS:g} seconds to stop at once"
)


def code_of_stopped(command: str) -> int:
    """Return the exit code of a command that a signal stopped.

    `run` and `study run` are for schedulers, which start them again.
    """
    return START_AGAIN if command == "run" else INTERRUPTED


class _Handler:
    def __init__(self, handle: Callable[[int], None]) -> None:
        self._handle = handle

    def __call__(self, number: int, frame: object) -> None:
        self._handle(number)


@contextmanager
def stop_on_signal(
    request_stop: Callable[[], None],
    note: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[None]:
    """Request a stop at the first of the signals STOPPING, and raise KeyboardInterrupt at a second.

    A signal within two seconds of the first does not count as a second, and neither does a later one that
    only warns. `note` is called with a line for the user; `clock` returns the time in seconds.
    """
    first: float | None = None

    def handle(number: int) -> None:
        nonlocal first
        cancel_alarm()
        if first is None:
            first = clock()
            request_stop()
            note(_NOTE)
        elif number in _URGENT and clock() - first > _SAME_SECONDS:
            raise KeyboardInterrupt

    with _handler(handle):
        yield


@contextmanager
def interrupt_on_signal() -> Iterator[None]:
    """Raise KeyboardInterrupt at the first of the signals STOPPING, and ignore all later ones.

    A command uses this before and after `stop_on_signal`. Otherwise the signal would end the process there,
    with an exit code that does not tell why.
    """
    is_first = True

    def handle(number: int) -> None:
        nonlocal is_first
        cancel_alarm()
        if is_first:
            is_first = False
            raise KeyboardInterrupt

    with _handler(handle):
        yield


@contextmanager
def postponed_signals() -> Iterator[None]:
    """Hold the signals STOPPING back until the end of the context, for work that must not be interrupted."""
    came: list[int] = []
    with _handler(came.append):
        yield
    for number in came[:1]:
        signal.raise_signal(number)


@contextmanager
def exit_on_signal(code: int) -> Iterator[None]:
    """End the process with an exit code at a signal that no handler inside the context takes.

    This covers the imports at the start of the program, and its last moments: once the program has ended with
    its own code, a signal ends the process with that code. The handlers stay for the rest of the process.
    """
    note = b"rayfbnn: stopped before it started\n"

    def handle(number: int) -> None:
        with suppress(Exception):  # the signal may have interrupted a write
            os.write(2, note)
            sys.stdout.flush()
        os._exit(code)

    _set_handlers(_Handler(handle))
    atexit.register(_ignore_signals)  # called last, because later registrations are called first
    try:
        yield
    except SystemExit as exc:
        code, note = exc.code if isinstance(exc.code, int) else int(exc.code is not None), b""
        raise


def cancel_alarm() -> None:
    """Cancel an alarm that would end this process, unless Python code handles SIGALRM.

    A SIGTERM that comes while Ray starts may reach a handler in Ray's C++ code. That handler passes the
    signal on, but lets an alarm abort the process three seconds later.
    """
    if not callable(signal.getsignal(signal.SIGALRM)):
        signal.alarm(0)


@contextmanager
def _handler(handle: Callable[[int], None]) -> Iterator[None]:
    previous = _set_handlers(_Handler(handle))
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _set_handlers(handler: _Handler) -> dict[signal.Signals, Any]:
    """Set the handler of all signals that are ours, and return their previous handlers.

    Only the main thread may set handlers; elsewhere this returns an empty dictionary. An ignored SIGHUP stays
    ignored, because that is the purpose of `nohup`. A program that uses this package may keep its own
    handlers for signals other than Ctrl-C and SIGTERM.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    previous = {number: signal.getsignal(number) for number in STOPPING}
    ours = {number: before for number, before in previous.items() if _is_ours(number, before)}
    for number in ours:
        signal.signal(number, handler)
    return ours


def _is_ours(number: signal.Signals, before: object) -> bool:
    return number in _ALWAYS_OURS or before is signal.SIG_DFL or isinstance(before, _Handler)


def _ignore_signals() -> None:
    """Ignore the signals that this file handles, because Python restores the defaults as it ends."""
    for number in STOPPING:
        if isinstance(signal.getsignal(number), _Handler):
            signal.signal(number, signal.SIG_IGN)
