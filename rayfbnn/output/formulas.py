"""Protection against text of a table that a spreadsheet would run as a formula."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayfbnn.numerals import read_number

if TYPE_CHECKING:
    import pandas as pd

_BEGINS = ("=", "+", "-", "@", "\t", "\r")


def without_formulas(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with an apostrophe before each name and text that a spreadsheet would run.

    Names of columns and labels come from data files. A spreadsheet treats text that begins with =, +, -, @, a
    tab or a carriage return as a formula, and text after an apostrophe as plain text. Numbers are not
    changed.
    """
    import pandas as pd

    safe = {
        name: column if pd.api.types.is_numeric_dtype(column) else column.map(_harmless)
        for name, column in table.items()
    }
    result = pd.DataFrame(safe, index=table.index)
    result.columns = [_harmless(name) for name in table.columns]
    return result


def _harmless(value: object) -> object:
    if not isinstance(value, str) or not value.startswith(_BEGINS):
        return value
    try:
        read_number(value)
    except ValueError:
        return f"'{value}"
    return value
