"""The memory of this machine and process, and checks of sizes before memory is allocated."""

from __future__ import annotations

import ctypes
import os
import resource
from pathlib import Path

from rayfbnn.errors import ConfigError
from rayfbnn.numerals import plain

# The limit of a container, in version 2 and 1 of Linux' control groups.
_CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def memory_of_machine() -> int:
    """Return the bytes of memory that this process can use: the machine's memory, or a lower limit."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [resource.getrlimit(which)[0] for which in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    limits = [limit for limit in limits if limit != resource.RLIM_INFINITY]
    return min([physical, *limits, *_container_limits()])


def check_memory(key: str, value: int, bytes_of_one: float) -> None:
    """Raise ConfigError, with key, value and largest possible value, if `value` items exceed the memory."""
    memory = memory_of_machine()
    if value * bytes_of_one > memory:
        raise ConfigError(
            f"{key}: needs {bytes_text(value * bytes_of_one)} of memory, and this machine has"
            f" {bytes_text(memory)}; it must be at most {int(memory / bytes_of_one)}, got {value}"
        )


def give_back_freed_memory() -> None:
    """Return freed memory to the system, if the C library can; glibc can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))


def bytes_text(n_bytes: float) -> str:
    """Format a number of bytes, such as 1.5 GB."""
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if n_bytes < 1000:
            return f"{plain(n_bytes, 3)} {unit}"
        n_bytes /= 1000
    return f"{plain(n_bytes, 3)} PB"


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
