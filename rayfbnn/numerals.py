"""Numbers as text, with the digits 0 to 9."""

from __future__ import annotations

import math

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
