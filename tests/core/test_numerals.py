"""Numbers are written as people write them, with the digits that were asked for."""

from __future__ import annotations

import math

import pytest

from rayfbnn.memory import bytes_text
from rayfbnn.numerals import plain


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (114010.0, 5, "114,010"),
        (114013.7, 5, "114,010"),
        (17_000.0, 2, "17,000"),
        (6.8e7, 3, "68,000,000"),
        (99_999.6, 5, "100,000"),
        (1600, 5, "1,600"),
        (999.96, 4, "1,000"),
        (0.68908, 5, "0.68908"),
        (0.5, 4, "0.5"),
        (-4.9791, 5, "-4.9791"),
        (-12345.678, 4, "-12,350"),
        (0.00052, 2, "0.00052"),
        (0.0000123, 3, "1.23e-05"),
        (1e20, 3, "1e+20"),
        (0.0, 4, "0"),
        (-0.0, 4, "-0"),
        (math.inf, 4, "inf"),
        (math.nan, 4, "nan"),
    ],
)
def test_numbers_have_thousands_and_no_exponent(value: float, digits: int, text: str) -> None:
    assert plain(value, digits) == text


@pytest.mark.parametrize("value", [1.0, 123.4, 0.001234, -5.0, 999.4])
def test_numbers_of_usual_size_are_as_before(value: float) -> None:
    assert plain(value, 4) == f"{value:.4g}"


def test_sizes_just_below_a_unit_have_no_exponent() -> None:
    assert bytes_text(999_600_000) == "1,000 MB" and bytes_text(1_500_000) == "1.5 MB"
