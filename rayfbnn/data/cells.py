"""The cells of one column, classified as numbers, text or empty."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.data.levels import in_one_spelling, is_ambiguous, level_text, truth_of
from rayfbnn.data.raw_table import Table, short
from rayfbnn.data.table_files import is_whole
from rayfbnn.errors import DataError
from rayfbnn.numerals import has_other_digits, read_number

if TYPE_CHECKING:
    import pandas as pd

# Words for missing numbers that programs write.
_MISSING_WORDS = frozenset({"na", "n/a", "nan", "null", "none", "?"})
_DECIMAL_COMMA = re.compile(r"[-+]?[\d. ]*\d?,\d+")
_DATE = re.compile(r"\d{4}-\d\d?-\d\d?([T ].*)?|\d\d?[./]\d\d?[./]\d{2,4}( .*)?")


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells of one column of a table.

    values   the cells as they are
    numbers  (n_rows,) float64, NaN where a cell is not a finite number
    """

    table: Table
    name: str
    values: pd.Series[Any]
    numbers: Array

    @staticmethod
    def from_table(table: Table, name: str) -> Cells:
        """Return the cells of the named column; raise DataError if there is none, or more than one."""
        if name not in table.read:
            table.read[name] = Cells._read(table, name)
        cells: Cells = table.read[name]
        return cells

    @staticmethod
    def _read(table: Table, name: str) -> Cells:
        values = table.column(name)
        if values.dtype.kind in "iuf":
            numbers = values.to_numpy(dtype=np.float64, na_value=math.nan)
        else:
            numbers = np.array([number(value) for value in values], dtype=np.float64)
        return Cells(table, name, values, np.where(np.isfinite(numbers), numbers, math.nan))

    @cached_property
    def is_number(self) -> Array:
        """Mark the cells that are finite numbers, (n_rows,)."""
        return ~np.isnan(self.numbers)

    @cached_property
    def is_empty(self) -> Array:
        """Mark the cells that hold nothing. A cell that a short row lacks does not count as empty."""
        if self.is_number.all():
            return np.zeros(len(self.values), dtype=bool)
        is_blank = np.array([isinstance(value, str) and not value.strip() for value in self.values], bool)
        path = self.table.csv_path
        if path is None:
            return is_blank | self.values.isna().to_numpy(dtype=bool)
        return is_blank & is_whole(path, len(is_blank)) if is_blank.any() else is_blank

    @cached_property
    def is_missing(self) -> Array:
        """Mark the cells of a column of numbers that are empty or hold a word for a missing number."""
        if self.is_number.all():
            return self.is_empty
        words = [isinstance(value, str) and value.strip().lower() in _MISSING_WORDS for value in self.values]
        return self.is_empty | np.array(words, dtype=bool)

    @cached_property
    def truths(self) -> Array | None:
        """1 and 0 where cells are true and false, NaN where they are empty; None if there are other cells."""
        if self.is_number.any():
            return None
        truths = {text: truth_of(text) for text in set(self.texts) if text is not None}
        if not truths or None in truths.values():
            return None
        values = [None if text is None else truths[text] for text in self.texts]
        return np.array([math.nan if value is None else float(value) for value in values])

    @property
    def has_categories(self) -> bool:
        """True if the column has pandas' type for categories."""
        return str(self.values.dtype) == "category"

    @cached_property
    def kind(self) -> Literal["number", "levels", "empty"]:
        """The kind of the column: numbers, levels (text, truth values or categories), or "empty".

        Columns of anything else, such as dates, count as numbers and fail the check for numbers.
        """
        if self.has_categories or self.values.dtype.kind == "b":
            return "levels"
        rest = list(self.values[~(self.is_missing | self.is_number)])
        if not rest:
            return "number" if self.is_number.any() or not self.is_missing.all() else "empty"
        if self.is_number.any() or not all(isinstance(value, str | bool | np.bool_) for value in rest):
            return "number"
        texts = [str(value).strip() for value in rest]
        others = (_DECIMAL_COMMA.fullmatch, _DATE.fullmatch, has_other_digits)
        is_other = any(all(is_one(text) for text in texts) for is_one in others)
        return "number" if is_other or not any(texts) else "levels"

    @cached_property
    def texts(self) -> list[str | None]:
        """The cells as the text of a level, None for empty ones; each level has one text.

        Raises DataError for floating-point numbers in which integers may have become equal.
        """
        rows = zip(self._levels, self.is_empty, strict=True)
        return in_one_spelling([None if is_empty else level_text(value) for value, is_empty in rows])

    def level(self, row: int) -> Any:
        """Return the cell of a row as a level; `row` counts from 0. Raises DataError as `texts` does."""
        return self._levels[row]

    @cached_property
    def _levels(self) -> list[Any]:
        # Pandas would turn a float32 into a Python float with other digits.
        is_short = str(self.values.dtype) in ("float16", "float32")
        values = list(self.values.to_numpy() if is_short else self.values)
        for row, value in enumerate(values):
            if is_ambiguous(value):
                raise DataError(
                    f"{self.place(row)}: {value:.0f} is a floating-point number, in which neighbouring"
                    " integers above 9007199254740992 have become equal; read the column as text or as"
                    " integers (Int64 in pandas if cells are missing)"
                )
        return values

    def check_numbers(self, allowed: Array | None = None) -> Array:
        """Return `numbers`; raise DataError for the first cell that is neither a number nor `allowed`."""
        is_wrong = ~self.is_number if allowed is None else ~self.is_number & ~allowed
        wrong = np.flatnonzero(is_wrong)
        if len(wrong):
            value = self.values.iloc[int(wrong[0])]
            raise DataError(
                f"{self.place(int(wrong[0]))}: not a finite number, got {short(str(value))!r}"
                f" ({len(wrong)} of {len(is_wrong)} rows; {self._counting}){_hint(value)}"
            )
        return self.numbers

    def place(self, row: int) -> str:
        """Return the source, row and column of a cell, for a message; `row` counts from 0."""
        return f"{self.table.source}: row {row + 1}, column {self.name}"

    @property
    def _counting(self) -> str:
        of_file = "row 1 is the first below the header"
        return "the first row is row 1" if self.table.csv_path is None else of_file


def number(value: object) -> float:
    """Return a value as a float, NaN for anything that is not a number written out in full."""
    if isinstance(value, (bool, np.bool_)):
        return math.nan
    if not isinstance(value, (int, float, str, Decimal, np.integer, np.floating)):
        return math.nan
    try:
        return read_number(value) if isinstance(value, str) else float(value)
    except (ValueError, OverflowError):
        return math.nan


def _hint(value: object) -> str:
    """Return advice about a cell that is not a number, as the end of a message."""
    if hasattr(value, "isoformat") or (isinstance(value, str) and _DATE.fullmatch(value.strip())):
        return "; give a date as a number, such as days since the first one, or leave the column out"
    if not isinstance(value, str):
        return ""
    text = value.strip()
    if has_other_digits(text):
        return "; write numbers with the digits 0 to 9"
    if _DECIMAL_COMMA.fullmatch(text):
        return "; write a decimal point instead of the comma"
    if text.lower() in _MISSING_WORDS:
        return "; leave a cell empty if its value is missing"
    if text:
        return "; correct it, or name the column in data.categorical if its cells are levels of an input"
    return ""
