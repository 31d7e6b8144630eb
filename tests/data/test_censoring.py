"""Columns that tell censored times from events: data.censored and data.event.

Targets on a log scale: their conversion, and the messages about targets that have no logarithm.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rayfbnn
from rayfbnn.data import make_dataset, read_cases, read_training
from rayfbnn.data.dataset import TargetUnits, log_scale_advice
from rayfbnn.describe.configuration import describe
from rayfbnn.errors import ConfigError, DataError
from rayfbnn.spec import RunSpec
from tests.support.data.tables import table_keys
from tests.support.small import SMALL, small

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


UNITS = TargetUnits(np.array([1.5, 100.0]), np.array([0.5, 20.0]), np.array([True, False]))
TABLE = {"x1": [0.0, 1.0, 2.0, 3.0], "x2": [1.0, 0.0, 1.0, 0.5], "y": [1.0, 10.0, 100.0, 5.0]}


def keys(**replaced: Any) -> dict[str, Any]:
    raw = small(**replaced)
    del raw["data"]["train"]
    return raw


@given(st.lists(st.tuples(st.floats(1e-6, 1e6), st.floats(-1e6, 1e6)), min_size=1))
def test_the_conversion_to_the_network_is_reversed(rows: list[tuple[float, float]]) -> None:
    targets = np.array(rows)
    np.testing.assert_allclose(UNITS.to_file(UNITS.to_network(targets)), targets, rtol=1e-9, atol=1e-9)


def test_the_jacobian_is_the_slope_of_the_conversion_back() -> None:
    targets, step = np.array([[3.0, 70.0], [0.2, -5.0]]), 1e-6
    x = UNITS.to_network(targets)
    slope = (UNITS.to_file(x + step) - UNITS.to_file(x - step)) / (2 * step)
    np.testing.assert_allclose(UNITS.log_jacobian(targets), np.log(slope), atol=1e-8)


def test_missing_targets_stay_missing_and_add_nothing_to_the_jacobian() -> None:
    targets = np.array([[np.nan, 120.0], [np.e, np.nan]])
    np.testing.assert_array_equal(UNITS.to_network(targets), [[np.nan, 1.0], [-1.0, np.nan]])
    np.testing.assert_allclose(UNITS.log_jacobian(targets), [[0, np.log(20)], [np.log(0.5) + 1, 0]])


def test_a_dataset_standardises_logarithms() -> None:
    rng = np.random.default_rng(3)
    targets = np.exp(3 + 0.5 * rng.normal(size=(40, 2)))
    targets[3, 0] = np.nan
    names = {"input_names": ["x"], "target_names": ["a", "b"]}
    data = make_dataset(np.ones((40, 1)), targets, **names, standardize=["targets"], transform={"a": "log"})
    by_hand = targets.copy()
    by_hand[:, 0] = np.log(targets[:, 0])
    expected = make_dataset(np.ones((40, 1)), by_hand, **names, standardize=["targets"])
    np.testing.assert_array_equal(data.standardized_targets, expected.standardized_targets)
    assert data.log_scale == pytest.approx(expected.log_scale + np.nansum(by_hand[:, 0]), rel=1e-12)
    assert data.modelled_names == ("log(a)", "b")
    np.testing.assert_array_equal(data.targets, targets)


@pytest.mark.parametrize("value", [0.0, -3.0])
def test_a_target_without_a_logarithm_is_named(value: float, tmp_path: Path) -> None:
    table = TABLE | {"y": [1.0, value, 100.0, 5.0]}
    spec = keys(data__transform={"y": "log"})
    message = rf"data: row 2, column y: a target on a log scale must be above 0, got {value:g}; correct it"
    with pytest.raises(DataError, match=message):
        rayfbnn.sample(spec, tmp_path / "run.zarr", data=table, workers=0, progress=False)
    assert list(tmp_path.iterdir()) == []
    rayfbnn.sample(spec, tmp_path / "run.zarr", data=TABLE, workers=0, progress=False)
    with pytest.raises(DataError, match=message):
        rayfbnn.predict(tmp_path / "run.zarr", data=table)


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        (
            {"data__transform": {"y": "sqrt"}},
            r'data.transform: must be .* { price = "log" }, got "sqrt"',
        ),
        ({"data__transform": {"x1": "log"}}, r'data.transform: "x1" is not a target; name one of y'),
        ({"data__transform": "log"}, r"data.transform: must be a table of targets on a log scale, such as"),
        ({"data__transform": {}}, r"data.transform: must be a table of targets on a log scale, such as"),
        (
            {"data__transform": {"y": "log"}, "model": {"kind": "count"}},
            r'data.transform: only real targets have a log scale, got "y" with model.kind = "count"',
        ),
    ],
)
def test_wrong_transforms_are_named(replaced: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RunSpec.from_dict(keys(**replaced))


def test_the_transform_can_be_set_and_is_written_back() -> None:
    spec = RunSpec.from_dict(SMALL, ["data.transform.y=log"])
    assert spec.data.transform == {"y": "log"}
    assert RunSpec.from_json(spec.to_json()) == spec
    assert "transform" not in RunSpec.from_dict(SMALL).to_dict()["data"]


def test_show_says_which_targets_are_on_a_log_scale() -> None:
    spec, data = read_training(RunSpec.from_dict(keys(data__transform={"y": "log"})), TABLE)
    from rayfbnn.describe.configuration import describe

    assert "  y on a log scale: the network models log(y)" in describe(spec, data=data)


def test_skewed_positive_targets_get_advice_and_others_none() -> None:
    rng = np.random.default_rng(1)
    skewed = np.exp(rng.normal(size=400))
    advice = log_scale_advice("price", skewed)
    assert advice is not None and 'data.transform = { price = "log" }' in advice
    assert log_scale_advice("price", np.append(skewed, 0.0)) is None
    assert log_scale_advice("price", skewed[:20]) is None
    assert log_scale_advice("price", 50 + rng.normal(size=400)) is None
    assert log_scale_advice("price", rng.uniform(1, 2, size=400)) is None
    assert log_scale_advice("price", np.full(400, 3.0)) is None
    spec, data = read_training(
        RunSpec.from_dict(keys()), {"x1": skewed, "x2": rng.normal(size=400), "y": skewed}
    )
    from rayfbnn.describe.configuration import describe

    assert 'data.transform = { y = "log" }' in " ".join(describe(spec, data=data).split())
