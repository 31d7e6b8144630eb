"""Reads the cells of CSV files as text, and explains files of another shape."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import math
import re
import warnings
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.data.keys import DataSpec
from rayfbnn.data.paths import check_columns, check_csv_size
from rayfbnn.data.raw_table import Table, listed, short
from rayfbnn.errors import DataError
from rayfbnn.memory import bytes_text
from rayfbnn.numerals import read_number

if TYPE_CHECKING:
    import pandas as pd


SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars", " ": "blanks"}
_EXCEL = re.compile(r'\s*"?sep=(.)"?\s*', re.IGNORECASE)
_DECIMAL_COMMA = re.compile(r"[-+]?\d*,\d+")
_MOST_BEFORE_NAMES = 20  # are searched for the names of columns
_MOST_SHOWN = 60
_MOST_NAMES = 8


Lines: TypeAlias = Mapping[int, str]
"""The first lines of a file that are not blank, by their numbers, counted from 1."""


def cells_of(line: str, separator: str) -> list[str]:
    """Return the cells of a line."""
    if separator == " ":
        line = re.sub(r"\s+", " ", line.strip())
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=separator, skipinitialspace=True))]
    except (csv.Error, StopIteration):
        return [line]


def _rows_of(lines: Lines, separator: str) -> list[list[str]]:
    return [cells_of(text, separator) for text in lines.values()]


def usual_separator(lines: Lines, asked: str) -> str | None:
    """Return the separator that divides the last lines into equally many cells; None if none does.

    If there are several, this is the one that divides most of all lines in this way, and the first line into
    most cells.

    asked  the separator to prefer
    """
    ranks = {}
    for separator in dict.fromkeys((asked, *SEPARATORS)):
        n_cells = [len(row) for row in _rows_of(lines, separator)]
        if (count := _usual_count(n_cells)) is not None:
            ranks[separator] = n_cells.count(count), n_cells[0]
    return max(ranks, key=lambda separator: ranks[separator]) if ranks else None


def _usual_count(n_cells: Sequence[int]) -> int | None:
    """Return the number of cells, above 1, that nearly all lines but the first have; None if they differ."""
    counts = Counter(n_cells[len(n_cells) // 3 :])
    if not counts:
        return None
    usual, n_lines = counts.most_common(1)[0]
    return usual if usual > 1 and n_lines >= 0.9 * counts.total() else None


def why_no_table(lines: Lines, separator: str) -> str | None:
    """Return what the first lines of a file show, and the keys of [data] that read it; None for nothing.

    separator  the separator that was used
    """
    usual = usual_separator(lines, separator)
    if usual is None:
        return None
    rows, numbers = _rows_of(lines, usual), list(lines)
    n_first, n_cells = len(rows[0]), _usual_count([len(row) for row in rows])
    first = next(place for place, row in enumerate(rows) if len(row) == n_cells)
    is_first_row = any(map(_is_number, rows[first]))
    keys: dict[str, object] = {}
    seen = []
    if usual != separator:
        seen.append(f"the cells are separated by {SEPARATORS[usual]}, not by {SEPARATORS[separator]}")
        keys["separator"] = usual
    if first == 1 and n_first + 1 == n_cells and is_first_row:
        keys |= _decimal(rows, usual) | {
            "header": ["row", *rows[0]],
            "skip_rows": numbers[0],
            "exclude": ["row"],
        }
        return _row_names(rows, seen, keys)
    if first == 1 and n_cells == 2 * n_first and usual == ",":
        return (
            f"the header has {n_first} cells and each row has {n_cells}, as if numbers had decimal commas;"
            " save it with decimal points, or with semicolons between the cells"
        )
    if first > 0 and not is_first_row:
        shown = _shown(lines[numbers[0]])
        seen.append(f"line {numbers[0]} is {shown}, and the names seem to be in line {numbers[first]}")
        keys["skip_rows"] = numbers[first] - 1
    if not seen:
        return None
    if first == 0 and _lacks_header(rows):
        seen.append("the first line looks like a case")
        is_short = n_first <= _MOST_NAMES
        keys["header"] = [f"x{number}" for number in range(1, n_first + 1)] if is_short else False
    return f"{'; '.join(seen)}; set {keys_text(keys | _decimal(rows, usual))}"


def _decimal(rows: Sequence[Sequence[str]], separator: str) -> dict[str, object]:
    """Return the key for decimal commas, if there are any in cells that are not separated by commas."""
    is_comma = separator != "," and any(_DECIMAL_COMMA.fullmatch(cell) for row in rows for cell in row)
    return {"decimal": ","} if is_comma else {}


def _row_names(rows: Sequence[Sequence[str]], seen: Sequence[str], keys: dict[str, object]) -> str:
    """Return the advice about rows that begin with a name, as R's write.table writes them."""
    n_names = len(rows[0])
    what = (
        f"the header has {n_names} names and each row has {n_names + 1} cells, as if it began with the"
        f" name of the row ({', '.join(row[0] for row in rows[1:4])}), which R writes"
    )
    short = f"set {keys_text(keys)}" if n_names <= _MOST_NAMES else 'put "row", before the header'
    return f"{'; '.join([*seen, what])}; write the table without row names (row.names = FALSE), or {short}"


