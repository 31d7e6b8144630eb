"""Numbers are written as people write them, with the digits that were asked for.

A message that lists what differs, is missing, or would be right stops after ten.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rayfbnn
from rayfbnn.data.dataset import names_that_differ
from rayfbnn.errors import RayFBNNError, at_most_ten
from rayfbnn.memory import bytes_text
from rayfbnn.numerals import compared, in_range, plain
from rayfbnn.spec import RunSpec
from rayfbnn.study import Study
from rayfbnn.study.files import StudyFiles
from rayfbnn.study.plan import Member
from tests.support.small import SMALL, make_store, small, small_spec


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


_N = 60
_PHASES = [dict(SMALL["phase"][0]) for _ in range(_N)] + [SMALL["phase"][-1]]
_RAW = {
    "chains": 2,
    "iterations": 2,
    "data": {"targets": ["y"]},
    "model": {"kind": "real"},
    "network": {"hidden": [{"units": 2}]},
}
Tables = dict[str, list[object]]


@pytest.mark.parametrize(
    ("count", "last"), [(1, "0"), (10, "9"), (11, "and 1 more"), (1_260, "and 1,250 more")]
)
def test_ten_parts_and_the_number_of_the_others(count: int, last: str) -> None:
    parts = list(at_most_ten(range(count)))
    assert len(parts) == min(count, 11) and parts[-1] == last
    assert parts[:10] == list(map(str, range(count)))[:10]


def test_long_lists_of_names_are_shown_from_the_first_difference() -> None:
    names = [f"x{place}" for place in range(_N)]
    other = [*names[:50], "z"]
    listed = ", ".join(names[50:])
    assert names_that_differ(names, other) == (listed, "z")
    assert names_that_differ(names, names[:50]) == (listed, "none")
    assert names_that_differ(["a", "b"], ["a", "c"]) == ("a, b", "a, c")


def _table(value: Callable[[int, int], object]) -> Tables:
    """Return a table of many columns with a value for each column and row, and with a target y."""
    columns: Tables = {f"column{place}": [value(place, row) for row in range(12)] for place in range(_N)}
    return {**columns, "y": [row % 5 for row in range(12)]}


def _number(place: int, row: int) -> object:
    return math.sin(place + row * (place + 1.7))


def _level(place: int, row: int) -> object:
    return f"level{row % 2}"


def _sample(table: Tables, path: Path) -> str:
    rayfbnn.sample(RunSpec.from_dict(_RAW), path, data=table, workers=0, progress=False)
    return str(path)


def _other_phases(folder: Path) -> None:
    make_store(folder / "run.zarr", small_spec(folder))
    rayfbnn.sample_or_resume(small_spec(folder, phase=_PHASES), folder / "run.zarr", workers=0)


def _other_phases_in_a_study(folder: Path) -> None:
    members = StudyFiles.open(Study.create(folder / "study", small_spec(folder), seeds=2).place).members
    other = Member(0, 8)  # the first member keeps the training cases
    make_store(members.place(other), small_spec(folder, phase=_PHASES))
    members.open(other)


def _extended_with_other_phases(folder: Path) -> None:
    make_store(folder / "run.zarr", small_spec(folder)).extend(small_spec(folder, phase=_PHASES), 10)


def _missing_values(folder: Path) -> None:
    rayfbnn.predict(_sample(_table(_number), folder / "run.zarr"), data=_table(lambda place, row: math.nan))


def _unknown_levels(folder: Path) -> None:
    rayfbnn.predict(_sample(_table(_level), folder / "run.zarr"), data=_table(lambda place, row: "odd"))


def _no_input_varies(folder: Path) -> None:
    _sample(_table(lambda place, row: 1), folder / "run.zarr")


def _no_such_input(folder: Path) -> None:
    rayfbnn.plot(_sample(_table(_number), folder / "run.zarr"), out=folder / "out", input_name="z")


def _no_such_target(folder: Path) -> None:
    names = [f"y{place}" for place in range(_N)]
    RunSpec.from_dict(small(data__targets=names, data__transform={"z": "log"}), base_dir=folder)


@pytest.mark.parametrize(
    "refused",
    [
        _other_phases,
        _other_phases_in_a_study,
        _extended_with_other_phases,
        _missing_values,
        _unknown_levels,
        _no_input_varies,
        _no_such_input,
        _no_such_target,
    ],
)
def test_an_error_lists_ten_parts(tmp_path: Path, refused: Callable[[Path], None]) -> None:
    with pytest.raises(RayFBNNError, match=r"and \d+ more") as raised:
        refused(tmp_path)
    assert len(str(raised.value)) < 2_500, str(raised.value)


def test_a_warning_lists_ten_parts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        _sample(_table(lambda place, row: row if place == 0 else 1), tmp_path / "run.zarr")
    assert f"column10 (1), and {_N - 11} more" in caplog.text
