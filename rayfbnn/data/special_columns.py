"""Columns with a meaning of their own: missing inputs, exposures of counts, and marks of censored times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.data.cells import Cells
from rayfbnn.data.dress import truth_of
from rayfbnn.data.encoding import InputColumn
from rayfbnn.data.keys import DataSpec
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


@dataclass(frozen=True)
class CensoringColumn:
    """A column that tells censored times from events.

    key   the key that names it: in data.censored a 1 stands for a censored time, in data.event for an event
    name  of the column
    """

    key: Literal["censored", "event"]
    name: str

    @staticmethod
    def from_keys(data: DataSpec) -> CensoringColumn | None:
        """Return the column that a configuration names, or None."""
        if data.censored is not None:
            return CensoringColumn("censored", data.censored)
        return None if data.event is None else CensoringColumn("event", data.event)

    def signed(self, table: Table, times: Array, target: str) -> Array:
        """Return the times (n_rows,) with a minus sign where they are censored.

        Raises DataError for a table without the column, for a time that is not above 0, and for a cell that
        is neither 1 nor 0, nor a word for one of them.
        """
        if self.name not in table.names:
            raise DataError(
                f"{table.source}: no column named {self.name}{near_name(self.name, table.names)} to mark"
                f" {self._marked} of {target} (data.{self.key})"
            )
        self._check_times(table, times, target)
        is_one = self._ones(Cells.from_table(table, self.name))
        return np.where(is_one == (self.key == "censored"), -times, times)

    @property
    def _marked(self) -> str:
        return "censored times" if self.key == "censored" else "events"

    def _check_times(self, table: Table, times: Array, target: str) -> None:
        wrong = np.flatnonzero(times <= 0)
        if len(wrong) == 0:
            return
        row = int(wrong[0])
        advice = f"column {self.name} marks {self._marked}"
        if times[row] == 0:
            advice = "give a time within the first unit, such as 0.5 for 0 whole days, or leave the row out"
        raise DataError(
            f"{table.source}: row {row + 1}, column {target}: must be a time above 0, got {times[row]:g};"
            f" {advice}"
        )

    def _ones(self, cells: Cells) -> Array:
        marks = [None if text is None else truth_of(text) or _WORDS.get(text.lower()) for text in cells.texts]
        for row, mark in enumerate(marks):
            if mark is None:
                one, zero = ("a censored time", "an observed one")
                if self.key == "event":
                    one, zero = ("an event", "a censored time")
                raise DataError(
                    f"{cells.place(row)}: must be 1 (or true) for {one} and 0 (or false) for {zero}, got"
                    f" {short(str(cells.values.iloc[row]))!r}"
                )
        return np.array([mark == "1" for mark in marks], dtype=bool)


def check_events(source: str, times: Array, column: CensoringColumn | None) -> None:
    """Raise DataError if a column marks every known training time as censored.

    times  (n_cases,), negative if censored, NaN if missing
    """
    if column is None or (times > 0).any():
        return
    value = 1 if column.key == "censored" else 0
    other = "event" if column.key == "censored" else "censored"
    raise DataError(
        f"{source}: column {column.name}: every time is censored (data.{column.key}), but at least one event"
        f" is needed; if {value} stands for an event in this column, name it in data.{other} instead"
    )
