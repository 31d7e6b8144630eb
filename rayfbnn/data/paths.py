"""Checks of files that a user names: that they are ordinary files on a disk and fit into memory."""

from __future__ import annotations

import difflib
import errno
import gzip
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from rayfbnn.errors import ConfigError, DataError
from rayfbnn.memory import bytes_text, memory_of_machine

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


_MEMORY_OF_TEXT = 8  # bytes of memory for a byte of a CSV file; all cells are held as text
# A table of numbers compresses to a third, and a table of few distinct values to a twentieth.
LARGEST_RATIO, _ALWAYS_UNPACKED = 100, 100_000_000
_MOST_COLUMNS = 100_000
_PIECE = 2**20


def check_csv_size(path: Path, *, is_gzip: bool) -> None:
    """Raise DataError for a CSV file that is too large for memory, or a small archive of a huge file."""
    size = path.stat().st_size
    n_bytes = _unpacked_size(path, size) if is_gzip else size
    needed, memory = n_bytes * _MEMORY_OF_TEXT, memory_of_machine()
    if needed > memory:
        raise DataError(
            f"{path}: holds {bytes_text(n_bytes)}; reading it takes {bytes_text(needed)} of memory, but this"
            f" machine has {bytes_text(memory)}; use fewer rows or columns, or write a Parquet file"
        )


def check_columns(path: Path, n_columns: int) -> None:
    """Raise DataError for a table with too many columns."""
    if n_columns > _MOST_COLUMNS:
        raise DataError(f"{path}: has {n_columns} columns; a table must have at most {_MOST_COLUMNS}")


def _unpacked_size(path: Path, size: int) -> int:
    """Count the unpacked bytes of a gzip file without keeping them.

    Raises DataError as soon as there are more of them than an ordinary table would have.
    """
    most, n_bytes = max(_ALWAYS_UNPACKED, LARGEST_RATIO * size), 0
    with gzip.open(path, "rb") as file:
        while piece := file.read(_PIECE):
            n_bytes += len(piece)
            if n_bytes > most:
                raise DataError(
                    f"{path}: a gzip file of {bytes_text(size)} that holds more than {bytes_text(most)},"
                    " unlike any ordinary table; unpack it yourself if you trust it"
                )
    return n_bytes
