"""Tables from files, and from memory: DataFrames, arrays, and pairs of inputs and targets."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from rayfbnn.data.csv_files import NEEDED, advice_on_name, is_gzip, read_csv
from rayfbnn.data.keys import DataSpec
from rayfbnn.data.parquet import read_parquet
from rayfbnn.data.paths import check_on_disk, near_paths, open_ordinary
from rayfbnn.data.raw_table import Table, check_paired, column_name, listed, without_labels
from rayfbnn.errors import DataError

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
