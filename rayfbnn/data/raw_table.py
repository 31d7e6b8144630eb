"""A table of cases from a file or from memory, before its cells are interpreted."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rayfbnn.data.spec_protocols import ColumnKeys
from rayfbnn.errors import DataError, visible_name

if TYPE_CHECKING:
    import pandas as pd

_MAX_LISTED = 20


@dataclass(frozen=True)
class TableForm:
    """How a table is written, as the section `data` of a configuration says.

    missing_marks  texts and numbers that mark a missing value in any column; None if nothing was said
    decimal        the decimal mark of a CSV file
    separator      the separator of a CSV file; None for commas
    header         the names of a CSV file's columns if it has no header; False for x1, x2, ...
    skip_rows      number of lines to skip at the start of a CSV file
    not_inputs     the targets and the mark of censoring, which new cases may lack
    """

    missing_marks: tuple[str, ...] | None = None
    decimal: str = "."
    separator: str | None = None
    header: tuple[str, ...] | Literal[False] | None = None
    skip_rows: int = 0
    not_inputs: tuple[str, ...] = ()

    @staticmethod
    def from_keys(data: ColumnKeys) -> TableForm:
        """Return the form that a configuration describes."""
        return TableForm(
            data.missing_marks,
            data.decimal or ".",
            data.separator,
            data.header,
            data.skip_rows or 0,
            (*data.targets, *([data.censored] if data.censored else [])),
        )


@dataclass(frozen=True, eq=False)
class Table:
    """The cells of a table, and their source.

    frame     the cells; cells of a CSV file are text
    source    the file, or "data", for messages
    csv_path  the CSV file of the cells, if they come from one
    form      how the table is written
    advice    returns the end of the message about a column that is not there
    read      the Cells of the columns that have been read
    """

    frame: pd.DataFrame
    source: str
    csv_path: Path | None = None
    form: TableForm = TableForm()
    advice: Callable[[str], str] = lambda name: ""
    read: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self.frame.columns)

    @property
    def n_rows(self) -> int:
        """Number of cases."""
        return len(self.frame)

    def column(self, name: str) -> pd.Series[Any]:
        """Return the cells of a column; raise DataError unless exactly one column has this name."""
        count = self.names.count(name)
        if count == 0:
            raise DataError(
                f"{self.source}: no column named {short(name)}{near_name(name[:200], self.names)};"
                f" the columns are: {listed(self.names)}{self.advice(name)}"
            )
        if count > 1:
            raise DataError(f"{self.source}: column {name}: appears {count} times in the header")
        return self.frame[name]


def column_name(name: object) -> str:
    """Return the name of a column as text without control characters, which could forge lines of messages."""
    return visible_name(str(name).strip())


def near_name(name: str, names: Sequence[str]) -> str:
    """Return a hint at the name most similar to `name`, or "" if none is similar."""
    near = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f" (did you mean {near[0]}?)" if near else ""


def listed(names: Sequence[str]) -> str:
    """Return the first names, separated by commas, for a message."""
    more = ", ..." if len(names) > _MAX_LISTED else ""
    return ", ".join(short(name) for name in names[:_MAX_LISTED]) + more


def short(text: str) -> str:
    """Return at most 80 characters of a text, for a message."""
    return text if len(text) <= 80 else f"{text[:77]}..."
