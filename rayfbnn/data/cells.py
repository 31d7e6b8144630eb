"""The cells of one column, classified as numbers, text or empty."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.data.csv_files import is_whole
from rayfbnn.data.dress import (
    dress_of,
    in_one_spelling,
    is_ambiguous,
    level_text,
    mostly_dressed,
    plain_number,
    truth_of,
    undress,
)
from rayfbnn.data.raw_table import ColumnError, Table, short
from rayfbnn.errors import DataError
from rayfbnn.numerals import read_number

if TYPE_CHECKING:
    import pandas as pd

# Words for missing numbers that programs write.
_MISSING_WORDS = frozenset({"na", "n/a", "nan", "null", "none", "?"})
# Texts that often mark a missing value. In a column of text they may mean something else.
MARKS = _MISSING_WORDS | frozenset(
    "- -- --- – — . .. ... n.a. n.a #n/a n/d n.d. nil missing <na> nat (null) \\n #null! #value! #div/0!"
    " #ref! #num!".split()
)


_DECIMAL_COMMA = re.compile(r"[-+]?\d*,\d+([eE][-+]?\d+)?")
_OR_LEVELS = ", or name the column in data.categorical if its cells are levels of an input"


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells of one column of a table.

    values   the cells as they are
    numbers  (n_rows,) float64, NaN where a cell is not a finite number
    is_mark  (n_rows,) marks the cells that data.missing_marks names
    """

    table: Table
    name: str
    values: pd.Series[Any]
    numbers: Array
    is_mark: Array

    @staticmethod
    def from_table(table: Table, name: str) -> Cells:
        """Return the cells of the named column; raise DataError if there is none, or more than one."""
        cells: Cells | None = table.read.get(name)
        if cells is not None:
            return cells
        values = table.column(name)
        if table.csv_path is not None and table.keys.decimal == ",":
            values = values.map(_with_decimal_point)
        if values.dtype.kind in "iuf":
            numbers = values.to_numpy(dtype=np.float64, na_value=math.nan)
        else:
            numbers = np.array([number(value) for value in values], dtype=np.float64)
        is_mark = _marked(values, numbers, table.keys.missing_marks or ())
        numbers = np.where(np.isfinite(numbers) & ~is_mark, numbers, math.nan)
        cells = table.read[name] = Cells(table, name, values, numbers, is_mark)
        return cells

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
        if self.table.csv_path is None:
            is_blank |= self.values.isna().to_numpy(dtype=bool)
        elif is_blank.any():
            is_blank &= is_whole(self.table)
        return is_blank | self.is_mark

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
        texts = [text for value in rest if (text := str(value).strip()).lower() not in MARKS]
        return "number" if texts and (not any(texts) or mostly_dressed(texts)) else "levels"

    @cached_property
    def texts(self) -> list[str | None]:
        """The cells as the text of a level, None for empty ones; each level has one text.

        Raises DataError for floating-point numbers in which integers may have become equal, and for two texts
        that would be one level because control characters are escaped.
        """
        rows = list(zip(self.levels, self.is_empty, strict=True))
        texts = [None if is_empty else level_text(value) for value, is_empty in rows]
        written: dict[str, str] = {}
        for (value, _), text in zip(rows, texts, strict=True):
            if text is None or not isinstance(value, str):
                continue
            if written.setdefault(text, value.strip()) != value.strip():
                raise DataError(
                    f"{self.table.source}: column {self.name}: has {short(text)} with a control character and"
                    " with the escape for it; write one of the two otherwise"
                )
        return in_one_spelling(texts)

    @cached_property
    def levels(self) -> list[Any]:
        """The cells as levels. Raises DataError for the floating-point numbers that `texts` refuses."""
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

    def check_numbers(self, *, allowed: Array, is_input: bool = True) -> Array:
        """Return `numbers`; raise DataError for the first cell that is neither a number nor `allowed`.

        is_input  whether the column is an input, which could have levels instead
        """
        wrong = np.flatnonzero(~self.is_number & ~allowed)
        if len(wrong):
            value = self.values.iloc[int(wrong[0])]
            hint = self._hint(value, wrong, _OR_LEVELS if is_input else "")
            is_file = self.table.csv_path is not None
            first = "row 1 is the first below the header" if is_file else "the first row is row 1"
            texts = dict.fromkeys(str(self.values.iloc[row]).strip() for row in wrong.tolist())
            are_marks = all(text.lower() in MARKS for text in texts)
            raise ColumnError(
                f"{self.place(int(wrong[0]))}: not a finite number, got {short(str(value))!r}"
                f" ({len(wrong)} of {len(self.values)} rows; {first}){hint}",
                {"missing_marks": list(texts)} if are_marks else {},
            )
        return self.numbers

    def _hint(self, value: object, wrong: Array, or_levels: str) -> str:
        """Return advice about a cell that is not a number, as the end of a message.

        wrong      the rows with such cells, counted from 0
        or_levels  what else to do with the column
        """
        if hasattr(value, "isoformat"):
            return "; give a date as a number, such as days since the first one, or leave the column out"
        if isinstance(value, str) and not value.strip() and self.table.csv_path is not None:
            return "; the row has fewer cells than the header"
        if not isinstance(value, str) or not (text := value.strip()):
            return ""
        if text == self.name:
            return "; the row repeats the header: delete it"
        others = [str(other).strip() for other in self.values[~self.is_missing]]
        if (dressed := dress_of(text, others)) is not None:
            seen, advice = dressed
            examples = dict.fromkeys(others[row] for row in range(len(others)) if undress(others[row]))
            like = " and ".join(repr(short(one)) for one in list(examples)[1:3])
            return f"; it {seen}{f', as in {like}' if like else ''}: {advice}{or_levels}"
        if text.lower() in MARKS:
            return f"; leave a cell empty if its value is missing, or set {marks_key([text])}"
        where = ""
        if len(wrong) == 1 < len(self.values) and self.table.csv_path is not None:
            ends = {0: "the line below the header has units", len(self.values) - 1: "this is not a case"}
            where = f" if {ends[int(wrong[0])]}, delete it; otherwise" if int(wrong[0]) in ends else ""
        if truth_of(text) is not None:
            return f";{where} write truth values in one way, such as 1 and 0{or_levels}"
        return f";{where} correct it{or_levels}"

    def place(self, row: int) -> str:
        """Return the source, row and column of a cell, for a message; `row` counts from 0."""
        return f"{self.table.source}: row {row + 1}, column {self.name}"


