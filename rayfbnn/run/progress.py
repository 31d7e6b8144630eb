"""The progress of a run: its status on a terminal, a line of it elsewhere, or a log for programs."""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TextIO

from rayfbnn.errors import RayFBNNError, visible
from rayfbnn.output.printing import drawn_error, is_on_terminal, say, say_from_handler, standard_error
from rayfbnn.run.estimate import clock_time
from rayfbnn.run.status import for_status, progress_line, status_of
from rayfbnn.version import __version__

if TYPE_CHECKING:
    from rich.text import Text

    from rayfbnn.run.job import Progress
    from rayfbnn.run.status import Status
    from rayfbnn.store.storage.places import Place
    from rayfbnn.store.store import Store


_SECONDS_BETWEEN_LINES = 5.0  # without a terminal
_READING = 50  # seconds until a status is read again, for each second that reading it took
_SECONDS_ELSEWHERE = 60.0  # between lines on the share of some work, without a terminal
_SECONDS_TO_FORECAST, _LONG = 2.0, 20.0


class Observer:
    """Hears the progress of a run. It is a context manager, which is entered when the run begins."""

    def update(self, progress: Progress) -> None:
        """Hear the progress of a batch."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        pass


class Display(Observer):
    """A display of progress for the user. This one shows none."""

    def note(self, text: str) -> None:
        """Show a line of text next to the progress. A signal handler may call this."""
        say_from_handler(text)


class _ShownStatus(Display):
    """A display of the status of a run, which is read again at most once a second.

    It is read from the headers of blocks, with a Store of its own, and with what the workers report. A status
    that cannot be read ends no run: the next one is shown.
    """

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._run, self._clock = store, clock
        self._latest: dict[int, Progress] = {}
        self._status: Status | None = None
        self._due = -math.inf

    @cached_property
    def _store(self) -> Store:
        return for_status(self._run)

    def update(self, progress: Progress) -> None:
        """Hear of a batch, and show the status if it is due."""
        self._latest[progress.batch] = progress
        if self._clock() >= self._due:
            self._read()

    def _read(self) -> None:
        started = self._clock()
        with suppress(OSError, RayFBNNError):
            self._status = status_of(self._store, latest=self._latest)
        now = self._clock()
        self._due = now + max(self._seconds, _READING * (now - started))

    _seconds = 1.0  # between two readings

    def __exit__(self, *error: object) -> None:
        if self._latest:
            self._read()


class LiveTable(_ShownStatus):
    """The text of `status` on standard error, redrawn in place."""

    def __init__(self, store: Store) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__(store)
        self._note = ""
        self._live = Live(
            console=Console(file=drawn_error(), markup=False),
            refresh_per_second=4,
            get_renderable=self._table,
        )

    def note(self, text: str) -> None:
        """Show a line of text below the table."""
        self._note = text  # drawn with the table, because a separate line would break it

    def _table(self) -> Text:
        from rich.text import Text

        shown = "starting the workers" if self._status is None else str(self._status)
        # A Text, because rich would read "[red]" as a colour.
        return Text("\n".join(map(visible, [*shown.split("\n"), self._note])).strip())

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._live.stop()


class PlainLines(_ShownStatus):
    """The first line of `status` on standard error, at most every five seconds, and at the end."""

    _seconds = _SECONDS_BETWEEN_LINES

    def _read(self) -> None:
        super()._read()
        if self._status is not None:
            say(progress_line(self._status))


def display(store: Store, *, show: bool) -> Display:
    """Return the display to use: a live table on a terminal, lines elsewhere, none if `show` is False."""
    if not show:
        return Display()
    return LiveTable(store) if is_on_terminal() else PlainLines(store)


@contextmanager
def show_rejection(draws: int, *, show: bool) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that writes lines, given the draws accepted and the proposals made so far.

    The first line comes after a second, because a hopeless case should be seen at once.
    """
    started = time.monotonic()
    due = started + 1.0

    def on_progress(accepted: int, proposals: int) -> None:
        nonlocal due
        now = time.monotonic()
        if show and now >= due:
            due = now + _SECONDS_BETWEEN_LINES
            say(rejection_line(accepted, proposals, draws, now - started))

    yield on_progress


def rejection_line(accepted: int, proposals: int, draws: int, seconds: float) -> str:
    """Return a line on the progress of rejection sampling after some seconds, and on the time left.

    If no proposal was accepted, the acceptance rate is below 3 / proposals with 95 per cent confidence: with
    a larger rate, the probability of no draw would be at most exp(-3).
    """
    line = f"draws {accepted:,}/{draws:,}, proposals {proposals:,}"
    if accepted == 0:
        least = clock_time(seconds * draws / 3)
        return f"{line}: fewer than one in {proposals // 3:,} accepted, time left more than {least}"
    left = clock_time(seconds * (draws - accepted) / accepted)
    return f"{line}: one in {round(proposals / accepted):,} accepted, time left {left}"


