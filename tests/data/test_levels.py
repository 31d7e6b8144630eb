"""One value is one level, however it is written and wherever the table comes from.

Levels that no training case had are refused, or their inputs are 0, wherever cases are read.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import rayfbnn
from rayfbnn import cli
from rayfbnn.data import read_cases, read_training
from rayfbnn.data.encoding import Encoding, InputColumn
from rayfbnn.errors import ConfigError, DataError
from tests.support.data.tables import FULL, mixed_table, model_spec, table_keys, table_spec
from tests.support.pages import ROOT, block_named
from tests.support.sklearn.small import classifier, numbers_spec, regressor

N = 6
X = np.cos(np.arange(N))
IDS = np.array([2**53, 2**53 + 1, 2**53 + 3])[np.arange(N) % 3]
NAMES = tuple(str(number) for number in sorted(set(IDS.tolist())))


def frame(**columns: Any) -> pd.DataFrame:
    return pd.DataFrame({**columns, "x": X, "y": np.sin(np.arange(N))})


def levels_learnt(column: Any, **data: Any) -> tuple[str, ...]:
    spec, _ = read_training(table_spec(exclude=None, **data), frame(g=column))
    assert spec.encoding is not None
    return spec.encoding.inputs[0].levels


BIG = {
    "integers": IDS,
    "objects": IDS.astype(object),
    "unsigned": IDS.astype(np.uint64),
    "nullable": pd.array(IDS, dtype="Int64"),
    "categories": pd.Categorical(IDS),
    "text": IDS.astype(str),
    "categories of text": pd.Categorical(IDS.astype(str)),
}


@pytest.mark.parametrize("name", BIG)
def test_large_integers_stay_apart_in_every_form(name: str, tmp_path: Path) -> None:
    keys = {"exclude": None, "categorical": ["g"]}
    spec, data = read_training(table_spec(**keys), frame(g=BIG[name]))
    assert spec.encoding is not None and spec.encoding.inputs[0].levels == NAMES
    frame(g=IDS).to_csv(tmp_path / "new.csv", index=False)
    for new in (*(frame(g=column) for column in BIG.values()), tmp_path / "new.csv"):
        assert read_cases(new, spec)[0].tolist() == data.inputs.tolist()


@pytest.mark.parametrize("name", BIG)
def test_large_integers_are_labels_of_their_own(name: str) -> None:
    spec, data = read_training(model_spec("class"), frame().assign(y=BIG[name]))
    assert spec.encoding is not None and spec.encoding.labels == {"y": NAMES}
    assert data.targets[:, 0].tolist() == [0, 1, 2] * 2


def test_integers_that_became_floating_point_numbers_are_refused() -> None:
    """Pandas makes floats of a column of integers with a missing cell, and different ids become one."""
    spec, _ = read_training(table_spec(exclude=None, categorical=["g"]), frame(g=IDS))
    for column in (IDS.astype(float), IDS.astype(float).astype(object)):
        for read in (lambda c: levels_learnt(c, categorical=["g"]), lambda c: read_cases(frame(g=c), spec)):
            with pytest.raises(DataError, match="row 1, column g: 9007199254740992 is a floating-point"):
                read(column)


ONE_LEVEL: dict[str, tuple[list[Any], tuple[str, ...]]] = {
    "integers and decimals": (["3", "3.0", "4", "3", "+3", "3e0"], ("3", "4")),
    "numbers of two types": ([3, 3.0, 4, 3, "3.00", 4.0], ("3", "4")),
    "one spelling each": (["3.0", "4.0", "3.0", "4.0", "3.0", "4.0"], ("3.0", "4.0")),
    "fractions": (["0.5", ".5", "0.50", "2", "2", "2"], ("0.5", "2")),
    "signs of zero": (["0", "-0", "0.0", "1", "1", "1"], ("0", "1")),
    "numbers by value": (["10", "9", "9.0", "100", "10", "9"], ("9", "10", "100")),
    "codes": (["0501", "0602", "0501", "1234", "1234", "0602"], ("0501", "0602", "1234")),
    "numbers among text": (["3", "3.0", "A", "A", "3", "A"], ("3", "A")),
    "single precision": (list(np.float32([0.1, 0.2] * 3)), ("0.1", "0.2")),
    "truth values": (["TRUE", "True", "false", "FALSE", "true", "False"], ("False", "True")),
    "truth values of R": (["TRUE", "FALSE", "TRUE", "FALSE", "TRUE", "FALSE"], ("FALSE", "TRUE")),
    "letters and words": (["T", "TRUE", "F", "F", "T", "F"], ("False", "True")),
}


@pytest.mark.parametrize("name", ONE_LEVEL)
def test_one_value_is_one_level_however_it_is_written(name: str) -> None:
    column, expected = ONE_LEVEL[name]
    assert levels_learnt(column, categorical=["g"]) == expected


def test_a_code_and_its_number_in_one_column_are_refused() -> None:
    with pytest.raises(DataError, match="column g: has both '07' and '7'"):
        levels_learnt(["07", "7", "8", "8", "7", "07"], categorical=["g"])


def test_a_code_is_found_by_its_number_and_the_number_by_the_code() -> None:
    codes, numbers = frame(g=["0501", "0602", "1234"] * 2), frame(g=[501, 602, 1234] * 2)
    for train, new in ((codes, numbers), (numbers, codes)):
        spec, data = read_training(table_spec(exclude=None, categorical=["g"]), train)
        assert read_cases(new, spec)[0].tolist() == data.inputs.tolist()


def test_a_store_with_two_spellings_of_a_level_is_read_as_before() -> None:
    spec = table_spec(exclude=None, categorical=["g"])
    old = spec.resolved(Encoding(("g",), (InputColumn("g", "levels", ("3", "3.0", "4")),)))
    assert read_cases(frame(g=["3", "3.0", "4"] * 2), old)[0][:3].tolist() == np.eye(3).tolist()


B = np.arange(N) % 2 == 0
FLAGS: dict[str, Any] = {
    "truth values": B,
    "truth values in objects": B.astype(object),
    "nullable": pd.array(B, dtype="boolean"),
    "categories": pd.Categorical(B),
    "words": np.where(B, "TRUE", "FALSE"),
    "words of Python": np.where(B, "True", "False"),
    "declared words": pd.Categorical(np.where(B, "true", "false")),
    "integers": B.astype(int),
    "numbers": B.astype(float),
    "texts of numbers": np.where(B, "1.0", "0.0"),
}


@pytest.mark.parametrize("trained", FLAGS)
@pytest.mark.parametrize("new", FLAGS)
def test_a_flag_trained_in_one_form_is_predicted_in_any_other(trained: str, new: str, tmp_path: Path) -> None:
    spec, data = read_training(table_spec(exclude=None), frame(g=FLAGS[trained]))
    table = frame(g=FLAGS[new])
    table.to_csv(tmp_path / "new.csv", index=False)
    table.to_parquet(tmp_path / "new.parquet")
    for source in (table, tmp_path / "new.csv", tmp_path / "new.parquet", pd.read_csv(tmp_path / "new.csv")):
        assert read_cases(source, spec, data)[0].tolist() == data.inputs.tolist()


def test_an_array_of_the_same_columns_finds_truth_values() -> None:
    table = frame(g=B)
    spec, data = read_training(table_spec(exclude=None), table)
    assert read_cases(table[["g", "x"]].to_numpy(float), spec)[0].tolist() == data.inputs.tolist()


def test_truth_values_are_no_numbers_where_training_had_others() -> None:
    spec, data = read_training(table_spec(exclude=None), frame(g=np.arange(N)))
    with pytest.raises(DataError, match="row 1, column g: not a finite number, got 'True'"):
        read_cases(frame(g=B), spec, data)


@pytest.mark.parametrize("trained", FLAGS)
@pytest.mark.parametrize("new", FLAGS)
def test_binary_targets_are_read_in_any_form(trained: str, new: str) -> None:
    spec, data = read_training(model_spec("binary"), frame().assign(y=FLAGS[trained]))
    targets = read_cases(frame().assign(y=FLAGS[new]), spec, data)[1]
    assert targets is not None and targets[:, 0].tolist() == data.targets[:, 0].tolist() == B.tolist()


@pytest.mark.parametrize("ends", [*FLAGS.values(), ["1.0", "0.0", "yes", "No", "T", "f"]], ids=str)
def test_a_mark_of_censoring_is_read_in_any_form(ends: Any) -> None:
    survival = {"kind": "survival", "hazard": "constant"}
    table = frame(end=ends).assign(y=np.arange(1.0, N + 1))
    _, data = read_training(model_spec(survival, censored="end"), table)
    assert (data.targets[:, 0] < 0).tolist() == B.tolist()


HERE: dict[str, Any] = {"workers": 0, "progress": False}
IGNORE = ["data.unknown=ignore"]


def new_table() -> pd.DataFrame:
    """Cases of which three have a color that no training case had."""
    return mixed_table().assign(color=["pink", "red", "teal", "pink"] + ["blue"] * 8)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose configuration says nothing about unknown levels."""
    path = tmp_path_factory.mktemp("unknown") / "run.zarr"
    rayfbnn.sample(table_keys(**FULL), path, data=mixed_table(), **HERE)
    return path


