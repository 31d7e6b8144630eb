"""Numbers as text, with the digits 0 to 9."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from decimal import Decimal

_FORM = re.compile(r"(,?)(?:\.(\d+))?([efg%])")
_MOST_DIGITS = 17  # more than these do not tell a double from its neighbours
_LEAST, _MOST = 1e-4, 1e15  # numbers between these are written without exponent


def plain(value: float, digits: int) -> str:
    """Return a number with some significant digits, as people write it: 114,010 and 0.00052.

    Very small and very large numbers have an exponent, as with the format "g". Zeros after the last digit are
    left out.
    """
    rounded = float(f"{value:.{digits}g}") if math.isfinite(value) else value
    if not _LEAST <= abs(rounded) < _MOST:
        return f"{value:.{digits}g}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
    text = f"{rounded:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text


def duration(seconds: float) -> str:
    """Return a time such as "45 seconds", "12 minutes" or "3.4 hours"."""
    if seconds < 120:
        return f"{seconds:.2g} seconds" if seconds < 10 else f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{plain(seconds / 3600, 3)} hours"


def compared(
    values: Sequence[float], limit: float, form: str, limit_form: str = "g"
) -> tuple[list[str], str]:
    """Return numbers and the limit that they are compared with as text, with enough digits to see the result.

    Each text is below, at, or above the text of the limit as its number is below, at, or above the limit:
    1.0103 is above 1.01, not 1.010. Digits are added where the given formats have too few.

    form, limit_form   format specifications of the kinds e, f, g and %, both or none with %
    """
    for more in range(_MOST_DIGITS + 1):
        shown = _with_more(limit, limit_form, more)
        is_whole = math.isclose(_number(shown), limit, rel_tol=1e-12)
        most = _MOST_DIGITS if is_whole else more
        texts = [_on_its_side(float(value), float(limit), form, shown, most) for value in values]
        if all(texts):
            return texts, shown
    return [repr(float(value)) for value in values], repr(float(limit))


def in_range(
    value: float, limits: tuple[float, float], form: str, limit_form: str = "g"
) -> tuple[str, tuple[str, str]]:
    """Return a number and the two limits of its range as text, as `compared` does for the nearer limit."""
    nearer = min(limits, key=lambda limit: abs(limit - value))
    (text,), shown = compared([value], nearer, form, limit_form)
    low, high = (shown if limit == nearer else _with_more(limit, limit_form, 0) for limit in limits)
    return text, (low, high)


def _on_its_side(value: float, limit: float, form: str, shown: str, most: int) -> str:
    """Return the shortest text of a number that lies to the text of its limit as the number does, or "".

    most  number of digits that may be added
    """
    for more in range(most + 1):
        text = _with_more(value, form, more)
        if math.isnan(value) or _order(_number(text), _number(shown)) == _order(value, limit):
            return text
    return ""


def _number(text: str) -> Decimal:
    return Decimal(text.replace(",", "").rstrip("%")) / (100 if text.endswith("%") else 1)


def _order(first: float | Decimal, second: float | Decimal) -> int:
    return (first > second) - (first < second)


def _with_more(value: float, form: str, more: int) -> str:
    match = _FORM.fullmatch(form)
    assert match is not None, f"not a format with digits: {form}"
    return f"{value:{match[1]}.{int(match[2] or 6) + more}{match[3]}}"


def read_number(text: str) -> float:
    """Return the number in a text; ValueError if it has underscores, or digits other than 0 to 9.

    `float` alone accepts "1_000" and the digits of every script.
    """
    if "_" in text or not (text.isascii() or text.strip().isascii()):
        raise ValueError(f"not a number with the digits 0 to 9: {text!r}")
    return float(text)


def has_other_digits(text: str) -> bool:
    """Return True if a text is a number in the digits of another script."""
    text = text.strip()
    return not text.isascii() and any(letter.isdecimal() for letter in text) and _is_number(text)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