def number(value: object) -> float:
    """Return a value as a float, NaN for anything that is not a number written out in full."""
    is_truth = isinstance(value, (bool, np.bool_))
    if is_truth or not isinstance(value, (int, float, str, Decimal, np.integer, np.floating)):
        return math.nan
    try:
        return read_number(value) if isinstance(value, str) else float(value)
    except (ValueError, OverflowError):
        return math.nan


def _with_decimal_point(value: object) -> object:
    """Return a number with a decimal comma with a point instead, and a number with a point as no number."""
    if not isinstance(value, str):
        return value
    if _DECIMAL_COMMA.fullmatch(value.strip()):
        return value.replace(",", ".")
    return f"'{value}'" if "." in value and math.isfinite(number(value)) else value


def _marked(values: pd.Series[Any], numbers: Array, marks: Sequence[str]) -> Array:
    if not marks:
        return np.zeros(len(values), dtype=bool)
    plain = [float(text) for mark in marks if (text := plain_number(mark)) is not None]
    texts = [isinstance(value, str) and value.strip() in marks for value in values]
    return np.isin(numbers, plain) | np.array(texts, dtype=bool)


def marks_key(marks: Sequence[str]) -> str:
    """Return the line of a configuration that names the marks of missing values."""
    return f"data.missing_marks = {json.dumps(list(marks), ensure_ascii=False)}"