def why_no_name(lines: Lines, name: str, separator: str) -> str:
    """Return why a file may have no column of some name, as the end of a message, or ""."""
    usual = usual_separator(lines, separator) or separator
    rows = _rows_of(lines, usual)[:_MOST_BEFORE_NAMES]
    for number, row in list(zip(lines, rows, strict=False))[1:]:
        if name in row:
            skip = keys_text({"skip_rows": number - 1})
            return f"; the names seem to be in line {number}: set {skip}"
    if usual != separator:
        what = why_no_table(lines, separator)
        return f"; {what}" if what else ""
    if rows and _lacks_header(rows):
        names = [f"x{number}" for number in range(1, len(rows[0]) + 1)]
        names = names if name in names else [*names[:-1], name]
        advice = keys_text({"header": names}) if len(names) <= _MOST_NAMES else 'data.header = ["x1", ...]'
        return f"; the first line looks like a case: if the file has no header, add one, or set {advice}"
    return ""


def _lacks_header(rows: Sequence[Sequence[str]]) -> bool:
    """Return True if the first row has numbers wherever the other rows have them, and there are some."""
    first = [_is_number(cell) for cell in rows[0]]
    rest = [row for row in rows[1:_MOST_BEFORE_NAMES] if len(row) == len(first)]
    if not any(first) or not rest:
        return bool(first) and all(first)
    return all(
        is_number or not all(_is_number(row[place]) for row in rest) for place, is_number in enumerate(first)
    )


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(read_number(cell.replace(",", ".")))
    except ValueError:
        return False


def keys_text(keys: dict[str, object]) -> str:
    """Return keys of [data] as they are written in a configuration, joined by "and"."""
    return " and ".join(
        f"data.{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in keys.items()
    )


def _shown(line: str) -> str:
    return repr(line if len(line) <= _MOST_SHOWN else f"{line[: _MOST_SHOWN - 3]}...")


NEEDED = "a CSV (.csv, .csv.gz) or Parquet (.parquet) file is needed"
_LONGEST_HEADER = 10_000_000  # characters
_FIRST_LINES = 50  # are read to explain the shape of a file


def read_csv(path: Path, keys: DataSpec) -> pd.DataFrame:
    """Read every cell as text; float() then rounds numbers correctly with any version of pandas."""
    import pandas as pd

    try:
        check_csv_size(path, is_gzip=is_gzip(path))
        shape = _shape(path, keys)
        _check_separator(path, shape)
        rows = _rows(path, shape)
    except zlib.error as exc:
        raise DataError(f"{path}: cannot be read: damaged gzip file: {exc}; {NEEDED}") from exc
    names = rows.iloc[0].fillna("").tolist()
    table = rows.iloc[1:]
    if keys.header is not None:
        names, has_header = _names_without_header(path, keys, names)
        table = table if has_header else rows
    table.columns = pd.Index(names)
    return table


