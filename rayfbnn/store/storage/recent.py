"""Contents of files that were read recently, kept within one limit for all stores of a process."""

from __future__ import annotations

import itertools
import threading
import weakref
from typing import Any


class Recent:
    """Recently read contents, of which the oldest are dropped.

    A reduction reads many stores at once, so the limit is of all of them together. The newest content is kept
    even if it is larger. A driver gathers in threads, which may use the same object.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes, self._n_bytes = most_bytes, 0
        self._kept: dict[tuple[int, str], tuple[Any, int]] = {}
        self._lock = threading.RLock()  # a reader may be collected, and its contents dropped, at any place
        self._numbers = itertools.count()

    def number_of(self, reader: object) -> int:
        """Return a number for a reader; what is kept under it is dropped with the reader."""
        number = next(self._numbers)
        weakref.finalize(reader, self._drop_all, number).atexit = False
        return number

    def get(self, reader: int, key: str) -> Any:
        """Return what a reader kept under a key, or None."""
        return self._kept.get((reader, key), (None,))[0]

    def keep(self, reader: int, key: str, content: Any, n_bytes: int) -> None:
        """Keep a content of so many bytes, and drop the oldest ones beyond the limit."""
        with self._lock:
            self.drop(reader, key)
            while self._kept and self._n_bytes + n_bytes > self._most_bytes:
                self.drop(*next(iter(self._kept)))
            self._kept[reader, key] = content, n_bytes
            self._n_bytes += n_bytes

    def drop(self, reader: int, key: str) -> None:
        """Drop what a reader kept under a key, if anything."""
        with self._lock:
            self._n_bytes -= self._kept.pop((reader, key), (None, 0))[1]

    def _drop_all(self, reader: int) -> None:
        with self._lock:
            for number, key in list(self._kept):
                if number == reader:
                    self.drop(number, key)
