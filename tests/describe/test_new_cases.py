"""`show` compares new cases with the training cases, and remarks on columns that may be read wrongly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import rayfbnn
from rayfbnn import cli
from rayfbnn.data import read_training
from rayfbnn.describe.data import remarks
from rayfbnn.spec import RunSpec
from tests.support.data.tables import FULL, mixed_table, table_keys


def found(table: pd.DataFrame, kind: str = "survival", **data: str) -> list[str]:
    spec = RunSpec.from_dict({"data": {"targets": ["time"], **data}, "model": {"kind": kind}})
    return remarks(*read_training(spec, table))


TABLE = pd.DataFrame({"age": np.arange(20.0), "time": 1 + np.arange(20.0), "Died": [0, 1] * 10})


def test_a_column_that_may_mark_censored_times_is_remarked_on() -> None:
    (remark,) = found(TABLE)
    assert 'data.censored = "Died"' in remark and 'data.event = "Died"' in remark
    assert found(TABLE, event="Died") == found(TABLE, censored="Died") == []


@pytest.mark.parametrize(
    "table",
    [
        TABLE.assign(Died=np.arange(20) % 3),
        TABLE.rename(columns={"Died": "smoker"}),
        TABLE.assign(time=[-1.0, *TABLE["time"][1:]]),
    ],
    ids=["more values", "another name", "signed times"],
)
def test_other_columns_and_times_with_signs_are_not(table: pd.DataFrame) -> None:
    assert found(table) == []


def test_nor_are_inputs_of_other_models() -> None:
    assert found(TABLE, "real") == []


def test_a_column_without_a_name_is_called_that() -> None:
    spec = {"data": {"targets": ["y"]}, "model": {"kind": "real"}}
    table = pd.DataFrame({"": np.arange(9), "x": np.sin(np.arange(9.0)), "y": np.cos(np.arange(9.0))})
    assert "a column without a name" in rayfbnn.show(spec, data=table)


HERE: dict[str, Any] = {"workers": 0, "progress": False}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A configuration in run.toml, and its training cases."""
    mixed_table().to_csv(tmp_path / "train.csv", index=False)
    keys = {**FULL, "train": str(tmp_path / "train.csv")}
    spec = rayfbnn.RunSpec.from_dict(table_keys(**keys))
    (tmp_path / "run.toml").write_text(spec.to_toml())
    return tmp_path


def compared(folder: Path, table: pd.DataFrame, *options: str) -> str:
    """What `show` says about new cases, in one line."""
    table.to_csv(folder / "new cases.csv", index=False)
    arguments = ["show", str(folder / "run.toml"), "--data", str(folder / "new cases.csv"), *options]
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == 0, result.output
    parts = [" ".join(part.split()) for part in result.stdout.split("\n\n")]  # lines may be folded
    assert any(part.startswith("Data: ") and "train.csv, 12 cases" in part for part in parts)
    return next(part for part in parts if part.startswith("New cases: "))


def test_cases_like_the_training_cases_can_be_predicted(folder: Path) -> None:
    text = compared(folder, mixed_table())
    assert "new cases.csv, 12 cases, with targets; they can all be predicted" in text
    assert "remark: column bmi: missing in 3 of 12 rows, and in 3 of 12 training cases" in text
    assert "without targets; they can all be" in compared(folder, mixed_table().drop(columns="y"))


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "unknown levels": (
        {"color": ["pink", "teal", "pink"] + ["red"] * 9},
        "refused: column color: 3 of 12 rows have levels that no training case has: 'pink' (2), 'teal' (1)",
    ),
    "an unknown place": ({"size": "XL"}, "refused: column size: 12 of 12 rows have levels that no training"),
    "missing values": ({"age": [np.nan] + [30.0] * 11}, "refused: column age: missing in 1 of 12 rows"),
    "numbers in dress": (
        {"age": "30 years"},
        "refused: row 1, column age: not a finite number, got '30 years'",
    ),
    "far values": (
        {"age": [30.0] * 10 + [60.0, 1e9]},
        "remark: column age: 2 of 12 rows are far outside the training range, 20 to 32; row 12 has 1e+09",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_each_difference_from_the_training_cases_is_said(folder: Path, name: str) -> None:
    changes, words = WRONG[name]
    text = compared(folder, mixed_table().assign(**changes))
    assert words in text
    assert ("cannot be predicted as they are" in text) == words.startswith("refused")


def test_all_differences_are_said_together(folder: Path) -> None:
    table = mixed_table().assign(**WRONG["unknown levels"][0], **WRONG["far values"][0])
    text = compared(folder, table.drop(columns=["size", "smoker"]))
    assert "refused: columns are missing: smoker, size" in text
    assert "column color: 3 of 12 rows" in text and "column age: 2 of 12 rows" in text


def test_ignored_levels_are_a_remark(folder: Path) -> None:
    table = mixed_table().assign(**WRONG["unknown levels"][0])
    text = compared(folder, table, "--set", "data.unknown=ignore")
    assert "remark: column color: 3 of 12 rows have levels" in text and "they can all be predicted" in text


def test_a_store_compares_new_cases_too(tmp_path: Path) -> None:
    rayfbnn.sample(table_keys(**FULL), tmp_path / "run.zarr", data=mixed_table(), **HERE)
    new = mixed_table().assign(**WRONG["unknown levels"][0])
    text = rayfbnn.show(tmp_path / "run.zarr", data=new)
    assert "New cases: data, 12 cases" in text and "'pink' (2), 'teal' (1)" in text
    assert "New cases" not in rayfbnn.show(tmp_path / "run.zarr")


def test_data_are_the_training_cases_where_the_configuration_has_no_file() -> None:
    text = rayfbnn.show(table_keys(**FULL), data=mixed_table())
    assert "12 cases" in text and "New cases" not in text
