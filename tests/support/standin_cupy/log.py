"""A record of every time the host waits for a device, with the line of rayfbnn that asked for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

PACKAGE = str(Path(__file__).parents[3] / "rayfbnn")

Kind = Literal["read", "wait", "upload", "launch", "array", "product"]
"""A value read on the host; a wait for an event or stream; numbers sent to the device; a kernel launched; an
operation on arrays, which launches a kernel of CuPy's; a product of matrices, with the bytes of the operands
that are copied for it."""


@dataclass(frozen=True)
class Entry:
    kind: Kind
    what: str
    place: str  # file:line of the innermost caller in rayfbnn
    n_bytes: int = 0


_logs: list[list[Entry]] = []


def record(kind: Kind, what: str, n_bytes: int = 0) -> None:
    if kind in ("read", "wait", "upload"):
        from tests.support.standin_cupy import capture

        if capture.recording() is not None:
            raise RuntimeError(f"cudaErrorStreamCaptureUnsupported: {what} while a stream is captured")
    if _logs:
        entry = Entry(kind, what, _place(), n_bytes)
        for log in _logs:
            log.append(entry)


@contextmanager
def recorded() -> Iterator[list[Entry]]:
    """Return the list to which entries are added inside the context."""
    log: list[Entry] = []
    _logs.append(log)
    try:
        yield log
    finally:
        _logs[:] = [other for other in _logs if other is not log]


def host_reads(log: list[Entry]) -> list[str]:
    """The places where the host waited for the device, and for what."""
    return [f"{entry.place}: {entry.what}" for entry in log if entry.kind in ("read", "wait")]


def launches(log: list[Entry]) -> int:
    """Count what a device is asked to run: kernels, operations on arrays, and products."""
    return sum(entry.kind in ("launch", "array", "product") for entry in log)


def _place() -> str:
    frame = sys._getframe()
    while frame is not None and not frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None:
        return "outside rayfbnn"
    return f"{Path(frame.f_code.co_filename).relative_to(PACKAGE)}:{frame.f_lineno}"
