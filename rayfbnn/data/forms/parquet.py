"""Reads Parquet files after a check that they fit into memory, which trusts no size in the footer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayfbnn.data.file_sizes import LARGEST_RATIO, check_columns
from rayfbnn.data.forms.parquet_pages import DELTA_BYTES, DELTA_LENGTH, DICTIONARY, Pages, pages_of_groups
from rayfbnn.data.forms.row_labels import without_labels
from rayfbnn.errors import DataError
from rayfbnn.memory import bytes_text, memory_of_machine

if TYPE_CHECKING:
    import pandas as pd

_ALWAYS_TAKEN = 64_000_000  # bytes of cells, which are held more than once while reading
_COPIES = 2  # of the cells: one while reading, one in the table
_LEAST_ENTRIES, _MOST_ENTRIES = 10_000, 300_000  # of a list in the footer
_TEXT = "BYTE_ARRAY"
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

    A file can store one long text for millions of cells, so the sizes that it declares say little about its
    content. Texts are counted without expanding them. Raises ValueError if the file is not a Parquet file.
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
    columns = [metadata.schema.column(place) for place in range(metadata.num_columns)]
    groups = pages_of_groups(path, [column.path for column in columns])
    for group in groups:
        for column, pages in zip(columns, group, strict=True):
            # The pages of a column, including its dictionary, are read whole.
            least = _DECIMAL_BYTES if column.logical_type.type == "DECIMAL" else _NUMBER_BYTES
            yield max(pages.n_bytes, pages.n_values * max(least, column.length))
        yield n_nested * group[0].n_rows * _NESTED_BYTES if group else 0
    texts = [place for place, column in enumerate(columns) if column.physical_type == _TEXT]
    dictionaries = [
        columns[place].path
        for place in texts
        if not any(group[place].encodings & {DELTA_BYTES, DELTA_LENGTH} for group in groups)
    ]
    with pyarrow.parquet.ParquetFile(path, metadata=metadata, read_dictionary=dictionaries) as file:
        for number, group in enumerate(groups):
            for place in texts:
                yield from _of_texts(file, number, columns[place].path, group[place])


def _of_texts(file: Any, group: int, column: str, pages: Pages) -> Iterator[int]:
    """Yield the bytes that a column's texts in a group of rows take beyond the size of its pages."""
    # A text may share its beginning with the previous one. Other pages without a dictionary have full texts.
    is_shared = DELTA_BYTES in pages.encodings
    if not is_shared and not pages.encodings & DICTIONARY:
        return
    rows = max(1, min(_ROWS, _MOST_AT_ONCE // max(1, pages.n_bytes))) if is_shared else _ROWS
    extra = -pages.n_bytes
    for batch in file.iter_batches(rows, row_groups=[group], columns=[column]):
        extra += sum(map(_bytes_of_texts, batch.columns))
        yield max(0, extra)
        extra = min(0, extra)


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
