"""A log of a run for programs: a line with a JSON object for each block, in a file next to the store."""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import socket
import stat
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TextIO

from rayfbnn.version import __version__

if TYPE_CHECKING:
    from rayfbnn.run.sampler import Progress
    from rayfbnn.store.storage.places import Place
    from rayfbnn.store.store import Store

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


class JsonLog:
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
        chains = self._store.batch_chains(progress.batch)
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
            "start", version=__version__, host=socket.gethostname(), pid=os.getpid(), done=self._done()
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        done = self._done()
        is_complete = done == self._store.spec.total_iterations
        how = kind.__name__ if kind is not None else "complete" if is_complete else "stopped"
        self._write("end", how=how, done=done, failures=self._failures())
        self._close()

    def _done(self) -> int:
        """Return the number of iterations that every chain has committed."""
        return min(progress.iteration for progress in self._store.all_progress())
