"""The column that says where observation of a survival time ended before the event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.data.cells import Cells
from rayfbnn.data.forms.levels import truth_of
from rayfbnn.data.raw_table import Table, near_name, short
from rayfbnn.data.spec_protocols import ColumnKeys
from rayfbnn.errors import DataError

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
    def from_keys(data: ColumnKeys) -> CensoringColumn | None:
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
        """Return whether each cell says 1, (n_rows,) bool."""
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
