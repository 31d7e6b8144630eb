"""All problems of a training table are named together, with a section [data] that reads the table.

Messages about paths at which there is nothing name what is beside them.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import rayfbnn
from rayfbnn import api, cli
from rayfbnn.data import read_cases, read_training
from rayfbnn.data.paths import near_paths
from rayfbnn.errors import ConfigError, DataError, StoreError
from tests.support.data.tables import model_spec, table_keys, table_spec
from tests.support.sklearn.small import regressor

N = 28
n = np.arange(N)
MODEL = 'model = { kind = "real" }\nchains = 2\niterations = 4\n'


def bad_table() -> pd.DataFrame:
    """A table in which each column but x and y has a problem of its own."""
    return pd.DataFrame(
        {
            "full name": [f"person {row}" for row in n],
            "price": [f"${row + 5}" for row in n],
            "day": [f"2026-01-{row + 1:02d}" for row in n],
            "w": ["-" if row % 7 == 0 else f"{row}" for row in n],
            "color": [["red", "blue", ""][row % 3] for row in n],
            "x": [f"{row * row % 11}" for row in n],
            "y": [f"{row % 5}" for row in n],
        }
    )


def section(message: str) -> dict[str, Any]:
    """The section [data] at the end of a message."""
    return tomllib.loads(message[message.index("[data]") :])["data"]


def problems(table: Any, model: dict[str, Any] | None = None, **data: Any) -> str:
    spec = table_spec(**{"exclude": None, **data}) if model is None else model_spec(model, **data)
    with pytest.raises(DataError) as caught:
        read_training(spec, table)
    return str(caught.value)


def test_every_column_with_a_problem_is_named_with_what_to_write() -> None:
    message = problems(bad_table())
    assert message.startswith("data: 5 problems (docs/data.md says more):\n")
    for words in (
        "column full name: has 28 different texts in 28 rows ('person 0', 'person 1', 'person 2')",
        "column price: not a finite number, got '$5' (28 of 28 rows",
        "column day: not a finite number, got '2026-01-01'",
        "column w: not a finite number, got '-' (4 of 28 rows",
        "column color in 9, first in row 3",
    ):
        assert sum(words in line for line in message.splitlines()) == 1


def test_the_section_that_is_proposed_reads_the_table(tmp_path: Path) -> None:
    """With the keys that the configuration had, from the shell as from Python."""
    path = tmp_path / "bad table.csv"
    bad_table().to_csv(path, index=False)
    (tmp_path / "run.toml").write_text(f'data = {{ train = "{path.name}", targets = ["y"] }}\n{MODEL}')
    result = CliRunner().invoke(cli.app, ["show", str(tmp_path / "run.toml")])
    assert result.exit_code == 2
    keys = section(result.stderr)
    assert keys == {
        "train": "bad table.csv",
        "targets": ["y"],
        "exclude": ["full name", "price", "day"],
        "missing_marks": ["-"],
        "missing": "indicator",
    }
    mended = MODEL + result.stderr[result.stderr.index("[data]") :]
    (tmp_path / "mended.toml").write_text(mended)
    result = CliRunner().invoke(cli.app, ["show", str(tmp_path / "mended.toml")])
    assert result.exit_code == 0, result.output
    assert "input w: the number" in result.stdout


def test_named_inputs_are_left_out_of_the_proposal() -> None:
    message = problems(bad_table(), inputs=["x", "w", "price", "color"], categorical=["color"])
    keys = section(message)
    assert keys["inputs"] == ["x", "w", "color"] and keys["categorical"] == ["color"]
    read_training(table_spec(**keys), bad_table())


def test_problems_of_targets_and_inputs_are_named_together() -> None:
    table = bad_table().assign(y=["no", "yes", "NA", "yes"] * (N // 4))
    message = problems(table, {"kind": "class"}, standardize=["inputs"])
    assert "column y: 'NA' in 7 of 28 rows may mark missing values" in message
    keys = section(message)
    assert keys["missing_marks"] == ["-", "NA"]
    spec, _ = read_training(model_spec("class", **keys), table)
    assert spec.encoding is not None and spec.encoding.labels == {"y": ("no", "yes")}


def test_no_section_is_proposed_if_a_target_must_be_changed() -> None:
    message = problems(bad_table().assign(y=[f"{row} kg" for row in n]))
    assert "6 problems" in message and "column y: not a finite number, got '0 kg'" in message
    assert "[data]" not in message


def test_no_section_is_proposed_without_any_input(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("u,v,y\nm,s,kg\n1,2,3\n2,3,5\n")
    message = problems(tmp_path / "a.csv")
    assert "3 problems" in message and message.count("the line below the header has units") == 3
    assert "[data]" not in message
    (tmp_path / "a.csv").write_text("y\n1\n2\n")
    assert "has no column but the targets" in problems(tmp_path / "a.csv")


def test_a_single_problem_is_one_line_that_names_the_page() -> None:
    message = problems(bad_table()[["price", "x", "y"]])
    assert "\n" not in message and message.endswith("(docs/data.md)")


def test_names_with_quotation_marks_can_be_pasted() -> None:
    table = bad_table().rename(columns={"price": 'the "price"', "day": "day\\n"})
    assert section(problems(table))["exclude"] == ["full name", 'the "price"', "day\\n"]


def test_sampling_and_estimators_name_all_problems_and_leave_no_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="5 problems"):
        rayfbnn.sample(table_keys(exclude=None), tmp_path / "run.zarr", data=bad_table(), workers=0)
    assert not list(tmp_path.iterdir())
    X = bad_table().drop(columns="y")
    with pytest.raises(ValueError, match="5 problems") as caught:
        regressor().fit(X, n % 5)
    assert "column full name" in str(caught.value) and "column day" in str(caught.value)


def test_all_problems_of_new_cases_are_named_together() -> None:
    train = pd.DataFrame({"a": np.cos(n), "b": n % 5, "c": n % 3, "g": ["u", "v"] * (N // 2), "y": np.sin(n)})
    spec, _ = read_training(table_spec(exclude=None), train)
    new = train.assign(a="5 kg", g=["u", "w"] * (N // 2), c=[None, 1.0] * (N // 2)).drop(columns="b")
    with pytest.raises(DataError) as caught:
        read_cases(new, spec)
    message = str(caught.value)
    assert message.startswith("data: 4 problems") and "[data]" not in message
    for words in (
        "column a: not a",
        "no column named b",
        "column c in 14",
        "column g: unknown level, got 'w'",
    ):
        assert words in message
    with pytest.raises(DataError, match="no columns named a, b; the columns are: c, g, y"):
        read_cases(train.drop(columns=["a", "b"]), spec)


def test_a_constant_target_is_refused_or_remarked_on(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    table = pd.DataFrame({"x": np.cos(n), "y": 5.0})
    message = problems(table, standardize=["targets"])
    assert "column y: the target is 5 in every row, so there is nothing to learn" in message
    rayfbnn.sample(table_keys(exclude=None, standardize=[]), tmp_path / "a.zarr", data=table, workers=0)
    assert "the target y is 5 in every row" in caplog.text
    shown = rayfbnn.show(model_spec("binary"), data=table.assign(y=0))
    assert "remark: the target y is 0 in every row" in shown


REMARKED = {
    "a mark as a level": ({"g": ["a", "NA"] * (N // 2)}, "NA is a level of g; if it marks missing values"),
    "a number that may be a mark": (
        {"g": np.where(n % 9 == 0, -999.0, n % 4)},
        'g is -999 in 4 of 28 rows; if it marks missing values, set data.missing_marks = ["-999"]',
    ),
    "two spellings": (
        {"g": ["Yes", "yes", "no", "no"] * (N // 4)},
        "g has 'Yes' and 'yes'; if they are the same, write them in one way",
    ),
    "two blanks": ({"g": ["New York", "New\u00a0York"] * (N // 2)}, "write them in one way"),
    "a count of the rows": (
        {"Unnamed: 0": n},
        'counts the rows; to leave it out, set data.exclude = ["Unnamed: 0"]',
    ),
}


@pytest.mark.parametrize("name", REMARKED)
def test_columns_that_may_be_meant_otherwise_get_a_remark(name: str) -> None:
    columns, words = REMARKED[name]
    table = pd.DataFrame({**columns, "x": np.cos(n), "y": np.sin(n)})
    assert words in " ".join(rayfbnn.show(table_keys(exclude=None), data=table).split())
    usual = pd.DataFrame({"g": n % 4, "t": n, "x": np.cos(n), "y": np.sin(n)})
    assert "remark" not in rayfbnn.show(table_keys(exclude=None), data=usual)


def test_names_that_are_alike_come_first_and_others_of_the_kind_instead(tmp_path: Path) -> None:
    for name in ("train.csv", "notes.txt", "A.parquet", "B.parquet"):
        (tmp_path / name).touch()
    assert near_paths(tmp_path / "trian.csv", [".csv"]) == " (the folder has train.csv)"
    assert near_paths(tmp_path / "qq", [".parquet"]) == " (the folder has A.parquet, B.parquet)"
    assert near_paths(tmp_path / "qq", [".toml"]) == ""
    assert near_paths(tmp_path / "no" / "qq", [".csv"]) == f" (there is no folder {tmp_path / 'no'})"


def test_a_wrong_path_of_a_configuration_or_a_store_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "run.toml").touch()
    (tmp_path / "run.zarr").mkdir()
    with pytest.raises(ConfigError, match=r"No such file or directory \(the folder has run.toml\)"):
        api.show(tmp_path / "rum.toml")
    with pytest.raises(StoreError, match=r"does not exist \(the folder has run.zarr\)"):
        api.diagnose(tmp_path / "rum.zarr")
