"""The memory of this machine and of this process, and checks that something fits before it is begun."""

from __future__ import annotations

import ctypes
import os
import resource
from pathlib import Path

from rayfbnn.errors import ConfigError

# The limit of a container, in version 2 and 1 of Linux' control groups.
_CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def memory_of_machine() -> int:
    """Return the bytes of memory that this process may have: the machine's, or less where a limit is set."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [resource.getrlimit(which)[0] for which in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    limits = [limit for limit in limits if limit != resource.RLIM_INFINITY]
    return min([physical, *limits, *_container_limits()])


def check_memory(key: str, value: int, bytes_of_one: float) -> None:
    """Raise ConfigError, naming key, value and the largest value, unless so many fit into memory."""
    memory = memory_of_machine()
    if value * bytes_of_one > memory:
        raise ConfigError(
            f"{key}: takes {bytes_text(value * bytes_of_one)} of memory, of which this machine has"
            f" {bytes_text(memory)}; it must be at most {int(memory / bytes_of_one)}, got {value}"
        )


def give_back_freed_memory() -> None:
    """Let the C library return the memory that it keeps for later to the system, if it can; glibc can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))


def bytes_text(n_bytes: float) -> str:
    """Format a number of bytes, such as 1.5 GB."""
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if n_bytes < 1000:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.3g} PB"


def _container_limits() -> list[int]:
    limits = []
    for name in _CONTAINER_LIMITS:
        try:
            text = Path(name).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            continue
        if text.isdecimal():  # "max" is no limit
            limits.append(int(text))
    return limits
