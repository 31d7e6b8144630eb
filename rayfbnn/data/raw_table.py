"""A table of cases before its cells are interpreted, its row labels, and the problems found in it."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from rayfbnn.data.keys import DataSpec
from rayfbnn.errors import DataError, at_most_ten, visible_name

if TYPE_CHECKING:
    import pandas as pd


_MAX_LISTED = 20


@dataclass(frozen=True, eq=False)
class Table:
    """The cells of a table, and their source.

    frame     the cells; cells of a CSV file are text
    source    the file, or "data", for messages
    csv_path  the CSV file of the cells, if they come from one
    keys      the section [data], which says how the table is written
    advice    returns the end of the message about a column that is not there
    read      the Cells of the columns that have been read
    """

    frame: pd.DataFrame
    source: str
    keys: DataSpec
    csv_path: Path | None = None
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


_INDEX_COLUMN = re.compile(r"__index_level_\d+__")  # the name that Arrow gives a pandas index without a name


def without_labels(data: Any) -> tuple[Any, pd.Index[Any] | None]:
    """Return a table as a DataFrame with rows numbered from 0, and the labels that its rows had.

    The labels are None if there were none. Anything that is no table with named columns stays as it is. The
    index of pandas never becomes a column, and rows keep their order.
    """
    import pandas as pd

    labels: pd.Index[Any] | None = None
    if isinstance(data, Mapping):
        data, labels = _frame_of_columns(data)
    elif not isinstance(data, pd.DataFrame) and hasattr(data, "to_pandas") and hasattr(data, "columns"):
        data = data.to_pandas()
        labels = None if isinstance(data.index, pd.RangeIndex) else data.index  # only labels that were stored
    elif isinstance(data, pd.DataFrame | pd.Series):
        labels = data.index
    if not isinstance(data, pd.DataFrame):
        return data, labels
    indices = [name for name in data.columns if _INDEX_COLUMN.fullmatch(str(name))]
    return data.drop(columns=indices).reset_index(drop=True), labels


def check_paired(
    labels: pd.Index[Any] | None, others: pd.Index[Any] | None, name: str, other_name: str
) -> None:
    """Raise DataError if two tables label their rows differently. Rows are paired by position.

    A table without labels fits any other. So does one whose rows are merely numbered from 0, unless the
    other has these numbers in a different order: then one of the two may be in the wrong order.
    """
    import pandas as pd

    if labels is None or others is None or len(labels) != len(others) or labels.equals(others):
        return
    numbers = pd.RangeIndex(len(labels))
    if (labels.equals(numbers) or others.equals(numbers)) and set(labels) != set(others):
        return
    pairs = list(zip(map(str, labels), map(str, others), strict=True))
    row = next((row for row, (label, other) in enumerate(pairs) if label != other), 0)
    raise DataError(
        f"data: the rows of {name} and {other_name} have different labels, first in row {row + 1}:"
        f" {short(pairs[row][0])} and {short(pairs[row][1])}; rows are paired by position, so give"
        f" {other_name} in the order of {name}, or both after reset_index(drop=True)"
    )


def _frame_of_columns(columns: Mapping[Any, Any]) -> tuple[pd.DataFrame, pd.Index[Any] | None]:
    """Return the columns of a dictionary as a table, and the labels of its first column that has any."""
    import pandas as pd

    labels, first, values = None, "", {}
    for name, column in columns.items():
        if isinstance(column, Mapping):
            column = pd.Series(dict(column))
        if isinstance(column, pd.Series):
            check_paired(labels, column.index, f"column {short(first)}", f"column {short(str(name))}")
            if labels is None or labels.equals(pd.RangeIndex(len(labels))):
                labels, first = column.index, str(name)
            column = column.array
        values[name] = column
    try:
        return pd.DataFrame(values), labels
    except (ValueError, TypeError) as exc:  # columns of different lengths, or with several axes
        raise DataError(f"data: the columns do not make a table: {exc}") from exc


PAGE = "docs/data.md"
_MOST_SHOWN = 50


class ColumnError(DataError):
    """A problem of a column, with the keys of [data] that would mend it.

    keys  lists are added to the lists of the configuration, other values replace its values
    """

    def __init__(self, message: str, keys: Mapping[str, Any]) -> None:
        """Keep the message, and the keys."""
        super().__init__(message)
        self.keys = dict(keys)


@dataclass
class Problems:
    """The problems of a table, in the order of their columns.

    data    the section [data] of a training table; None for new cases
    inputs  the input columns
    """

    table: Table
    data: DataSpec | None = None
    inputs: Sequence[str] = ()
    _errors: list[ColumnError] = field(default_factory=list)

    @contextmanager
    def gathered(self, **keys: Any) -> Iterator[None]:
        """Keep the DataError that is raised inside, if any.

        keys  the keys of [data] that would mend the problem, unless the error names others
        """
        try:
            yield
        except DataError as exc:
            proposed = dict(exc.keys) if isinstance(exc, ColumnError) else {}
            if "exclude" in keys and "missing_marks" in proposed:  # an input will then have missing values
                proposed["missing"] = "indicator"
            self._errors.append(ColumnError(str(exc), proposed or keys))

    def __bool__(self) -> bool:
        return bool(self._errors)

    def check(self) -> None:
        """Raise DataError if there are problems: the only one as it is, or a list of all.

        The list ends with a section [data] that reads the table, unless a target has a problem that no key
        mends.
        """
        if len(self._errors) == 1:
            raise ColumnError(f"{self._errors[0]} ({PAGE})", self._errors[0].keys)
        if not self._errors:
            return
        source = self.table.source
        shown = [str(error).removeprefix(f"{source}: ") for error in self._errors[:_MOST_SHOWN]]
        more = len(self._errors) - len(shown)
        lines = [f"{source}: {len(self._errors)} problems ({PAGE} says more):", *shown]
        lines += [f"and {more} more"] * (more > 0)
        raise DataError("\n".join(["\n  ".join(lines), *self._section()]))

    def _section(self) -> list[str]:
        """Return the lines of a section [data] without the problems; none if some would stay."""
        if self.data is None:
            return []
        keys = self.data.model_dump(mode="json", exclude_unset=True, exclude_none=True)
        excluded = []
        for error in self._errors:
            if not error.keys:
                return []
            excluded += error.keys.get("exclude", [])
            for key, value in error.keys.items():
                there = keys.get(key) or []
                keys[key] = (
                    [*there, *(one for one in value if one not in there)] if _is_list(value) else value
                )
        for key in ("inputs", "categorical"):
            if key in keys:
                keys[key] = [name for name in keys[key] if name not in excluded]
        if set(self.inputs) <= set(excluded):
            return []
        what = f", without {', '.join(at_most_ten(excluded))}" if excluded else ""
        lines = [f"{key} = {toml_value(value)}" for key, value in keys.items()]
        return [f"with this section the table can be read{what}:", "[data]", *lines]


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, list | tuple)


def toml_value(value: object) -> str:
    """Return a value as TOML writes it."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{toml_key(key)} = {toml_value(one)}" for key, one in value.items()) + " }"
    if _is_list(value):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    # A JSON string is a TOML string, apart from the one control character that JSON allows.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_key(key: str) -> str:
    """Return a key as TOML writes it, because the name of a column may need quotes."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else toml_value(key)
