"""Tables from files, and from memory: DataFrames, arrays, and pairs of inputs and targets."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from rayfbnn.data.csv_files import NEEDED, advice_on_name, is_gzip, read_csv
from rayfbnn.data.keys import DataSpec
from rayfbnn.data.paths import LARGEST_RATIO, check_columns, check_on_disk, near_paths, open_ordinary
from rayfbnn.data.raw_table import Table, check_paired, column_name, listed, without_labels
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


if TYPE_CHECKING:
    import pandas as pd


Source: TypeAlias = Any
"""A file of cases, a DataFrame (of pandas, Polars or Arrow), an array, or a pair (X, y) of them."""

SOURCE = "data"  # the name in messages of a table that is not from a file


def is_path(data: Source) -> bool:
    """Return True if `data` is the path of a file."""
    return isinstance(data, str | Path)


def as_table(
    data: Source,
    keys: DataSpec,
    input_names: Sequence[Sequence[str]],
) -> Table:
    """Return the table that `data` is or names; raise DataError if it is neither a table nor a file.

    keys         the section [data]; the targets and the mark of censored times are the columns of y in (X, y)
    input_names  lists of names for the columns of an array; the first list of the right length is used, and
                 x1, x2, ... if no lists are given
    """
    if is_path(data):
        return read_table(Path(data), keys)
    if isinstance(data, tuple):
        if len(data) != 2:
            raise DataError(f"{SOURCE}: a tuple must be a pair (X, y), got {len(data)} elements")
        inputs, labels = _frame(data[0], input_names, "X")
        names = [keys.targets] + ([(*keys.targets, keys.censoring)] if keys.censoring else [])
        y, target_labels = without_labels(data[1])
        targets, _ = _frame(_as_columns(y), names, "y")
        if len(inputs) != len(targets):
            raise DataError(f"{SOURCE}: X has {len(inputs)} rows and y has {len(targets)}")
        check_paired(labels, target_labels, "X", "y")
        import pandas as pd

        return Table(pd.concat([inputs, targets], axis=1), SOURCE, keys)
    return Table(_frame(data, input_names, SOURCE)[0], SOURCE, keys)


def _as_columns(targets: Source) -> Source:
    """Return targets with an axis of columns; a Series loses its name, unless it holds categories."""
    if not hasattr(targets, "columns") and not isinstance(targets, Mapping):
        if str(getattr(targets, "dtype", "")) == "category":
            return targets.to_frame()  # keeps the order of the labels
        values = np.asarray(targets)
        return values.reshape(-1, 1) if values.ndim == 1 else values
    return targets


def _frame(
    data: Source, names: Sequence[Sequence[str]], what: str
) -> tuple[pd.DataFrame, pd.Index[Any] | None]:
    """Return a DataFrame with column names as text and rows numbered from 0, and the labels of its rows."""
    import pandas as pd

    frame, labels = without_labels(data)
    if not isinstance(frame, pd.DataFrame):
        return _frame_of_array(data, names, what), None
    frame.columns = pd.Index(list(map(column_name, frame.columns)))
    is_y = what == "y"
    if is_y and not any(set(wanted) <= set(frame.columns) for wanted in names):
        for wanted in names:
            if len(wanted) == len(frame.columns):
                frame.columns = pd.Index(list(wanted))
    return frame, labels


def _frame_of_array(data: Source, names: Sequence[Sequence[str]], what: str) -> pd.DataFrame:
    import pandas as pd

    try:
        values = np.asarray(data)
    except ValueError as exc:  # rows of different lengths
        raise DataError(f"{what}: is not an array: {exc}") from exc
    if values.ndim != 2:
        raise DataError(
            f"{what}: must be a file, a DataFrame or an array of shape (cases, columns), got"
            + (f" shape {values.shape}" if values.ndim else f" {type(data).__name__}")
        )
    n_columns = values.shape[1]
    for wanted in names:
        if len(wanted) == n_columns:
            return pd.DataFrame(values, columns=list(wanted))
    if names:
        right = " or ".join(f"{len(wanted)} ({listed(wanted)})" for wanted in names)
        raise DataError(f"{what}: must have {right} columns, got {n_columns}; or give a DataFrame with names")
    return pd.DataFrame(values, columns=[f"x{number + 1}" for number in range(n_columns)])


_SUFFIXES = (".csv", ".csv.gz", ".parquet", ".pq")
_EXCEL_SUFFIXES = (".xls", ".xlsx", ".xlsm", ".xlsb", ".ods")
# The first bytes of files that are often mistaken for CSV, with their kind and the remedy.
_SIGNATURES = {
    b"PK\x05\x06": ("an empty zip archive", "give the table itself"),
    b"PK\x03\x04": ("a zip archive or an Excel file", "unpack it, or save the sheet as CSV"),
    b"\xd0\xcf\x11\xe0": ("an Excel file", "save the sheet as CSV"),
    b"\xff\xfe": ("UTF-16 text", "save it as UTF-8"),
    b"\xfe\xff": ("UTF-16 text", "save it as UTF-8"),
    b"BZh": ("compressed with bzip2", "unpack it"),
    b"\xfd7zX": ("compressed with xz", "unpack it"),
    b"\x28\xb5\x2f\xfd": ("compressed with zstd", "unpack it"),
    b"PAR1": ("a Parquet file", "give it the suffix .parquet"),
}


def read_table(path: Path, keys: DataSpec) -> Table:
    """Read a file as a table; raise DataError if this fails or a row has more cells than the header."""
    _check_is_table_file(path)
    is_parquet = path.suffix.lower() in (".parquet", ".pq")
    try:
        frame = read_parquet(path) if is_parquet else read_csv(path, keys)
    except DataError:
        raise
    except UnicodeDecodeError as exc:
        raise DataError(
            f"{path}: cannot be read: byte {exc.start} is not UTF-8; save it as UTF-8"
            ' ("CSV UTF-8" in Excel), or read it yourself and pass the table:'
            f' data=pandas.read_csv("{path.name}", encoding="latin-1")'
        ) from exc
    # ValueError covers parser errors of pandas and Arrow; EOFError covers a truncated .gz file.
    except (ValueError, OSError, EOFError, Warning) as exc:
        raise DataError(f"{path}: cannot be read: {' '.join(str(exc).split())}; {NEEDED}") from exc
    frame.columns = list(map(column_name, frame.columns))
    if is_parquet:
        return Table(frame, str(path), keys)
    return Table(frame, str(path), keys, path, advice=lambda name: advice_on_name(path, keys, name))


def _check_is_table_file(path: Path) -> None:
    check_on_disk(path, "data")
    if not os.path.isfile(path):  # also False if no file can have this name
        if not os.path.exists(path):
            raise DataError(f"no such file: {path}{near_paths(path, _SUFFIXES)}; {NEEDED}")
        reason = "is a folder" if os.path.isdir(path) else "is not an ordinary file"
        raise DataError(f"{path}: {reason}; {NEEDED}")
    if path.suffix.lower() in _EXCEL_SUFFIXES:
        raise DataError(
            f"{path}: is a spreadsheet; save the sheet as CSV, or read it yourself and pass the table:"
            f' data=pandas.read_excel("{path.name}"); {NEEDED}'
        )
    if path.suffix.lower() in (".parquet", ".pq"):
        return
    try:
        with open_ordinary(path) as raw, gzip.open(raw) if is_gzip(path) else raw as file:
            first_bytes = file.read(4)
    except (OSError, EOFError, zlib.error) as exc:
        raise DataError(f"{path}: cannot be read: {getattr(exc, 'strerror', '') or exc}; {NEEDED}") from exc
    if first_bytes.count(0) == 2:
        raise DataError(f"{path}: is UTF-16 text; save it as UTF-8; {NEEDED}")
    for signature, (what, remedy) in _SIGNATURES.items():
        if first_bytes.startswith(signature):
            raise DataError(f"{path}: is {what}; {remedy}; {NEEDED}")
