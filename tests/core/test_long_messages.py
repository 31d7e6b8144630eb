"""A message that lists what differs, is missing, or would be right stops after ten."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path

import pytest

import rayfbnn
from rayfbnn.data.dataset import names_that_differ
from rayfbnn.errors import RayFBNNError, at_most_ten
from rayfbnn.spec import RunSpec
from rayfbnn.study import Study
from rayfbnn.study.files import StudyFiles
from rayfbnn.study.plan import Member
from tests.support.small import SMALL, make_store, small, small_spec

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
