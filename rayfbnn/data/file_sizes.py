"""Checks that a data file fits into memory before it is unpacked or read."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


_TEXT = "BYTE_ARRAY"
_WITHOUT_DICTIONARY = {"DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"}
_SHARING = {"PLAIN_DICTIONARY", "RLE_DICTIONARY", "DELTA_BYTE_ARRAY"}  # many cells can share one text
_NUMBER_BYTES = 8  # at least, for a cell that is not text
_ROWS = 65_536  # read at a time
_MOST_AT_ONCE = 32 * 2**20  # bytes of texts that are expanded at a time to count them


def unpacked_sizes(path: Path) -> Iterator[int]:
    """Yield the bytes of all cells in portions. Counting a portion takes little memory."""
    import pyarrow.parquet

    metadata = pyarrow.parquet.read_metadata(path)
    groups = [
        [metadata.row_group(number).column(place) for place in range(metadata.num_columns)]
        for number in range(metadata.num_row_groups)
    ]
    for columns in groups:
        for place, column in enumerate(columns):
            width = max(_NUMBER_BYTES, metadata.schema.column(place).length)
            # The pages of a column, including its dictionary, are read whole.
            yield max(column.total_uncompressed_size, column.num_values * width)
    with pyarrow.parquet.ParquetFile(path, read_dictionary=_with_dictionaries(groups)) as file:
        for number, columns in enumerate(groups):
            for column in columns:
                if column.physical_type == _TEXT:
                    yield from _of_texts(file, number, column)


def _with_dictionaries(groups: list[list[Any]]) -> list[str]:
    """Return the text columns that can be read as a dictionary with indices."""
    columns = [column for group in groups for column in group if column.physical_type == _TEXT]
    others = {column.path_in_schema for column in columns if set(column.encodings) & _WITHOUT_DICTIONARY}
    return sorted({column.path_in_schema for column in columns} - others)


def _of_texts(file: Any, group: int, column: Any) -> Iterator[int]:
    """Yield the bytes that a column's texts in a group of rows take beyond the size of its pages."""
    encodings = set(column.encodings)
    if not encodings & _SHARING:  # pages store each text in full
        return
    is_shared = "DELTA_BYTE_ARRAY" in encodings  # a text may share its beginning with the previous one
    longest = max(1, column.total_uncompressed_size)
    rows = max(1, min(_ROWS, _MOST_AT_ONCE // longest)) if is_shared else _ROWS
    extra = -column.total_uncompressed_size
    for batch in file.iter_batches(rows, row_groups=[group], columns=[column.path_in_schema]):
        extra += sum(map(_bytes_of_texts, batch.columns))
        yield max(0, extra)
        extra = min(0, extra)


def _bytes_of_texts(array: Any) -> int:
    """Return the bytes of an array's texts; a dictionary's text counts once for each of its uses."""
    import pyarrow as pa
    import pyarrow.compute as pc

    while pa.types.is_nested(array.type):
        array = array.flatten()[0] if pa.types.is_struct(array.type) else array.values
    if not pa.types.is_dictionary(array.type):
        return int(pc.sum(pc.binary_length(array)).as_py() or 0)
    lengths = pc.binary_length(array.dictionary).cast(pa.int64())
    return int(pc.sum(lengths.take(array.indices)).as_py() or 0)
