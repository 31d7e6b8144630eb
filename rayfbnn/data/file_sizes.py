"""Checks that a data file fits into memory before it is unpacked or read."""

from __future__ import annotations

import gzip
from pathlib import Path

from rayfbnn.errors import DataError
from rayfbnn.memory import bytes_text, memory_of_machine

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