def is_whole(table: Table) -> Array:
    """Mark the rows of a CSV file with as many cells as the header. Pandas fills up other rows silently."""
    path = table.csv_path
    assert path is not None
    shape = _shape(path, table.keys)
    with _open_csv(path, shape.skipped) as lines:
        rows = csv.reader(lines, delimiter=shape.separator, skipinitialspace=True)
        # Pandas skips lines of blanks, and so does this code.
        try:
            n_cells = [len(row) for row in rows if len(row) > 1 or "".join(row).strip()]
        except csv.Error as exc:  # a cell that is too long for csv
            raise DataError(f"{path}: cannot be read: {exc}; {NEEDED}") from exc
    return np.array(n_cells[len(n_cells) - table.n_rows :]) >= len(table.names)


def advice_on_name(path: Path, keys: DataSpec, name: str) -> str:
    """Return the end of the message that a CSV file has no column of some name."""
    shape = _shape(path, keys)
    if keys.header is not None:
        return ""
    if keys.skip_rows:
        first = _shape(path, keys.model_copy(update={"skip_rows": 0})).lines
        for number, text in first.items():
            if number <= keys.skip_rows and name in cells_of(text, shape.separator):
                skip = f"data.skip_rows = {keys.skip_rows} skips it: set data.skip_rows = {number - 1}"
                return f"; the names seem to be in line {number}, and {skip}"
    return why_no_name(shape.lines, name, shape.separator)


@dataclass(frozen=True)
class _Shape:
    """The first lines of a CSV file after those that are skipped, their number, and the separator."""

    lines: Lines
    skipped: int
    separator: str

    @property
    def first(self) -> str:
        """The first line that is not blank, or ""."""
        return next(iter(self.lines.values()), "")


def _shape(path: Path, keys: DataSpec) -> _Shape:
    """Return the shape of a CSV file. A first line such as "sep=;", which Excel writes, is skipped."""
    skip_rows = keys.skip_rows or 0
    with _open_csv(path, skip_rows) as file:
        lines: list[str] = []
        while len(lines) < _FIRST_LINES and sum(map(len, lines)) <= _LONGEST_HEADER:
            if not (line := file.readline(_LONGEST_HEADER + 1)):
                break
            lines.append(line)
    declared = _EXCEL.fullmatch(lines[0]) if lines else None
    if declared is not None:
        skip_rows, lines = skip_rows + 1, lines[1:]
    kept = {number: text.rstrip("\r\n") for number, text in enumerate(lines, skip_rows + 1) if text.strip()}
    return _Shape(kept, skip_rows, keys.separator or (declared[1] if declared else ","))


def _rows(path: Path, shape: _Shape, n_cells: int | None = None) -> pd.DataFrame:
    """Return all rows, the header included. The cells that every row has beyond the header may be empty.

    n_cells  the number of cells of a row; by default, that of the first one
    """
    import pandas as pd

    try:
        with warnings.catch_warnings(), _open_csv(path, shape.skipped) as file:
            warnings.simplefilter("error", pd.errors.ParserWarning)  # raised for rows that are too long
            rows: pd.DataFrame = pd.read_csv(
                file,
                sep=r"\s+" if shape.separator == " " else shape.separator,
                header=None,
                names=None if n_cells is None else list(range(n_cells)),
                dtype=str,
                keep_default_na=False,  # "NA" and "" stay text, for quotation in messages
                skipinitialspace=True,
                index_col=False,
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

    header = len(cells_of(shape.first, shape.separator)) if shape.lines else expected
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


def _names_without_header(path: Path, keys: DataSpec, first: list[str]) -> tuple[list[str], bool]:
    """Return the names of the columns that data.header gives, and whether the first row has them too.

    A table of new cases may lack the targets.
    """
    header = list(keys.header or (f"x{number}" for number in range(1, len(first) + 1)))
    without_targets = [name for name in header if name not in (*keys.targets, keys.censoring)]
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
    header = shape.first.strip()
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
    raw = gzip.open(path, "rb") if is_gzip(path) else path.open("rb")
    file = io.TextIOWrapper(cast(Any, raw), encoding="utf-8-sig", newline="")
    for _ in range(n_skipped):
        file.readline(_LONGEST_HEADER + 1)
    return file


def is_gzip(path: Path) -> bool:
    """Return True for the name of a file compressed by gzip."""
    return path.suffix.lower() == ".gz"
