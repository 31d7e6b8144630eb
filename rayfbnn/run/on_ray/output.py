"""Keeps standard output for the result while Ray is connected, because Ray prints on it too."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

from rayfbnn.output.printing import standard_error

_log = logging.getLogger(__name__)


@contextmanager
def result_alone_on_stdout() -> Iterator[None]:
    """Keep what Ray prints away from standard output."""
    before = log_what_ray_reports()
    try:
        with redirect_stdout(standard_error()):
            yield
    finally:
        _replace_printer(before)


def log_what_ray_reports() -> Any:
    """Send Ray's reports of dead nodes and workers to the log, at level DEBUG.

    Ray prints some fifty lines for each node, from the log of its raylet, some seconds after its death. A
    driver may have written its result by then. The executor reports the death in one line. Returns the
    function of Ray that printed before.
    """
    return _replace_printer(_to_log)


def _replace_printer(printer: Any) -> Any:
    """Let a function print Ray's reports, and return the previous one; None if this Ray has no such name.

    Ray has no public function for this. Without it the fifty lines go to standard error.
    """
    try:
        import ray._private.worker as ray_worker

        before = ray_worker.print_to_stdstream
    except (ImportError, AttributeError):
        return None
    ray_worker.print_to_stdstream = printer
    return before


def _to_log(data: dict[str, Any], *unused: object, **also_unused: object) -> None:
    _log.debug("Ray: %s", "\n".join(data["lines"]).strip())
