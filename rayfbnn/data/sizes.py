"""Checks that a data file fits into memory, before it is unpacked or read."""

from __future__ import annotations

import gzip
from pathlib import Path

from rayfbnn.errors import DataError
from rayfbnn.memory import bytes_text, memory_of_machine

_MEMORY_OF_TEXT = 8  # bytes of memory for a byte of a CSV file, all of whose cells are held as text
_MEMORY_OF_CELL = 16  # bytes of memory for a cell of a Parquet file, and a copy
# A table of numbers shrinks to a third, one of few different values to a twentieth.
_LARGEST_RATIO, _ALWAYS_UNPACKED = 100, 100_000_000
_PIECE = 2**20


def check_csv_size(path: Path, *, is_gzip: bool) -> None:
    """Raise DataError for a CSV file that is too large for memory, or a small archive of a huge file."""
    size = path.stat().st_size
    n_bytes = _unpacked_size(path, size) if is_gzip else size
    needed, memory = n_bytes * _MEMORY_OF_TEXT, memory_of_machine()
    if needed > memory:
        raise DataError(
            f"{path}: holds {bytes_text(n_bytes)}, which take {bytes_text(needed)} of memory to read; this"
            f" machine has {bytes_text(memory)}; take fewer rows or columns, or write a Parquet file"
        )


def check_parquet_size(path: Path) -> None:
    """Raise DataError for a Parquet file whose table is too large for memory; ValueError if it is none."""
    import pyarrow.parquet

    metadata = pyarrow.parquet.read_metadata(path)
    needed, memory = metadata.num_rows * metadata.num_columns * _MEMORY_OF_CELL, memory_of_machine()
    if needed > memory:
        raise DataError(
            f"{path}: has {metadata.num_rows} rows of {metadata.num_columns} columns, which take"
            f" {bytes_text(needed)} of memory; this machine has {bytes_text(memory)}; take fewer rows or"
            " columns"
        )


def _unpacked_size(path: Path, size: int) -> int:
    """Return how many bytes a gzip file holds, which are counted and not kept.

    DataError as soon as they are more than any table shrinks from.
    """
    most, n_bytes = max(_ALWAYS_UNPACKED, _LARGEST_RATIO * size), 0
    with gzip.open(path, "rb") as file:
        while piece := file.read(_PIECE):
            n_bytes += len(piece)
            if n_bytes > most:
                raise DataError(
                    f"{path}: a gzip file of {bytes_text(size)} that holds more than {bytes_text(most)}, as"
                    " no ordinary table does; unpack it yourself if you trust it"
                )
    return n_bytes
