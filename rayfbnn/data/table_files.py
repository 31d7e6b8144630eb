"""Reads CSV and Parquet files as tables, with advice for files of other kinds."""

from __future__ import annotations

import gzip
import os
import zlib
from pathlib import Path

from rayfbnn.data.csv_files import NEEDED, advice_on_name, is_gzip, read_csv
from rayfbnn.data.forms.parquet import read_parquet
from rayfbnn.data.paths import check_on_disk, near_paths, open_ordinary
from rayfbnn.data.raw_table import Table, TableForm, column_name
from rayfbnn.errors import DataError

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


def read_table(path: Path, form: TableForm) -> Table:
    """Read a file as a table; raise DataError if this fails or a row has more cells than the header."""
    _check_is_table_file(path)
    is_parquet = path.suffix.lower() in (".parquet", ".pq")
    try:
        frame = read_parquet(path) if is_parquet else read_csv(path, form)
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
        return Table(frame, str(path), form=form)
    return Table(frame, str(path), path, form, advice=lambda name: advice_on_name(path, form, name))


def _check_is_table_file(path: Path) -> None:
    """Raise DataError for a path without a file, or with a file of an unsupported kind."""
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
