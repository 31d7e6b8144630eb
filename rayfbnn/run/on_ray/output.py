"""Standard output while Ray is connected: it belongs to the result, and Ray prints on it too."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

_log = logging.getLogger(__name__)


@contextmanager
def result_alone_on_stdout() -> Iterator[None]:
    """Keep what Ray prints away from standard output."""
    import ray._private.worker as ray_worker

    before = ray_worker.print_to_stdstream
    log_what_ray_reports()
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        ray_worker.print_to_stdstream = before


def log_what_ray_reports() -> None:
    """Send what Ray reports about nodes and workers that have died to the log, at level DEBUG.

    Ray prints some fifty lines for each node, from the log of its raylet, and some seconds after its death: a
    driver may have written its result by then. The executor says in one line what has happened.
    """
    import ray._private.worker as ray_worker

    ray_worker.print_to_stdstream = _to_log


def _to_log(data: dict[str, Any], ignore_prefix: bool) -> None:
    _log.debug("Ray: %s", "\n".join(data["lines"]).strip())
