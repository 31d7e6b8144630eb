"""The number of cores that this process may use."""

from __future__ import annotations

import os


def n_cores() -> int:
    """Count the cores that this process may run on; all cores where the system does not say, as on macOS."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
