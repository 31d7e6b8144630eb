"""Gathers the problems of a table for one error, which names them all and says how to mend each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rayfbnn.data.keys import DataSpec
from rayfbnn.data.raw_table import Table
from rayfbnn.errors import DataError, at_most_ten

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


class Problems:
    """The problems of a table, in the order of their columns."""

    def __init__(self, table: Table, data: DataSpec | None = None, inputs: Sequence[str] = ()) -> None:
        """Begin without problems.

        data    the section [data] of a training table; None for new cases
        inputs  the input columns
        """
        self._table = table
        self._data = data
        self._inputs = inputs
        self._errors: list[ColumnError] = []

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
        source = self._table.source
        shown = [str(error).removeprefix(f"{source}: ") for error in self._errors[:_MOST_SHOWN]]
        more = len(self._errors) - len(shown)
        lines = [f"{source}: {len(self._errors)} problems ({PAGE} says more):", *shown]
        lines += [f"and {more} more"] * (more > 0)
        raise DataError("\n".join(["\n  ".join(lines), *self._section()]))

    def _section(self) -> list[str]:
        """Return the lines of a section [data] without the problems; none if some would stay."""
        if self._data is None:
            return []
        keys = self._data.model_dump(mode="json", exclude_unset=True, exclude_none=True)
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
        if set(self._inputs) <= set(excluded):
            return []
        what = f", without {', '.join(at_most_ten(excluded))}" if excluded else ""
        lines = [f"{key} = {toml_value(value)}" for key, value in keys.items()]
        return [f"with this section the table can be read{what}:", "[data]", *lines]


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple)


def toml_value(value: object) -> str:
    """Return a value as TOML writes it."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(key)} = {toml_value(one)}" for key, one in value.items()) + " }"
    if _is_list(value):
        return "[" + ", ".join(map(toml_value, value)) + "]"  # type: ignore[call-overload]
    return json.dumps(value, ensure_ascii=False)
