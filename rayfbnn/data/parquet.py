"""Reads Parquet files after a check that they fit into memory with all their texts written out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayfbnn.data.paths import LARGEST_RATIO, check_columns
from rayfbnn.data.raw_table import without_labels
from rayfbnn.errors import DataError
from rayfbnn.memory import bytes_text, memory_of_machine

if TYPE_CHECKING:
    import pandas as pd


_ALWAYS_TAKEN = 64_000_000  # bytes of cells, which are held more than once while reading
_COPIES = 2  # of the cells: one while reading, one in the table
_LEAST_ENTRIES, _MOST_ENTRIES = 10_000, 300_000  # of a list in the footer
_TEXT, _SHARED = "BYTE_ARRAY", "DELTA_BYTE_ARRAY"
_DICTIONARIES = {"PLAIN_DICTIONARY", "RLE_DICTIONARY"}
_NUMBER_BYTES, _DECIMAL_BYTES = 8, 24  # at least, for a cell that is not text
_NESTED_BYTES = 256  # at least, for a list or a structure, which becomes a Python object
_ROWS = 65_536  # read at a time
_MOST_AT_ONCE = 32 * 2**20  # bytes of texts that are expanded at a time to count them


def read_parquet(path: Path) -> pd.DataFrame:
    """Read a file as a table with numbered rows; raise DataError if it is damaged or too large."""
    import pyarrow.parquet

    try:
        check_parquet_size(path)
        # Without `partitioning`, folders with names such as year=2024 would add columns.
        table = pyarrow.parquet.read_table(path, partitioning=None)
        table.validate(full=True)  # texts must be UTF-8, for example
        frame: pd.DataFrame = without_labels(table)[0]
    except DataError:
        raise
    except Exception as exc:  # damage can raise anything in PyArrow and pandas
        reason = " ".join(str(exc).split()) or type(exc).__name__
        raise DataError(f"{path}: cannot be read: {reason[:300]}; write the file again, or as CSV") from exc
    return frame


def check_parquet_size(path: Path) -> None:
    """Raise DataError for a Parquet file that is too large for memory, or a small file of a huge table.

    A file can store one long text for millions of cells, so texts are counted, without expanding them. Sizes
    of other columns are those in the footer. Raises ValueError if the file is not a Parquet file.
    """
    size, memory = path.stat().st_size, memory_of_machine()
    most = max(_ALWAYS_TAKEN, LARGEST_RATIO * size)
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


def unpacked_sizes(path: Path) -> Iterator[int]:
    """Yield the bytes of all cells in portions. Counting a portion takes little memory."""
    import pyarrow.parquet

    # PyArrow makes room for as many entries of a list as the footer claims to have.
    most = max(_LEAST_ENTRIES, min(_MOST_ENTRIES, path.stat().st_size))
    with pyarrow.parquet.ParquetFile(path, thrift_container_size_limit=most) as file:
        metadata = file.metadata
        n_nested = sum(map(pyarrow.types.is_nested, file.schema_arrow.types))
    check_columns(path, metadata.num_columns)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    yield n_nested * metadata.num_rows * _NESTED_BYTES
    repeated: dict[str, int] = {}  # columns whose texts are counted, and how many rows to read at a time
    shared: dict[
        str, int
    ] = {}  # those whose texts may share beginnings; PyArrow makes no dictionaries of them
    for place in range(metadata.num_columns):
        column, chunks = metadata.schema.column(place), [group.column(place) for group in groups]
        is_text = column.physical_type == _TEXT
        encodings = {name for chunk in chunks for name in chunk.encodings if is_text}
        if _SHARED in encodings:
            largest = max(chunk.total_uncompressed_size for chunk in chunks)
            shared[column.path] = max(1, min(_ROWS, _MOST_AT_ONCE // max(1, largest)))
        elif encodings & _DICTIONARIES:
            repeated[column.path] = _ROWS
        least = _DECIMAL_BYTES if column.logical_type.type == "DECIMAL" else _NUMBER_BYTES
        for chunk in chunks:
            is_counted = column.path in repeated or column.path in shared
            of_pages = 0 if is_counted else chunk.total_uncompressed_size
            yield max(of_pages, chunk.num_values * max(least, column.length))
    with pyarrow.parquet.ParquetFile(path, metadata=metadata, read_dictionary=list(repeated)) as file:
        for name, rows in (repeated | shared).items():
            for batch in file.iter_batches(rows, columns=[name]):
                yield sum(map(_bytes_of_texts, batch.columns))


def _bytes_of_texts(array: Any) -> int:
    """Return the bytes of an array's texts; a dictionary's text counts once for each of its uses."""
    import pyarrow as pa
    import pyarrow.compute as pc

    while pa.types.is_nested(array.type) or isinstance(array, pa.ExtensionArray):
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        elif pa.types.is_struct(array.type):
            return sum(map(_bytes_of_texts, array.flatten()))
        else:
            array = array.values
    if pa.types.is_dictionary(array.type):
        lengths = pc.binary_length(array.dictionary).cast(pa.int64()).take(array.indices)
    elif isinstance(array, pa.StringArray | pa.BinaryArray | pa.LargeStringArray | pa.LargeBinaryArray):
        lengths = pc.binary_length(array)
    else:  # numbers
        return int(array.nbytes)
    return int(pc.sum(lengths).as_py() or 0)
