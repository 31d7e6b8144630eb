"""Paths that a user names, checked before they are opened as ordinary files."""

from __future__ import annotations

import difflib
import errno
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from rayfbnn.errors import ConfigError

_MAX_NAMES = 3
_SCHEMES = r"https?|ftps?|sftp|file|s3[an]?|gs|gcs|az|azure|abfss?|wasbs?|adl|hdfs|r2|oss|b2"
# pathlib turns two slashes into one. Any other scheme counts if a user and a password follow it.
_ADDRESS = re.compile(
    rf"(?:^|/)(?:({_SCHEMES}):(?:/|[^/]*@)|([a-z][a-z0-9+.-]*):/+[^/]*:[^/]*@)", re.IGNORECASE
)


def scheme_of(path: str | Path) -> str | None:
    """Return the scheme of an address, such as "https", or None for a path on a disk."""
    match = _ADDRESS.search(str(path))
    return None if match is None else match[1] or match[2]


def check_on_disk(path: str | Path, what: str) -> None:
    """Raise ConfigError naming `what` for an address. The address may hold a secret and is not repeated."""
    if (scheme := scheme_of(path)) is not None:
        raise ConfigError(f"{what}: must be a path on a disk, got an address that begins with {scheme}://")


def near_paths(path: Path, suffixes: Sequence[str]) -> str:
    """Return the names in the folder of `path` that are most like it, in parentheses; "" if there are none.

    If no name is similar, these are the first names with one of the suffixes. If the folder does not exist,
    the text says so.
    """
    folder = path.absolute().parent
    if not os.path.isdir(folder):
        return f" (there is no folder {folder})"
    try:
        names = sorted(file.name for file in folder.iterdir() if file.name.lower().endswith(tuple(suffixes)))
    except OSError:
        return ""
    near = difflib.get_close_matches(path.name, names, n=_MAX_NAMES, cutoff=0.5) or names[:_MAX_NAMES]
    return f" (the folder has {', '.join(near)})" if near else ""


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
