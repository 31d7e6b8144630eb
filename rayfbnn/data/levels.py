"""Levels and labels as text: which values are the same one, and the place of a value among the levels."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from decimal import Decimal
from functools import cached_property

import numpy as np

from rayfbnn.errors import visible_name
from rayfbnn.numerals import read_number

_LARGEST_WHOLE = 2.0**53  # from here on, neighbouring integers are one floating-point number
_TRUTH_WORDS = {"true": "True", "t": "True", "false": "False", "f": "False"}
_LEADING_ZERO = re.compile(r"[-+]?0+\d")


def level_text(value: object) -> str:
    """Return the text that identifies a level: a text itself, "3" for the numbers 3 and 3.0, or "True".

    Integers keep all their digits, and control characters are escaped.
    """
    if isinstance(value, str):
        return visible_name(value.strip())
    if isinstance(value, (bool, np.bool_)):
        return str(value)
    if isinstance(value, (int, np.integer)):
        return str(int(value))
    if isinstance(value, (float, np.floating, Decimal)) and math.isfinite(value):
        return number_text(value)
    return visible_name(str(value).strip())


def number_text(value: float | np.floating | Decimal) -> str:
    """Return the text that identifies a number as a level or label, such as "3" for 3.0."""
    if value == int(value):
        return str(int(value))
    return repr(float(str(value)))  # the shortest text of a float32 is that of the number it was written as


def is_ambiguous(value: object) -> bool:
    """Return True for a floating-point number so large that it may stand for several integers."""
    return isinstance(value, (float, np.floating)) and _LARGEST_WHOLE <= abs(float(value)) < math.inf


def plain_number(text: str) -> str | None:
    """Return a number in its plain form, such as "3" for "3.0" and "+3e0"; None for any other text.

    Integers keep all their digits.
    """
    try:
        value = read_number(text)
    except ValueError:
        return None
    if not math.isfinite(value):
        return None
    exact = Decimal(text.strip())
    return str(int(exact)) if value == 0 or exact == int(exact) else repr(value)


def in_one_spelling(texts: Sequence[str | None]) -> list[str | None]:
    """Return the texts of a column's cells with one text for each level.

    A number or a truth value that is written in several ways, such as 3 and 3.0, or True and TRUE, gets its
    plain form. If nothing is written in several ways, all texts stay. Numbers with leading zeros are codes,
    and stay too.
    """
    distinct = {text for text in texts if text is not None}
    plain = {text: _plain(text) for text in distinct}
    if distinct and all(text.lower() in _TRUTH_WORDS for text in distinct):
        plain = {text: _TRUTH_WORDS[text.lower()] for text in distinct}
    if len(set(plain.values())) == len(distinct):
        return list(texts)
    return [None if text is None else plain[text] for text in texts]


def _plain(text: str) -> str:
    return text if _LEADING_ZERO.match(text) else plain_number(text) or text


def order_of_levels(text: str) -> tuple[Decimal, str]:
    """Return the key that sorts levels that are numbers by value."""
    return Decimal(text), text


class Places:
    """The places of the levels of a column, found by any spelling of a level.

    A text is first looked up as it is. A number is then looked up by value, so that 3.0 finds "3" and 1234
    finds "01234". If all levels are truth values, or all are 0 or 1, truth values and 0 and 1 find each
    other.
    """

    def __init__(self, levels: Sequence[str]) -> None:
        """Take the levels in their order."""
        self._levels = levels
        self._found: dict[object, int | None] = {level: place for place, level in enumerate(levels)}

    def of(self, value: object) -> int | None:
        """Return the place of a cell's level, counted from 0; None for an unknown level."""
        text = level_text(value)
        if text not in self._found:
            self._found[text] = self._by_meaning(text, value)
        return self._found[text]

    def _by_meaning(self, text: str, value: object) -> int | None:
        number = plain_number(text)
        if number is not None and number in self._numbers:
            return self._numbers[number]
        if isinstance(value, np.floating) and repr(float(value)) in self._numbers:
            return self._numbers[repr(float(value))]
        truth = truth_of(text)
        return None if truth is None else self._truths.get(truth)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return _unambiguous([plain_number(level) for level in self._levels])

    @cached_property
    def _truths(self) -> dict[str, int]:
        truths = [truth_of(level) for level in self._levels]
        return {} if None in truths else _unambiguous(truths)


def _unambiguous(texts: Sequence[str | None]) -> dict[str, int]:
    """Return the place of each text that occurs once."""
    return {text: place for place, text in enumerate(texts) if text is not None and texts.count(text) == 1}


def truth_of(text: str) -> str | None:
    """Return "1" or "0" for a text that means true or false, in words or as a number, or None."""
    word = _TRUTH_WORDS.get(text.lower())
    if word is not None:
        return str(int(word == "True"))
    number = plain_number(text)
    return number if number in ("0", "1") else None
