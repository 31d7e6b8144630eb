"""Standard output while Ray is connected: it belongs to the result, and Ray prints on it too."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, TextIO, cast

LISTENER = "ray_listen_error_messages"  # the thread of Ray that prints what its processes report
_log = logging.getLogger(__name__)


class _Diverted:
    """Standard error, except for what Ray prints about nodes and workers that have died.

    That is some fifty lines for each node, from the log of its raylet. The executor says in one line what has
    happened, and the lines of Ray go to the log at level DEBUG.
    """

    def write(self, text: str) -> int:
        if threading.current_thread().name != LISTENER:
            return sys.stderr.write(text)
        if text.strip():
            _log.debug("Ray: %s", text.strip())
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)


@contextmanager
def result_alone_on_stdout() -> Iterator[None]:
    """Keep what Ray prints away from standard output."""
    with redirect_stdout(cast(TextIO, _Diverted())):
        yield
