"""Reads the cells of CSV files as text, and explains files of another shape."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import re
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.data.file_sizes import check_columns, check_csv_size
from rayfbnn.data.forms.csv_shape import (
    SEPARATORS,
    Lines,
    cells_of,
    excel_separator,
    usual_separator,
    why_no_name,
    why_no_table,
)
from rayfbnn.data.raw_table import Table, TableForm, listed, short
from rayfbnn.errors import DataError
from rayfbnn.memory import bytes_text

if TYPE_CHECKING:
    import pandas as pd

NEEDED = "a CSV (.csv, .csv.gz) or Parquet (.parquet) file is needed"
_LONGEST_HEADER = 10_000_000  # characters
_FIRST_LINES = 50  # are read to explain the shape of a file


def read_csv(path: Path, form: TableForm) -> pd.DataFrame:
    """Read every cell as text; float() then rounds numbers correctly with any version of pandas."""
    import pandas as pd

    try:
        check_csv_size(path, is_gzip=is_gzip(path))
        shape = _shape(path, form)
        _check_separator(path, shape)
        rows = _rows(path, shape)
    except zlib.error as exc:
        raise DataError(f"{path}: cannot be read: damaged gzip file: {exc}; {NEEDED}") from exc
    names = rows.iloc[0].fillna("").tolist()
    table = rows.iloc[1:]
    if form.header is not None:
        names, has_header = _names_without_header(path, form, names)
        table = table if has_header else rows
    table.columns = pd.Index(names)
    return table


def is_whole(table: Table) -> Array:
    """Mark the rows of a CSV file with as many cells as the header. Pandas fills up other rows silently."""
    path = table.csv_path
    assert path is not None
    shape = _shape(path, table.form)
    with _open_csv(path, shape.skipped) as lines:
        rows = csv.reader(lines, delimiter=shape.separator, skipinitialspace=True)
        # Pandas skips lines of blanks, and so does this code.
        try:
            n_cells = [len(row) for row in rows if len(row) > 1 or "".join(row).strip()]
        except csv.Error as exc:  # a cell that is too long for csv
            raise DataError(f"{path}: cannot be read: {exc}; {NEEDED}") from exc
    return np.array(n_cells[len(n_cells) - table.n_rows :]) >= len(table.names)


def advice_on_name(path: Path, form: TableForm, name: str) -> str:
    """Return the end of the message that a CSV file has no column of some name."""
    shape = _shape(path, form)
    if form.header is not None:
        return ""
    if form.skip_rows:
        first = _shape(path, replace(form, skip_rows=0)).lines
        for text, number in zip(first.texts, first.numbers, strict=True):
            if number <= form.skip_rows and name in cells_of(text, shape.separator):
                skip = f"data.skip_rows = {form.skip_rows} skips it: set data.skip_rows = {number - 1}"
                return f"; the names seem to be in line {number}, and {skip}"
    return why_no_name(shape.lines, name, shape.separator)


@dataclass(frozen=True)
class _Shape:
    """The first lines of a CSV file after those that are skipped, their number, and the separator."""

    lines: Lines
    skipped: int
    separator: str


def _shape(path: Path, form: TableForm) -> _Shape:
    """Return the shape of a CSV file. A first line such as "sep=;", which Excel writes, is skipped."""
    with _open_csv(path, form.skip_rows) as file:
        lines: list[str] = []
        while len(lines) < _FIRST_LINES and sum(map(len, lines)) <= _LONGEST_HEADER:
            if not (line := file.readline(_LONGEST_HEADER + 1)):
                break
            lines.append(line)
    declared = excel_separator(lines[0]) if lines else None
    if declared is None:
        return _Shape(Lines.from_texts(lines, form.skip_rows + 1), form.skip_rows, form.separator or ",")
    skipped = form.skip_rows + 1
    return _Shape(Lines.from_texts(lines[1:], skipped + 1), skipped, form.separator or declared)


def _rows(path: Path, shape: _Shape, n_cells: int | None = None) -> pd.DataFrame:
    """Return all rows, the header included. The cells that every row has beyond the header may be empty.

    n_cells  the number of cells of a row; by default, that of the first one
    """
    import pandas as pd

    try:
        with warnings.catch_warnings(), _source(path, shape) as source:
            warnings.simplefilter("error", pd.errors.ParserWarning)  # raised for rows that are too long
            rows: pd.DataFrame = pd.read_csv(
                source,
                sep=r"\s+" if shape.separator == " " else shape.separator,
                header=None,
                names=None if n_cells is None else list(range(n_cells)),
                dtype=str,
                encoding="utf-8-sig",
                keep_default_na=False,  # "NA" and "" stay text, for quotation in messages
                skipinitialspace=True,
                index_col=False,
                compression="gzip" if is_gzip(path) and source is path else None,
            )
    except pd.errors.ParserError as exc:
        count = re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", str(exc))
        if count is None or n_cells is not None:
            raise
        expected, line, n_found = (int(number) for number in count.groups())
        return _without_empty_end(path, shape, expected, line, n_found)
    return rows


def _without_empty_end(path: Path, shape: _Shape, expected: int, line: int, n_cells: int) -> pd.DataFrame:
    """Return all rows without the cells beyond the header, or raise DataError if not all of these are empty.

    expected  number of cells of the header     line, n_cells  the first row that is longer, and its cells
    """
    import pandas as pd

    header = len(cells_of(shape.lines.texts[0], shape.separator)) if shape.lines.texts else expected
    with contextlib.suppress(pd.errors.ParserError):
        rows = _rows(path, shape, n_cells)
        if expected == header and (rows.iloc[:, expected:].fillna("") == "").all(axis=None):
            return rows.iloc[:, :expected]
    what = why_no_table(shape.lines, shape.separator)
    if what is None:
        what = (
            f"line {line + shape.skipped} has {n_cells} cells, but there should be {expected}; put a cell"
            f" that contains one of the {SEPARATORS.get(shape.separator, 'separators')} into quotation marks"
        )
    raise DataError(f"{path}: {what}")


@contextlib.contextmanager
def _source(path: Path, shape: _Shape) -> Iterator[Path | io.TextIOWrapper]:
    """Yield the file for pandas, opened behind the lines to skip if there are any."""
    if not shape.skipped:
        yield path
        return
    with _open_csv(path, shape.skipped) as file:
        yield file


def _names_without_header(path: Path, form: TableForm, first: list[str]) -> tuple[list[str], bool]:
    """Return the names of the columns that data.header gives, and whether the first row has them too.

    A table of new cases may lack the targets.
    """
    header = list(form.header or (f"x{number}" for number in range(1, len(first) + 1)))
    without_targets = [name for name in header if name not in form.not_inputs]
    if set(map(str.strip, first)) <= set(header):
        return first, True
    for names in (header, without_targets):
        if len(names) == len(first):
            return names, False
    raise DataError(
        f"{path}: data.header names {len(header)} columns ({listed(header)}), but the first row has"
        f" {len(first)} cells: {listed(first)}"
    )


def _check_separator(path: Path, shape: _Shape) -> None:
    """Raise DataError for a file with cells that are not separated as they should be.

    A header without the separator names at most one column, which is not enough for an input and a target.
    """
    header = shape.lines.texts[0].strip() if shape.lines.texts else ""
    if len(header) > _LONGEST_HEADER:
        raise DataError(
            f"{path}: the first line is longer than {bytes_text(_LONGEST_HEADER)}, too long for a header;"
            f" {NEEDED}"
        )
    check_columns(path, header.count(shape.separator) + 1)
    if shape.separator in header:
        return
    usual = usual_separator(shape.lines, shape.separator)
    what = why_no_table(shape.lines, shape.separator)
    if usual is None or what is None or usual == shape.separator:
        return
    raise DataError(
        f"{path}: {what} (the first line is {short(header)!r}); or save it with commas and decimal points, or"
        f' read it yourself and pass the table: data=pandas.read_csv("{path.name}", sep={usual!r}), with'
        ' decimal="," where numbers have decimal commas'
    )


def _open_csv(path: Path, n_skipped: int = 0) -> io.TextIOWrapper:
    """Open a file behind the lines to skip."""
    raw = gzip.open(path, "rb") if is_gzip(path) else path.open("rb")
    file = io.TextIOWrapper(cast(Any, raw), encoding="utf-8-sig", newline="")
    for _ in range(n_skipped):
        file.readline(_LONGEST_HEADER + 1)
    return file


def is_gzip(path: Path) -> bool:
    """Return True for the name of a file compressed by gzip."""
    return path.suffix.lower() == ".gz"
