"""Reads CSV and Parquet files as tables, with advice for files of other kinds."""

from __future__ import annotations

import csv
import gzip
import io
import os
import warnings
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.data.file_sizes import check_columns, check_csv_size, check_parquet_size
from rayfbnn.data.paths import check_on_disk, near_paths, open_ordinary
from rayfbnn.data.raw_table import Table, TableForm, short
from rayfbnn.errors import DataError
from rayfbnn.memory import bytes_text

if TYPE_CHECKING:
    import pandas as pd

_NEEDED = "a CSV (.csv, .csv.gz) or Parquet (.parquet) file is needed"
_SUFFIXES = (".csv", ".csv.gz", ".parquet", ".pq")
_EXCEL_SUFFIXES = (".xls", ".xlsx", ".xlsm", ".xlsb", ".ods")
_LONGEST_HEADER = 10_000_000  # characters
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "vertical bars"}
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


def read_table(path: Path, form: TableForm) -> Table:
    """Read a file as a table; raise DataError if this fails or a row has more cells than the header."""
    _check_is_table_file(path)
    is_parquet = path.suffix.lower() in (".parquet", ".pq")
    try:
        frame = _read_parquet(path) if is_parquet else _read_csv(path)
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
        raise DataError(f"{path}: cannot be read: {' '.join(str(exc).split())}; {_NEEDED}") from exc
    frame.columns = [str(name).strip() for name in frame.columns]
    return Table(frame, str(path), None if is_parquet else path, form)


def is_whole(path: Path, n_rows: int) -> Array:
    """Mark the rows of a CSV file with as many cells as the header. Pandas fills up other rows silently."""
    with _open_csv(path) as lines:
        rows = csv.reader(lines, skipinitialspace=True)
        # Pandas skips lines of blanks, and so does this code.
        try:
            n_cells = [len(row) for row in rows if len(row) > 1 or "".join(row).strip()]
        except csv.Error as exc:  # a cell that is too long for csv
            raise DataError(f"{path}: cannot be read: {exc}; {_NEEDED}") from exc
    return np.array(n_cells[1 : n_rows + 1]) == n_cells[0]


def _check_is_table_file(path: Path) -> None:
    """Raise DataError for a path without a file, or with a file of an unsupported kind."""
    check_on_disk(path, "data")
    if not os.path.isfile(path):  # also False if no file can have this name
        if not os.path.exists(path):
            raise DataError(f"no such file: {path}{near_paths(path, _SUFFIXES)}; {_NEEDED}")
        reason = "is a folder" if os.path.isdir(path) else "is not an ordinary file"
        raise DataError(f"{path}: {reason}; {_NEEDED}")
    if path.suffix.lower() in _EXCEL_SUFFIXES:
        raise DataError(
            f"{path}: is a spreadsheet; save the sheet as CSV, or read it yourself and pass the table:"
            f' data=pandas.read_excel("{path.name}"); {_NEEDED}'
        )
    if path.suffix.lower() in (".parquet", ".pq"):
        return
    try:
        with open_ordinary(path) as raw, gzip.open(raw) if _is_gzip(path) else raw as file:
            first_bytes = file.read(4)
    except (OSError, EOFError, zlib.error) as exc:
        raise DataError(f"{path}: cannot be read: {getattr(exc, 'strerror', '') or exc}; {_NEEDED}") from exc
    if first_bytes.count(0) == 2:
        raise DataError(f"{path}: is UTF-16 text; save it as UTF-8; {_NEEDED}")
    for signature, (what, remedy) in _SIGNATURES.items():
        if first_bytes.startswith(signature):
            raise DataError(f"{path}: is {what}; {remedy}; {_NEEDED}")


def _read_csv(path: Path) -> pd.DataFrame:
    """Read every cell as text; float() then rounds numbers correctly with any version of pandas."""
    import pandas as pd

    try:
        check_csv_size(path, is_gzip=_is_gzip(path))
        _check_separator(path)
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # raised for rows that are too long
            rows: pd.DataFrame = pd.read_csv(
                path,
                header=None,
                dtype=str,
                encoding="utf-8-sig",
                keep_default_na=False,  # "NA" and "" stay text, for quotation in messages
                skipinitialspace=True,
                index_col=False,
                compression="gzip" if _is_gzip(path) else None,
            )
    except zlib.error as exc:
        raise DataError(f"{path}: cannot be read: damaged gzip file: {exc}; {_NEEDED}") from exc
    table = rows.iloc[1:]
    table.columns = pd.Index(rows.iloc[0].fillna("").tolist())
    return table


def _check_separator(path: Path) -> None:
    """Raise DataError for a file with cells that are not separated by commas.

    A header without a comma names at most one column, which is not enough for an input and a target.
    """
    with _open_csv(path) as lines:
        header = lines.readline(_LONGEST_HEADER + 1).strip()
    if len(header) > _LONGEST_HEADER:
        raise DataError(
            f"{path}: the first line is longer than {bytes_text(_LONGEST_HEADER)}, too long for a header;"
            f" {_NEEDED}"
        )
    check_columns(path, header.count(",") + 1)
    if "," in header:
        return
    for separator, what in _SEPARATORS.items():
        if separator in header:
            raise DataError(
                f"{path}: the cells are separated by {what}, not by commas (the header is"
                f" {short(header)!r}); save it with commas and decimal points, or read it yourself and pass"
                f' the table: data=pandas.read_csv("{path.name}", sep={separator!r}), with decimal=","'
                " where numbers have decimal commas"
            )


def _open_csv(path: Path) -> io.TextIOWrapper:
    raw = gzip.open(path, "rb") if _is_gzip(path) else path.open("rb")
    return io.TextIOWrapper(cast(Any, raw), encoding="utf-8-sig", newline="")


def _read_parquet(path: Path) -> pd.DataFrame:
    import pandas as pd

    check_parquet_size(path)
    table: pd.DataFrame = pd.read_parquet(path)
    return table


def _is_gzip(path: Path) -> bool:
    return path.suffix.lower() == ".gz"
