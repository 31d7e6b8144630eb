"""Checks that a data file fits into memory before it is unpacked or read."""

from __future__ import annotations

import gzip
from pathlib import Path

from rayfbnn.data.parquet_sizes import unpacked_sizes
from rayfbnn.errors import DataError
from rayfbnn.memory import bytes_text, memory_of_machine

_MEMORY_OF_TEXT = 8  # bytes of memory for a byte of a CSV file; all cells are held as text
_MEMORY_OF_CELL = 16  # bytes of memory for a cell of a Parquet file and a copy
# A table of numbers compresses to a third, and a table of few distinct values to a twentieth.
_LARGEST_RATIO, _ALWAYS_UNPACKED = 100, 100_000_000
_ALWAYS_TAKEN = 64_000_000  # bytes of cells in a Parquet file, which are held more than once while reading
_MOST_COLUMNS = 100_000
_PIECE = 2**20
_COPIES = 2  # of a Parquet file's cells: one while reading, one in the table


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


def check_parquet_size(path: Path) -> None:
    """Raise DataError for a Parquet file that is too large for memory, or a small file of a huge table.

    A file can store one long text for millions of cells, so the sizes that it declares say little about its
    content. Texts are counted without expanding them. Raises ValueError if the file is not a Parquet file.
    """
    import pyarrow.parquet

    size, memory = path.stat().st_size, memory_of_machine()
    most = max(_ALWAYS_TAKEN, _LARGEST_RATIO * size)
    with pyarrow.parquet.ParquetFile(path) as file:
        metadata = file.metadata
        check_columns(path, metadata.num_columns)
        needed = metadata.num_rows * metadata.num_columns * _MEMORY_OF_CELL
        if needed > memory:
            raise DataError(
                f"{path}: has {metadata.num_rows} rows of {metadata.num_columns} columns; reading them takes"
                f" {bytes_text(needed)} of memory, but this machine has {bytes_text(memory)}; use fewer rows"
                " or columns"
            )
    n_bytes = 0
    for n in unpacked_sizes(path):
        n_bytes += n
        if n_bytes > most:
            raise DataError(
                f"{path}: a Parquet file of {bytes_text(size)} that holds more than {bytes_text(most)},"
                " unlike any ordinary table; write it without repeated texts if you trust it"
            )
        if n_bytes * _COPIES > memory:
            raise DataError(
                f"{path}: holds more than {bytes_text(n_bytes)}; reading it takes"
                f" {bytes_text(n_bytes * _COPIES)} of memory, but this machine has {bytes_text(memory)}; use"
                " fewer rows or columns"
            )


def _unpacked_size(path: Path, size: int) -> int:
    """Count the unpacked bytes of a gzip file without keeping them.

    Raises DataError as soon as there are more of them than an ordinary table would have.
    """
    most, n_bytes = max(_ALWAYS_UNPACKED, _LARGEST_RATIO * size), 0
    with gzip.open(path, "rb") as file:
        while piece := file.read(_PIECE):
            n_bytes += len(piece)
            if n_bytes > most:
                raise DataError(
                    f"{path}: a gzip file of {bytes_text(size)} that holds more than {bytes_text(most)},"
                    " unlike any ordinary table; unpack it yourself if you trust it"
                )
    return n_bytes
