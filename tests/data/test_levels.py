"""One value is one level, however it is written and wherever the table comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rayfbnn.data import read_cases, read_training
from rayfbnn.data.encoding import Encoding, InputColumn
from rayfbnn.errors import DataError
from rayfbnn.spec import RunSpec
from tests.support.data.tables import table_keys, table_spec

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
    keys = table_keys(exclude=None, standardize=["inputs"]) | {"model": {"kind": "class"}}
    keys["phase"] = [{"iterations": 2, "operations": [{"op": "heatbath"}]}]
    spec, data = read_training(RunSpec.from_dict(keys), frame().assign(y=BIG[name]))
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
    keys = table_keys(exclude=None, standardize=["inputs"]) | {"model": {"kind": "binary"}}
    keys["phase"] = [{"iterations": 2, "operations": [{"op": "heatbath"}]}]
    spec, data = read_training(RunSpec.from_dict(keys), frame().assign(y=FLAGS[trained]))
    targets = read_cases(frame().assign(y=FLAGS[new]), spec, data)[1]
    assert targets is not None and targets[:, 0].tolist() == data.targets[:, 0].tolist() == B.tolist()


@pytest.mark.parametrize("ends", [*FLAGS.values(), ["1.0", "0.0", "yes", "No", "T", "f"]], ids=str)
def test_a_mark_of_censoring_is_read_in_any_form(ends: Any) -> None:
    survival = {"kind": "survival", "hazard": "constant"}
    keys = table_keys(exclude=None, standardize=["inputs"], censored="end") | {"model": survival}
    keys["phase"] = [{"iterations": 2, "operations": [{"op": "heatbath"}]}]
    table = frame(end=ends).assign(y=np.arange(1.0, N + 1))
    _, data = read_training(RunSpec.from_dict(keys), table)
    assert (data.targets[:, 0] < 0).tolist() == B.tolist()
