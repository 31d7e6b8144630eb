"""The order of a device's work: streams, events, and when data are copied between its memory and the host's.

Everything is computed at once, as if on the null stream, unless the current stream is captured (capture.py).
A copy on another stream is made only when something waits for it. The copy is filled with wrong numbers, as
it may be on a device, in two cases: the null stream wrote to the memory later than the event that the copying
stream waits for, or the memory was freed before the copy was made.
"""

from __future__ import annotations

import time
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.support.standin_cupy import log

Numbers = np.ndarray[Any, Any]
_now = 0


class Memory:
    """A piece of device memory, with the time when the null stream last wrote to it."""

    def __init__(self) -> None:
        self.write()

    def write(self) -> None:
        global _now
        _now += 1
        self.written = _now


def garbage(values: Numbers) -> Numbers:
    """Fill the array with numbers that no program may use: NaN, or integers far out of range."""
    values.fill({"f": np.nan, "b": True}.get(values.dtype.kind, 0x55))
    if values.dtype.kind in "iu":
        values.view(np.uint8).fill(0x55) if values.flags.c_contiguous and values.ndim else None
    return values


@dataclass(eq=False)
class _Copy:
    memory: weakref.ref[Memory]
    values: Numbers
    out: Numbers
    is_in_order: bool
    is_made: bool = False

    def make(self) -> None:
        if not self.is_made and self.memory() is not None and self.is_in_order:
            self.out[...] = self.values
        self.is_made = True


class Event:
    """cupy.cuda.Event."""

    def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> None:
        self._time, self._copies, self.seconds = 0, list[_Copy](), 0.0

    def record(self, stream: Stream | None = None) -> None:
        self.seconds = time.perf_counter()
        (Stream.current[-1] if stream is None else stream).record(self)

    def synchronize(self) -> None:
        log.record("wait", "event.synchronize")
        for copy in self._copies:
            copy.make()


class Stream:
    """cupy.cuda.Stream."""

    null: Stream
    current: list[Stream]  # the stack of `with stream`; the last is the current one

    def __init__(
        self, null: bool = False, non_blocking: bool = False, ptds: bool = False, priority: int | None = None
    ) -> None:
        if not null and not non_blocking:
            raise NotImplementedError("stand-in: streams that wait for the null stream")
        self._is_null, self._waited_for, self._copies = null, 0, list[_Copy]()

    @property
    def ptr(self) -> int:
        return 0 if self._is_null else id(self)

    def __enter__(self) -> Stream:
        Stream.current.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        Stream.current.pop()

    def begin_capture(self, mode: int | None = None) -> None:
        from tests.support.standin_cupy import capture

        capture.begin(self)

    def end_capture(self) -> Any:
        from tests.support.standin_cupy import capture

        return capture.end(self)

    def is_capturing(self) -> bool:
        from tests.support.standin_cupy import capture

        return self in capture._recordings

    def record(self, event: Event | None = None) -> Event:
        event = Event() if event is None else event
        event._time = _now if self._is_null else self._waited_for
        self._copies = [copy for copy in self._copies if not copy.is_made]
        event._copies = list(self._copies)
        return event

    def wait_event(self, event: Event) -> None:
        self._waited_for = max(self._waited_for, event._time)

    def synchronize(self) -> None:
        log.record("wait", "stream.synchronize")
        for copy in self._copies:
            copy.make()

    def _copy(self, memory: Memory, values: Numbers, out: Numbers) -> None:
        is_in_order = self._is_null or memory.written <= self._waited_for
        self._copies.append(_Copy(weakref.ref(memory), values, garbage(out), is_in_order))


Stream.null = Stream(null=True)
Stream.current = [Stream.null]


def get_current_stream(device_id: int | None = None) -> Stream:
    return Stream.current[-1]


def get_elapsed_time(start: Event, end: Event) -> float:
    """Milliseconds between two events, by the host's clock."""
    return 1e3 * (end.seconds - start.seconds)
