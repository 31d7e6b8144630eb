"""Numbers as text, with the digits 0 to 9."""

from __future__ import annotations


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
