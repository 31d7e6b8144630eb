"""How many cores this process may use."""

from __future__ import annotations

import os


def n_cores() -> int:
    """Those that the system lets this process run on; all there are where it does not say, as on macOS."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
