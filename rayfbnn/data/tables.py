"""Reads CSV and Parquet files as tables of numbers, with every cell checked."""

from __future__ import annotations

import difflib
import io
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

_NEEDED = "a CSV (.csv, .csv.gz) or Parquet (.parquet) file is needed"


def read_table(path: Path) -> pd.DataFrame:
    """Read a file as a table; DataError if it cannot be read, or a row has more cells than the header."""
    if not path.is_file():
        reason = "is a folder" if path.is_dir() else "there is no such file"
        raise DataError(f"{path}: {reason}; {_NEEDED}")
    try:
        table = _read_parquet(path) if path.suffix in (".parquet", ".pq") else _read_csv(path)
    except DataError:
        raise
    # ValueError covers pandas' parser errors, Unicode errors and Arrow's; EOFError a cut .gz file.
    except (ValueError, OSError, EOFError, Warning) as exc:
        raise DataError(f"{path}: cannot be read: {' '.join(str(exc).split())}; {_NEEDED}") from exc
    table.columns = [str(name).strip() for name in table.columns]
    return table


def columns(table: pd.DataFrame, names: Sequence[str], path: Path, *, may_be_missing: bool = False) -> Array:
    """Return the named columns as float64 (n_cases, len(names)): finite numbers, or NaN for empty cells."""
    columns = [_column(table, name, path, may_be_missing=may_be_missing) for name in names]
    return np.stack(columns, axis=1).reshape(len(table), len(names))


def _read_csv(path: Path) -> pd.DataFrame:
    """Read every cell as text: float() then rounds numbers correctly, whatever the version of pandas."""
    import zlib

    import pandas as pd

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # given for rows that are too long
            rows: pd.DataFrame = pd.read_csv(
                path,
                header=None,
                dtype=str,
                encoding="utf-8-sig",
                keep_default_na=False,  # "NA" and "" stay text, so that a message can quote them
                skipinitialspace=True,
                index_col=False,
                compression="gzip" if _is_gzip(path) else None,
            )
    except zlib.error as exc:
        raise DataError(f"{path}: cannot be read: damaged gzip file: {exc}; {_NEEDED}") from exc
    table = rows.iloc[1:]
    table.columns = pd.Index(rows.iloc[0].fillna("").tolist())
    return table


def _read_parquet(path: Path) -> pd.DataFrame:
    import pandas as pd

    table: pd.DataFrame = pd.read_parquet(path)
    return table


def _column(table: pd.DataFrame, name: str, path: Path, *, may_be_missing: bool) -> Array:
    if name not in table.columns:
        near = difflib.get_close_matches(name, list(table.columns), n=1, cutoff=0.5)
        hint = f" (did you mean {near[0]}?)" if near else ""
        more = ", ..." if len(table.columns) > 20 else ""
        listed = ", ".join(_short(column) for column in table.columns[:20]) + more
        raise DataError(f"{path}: no column named {name}{hint}; the file has: {listed}")
    if list(table.columns).count(name) > 1:
        raise DataError(f"{path}: column {name}: the header names it {list(table.columns).count(name)} times")
    column = table[name]
    if column.dtype.kind in "iuf" and not column.hasnans:
        values = column.to_numpy(dtype=np.float64)
    else:
        values = np.array([_number(value) for value in column], dtype=np.float64)
    is_wrong = ~np.isfinite(values)
    if may_be_missing and is_wrong.any():
        is_wrong &= ~_is_empty(column, path)
    wrong = np.flatnonzero(is_wrong)
    if len(wrong):
        row = int(wrong[0])
        value = column.iloc[row]
        raise DataError(
            f"{path}: row {row + 1}, column {name}: not a finite number, got {_short(str(value))!r}"
            f" ({len(wrong)} of {len(values)} rows; row 1 is the first below the header)"
        )
    return values


def _is_empty(column: pd.Series[Any], path: Path) -> Array:
    """Mark the cells that hold nothing. A cell that is absent from a short row is not an empty one."""
    if path.suffix in (".parquet", ".pq"):
        return column.isna().to_numpy()
    is_blank = np.array([isinstance(value, str) and not value.strip() for value in column], dtype=bool)
    if is_blank.any():
        is_blank &= _is_whole(path, len(column))
    return is_blank


def _is_whole(path: Path, n_rows: int) -> Array:
    """Mark the rows of a CSV file with as many cells as the header. Pandas fills up the others silently."""
    import csv
    import gzip

    with gzip.open(path, "rb") if _is_gzip(path) else path.open("rb") as raw:
        lines = io.TextIOWrapper(cast(Any, raw), encoding="utf-8-sig", newline="")
        rows = csv.reader(lines, skipinitialspace=True)
        # Pandas leaves out lines of nothing but blanks, and so does this.
        try:
            n_cells = [len(row) for row in rows if len(row) > 1 or "".join(row).strip()]
        except csv.Error as exc:  # a cell longer than it reads
            raise DataError(f"{path}: cannot be read: {exc}; leave out the column of that cell") from exc
    return np.array(n_cells[1 : n_rows + 1]) == n_cells[0]


def _is_gzip(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


def _short(text: str) -> str:
    """Return at most 80 characters of the value as text, for a message."""
    return text if len(text) <= 80 else f"{text[:77]}..."


def _number(value: object) -> float:
    """Return the value as a float, or NaN for anything that is not a number written out in full."""
    if isinstance(value, (bool, np.bool_)):
        return math.nan
    if not isinstance(value, (int, float, str, np.integer, np.floating)):
        return math.nan
    if isinstance(value, str) and "_" in value:  # float("1_000") is 1000
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan
