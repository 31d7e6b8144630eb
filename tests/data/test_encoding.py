"""Columns of a table become the inputs and labels that they should, or are refused."""

from __future__ import annotations

import tomllib
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rayfbnn.data import read_cases, read_training
from rayfbnn.errors import ConfigError, DataError
from rayfbnn.spec import RunSpec
from tests.support.data.tables import FULL, mixed_table, model_spec, table_keys, table_spec
from tests.support.small import small

NAMES = ("age", "color=blue", "color=green", "color=red", "smoker=False", "smoker=True", "size", "bmi")
CLASS = {"kind": "class"}


def test_each_column_becomes_the_inputs_that_its_kind_says() -> None:
    table = mixed_table()
    spec, data = read_training(table_spec(**FULL), table)
    assert data.input_names == spec.input_names == (*NAMES, "bmi is missing")
    values = dict(zip(data.input_names, data.inputs.T, strict=True))
    for level in ("blue", "green", "red"):
        assert values[f"color={level}"].tolist() == (table.color == level).tolist()
    assert values["smoker=True"].tolist() == table.smoker.tolist()
    assert values["size"].tolist() == table["size"].map({"S": 0, "M": 1, "L": 2}).tolist()
    assert values["bmi"].tolist() == table.bmi.fillna(table.bmi.median()).tolist()
    assert values["bmi is missing"].tolist() == table.bmi.isna().tolist()
    assert spec.encoding is not None
    assert spec.encoding.constant == {"unit": "kg"} and spec.encoding.not_used == ("id",)
    assert spec.network.inputs == len(NAMES) + 1


@pytest.mark.parametrize(
    ("n_levels", "n_rows", "is_read"),
    [(10, 10, True), (11, 21, False), (11, 22, True), (100, 200, True), (101, 900, False)],
)
def test_texts_are_levels_up_to_half_as_many_as_rows(n_levels: int, n_rows: int, is_read: bool) -> None:
    """Ten levels are always read, and more than a hundred never are."""
    rows = range(n_rows)
    table = pd.DataFrame({"x": rows, "text": [f"level {row % n_levels}" for row in rows], "y": rows})
    spec = table_spec(exclude=[])
    if is_read:
        assert len(read_training(spec, table)[1].input_names) == 1 + n_levels
        return
    with pytest.raises(DataError, match=f"column text: has {n_levels} different texts in {n_rows} rows"):
        read_training(spec, table)


def test_inputs_of_0_and_1_are_not_standardised() -> None:
    _, data = read_training(table_spec(**FULL), mixed_table())
    is_scaled = dict(zip(data.input_names, data.input_scale != 1, strict=True))
    assert {name for name, scaled in is_scaled.items() if scaled} == {"age", "size", "bmi"}
    np.testing.assert_allclose(data.standardized_inputs[:, 0].std(), 1)


def test_cases_to_predict_are_encoded_as_the_training_cases() -> None:
    """Also where they have other levels, no missing values, and columns in another order."""
    spec, data = read_training(table_spec(**FULL), mixed_table())
    new = mixed_table().iloc[[5, 2]][["y", "bmi", "size", "smoker", "color", "age"]]
    inputs, targets = read_cases(new, spec)
    assert inputs.tolist() == data.inputs[[5, 2]].tolist()
    assert targets is not None and targets.tolist() == data.targets[[5, 2]].tolist()