def test_all_inputs_of_an_unknown_level_are_0() -> None:
    spec, data = read_training(table_spec(**FULL, unknown="ignore"), mixed_table())
    inputs, _ = read_cases(new_table(), spec)
    colors = [data.input_names.index(f"color={color}") for color in ("blue", "green", "red")]
    assert inputs[:4, colors].tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0]]
    assert np.delete(inputs, colors, axis=1).tolist() == np.delete(data.inputs, colors, axis=1).tolist()


def test_ignored_levels_are_counted_with_examples(caplog: pytest.LogCaptureFixture) -> None:
    spec, _ = read_training(table_spec(**FULL, unknown="ignore"), mixed_table())
    read_cases(mixed_table(), spec)
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        read_cases(new_table(), spec)
    assert "column color in 3 of 12 rows: 'pink' (2), 'teal' (1)" in caplog.text


def test_all_columns_with_unknown_levels_are_named_together() -> None:
    spec, _ = read_training(table_spec(exclude=["id", "bmi"]), mixed_table())
    with pytest.raises(DataError) as caught:
        read_cases(new_table().assign(size=["XL"] * 6 + ["S"] * 6), spec)
    message = str(caught.value)
    assert "column color: unknown level, got 'pink' (3 of 12 rows)" in message
    assert "column size: unknown level, got 'XL' (6 of 12 rows)" in message
    assert 'set data.unknown = "ignore"' in message and "--set data.unknown=ignore" in message


