"""Selects the input columns of a training table by names, patterns and exclusions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from rayfbnn.data.raw_table import Table, listed, short
from rayfbnn.data.spec_protocols import ColumnKeys
from rayfbnn.errors import DataError

_LONGEST_PATTERN = 1000  # characters


@dataclass(frozen=True)
class Selection:
    """The input columns.

    names        all input columns, in order
    named        the columns that the configuration names in full, not by a pattern or by default
    categorical  the columns with cells that are always treated as levels
    """

    names: tuple[str, ...]
    named: frozenset[str]
    categorical: frozenset[str]


def select_inputs(table: Table, data: ColumnKeys) -> Selection:
    """Return the input columns; raise DataError for a name or pattern that matches no column.

    By default these are all columns except the targets and the exposure. A column without a name is never an
    input.
    """
    reserved = {*data.targets, data.censored, data.event, data.exposure}
    candidates = [name for name in table.names if name not in reserved and name]
    if not candidates:
        raise DataError(f"{table.source}: has no column but the targets; at least one input is needed")
    chosen: dict[str, None] = {}
    named = set()
    for wanted in ("*",) if data.inputs is None else data.inputs:
        if wanted in table.names:
            named.add(wanted)
            chosen[wanted] = None
        else:
            chosen |= dict.fromkeys(_matching(table, wanted, candidates, key="inputs"))
    excluded = _all_matching(table, data.exclude or (), key="exclude")
    names = tuple(name for name in chosen if name not in excluded)
    if not names:
        raise DataError(
            f"{table.source}: no column is left as an input; the columns are: {listed(table.names)}"
        )
    categorical = _all_matching(table, data.categorical or (), key="categorical")
    for key, columns in (("categorical", data.categorical), ("ordered", data.ordered)):
        for name in columns or ():
            if name in table.names and name not in names:
                raise DataError(f"{table.source}: data.{key} names {name}, which is not an input")
    for name in data.ordered or ():
        table.column(name)
    return Selection(names, frozenset(named), frozenset(categorical))


def is_pattern(name: str) -> bool:
    """Return True if a name in a configuration is a pattern for several columns."""
    return any(character in name for character in "*?[")


def _all_matching(table: Table, patterns: Sequence[str], *, key: str) -> set[str]:
    return {name for pattern in patterns for name in _matching(table, pattern, table.names, key=key)}


def _matching(table: Table, pattern: str, names: Sequence[str], *, key: str) -> list[str]:
    """Return the names that match a pattern, in order; raise DataError if none does."""
    if pattern in table.names:
        return [pattern]
    if not is_pattern(pattern):
        table.column(pattern)  # raises the error that names the nearest column
    is_usable = len(pattern) <= _LONGEST_PATTERN
    matching = [name for name in names if is_usable and fnmatchcase(name, pattern)]
    if not matching:
        raise DataError(
            f"{table.source}: data.{key}: no column matches {short(pattern)!r};"
            f" the columns are: {listed(table.names)}"
        )
    return matching