UNKNOWN = {
    "a level": ({"color": "pink"}, "row 1, column color: unknown level, got 'pink'", "blue, green, red"),
    "a place": ({"size": "XL"}, "row 1, column size: unknown level, got 'XL'", "S, M, L"),
    "a text": ({"age": "old"}, "row 1, column age: not a finite number, got 'old'", "correct it"),
    "a gap": ({"age": np.nan}, "column age in 12, first in row 1 ('nan')", "never missing in training"),
    "an empty level": ({"color": None}, "column color in 12", "never missing in training"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_training_did_not_have_is_refused_in_prediction(name: str) -> None:
    changes, *words = UNKNOWN[name]
    spec, _ = read_training(table_spec(**FULL), mixed_table())
    with pytest.raises(DataError) as caught:
        read_cases(mixed_table().assign(**changes), spec)
    assert all(part in str(caught.value) for part in words), caught.value


def test_missing_inputs_are_counted_by_column_with_the_ways_on() -> None:
    table = mixed_table()
    table.loc[[1, 2], "color"] = None
    with pytest.raises(DataError) as caught:
        read_training(table_spec(), table)
    message = str(caught.value)
    assert "in 5 of 12 rows: column color in 2, first in row 2" in message
    assert "column bmi in 3, first in row 1 ('nan')" in message
    assert "drop these rows" in message and 'data.missing = "indicator"' in message


def test_a_missing_level_is_an_input_of_its_own() -> None:
    table = mixed_table()
    table.loc[1, "color"] = None
    spec, data = read_training(table_spec(**FULL), table)
    values = dict(zip(data.input_names, data.inputs.T, strict=True))
    assert values["color is missing"].tolist() == [row == 1 for row in range(12)]
    assert sum(values[f"color={level}"][1] for level in ("blue", "green", "red")) == 0


def test_a_column_that_is_missing_or_constant_becomes_only_its_indicator() -> None:
    table = pd.DataFrame({"a": [1.0, 2.0, 4.0], "b": [7.0, np.nan, 7.0], "y": [1.0, 2.0, 3.0]})
    spec, data = read_training(table_spec(exclude=[], missing="indicator"), table)
    assert data.input_names == ("a", "b is missing") and data.inputs[:, 1].tolist() == [0, 1, 0]


SELECTIONS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "all but the target": ({"exclude": None}, ("x1", "x2", "x10", "z", "date")),
    "a pattern": ({"inputs": ["x*"], "exclude": None}, ("x1", "x2", "x10")),
    "patterns in their order": ({"inputs": ["z", "x?"], "exclude": None}, ("z", "x1", "x2")),
    "exclusions": ({"exclude": ["d*", "x10"]}, ("x1", "x2", "z")),
    "a pattern with exclusions": ({"inputs": ["x*"], "exclude": ["x2"]}, ("x1", "x10")),
}


@pytest.mark.parametrize("name", SELECTIONS)
def test_inputs_are_selected_by_name_and_pattern(name: str) -> None:
    keys, expected = SELECTIONS[name]
    columns = ["x1", "x2", "y", "x10", "z", "date"]
    table = pd.DataFrame({column: np.cos(np.arange(5) + number) for number, column in enumerate(columns)})
    assert read_training(table_spec(**keys), table)[1].input_names == expected


WRONG_SELECTIONS = {
    "no column": ({"inputs": ["agee"]}, "no column named agee (did you mean age?)"),
    "no match": ({"inputs": ["q*"]}, "data.inputs: no column matches 'q*'"),
    "nothing excluded": ({"exclude": ["q*"]}, "data.exclude: no column matches 'q*'"),
    "nothing left": ({"exclude": ["*"]}, "no column is left"),
    "ordered no input": (
        {"inputs": ["age"], "ordered": {"size": ["S", "M", "L"]}},
        "data.ordered names size",
    ),
    "ordered level": ({"inputs": ["size"], "ordered": {"size": ["S", "M"]}}, "unknown level, got 'L'"),
    "no target": ({"targets": ["z"]}, "no column named z"),
    "too many levels": ({"inputs": ["age", "name"]}, "12 different texts in 12 rows"),
    "dates": ({"inputs": ["age", "day"]}, "give a date as a number"),
}


@pytest.mark.parametrize("name", WRONG_SELECTIONS)
def test_wrong_selections_are_refused(name: str) -> None:
    keys, words = WRONG_SELECTIONS[name]
    table = mixed_table().assign(
        name=[f"case {number}" for number in range(12)], day=pd.date_range("2026-01-01", periods=12)
    )
    with pytest.raises(DataError) as caught:
        read_training(table_spec(**keys), table)
    assert words in str(caught.value)


def test_numbers_are_levels_where_the_configuration_says_so(tmp_path: Any) -> None:
    table = pd.DataFrame({"zip": [10, 20, 10, 30], "a": [1.0, 2.0, 3.0, 5.0], "y": [1.0, 2.0, 3.0, 4.0]})
    spec, data = read_training(table_spec(exclude=None, categorical=["zip"]), table)
    assert data.input_names == ("zip=10", "zip=20", "zip=30", "a")
    table.to_csv(tmp_path / "new.csv", index=False)
    for new in (tmp_path / "new.csv", table.astype({"zip": float})):
        assert read_cases(new, spec)[0].tolist() == data.inputs.tolist()


def test_ordered_categories_of_pandas_are_places() -> None:
    sizes = pd.Categorical(["M", "S", "L", "M"], categories=["S", "M", "L", "XL"], ordered=True)
    table = pd.DataFrame({"size": sizes, "y": [1.0, 2.0, 3.0, 5.0]})
    _, data = read_training(table_spec(exclude=None), table)
    assert data.input_names == ("size",) and data.inputs[:, 0].tolist() == [1, 0, 2, 1]


def test_constant_numbers_stay_where_they_are_named_and_not_standardised() -> None:
    table = pd.DataFrame({"one": 1.0, "a": [1.0, 2.0, 3.0], "y": [1.0, 2.0, 4.0]})
    keys = {"exclude": None, "inputs": ["one", "a"]}
    assert read_training(table_spec(**keys, standardize=[]), table)[1].input_names == ("one", "a")
    assert read_training(table_spec(**keys), table)[1].input_names == ("a",)
    assert read_training(table_spec(exclude=None, standardize=[]), table)[1].input_names == ("a",)


LABELS: dict[str, tuple[list[Any], tuple[str, ...], list[float]]] = {
    "text": (["b", "a", "c", "a"], ("a", "b", "c"), [1, 0, 2, 0]),
    "numbers": ([3, 1, 20, 1], ("1", "3", "20"), [1, 0, 2, 0]),
    "missing": (["b", "a", None, "a"], ("a", "b"), [1, 0, np.nan, 0]),
    "categories": (
        list(pd.Categorical(["lo", "hi", "lo", "hi"], categories=["lo", "hi"])),
        ("hi", "lo"),
        [1, 0, 1, 0],
    ),
}


@pytest.mark.parametrize("name", LABELS)
def test_labels_follow_from_the_training_cases(name: str) -> None:
    values, labels, numbers = LABELS[name]
    table = pd.DataFrame({"a": [1.0, 2.0, 3.0, 5.0], "y": values})
    spec, data = read_training(model_spec(CLASS, exclude=None), table)
    assert spec.encoding is not None and spec.encoding.labels == {"y": labels}
    np.testing.assert_array_equal(data.targets[:, 0], numbers)
    assert spec.model.classes == spec.network.outputs == len(labels)
    assert spec.data_model.probability_columns(["y"]) == [f"p_{label}" for label in labels]


COUNTED: dict[str, tuple[list[Any], tuple[str, ...] | None, list[float]]] = {
    "from 1": ([4, 2, 3, 1], ("1", "2", "3", "4"), [3, 1, 2, 0]),
    "not every label occurs": ([4.0, 2.0, None, 2.0], ("1", "2", "3", "4"), [3, 1, np.nan, 1]),
    "from 0": ([3, 0, 1, 2], None, [3, 0, 1, 2]),
    "neither the first nor the last": ([3, 1, 2, 1], None, [3, 1, 2, 1]),
}


@pytest.mark.parametrize("name", COUNTED)
def test_a_given_number_of_classes_is_counted_from_0_or_from_1(name: str) -> None:
    values, labels, numbers = COUNTED[name]
    table = pd.DataFrame({"a": [1.0, 2.0, 3.0, 5.0], "y": values})
    spec, data = read_training(model_spec(CLASS | {"classes": 4}, exclude=None), table)
    assert spec.encoding is not None and spec.encoding.labels == ({} if labels is None else {"y": labels})
    np.testing.assert_array_equal(data.targets[:, 0], numbers)
    np.testing.assert_array_equal(read_cases(table, spec)[1], data.targets)
    names = labels or ("0", "1", "2", "3")
    assert spec.data_model.probability_columns(["y"]) == [f"p_{label}" for label in names]


def test_cases_to_predict_are_labelled_as_the_training_cases_are() -> None:
    """The labels 1 and 2 mean the same in a table that lacks the others, and 0 is refused."""
    table = pd.DataFrame({"a": [1.0, 2.0, 3.0, 5.0], "y": [4, 2, 3, 1]})
    spec, _ = read_training(model_spec(CLASS | {"classes": 4}, exclude=None), table)
    _, targets = read_cases(table.assign(y=[1, 2, 2, 1]), spec)
    assert targets is not None and targets[:, 0].tolist() == [0, 1, 1, 0]
    with pytest.raises(DataError, match=r"row 2, column y: unknown label, got '0' .* are: 1, 2, 3, 4"):
        read_cases(table.assign(y=[1, 0, 2, 1]), spec)


@pytest.mark.parametrize("values", [[0, 1, 4], [1, 2.5, 4], [1, 2, 5], [-1, 2, 4]])
def test_other_numbers_are_no_labels(values: list[float]) -> None:
    table = pd.DataFrame({"a": [1.0, 2.0, 3.0], "y": values})
    with pytest.raises(DataError, match=r"must be a whole number from 0 to 3 .*from 1 to 4"):
        read_training(model_spec(CLASS | {"classes": 4}, exclude=None), table)


def test_categories_of_pandas_keep_the_order_of_labels() -> None:
    labels = pd.Categorical(["lo", "hi", "lo"], categories=["lo", "mid", "hi"])
    table = pd.DataFrame({"a": [1.0, 2.0, 3.0], "y": labels})
    spec, _ = read_training(model_spec(CLASS, exclude=None), table)
    assert spec.encoding is not None and spec.encoding.labels == {"y": ("lo", "hi")}


def test_an_unknown_label_is_refused_by_name() -> None:
    table = pd.DataFrame({"a": [1.0, 2.0, 3.0], "y": ["no", "yes", "no"]})
    spec, _ = read_training(model_spec({"kind": "binary"}, exclude=None), table)
    with pytest.raises(DataError, match=r"row 3, column y: unknown label, got 'maybe' .* are: no, yes"):
        read_cases(table.assign(y=["no", "yes", "maybe"]), spec)


WRONG_LABELS = {
    "three of two": ({"kind": "binary"}, ["a", "b", "c"], "must have 2 labels, got 3: a, b, c"),
    "one": ({"kind": "class"}, ["a", "a", "a"], "every row has the label a"),
    "another number": ({"kind": "class", "classes": 4}, ["a", "b", "c"], "must have 4 labels, got 3"),
    "mixed": ({"kind": "binary"}, [0, 1, "yes"], "row 3, column y: not a finite number, got 'yes'"),
    "numbers": ({"kind": "binary"}, [1, 2, 1], "must be 0 or 1, got 2"),
}


@pytest.mark.parametrize("name", WRONG_LABELS)
def test_wrong_labels_are_refused(name: str) -> None:
    model, labels, words = WRONG_LABELS[name]
    with pytest.raises(DataError) as caught:
        read_training(model_spec(model, exclude=None), pd.DataFrame({"a": [1.0, 2.0, 3.0], "y": labels}))
    assert words in str(caught.value)


def test_censoring_may_be_a_column_of_its_own() -> None:
    survival = {"kind": "survival", "hazard": "constant"}
    spec = model_spec(survival, exclude=None, censored="end")
    for ends in ([0, 1, 0], [False, True, False], ["no", "yes", "no"], ["FALSE", "True", "0"]):
        table = pd.DataFrame({"a": [1.0, 2.0, 3.0], "y": [4.0, 5.0, 6.0], "end": ends})
        resolved, data = read_training(spec, table)
        assert data.targets[:, 0].tolist() == [4, -5, 6] and data.input_names == ("a",)
    with pytest.raises(DataError, match="row 2, column y: must be a time above 0, got -5"):
        read_cases(table.assign(y=[4.0, -5.0, 6.0]), resolved)
    with pytest.raises(DataError, match=r"row 1, column end: must be 1 \(or true\)"):
        read_cases(table.assign(end=[2, 0, 1]), resolved)
    with pytest.raises(DataError, match="no column named end"):
        read_cases(table.drop(columns="end"), resolved)


def test_an_input_and_a_level_may_not_have_one_name() -> None:
    table = pd.DataFrame({"a": ["u", "v", "u"], "a=u": [1.0, 2.0, 3.0], "y": [1.0, 2.0, 3.0]})
    with pytest.raises(DataError, match='two inputs would be named "a=u"'):
        read_training(table_spec(exclude=None), table)


def test_a_network_that_is_not_known_yet_says_so() -> None:
    for spec in (table_spec(), RunSpec.from_dict(small(model=CLASS))):
        assert not spec.is_resolved
        with pytest.raises(ConfigError, match="depend on the training cases"):
            assert spec.network


def test_a_configuration_that_is_not_resolved_is_written_and_read() -> None:
    keys = {key: value for key, value in table_keys(**FULL).items() if key != "phase"}
    spec = RunSpec.from_dict(keys)
    assert RunSpec.from_json(spec.to_json()) == spec
    assert tomllib.loads(spec.to_toml()) == spec.to_dict()


def test_default_phases_follow_once_the_cases_are_read() -> None:
    keys = {key: value for key, value in table_keys(**FULL).items() if key != "phase"}
    spec = RunSpec.from_dict({**keys, "iterations": 30})
    assert spec.phase == () and RunSpec.from_dict(spec.to_dict()).iterations == 30
    resolved, _ = read_training(spec, mixed_table())
    assert resolved.phase[-1].iterations == 30 and resolved.iterations is None
