"""Counts the bytes that the cells of a Parquet file take in a table, without creating the table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
