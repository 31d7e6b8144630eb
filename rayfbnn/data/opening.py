"""Opens files that a user names, and only ordinary ones, because a pipe or a device may have no end."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_ordinary(path: Path) -> BinaryIO:
    """Open a file for reading without blocking; raise OSError if it is not an ordinary file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(mode):
            raise OSError(errno.ENODEV, "is not an ordinary file")
        return os.fdopen(descriptor, "rb")
    except OSError:
        os.close(descriptor)
        raise


def read_at_most(path: Path, most: int) -> bytes | None:
    """Return the content of an ordinary file, or None if it has more than `most` bytes."""
    with open_ordinary(path) as file:
        content = file.read(most + 1)
    return content if len(content) <= most else None
