"""Signals that stop a run: the first ends it after the iterations under way, a later one at once."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STOPPING = (signal.SIGINT, signal.SIGTERM)
_SAME_SECONDS = 2.0  # Slurm sends SIGTERM to every process of a job, and a script may pass it on once more
_NOTE = (
    "stopping: the iterations under way are finished and committed;"
    f" again, after {_SAME_SECONDS:g} seconds: stop at once"
)


@contextmanager
def stop_on_signal(
    request_stop: Callable[[], None],
    note: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[None]:
    """Request a stop at the first SIGINT or SIGTERM, and raise KeyboardInterrupt at a second.

    A signal within two seconds of the first counts as the first. `note` is called with a line that says what
    happens, and `clock` gives the time in seconds.
    """
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    first: float | None = None

    def handle(number: int, frame: object) -> None:
        nonlocal first
        cancel_alarm()
        if first is None:
            first = clock()
            request_stop()
            note(_NOTE)
        elif clock() - first > _SAME_SECONDS:
            raise KeyboardInterrupt

    with _handler(handle):
        yield


@contextmanager
def interrupt_on_signal() -> Iterator[None]:
    """Raise KeyboardInterrupt at the first SIGINT or SIGTERM, and ignore all later ones.

    It is for what a command does before and after `stop_on_signal`. Without it SIGTERM would end the process
    there, with no exit code that tells why.
    """
    is_first = True

    def handle(number: int, frame: object) -> None:
        nonlocal is_first
        cancel_alarm()
        if is_first:
            is_first = False
            raise KeyboardInterrupt

    with _handler(handle):
        yield


def cancel_alarm() -> None:
    """Cancel an alarm that would end this process, unless Python code handles SIGALRM.

    A SIGTERM that comes while Ray starts may meet a handler of Ray's C++ code, which passes the signal on but
    lets an alarm abort the process three seconds later.
    """
    if not callable(signal.getsignal(signal.SIGALRM)):
        signal.alarm(0)


@contextmanager
def _handler(handle: Callable[[int, object], None]) -> Iterator[None]:
    previous = {number: signal.signal(number, handle) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