def test_an_unknown_place_in_an_order_is_always_refused() -> None:
    """It has no indicator that could be 0."""
    spec, _ = read_training(table_spec(**FULL, unknown="ignore"), mixed_table())
    with pytest.raises(DataError, match="column size: unknown level, got 'XL'"):
        read_cases(mixed_table().assign(size="XL"), spec)


def test_unknown_labels_are_refused() -> None:
    table = mixed_table().assign(y=["a", "b"] * 6)
    spec, _ = read_training(model_spec("class", unknown="ignore", exclude=["id", "bmi"]), table)
    with pytest.raises(DataError, match="column y: unknown label, got 'c'"):
        read_cases(table.assign(y="c"), spec)


def test_a_store_predicts_all_rows_when_asked(run: Path) -> None:
    with pytest.raises(DataError, match="unknown level, got 'pink'"):
        rayfbnn.predict(run, data=new_table())
    table = rayfbnn.predict(run, data=new_table(), set=IGNORE).table
    known = rayfbnn.predict(run, data=new_table().iloc[[1, *range(4, 12)]]).table
    assert table.iloc[[1, *range(4, 12)]]["y_mean"].tolist() == known["y_mean"].tolist()
    assert np.isfinite(table.to_numpy(float)).all()
    predictor = rayfbnn.load(run, max_mcse=0, set=IGNORE)
    assert predictor.predict(new_table()).table["y_mean"].tolist() == table["y_mean"].tolist()
    with pytest.raises(DataError, match="unknown level, got 'pink'"):
        rayfbnn.load(run).predict(new_table())


