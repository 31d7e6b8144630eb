"""Tables from memory, and the errors about files that are no tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from rayfbnn.data import read_cases, read_training
from rayfbnn.errors import ConfigError, DataError
from tests.support.data.tables import mixed_table, table_spec

X = np.array([[1.0, 2.0], [3.0, 5.0], [4.0, 1.0]])
Y = np.array([0.5, 1.5, -1.0])
FRAME = pd.DataFrame({"x1": X[:, 0], "x2": X[:, 1], "y": Y}, index=[7, 8, 9])

SOURCES: dict[str, Any] = {
    "DataFrame": FRAME,
    "dictionary": {"x1": X[:, 0], "x2": X[:, 1], "y": Y},
    "Arrow": pa.Table.from_pandas(FRAME, preserve_index=False),
    "arrays": (X, Y),
    "a column of targets": (X, Y[:, None]),
    "lists": (X.tolist(), Y.tolist()),
    "float32": (X.astype(np.float32), Y.astype(np.float32)),
    "DataFrame and Series": (FRAME[["x1", "x2"]], FRAME["y"].rename("z")),
    "two DataFrames": (FRAME[["x1", "x2"]], FRAME[["y"]]),
    "objects": pd.DataFrame({"x1": [1, 3.0, "4"], "x2": [2, 5, 1], "y": Y}, dtype=object),
    "nullable": FRAME.convert_dtypes(),
    "integers where they are": FRAME.astype({"x1": "Int64", "x2": "int16"}),
}


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_gives_the_same_cases(name: str) -> None:
    spec, data = read_training(table_spec(exclude=None), SOURCES[name])
    _, expected = read_training(table_spec(exclude=None), FRAME)
    assert data.hash == expected.hash and data.input_names == ("x1", "x2")


def test_a_dataframe_is_not_changed() -> None:
    table = mixed_table().rename(columns={"age": " age "})
    before = table.copy(deep=True)
    read_training(table_spec(missing="indicator"), table)
    pd.testing.assert_frame_equal(table, before)


def test_columns_of_an_array_have_the_names_of_the_configuration() -> None:
    spec, data = read_training(table_spec(exclude=None, inputs=["b", "a"]), (X, Y))
    assert data.input_names == ("b", "a")
    assert read_cases(X, spec)[0].tolist() == X.tolist()
    assert read_cases(FRAME.rename(columns={"x1": "b", "x2": "a"}), spec)[0].tolist() == X.tolist()


def test_an_array_to_predict_may_have_the_columns_that_were_left_out() -> None:
    wide = np.column_stack([X[:, 0], np.ones(3), X[:, 1]])
    spec, data = read_training(table_spec(exclude=None), (wide, Y))
    assert data.input_names == ("x1", "x3")
    assert read_cases(wide, spec)[0].tolist() == read_cases(X, spec)[0].tolist() == X.tolist()
    with pytest.raises(DataError, match=r"must have 2 \(x1, x3\) or 3 \(x1, x2, x3\) columns, got 1"):
        read_cases(X[:, :1], spec)


def test_targets_are_told_from_inputs_in_a_pair() -> None:
    spec, _ = read_training(table_spec(exclude=None), (X, Y))
    inputs, targets = read_cases((X, Y), spec)
    assert targets is not None and targets[:, 0].tolist() == Y.tolist()
    assert read_cases(X, spec)[1] is None


WRONG: dict[str, tuple[Any, str]] = {
    "a number": (3, "data: must be a file, a DataFrame or an array"),
    "one axis": (Y, r"got shape \(3,\)"),
    "three": ((X, Y, Y), r"a tuple must be a pair \(X, y\), got 3 elements"),
    "lengths": ((X, Y[:2]), "X has 3 rows and y has 2"),
    "two targets": ((X, X), r"y: must have 1 \(y\) columns, got 2"),
    "no rows": (FRAME.iloc[:0], "no rows"),
    "no target": (X, "no column named y"),
    "complex": ((X + 1j, Y), "row 1, column x1: not a finite number"),
    "infinite": ((np.where(X == 5, np.inf, X), Y), "row 2, column x2: not a finite number, got 'inf'"),
    "ragged": (([[1.0], [2.0, 3.0]], Y), "X: is not an array"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_source_is_refused(name: str) -> None:
    data, words = WRONG[name]
    with pytest.raises(DataError, match=words):
        read_training(table_spec(exclude=None), data)


def test_a_configuration_without_a_file_says_what_to_give() -> None:
    with pytest.raises(ConfigError, match=r"data.train: missing; give the file .* or pass data="):
        read_training(table_spec())


FILES: dict[str, tuple[str, bytes, str]] = {
    "near names": ("trian.csv", b"", r"no such file: .*trian\.csv \(the folder has train\.csv\)"),
    "no folder": ("no/train.csv", b"", r"no such file: .* \(there is no folder .*no\);"),
    "Excel": ("train.xlsx", b"PK", "is a spreadsheet; save the sheet as CSV, .*pandas.read_excel"),
    "zip": ("train.zip", b"PK\x03\x04", "is a zip archive or an Excel file; unpack it"),
    "Parquet": ("data.csv", b"PAR1", "give it the suffix .parquet"),
    "bars": ("bars.csv", b"x1|x2|y\n1|2|3\n", "separated by vertical bars"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_table_says_what_to_do(tmp_path: Path, name: str) -> None:
    file, content, words = FILES[name]
    FRAME.to_csv(tmp_path / "train.csv", index=False)
    if content:
        (tmp_path / file).write_bytes(content)
    with pytest.raises(DataError, match=words) as caught:
        read_training(table_spec(), tmp_path / file)
    assert "a CSV (.csv, .csv.gz) or Parquet (.parquet) file is needed" in str(caught.value) or name == "bars"
