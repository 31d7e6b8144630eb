"""Numbers are written as people write them, with the digits that were asked for."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayfbnn.memory import bytes_text
from rayfbnn.numerals import compared, in_range, plain


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


@pytest.mark.parametrize(
    ("value", "limit", "form", "limit_form", "texts"),
    [
        (1.0103, 1.01, ".3f", "g", ("1.0103", "1.01")),
        (1.0100004, 1.01, ".3f", "g", ("1.0100004", "1.01")),
        (1.5, 1.01, ".3f", "g", ("1.500", "1.01")),
        (1.01, 1.01, ".3f", "g", ("1.010", "1.01")),
        (399.96, 400, ".0f", "g", ("399.96", "400")),
        (0.3004, 0.3, ".2g", "g", ("0.3004", "0.3")),
        (0.2998, 0.3, ".2g", "g", ("0.2998", "0.3")),
        (1.01234570, 1.0123456, ".3f", "g", ("1.01235", "1.0123456")),
        (0.1412, 0.2 / math.sqrt(2), ".1%", ".0%", ("14.1%", "14.14%")),
        (0.139, 0.2 / math.sqrt(2), ".1%", ".0%", ("13.9%", "14%")),
        (0.01004, 0.01, ".1%", ".0%", ("1.004%", "1%")),
        (1234567.04, 1234567, ",.0f", ",.0f", ("1,234,567.04", "1,234,567")),
        (9.99e-9, 1e-8, ".1e", ".0e", ("9.99e-09", "1e-08")),
        (math.inf, 1.01, ".3f", "g", ("inf", "1.01")),
        (math.nan, 1.01, ".3f", "g", ("nan", "1.01")),
        (0.1 + 0.2, 0.3, ".2g", "g", ("0.30000000000000004", "0.3")),
    ],
)
def test_a_number_is_shown_on_its_side_of_the_limit(
    value: float, limit: float, form: str, limit_form: str, texts: tuple[str, str]
) -> None:
    (text,), shown = compared([value], limit, form, limit_form)
    assert (text, shown) == texts


_NUMBERS = st.floats(1e-3, 1e6) | st.integers(1, 10**6).map(float)


@given(_NUMBERS, st.floats(-1e-2, 1e-2) | st.sampled_from([0.0, 1e-12, -1e-15]), st.sampled_from("efg%"))
def test_every_number_is_shown_on_its_side_of_the_limit(limit: float, apart: float, kind: str) -> None:
    values = [limit * (1 + apart), limit, 2 * limit]
    texts, shown = compared(values, limit, f".1{kind}", f".0{kind}" if kind == "%" else "g")
    read = [float(text.rstrip("%")) for text in (*texts, shown)]
    for value, number in zip(values, read, strict=False):
        assert (number > read[-1], number < read[-1]) == (value > limit, value < limit)


@pytest.mark.parametrize(
    ("share", "texts"),
    [
        (74.6, ("74.6", ("75.0", "85"))),
        (74.94, ("74.9", ("75.0", "85"))),
        (75.2, ("75.2", ("75.0", "85"))),
        (85.04, ("85.04", ("75", "85.02"))),
        (84.9, ("84.9", ("75", "85.0"))),
        (80.0, ("80", ("75", "85"))),
        (60.0, ("60", ("75", "85"))),
    ],
)
def test_a_number_is_seen_to_be_within_its_range_or_not(share: float, texts: tuple[object, ...]) -> None:
    assert in_range(share, (74.96, 85.02), ".0f", ".0f") == texts