def test_the_command_predicts_all_rows_when_asked(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    new_table().to_csv(tmp_path / "new cases.csv", index=False, sep=";")
    arguments = ["predict", str(run), "--data", str(tmp_path / "new cases.csv"), "--json"]
    assert CliRunner().invoke(cli.app, arguments).exit_code == 2
    options = ["--set", "data.unknown=ignore", "--set", "data.separator=;"]
    result = CliRunner().invoke(cli.app, [*arguments, *options])
    assert result.exit_code == 0, result.output
    assert "'pink' (2), 'teal' (1)" in caplog.text
    assert json.loads(result.stdout)


@pytest.mark.parametrize("wrong", ["data.unknown=maybe", "data.targets=x", "chains=3", "unknown=ignore"])
def test_only_the_reading_of_new_cases_can_be_set(run: Path, wrong: str) -> None:
    for verb in (rayfbnn.predict, rayfbnn.load):
        arguments = {"data": new_table()} if verb is rayfbnn.predict else {}
        with pytest.raises(ConfigError, match=r"data.unknown: must be|set: the keys for reading new cases"):
            verb(run, set=[wrong], **arguments)  # type: ignore[operator]


@pytest.mark.parametrize("told", [None, "ignore"])
def test_the_page_for_exported_files_ignores_unknown_levels(told: str | None, tmp_path: Path) -> None:
    """When asked, or when the run was told so."""
    page: dict[str, Any] = {}
    exec(block_named(ROOT / "docs" / "serving.md", "name: numpy-page"), page)
    rayfbnn.sample(table_keys(**FULL, unknown=told), tmp_path / "run.zarr", data=mixed_table(), **HERE)
    rayfbnn.export(tmp_path / "run.zarr", out=tmp_path / "model.npz")
    description, _ = page["load"](tmp_path / "model.npz")
    case = mixed_table().astype({"smoker": str}).iloc[1].to_dict() | {"color": "pink"}
    encode: Callable[..., np.ndarray] = page["encode"]
    with pytest.warns(UserWarning, match="color: 1 unknown levels are ignored, such as 'pink'"):
        inputs = encode(description, [case], **({} if told else {"unknown": "ignore"}))

    assert inputs[0, 1:4].tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="pink"):
        encode(description, [case], unknown="refuse")


def test_estimators_refuse_or_ignore_unknown_levels() -> None:
    X, X_new = (table.drop(columns=["y", "id", "bmi", "unit"]) for table in (mixed_table(), new_table()))
    y = mixed_table()["y"]
    for make, target in ((regressor, y), (classifier, y > 0)):
        with pytest.raises(ValueError, match='unknown level, got .pink.*handle_unknown="ignore"'):
            make().fit(X, target).predict(X_new)
        predicted = make(handle_unknown="ignore").fit(X, target).predict(X_new)
        assert len(predicted) == len(X_new)
    with pytest.raises(ValueError, match='handle_unknown: must be "error" or "ignore", got "drop"'):
        regressor(handle_unknown="drop", spec=numbers_spec()).fit(X, y)


def test_categories_that_are_declared_are_known(tmp_path: Path) -> None:
    """They are inputs, in their order, although no training case has them; also in a Parquet file."""
    colors = pd.CategoricalDtype(["red", "pink", "blue", "green"])
    table = mixed_table().astype({"color": colors})
    table.to_parquet(tmp_path / "train.parquet")
    for source in (table, tmp_path / "train.parquet"):
        spec, data = read_training(table_spec(**FULL), source)
        names = tuple(f"color={color}" for color in colors.categories)
        assert data.input_names[1:5] == names and not data.inputs[:, 2].any()
        inputs, _ = read_cases(mixed_table().assign(color="pink"), spec)
        assert inputs[:, 1:5].tolist() == [[0, 1, 0, 0]] * 12


def test_very_many_declared_categories_that_do_not_occur_are_refused() -> None:
    colors = pd.CategoricalDtype(["red", "blue", "green", *(f"shade {n}" for n in range(200))])
    with pytest.raises(DataError, match="declares 203 categories, of which 200 do not occur"):
        read_training(table_spec(**FULL), mixed_table().astype({"color": colors}))
