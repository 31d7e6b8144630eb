"""Columns that tell censored times from events: data.censored and data.event."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import rayfbnn
from rayfbnn.data import read_cases, read_training
from rayfbnn.describe.configuration import describe
from rayfbnn.errors import ConfigError, DataError
from rayfbnn.spec import RunSpec
from tests.support.data.tables import table_keys

SURVIVAL = {"kind": "survival", "hazard": "constant"}


def spec_of(model: dict[str, Any] | None = None, **data: Any) -> RunSpec:
    keys = table_keys()
    keys["data"] = {"targets": ["months"]} | data
    return RunSpec.from_dict({"data": keys["data"], "model": model or SURVIVAL})


def table_of(died: list[Any]) -> pd.DataFrame:
    return pd.DataFrame({"a": [1.0, 2.0, 3.0], "months": [4.0, 5.0, 6.0], "died": died})


@pytest.mark.parametrize(
    "died", [[1, 0, 1], [True, False, True], ["Yes", "no", "y"], [1.0, 0.0, 1.0], ["1.0", "0", "TRUE"]]
)
def test_a_column_may_mark_events(died: list[Any], tmp_path: Path) -> None:
    resolved, data = read_training(spec_of(event="died"), table_of(died))
    assert data.targets[:, 0].tolist() == [4, -5, 6] and data.input_names == ("a",)
    assert read_cases(table_of(died), resolved)[1][:, 0].tolist() == [4, -5, 6]  # type: ignore[index]
    pair = (table_of(died)[["a"]], table_of(died)[["months", "died"]])
    assert read_cases(pair, resolved)[1][:, 0].tolist() == [4, -5, 6]  # type: ignore[index]
    table_of(died).to_csv(tmp_path / "test.csv", index=False)
    assert read_cases(tmp_path / "test.csv", resolved)[1][:, 0].tolist() == [4, -5, 6]  # type: ignore[index]


def test_new_cases_without_a_header_may_lack_the_time_and_the_mark(tmp_path: Path) -> None:
    for mark in ("event", "censored"):
        spec = spec_of(header=["a", "months", "died"], **{mark: "died"})
        (tmp_path / "train.csv").write_text("1,4,1\n2,5,0\n3,6,1\n")
        resolved, _ = read_training(spec, tmp_path / "train.csv")
        (tmp_path / "new.csv").write_text("1\n2\n")
        assert read_cases(tmp_path / "new.csv", resolved)[0].tolist() == [[1], [2]]


def test_events_are_the_opposite_of_censored_times() -> None:
    of_events = read_training(spec_of(event="died"), table_of([1, 0, 1]))[1]
    of_censored = read_training(spec_of(censored="died"), table_of([0, 1, 0]))[1]
    assert of_events.hash == of_censored.hash


def test_cases_without_the_time_need_no_column_of_events() -> None:
    resolved, _ = read_training(spec_of(event="died"), table_of([1, 0, 1]))
    inputs, targets = read_cases(pd.DataFrame({"a": [1.0]}), resolved)
    assert inputs.shape == (1, 1) and targets is None


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"died": [1, 2, 0]},
            r"row 2, column died: must be 1 \(or true\) for an event and 0 .* for a cens",
        ),
        ({"died": [1, None, 0]}, "row 2, column died: must be 1"),
        ({"died": ["yes", "perhaps", "no"]}, "row 2, column died: must be 1 .* got 'perhaps'"),
        (
            {"died": [0, 0, 0]},
            r"every time is censored \(data.event\), .* data.censored instead",
        ),
        (
            {"months": [4.0, -5.0, 6.0]},
            "row 2, column months: must be a time above 0, got -5; column died",
        ),
        (
            {"months": [4.0, 0.0, 6.0]},
            "row 2, column months: must be a time above 0, got 0; give a time",
        ),
    ],
)
def test_wrong_cells_are_named(changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    table = table_of([1, 0, 1]).assign(**changed)
    with pytest.raises(DataError, match=message):
        rayfbnn.sample(spec_of(event="died"), tmp_path / "run.zarr", data=table, workers=0, progress=False)
    assert list(tmp_path.iterdir()) == []


def test_a_column_that_censors_every_time_is_refused() -> None:
    with pytest.raises(DataError, match=r"censored \(data.censored\), .* name it in data.event"):
        read_training(spec_of(censored="died"), table_of([1, 1, 1]))
    resolved, _ = read_training(spec_of(censored="died"), table_of([0, 0, 0]))
    read_cases(table_of([1, 1, 1]), resolved)  # test cases may all be censored


@pytest.mark.parametrize(
    ("data", "model", "message"),
    [
        (
            {"event": "died", "censored": "end"},
            None,
            'data.event: says the opposite of data.censored, got "died"',
        ),
        ({"event": "months"}, None, 'data.event: "months" is also an input or a target'),
        ({"event": 1}, None, 'data.event: must be the name of a column, such as "died", got 1'),
        ({"event": "died"}, {"kind": "real"}, 'data.event: only survival targets are censored, got "died"'),
    ],
)
def test_wrong_keys_are_named(data: dict[str, Any], model: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        spec_of(model, **data)


def test_a_missing_column_is_named_with_the_nearest() -> None:
    with pytest.raises(DataError, match=r"no column named dead .*the columns are"):
        read_training(spec_of(event="dead"), table_of([1, 0, 1]))
    resolved, _ = read_training(spec_of(event="died"), table_of([1, 0, 1]))
    with pytest.raises(DataError, match=r"no column named died to mark events of months \(data.event\)"):
        read_cases(table_of([1, 0, 1]).drop(columns="died"), resolved)


def test_show_says_which_times_are_censored() -> None:
    spec, data = read_training(spec_of(event="died"), table_of([1, 0, 1]))
    assert "times are those of events where died is 1 or true, and else censored" in describe(spec, data=data)
