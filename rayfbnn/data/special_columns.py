"""Columns with a meaning of their own: missing inputs, exposures of counts, and marks of censored times."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.data.cells import Cells
from rayfbnn.data.dress import truth_of
from rayfbnn.data.encoding import InputColumn
from rayfbnn.data.raw_table import ColumnError, Table, listed, near_name, short
from rayfbnn.errors import DataError, at_most_ten


def missing_rows(cells: Cells, column: InputColumn) -> Array:
    """Mark the rows without a value of an input, (n_rows,)."""
    return cells.is_empty if column.kind in ("levels", "ordered") else cells.is_missing


def check_none_missing(columns: Sequence[tuple[Cells, InputColumn]], *, is_training: bool) -> None:
    """Raise DataError if an input is missing and the encoding has no indicator for it.

    The message counts the rows of every such column and says what to do. Training cases have no indicators
    yet.
    """
    counts = []
    table = columns[0][0].table
    rows = np.zeros(table.n_rows, dtype=bool)
    for cells, column in columns:
        is_missing = missing_rows(cells, column)
        if not is_missing.any() or (column.n_missing and not is_training):
            continue
        rows |= is_missing
        first = int(np.flatnonzero(is_missing)[0])
        value = short(str(cells.values.iloc[first]))
        n_missing = int(is_missing.sum())
        counts.append(f"column {cells.name} in {n_missing}, first in row {first + 1} ({value!r})")
    if not counts:
        return
    if is_training:
        ways = (
            'drop these rows, or set data.missing = "indicator" to fill in the median and add an input that'
            " marks missing values"
        )
    else:
        ways = "they were never missing in training cases, so drop these rows or fill in the values"
    raise ColumnError(
        f"{table.source}: inputs are missing in {int(rows.sum())} of {len(rows)} rows:"
        f" {'; '.join(at_most_ten(counts))}; {ways}",
        {"missing": "indicator"},
    )


def log_exposures(table: Table, name: str) -> Array:
    """Return the logarithm of each row's exposure, (n_rows,) float64.

    Raises DataError if the table has no such column, or for the first cell that is not a number above 0.
    """
    if name not in table.names:
        raise DataError(
            f"{table.source}: no column named {name}{near_name(name, table.names)}, the exposure"
            f" (data.exposure); give each case its exposure; the columns are: {listed(table.names)}"
        )
    cells = Cells.from_table(table, name)
    exposures = cells.numbers
    wrong = np.flatnonzero(~(exposures > 0))
    if len(wrong):
        row = int(wrong[0])
        value = f"{exposures[row]:g}" if cells.is_number[row] else repr(short(str(cells.values.iloc[row])))
        raise DataError(
            f"{cells.place(row)}: an exposure must be a number above 0, got {value}; correct it, or leave out"
            " rows that were not observed"
        )
    return np.log(exposures)


_WORDS = {"t": "1", "yes": "1", "y": "1", "f": "0", "no": "0", "n": "0"}


def signed_times(table: Table, times: Array, target: str) -> Array:
    """Return the times (n_rows,) with a minus sign where they are censored.

    In the column data.censored a 1 stands for a censored time, in data.event for an event. Raises DataError
    for a table without the column, for a time that is not above 0, and for a cell that is neither 1 nor 0,
    nor a word for one of them.
    """
    name, is_event = table.keys.censoring, table.keys.censored is None
    if name is None:
        return times
    marked, key = ("events", "event") if is_event else ("censored times", "censored")
    if name not in table.names:
        raise DataError(
            f"{table.source}: no column named {name}{near_name(name, table.names)} to mark {marked} of"
            f" {target} (data.{key})"
        )
    wrong = np.flatnonzero(times <= 0)
    if len(wrong):
        row = int(wrong[0])
        advice = f"column {name} marks {marked}"
        if times[row] == 0:
            advice = "give a time within the first unit, such as 0.5 for 0 whole days, or leave the row out"
        raise DataError(
            f"{table.source}: row {row + 1}, column {target}: must be a time above 0, got {times[row]:g};"
            f" {advice}"
        )
    cells = Cells.from_table(table, name)
    marks = [None if text is None else truth_of(text) or _WORDS.get(text.lower()) for text in cells.texts]
    if None in marks:
        row = marks.index(None)
        one, zero = ("an event", "a censored time") if is_event else ("a censored time", "an observed one")
        raise DataError(
            f"{cells.place(row)}: must be 1 (or true) for {one} and 0 (or false) for {zero}, got"
            f" {short(str(cells.values.iloc[row]))!r}"
        )
    return np.where(np.array(marks) == ("0" if is_event else "1"), -times, times)


def check_events(table: Table, times: Array) -> None:
    """Raise DataError if a column marks every known training time as censored.

    times  (n_cases,), negative if censored, NaN if missing
    """
    keys = table.keys
    if keys.censoring is None or (times > 0).any():
        return
    key, other, value = ("event", "censored", 0) if keys.censored is None else ("censored", "event", 1)
    raise DataError(
        f"{table.source}: column {keys.censoring}: every time is censored (data.{key}), but at least one"
        f" event is needed; if {value} stands for an event in this column, name it in data.{other} instead"
    )
