"""All printing of the program; a stream that is full, closed or gone never stops a run."""

from __future__ import annotations

import logging
import os
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TextIO, cast

from rayfbnn.errors import NO_SPACE, visible, visible_but_styles
from rayfbnn.output.lines import folded, line_width


class LastingStream:
    """A text stream whose writes never fail; text that cannot be written is dropped.

    Control characters become escapes, except in colours, because text may come from files of other people.

    Attributes
    ----------
    lost
        Why text was dropped that somebody would have read, such as "No space left on device", or None if no
        such text was dropped. Nobody reads a pipe without a reader, a terminal that is gone, or a closed
        stream.
    is_read
        False as soon as nobody reads the stream any more.
    """

    def __init__(self, stream: TextIO | None, *, draws: bool = False) -> None:
        """Take a stream, and whether control characters are written as they are, to draw on a terminal."""
        self._stream = stream
        self._draws = draws
        self.lost: str | None = None
        self.is_read = stream is not None

    def write(self, text: str) -> int:
        """Write the text, or drop it; return its length."""
        shown = text if self._draws else visible_but_styles(text)
        self._attempt(lambda stream: stream.write(shown))
        return len(text)

    def flush(self) -> None:
        """Flush the stream, if that is possible."""
        self._attempt(lambda stream: stream.flush())

    def isatty(self) -> bool:
        """Return True if the stream is a terminal."""
        with suppress(OSError, ValueError):
            return self._stream is not None and self._stream.isatty()
        return False

    def _attempt(self, action: Callable[[TextIO], object]) -> None:
        if self._stream is None:
            return
        try:
            action(self._stream)
        except (OSError, ValueError) as exc:  # ValueError: closed, or the text cannot be encoded
            if self._would_be_read(exc):
                self.lost = getattr(exc, "strerror", None) or str(exc)
            else:
                self.is_read = False
            if sys.stderr is self._stream:  # Python flushes it at the end, and would exit with 120
                sys.stderr = cast(TextIO, self)

    def _would_be_read(self, error: Exception) -> bool:
        if getattr(error, "errno", None) in NO_SPACE:
            return True
        with suppress(OSError, ValueError):
            return self._stream is not None and stat.S_ISREG(os.fstat(self._stream.fileno()).st_mode)
        return False

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":  # bytes written there could fail
            raise AttributeError(name)
        return getattr(self._stream, name)


def guard_streams() -> LastingStream:
    """Guard the standard streams of this process against failures; return standard output, guarded.

    A closed descriptor is opened on /dev/null. Otherwise a file of the store would get its number, and text
    that a library prints would end up in that file. Characters that the locale cannot represent are escaped.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, this one
            os.set_inheritable(descriptor, True)
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if stream is None:
            stream = open(descriptor, "w", closefd=False)  # noqa: SIM115, for the life of the process
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
        setattr(sys, name, LastingStream(stream))
    return cast(LastingStream, sys.stdout)


def answer(text: str, *, as_is: bool = False) -> bool:
    """Print the answer of a command on standard output; return True if somebody still reads it.

    `main` ends with exit code 75 if the answer is lost.

    as_is  True to leave long lines whole on a terminal too, as those of JSON
    """
    print(_shown(text, sys.stdout, as_is), flush=True)
    return getattr(sys.stdout, "is_read", True)


class Redrawn:
    """An answer that is printed again and again, in its old place on a terminal."""

    def __init__(self) -> None:
        self._n_lines = 0

    def answer(self, text: str) -> bool:
        """Print the text, in place of the last one on a terminal; return True if somebody still reads it."""
        if self._n_lines and sys.stdout.isatty():
            print(f"\x1b[{self._n_lines}F\x1b[J", end="", file=_drawing(sys.stdout))
        self._n_lines = _shown(text, sys.stdout).count("\n") + 1
        return answer(text)


def tell(text: str, *, as_is: bool = False) -> None:
    """Print text on standard output that can be found elsewhere too; it may be lost without an error.

    as_is  as for `answer`
    """
    print(_shown(text, sys.stdout, as_is), flush=True)
    if isinstance(sys.stdout, LastingStream):
        sys.stdout.lost = None


def say(text: str) -> None:
    """Print text on standard error, folded for a terminal, and flush it."""
    stream = standard_error()
    print(_shown(text, stream), file=stream, flush=True)


def _shown(text: str, stream: TextIO, as_is: bool = False) -> str:
    """Return text from anywhere as it is printed; JSON stays valid, because it escapes all but DEL itself."""
    if as_is:
        return visible(text.replace("\x7f", r"\u007f"))
    return folded(visible(text), line_width(stream))


class _Said(logging.Handler):
    """A handler of a log that says its messages."""

    def emit(self, record: logging.LogRecord) -> None:
        say(self.format(record))


def say_warnings() -> None:
    """Say the warnings of the package's log, unless it has a handler; otherwise Python prints long lines."""
    log = logging.getLogger(__package__.partition(".")[0])
    if not log.handlers:
        handler = _Said()
        handler.setLevel(logging.WARNING)
        log.addHandler(handler)


def say_from_handler(text: str) -> None:
    """Print a line on standard error. A signal handler may call this, even during another print."""
    if sys.stderr is not None:  # without it, descriptor 2 may belong to another file
        with suppress(OSError):
            os.write(2, f"\n{visible(text)}\n".encode(errors="backslashreplace"))


def standard_error() -> TextIO:
    """Return standard error as a stream that never fails."""
    stream = sys.stderr
    return cast(TextIO, stream if isinstance(stream, LastingStream) else LastingStream(stream))


def drawn_error() -> TextIO:
    """Return standard error for a program that moves the cursor and makes its texts visible itself."""
    return _drawing(sys.stderr)


def _drawing(stream: TextIO) -> TextIO:
    inner = stream._stream if isinstance(stream, LastingStream) else stream
    return cast(TextIO, LastingStream(inner, draws=True))


def is_on_terminal() -> bool:
    """Return True if both standard output and standard error are a terminal."""
    return all(LastingStream(stream).isatty() for stream in (sys.stdout, sys.stderr))