@contextmanager
def show_share(of: str = "", *, show: bool = True, advice: str = "") -> Iterator[Callable[[float], None]]:
    """Yield a function that writes lines, given the share of some work that is done.

    Work of more than 20 seconds is forecast two seconds after its first share is known, which often takes
    longer than the others. Further lines follow every five seconds on a terminal, and every minute elsewhere.

    of      names the work at the beginning of each line
    advice  how the work would be faster, for the forecast
    """
    begin = f"{of}: " if of else ""
    between = _SECONDS_BETWEEN_LINES if standard_error().isatty() else _SECONDS_ELSEWHERE
    started = time.monotonic()
    first: tuple[float, float] | None = None
    due, is_forecast = math.inf, True

    def on_progress(share: float) -> None:
        nonlocal due, is_forecast, first
        now = time.monotonic()
        if first is None:
            first, due = (now, share), now + _SECONDS_TO_FORECAST
        if not show or now < due or share <= first[1]:
            return
        due = now + between
        left = (now - first[0]) * (1 - share) / (share - first[1])
        if not is_forecast:
            say(f"{begin}{share:.1%} done, time left {clock_time(left)}")
        elif now - started + left > _LONG:
            say(f"{begin}about {clock_time(now - started + left)} in all{'; ' if advice else ''}{advice}")
        is_forecast = False

    yield on_progress


def show_text(text: str) -> None:
    """Write lines on standard error, or nothing if the text is empty."""
    if text:
        say(text.strip())


_log = logging.getLogger(__name__)


def log_file(place: Place) -> Path:
    """Return a store's log file: next to the store, or in the current folder for a store in a bucket."""
    return (place.parent if isinstance(place, Path) else Path()) / f"{place.name}.log.jsonl"


def _opened(file: Path) -> TextIO:
    """Open a log for appending, and create it if it does not exist.

    Raises OSError for a link or a pipe, which leads elsewhere, and for a file with several hard links, which
    may be someone else's file.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(file, flags, 0o666)
    except OSError as exc:
        if exc.errno == errno.ELOOP:
            raise OSError("it is a symbolic link") from exc
        raise
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(descriptor)
        raise OSError("it is a pipe, a device, or a file with several hard links")
    return open(descriptor, "a", encoding="utf-8", buffering=1)


class JsonLog(Observer):
    """Adds a line to the log when a run starts, when a block is committed, and when the run ends.

    The lines of earlier starts are kept. If the log cannot be written, a warning says so, and the run
    continues without it.
    """

    def __init__(self, store: Store, failures: Callable[[], int]) -> None:
        """Take the store and a function that returns the number of workers that have died."""
        self._store, self._failures = store, failures
        self._file: TextIO | None = None

    def update(self, progress: Progress) -> None:
        """Add a line for a committed block."""
        if not progress.committed or not progress.block_iterations:
            return
        chains = self._store.header.batch_chains(progress.batch)
        self._write(
            "block",
            batch=progress.batch,
            chains=[chains[0], chains[-1]],
            iteration=progress.iteration,
            total_iterations=progress.total_iterations,
            draws=progress.draws,
            total_draws=progress.total_draws,
            iterations=progress.block_iterations,
            seconds=round(progress.seconds, 3),
            acceptance=None if math.isnan(progress.acceptance) else round(progress.acceptance, 6),
            divergences=progress.divergences,
            warmup_divergences=progress.warmup_divergences,
            failures=self._failures(),
            worker=progress.worker,
        )

    def _write(self, event: str, **values: Any) -> None:
        if self._file is None:
            return
        common = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event}
        try:
            self._file.write(json.dumps({**common, "store": str(self._store.path), **values}) + "\n")
        except OSError as exc:
            file = log_file(self._store.path)
            _log.warning("%s: cannot write the log any more: %s; the run continues without it", file, exc)
            self._close()

    def _close(self) -> None:
        if self._file is not None:
            try:
                self._file.close()
            except OSError as exc:
                _log.debug("closing the log: %s", exc)
            self._file = None

    def __enter__(self) -> Self:
        file = log_file(self._store.path)
        try:
            self._file = _opened(file)
        except OSError as exc:
            _log.warning("%s: cannot write the log: %s; the run continues without it", file, exc)
        self._write(
            "start", version=__version__, host=socket.gethostname(), pid=os.getpid(), done=self._store.done
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        done = self._store.done
        is_complete = done == self._store.spec.total_iterations
        how = kind.__name__ if kind is not None else "complete" if is_complete else "stopped"
        self._write("end", how=how, done=done, failures=self._failures())
        self._close()
