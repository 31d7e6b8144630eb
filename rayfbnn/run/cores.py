"""The number of cores that this process may use."""

from __future__ import annotations

import os


def n_cores() -> int:
    """Return how many cores this process may run on, or all cores if the system does not say (macOS)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
