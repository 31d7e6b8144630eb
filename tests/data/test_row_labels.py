"""Rows are paired by position whatever their labels, or the pair is refused; labels are never inputs."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

from rayfbnn.data import read_cases, read_training
from rayfbnn.errors import DataError
from tests.support.data.tables import table_spec

N = 6
X = np.column_stack([np.arange(N) ** 2.0, np.cos(np.arange(N))])
Y = np.sin(np.arange(N))
ORDER = [4, 2, 0, 5, 1, 3]

INDICES: dict[str, Any] = {
    "numbered": pd.RangeIndex(N),
    "shuffled": pd.Index(ORDER),
    "filtered": pd.Index([1, 3, 4, 8, 9, 11]),
    "from 10": pd.RangeIndex(10, 10 + N),
    "duplicated": pd.Index([0, 0, 1, 1, 2, 2]),
    "named": pd.Index(ORDER, name="patient"),
    "named as an input": pd.Index(ORDER, name="x1"),
    "text": pd.Index(list("dbface")),
    "two levels": pd.MultiIndex.from_product([[1, 0], list("cab")]),
    "missing": pd.Index([np.nan, 1.0, np.nan, 0.0, 2.0, 3.0]),
}


def _frame(index: Any) -> pd.DataFrame:
    return pd.DataFrame(X, columns=["x1", "x2"], index=index)


def _series(index: Any) -> pd.Series:
    return pd.Series(Y, index=index, name="y")


def _polars(frame: Any) -> Any:
    if find_spec("polars") is None:
        pytest.skip("Polars is not installed")
    import polars

    return polars.from_pandas(frame)


TABLES: dict[str, Callable[[Any], Any]] = {
    "DataFrame": lambda frame: frame,
    "Arrow": lambda frame: pa.Table.from_pandas(frame.rename_axis(_unnamed(frame))),
    "Arrow batch": lambda frame: pa.RecordBatch.from_pandas(frame.rename_axis(_unnamed(frame))),
    "Arrow without metadata": lambda frame: pa.Table.from_pandas(
        frame.rename_axis([None] * frame.index.nlevels)
    ).replace_schema_metadata(None),
    "Polars": lambda frame: _polars(frame.reset_index(drop=True)),
    "dict of Series": lambda frame: dict(frame.items()),
    "dict of one Series": lambda frame: {
        name: column.to_numpy() if name == "x2" else column for name, column in frame.items()
    },
    "dict of arrays": lambda frame: {name: column.to_numpy() for name, column in frame.items()},
    "dict of lists": lambda frame: frame.to_dict("list"),
    "dict of Arrow arrays": lambda frame: {
        name: pa.array(column.to_numpy()) for name, column in frame.items()
    },
    "array": lambda frame: frame.to_numpy(),
    "lists": lambda frame: frame.to_numpy().tolist(),
}
TARGETS: dict[str, Callable[[Any], Any]] = {
    "Series": lambda y: y,
    "column": lambda y: y.to_frame(),
    "array": lambda y: y.to_numpy(),
    "list": lambda y: y.tolist(),
    "Arrow array": lambda y: pa.array(y.to_numpy()),
    "Arrow chunks": lambda y: pa.chunked_array([y.to_numpy()[:2], y.to_numpy()[2:]]),
    "Arrow": lambda y: pa.Table.from_pandas(y.to_frame()),
    "dict": lambda y: {"y": y},
    "Polars": lambda y: _polars(y.reset_index(drop=True)),
}


def _unnamed(frame: pd.DataFrame) -> Any:
    """Arrow cannot store an index with the name of a column."""
    return [None if name == "x1" else name for name in frame.index.names]


EXPECTED = read_training(table_spec(exclude=None), (X, Y))[1].hash


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("index", INDICES)
def test_rows_are_paired_by_position(table: str, index: str) -> None:
    given = TABLES[table](_frame(INDICES[index]))
    for targets in TARGETS.values() if table != "Polars" else [TARGETS["Polars"], TARGETS["Series"]]:
        if targets is TARGETS["Polars"] and table != "Polars":
            continue
        spec, cases = read_training(table_spec(exclude=None), (given, targets(_series(INDICES[index]))))
        assert cases.hash == EXPECTED and cases.input_names == ("x1", "x2")
        assert np.array_equal(read_cases(given, spec)[0], X)


@pytest.mark.parametrize("table", [name for name in TABLES if name not in ("array", "lists")])
@pytest.mark.parametrize("index", INDICES)
def test_one_table_of_inputs_and_targets_keeps_its_order(table: str, index: str) -> None:
    whole = TABLES[table](_frame(INDICES[index]).assign(y=Y))
    spec, cases = read_training(table_spec(exclude=None), whole)
    assert cases.hash == EXPECTED and cases.input_names == ("x1", "x2")
    inputs, targets = read_cases(whole, spec)
    assert np.array_equal(inputs, X) and targets is not None and np.array_equal(targets[:, 0], Y)


DISAGREEING: dict[str, tuple[Any, Any]] = {
    "X shuffled": (pd.Index(ORDER), pd.RangeIndex(N)),
    "y shuffled": (pd.RangeIndex(N), pd.Index(ORDER)),
    "sorted by label": (INDICES["text"], INDICES["text"].sort_values()),
    "two orders": (INDICES["two levels"], INDICES["two levels"][ORDER]),
    "other rows": (INDICES["filtered"], INDICES["filtered"] + 1),
    "of other kinds": (INDICES["filtered"], INDICES["text"]),
    "other repeats": (INDICES["duplicated"], pd.Index([0, 1, 0, 1, 2, 2])),
}


@pytest.mark.parametrize("pair", DISAGREEING)
@pytest.mark.parametrize("table", ["DataFrame", "Arrow", "dict of Series", "dict of one Series"])
@pytest.mark.parametrize("target", ["Series", "column", "Arrow", "dict"])
def test_labels_that_disagree_are_refused(pair: str, table: str, target: str) -> None:
    left, right = DISAGREEING[pair]
    data = TABLES[table](_frame(left)), TARGETS[target](_series(right))
    of_arrow = [index for index, name in ((left, table), (right, target)) if name == "Arrow"]
    has_no_labels = any(isinstance(index, pd.RangeIndex) for index in of_arrow)
    if has_no_labels:  # Arrow does not store the labels of rows that are numbered from 0
        assert read_training(table_spec(exclude=None), data)[1].hash == EXPECTED
        return
    with pytest.raises(DataError, match=r"the rows of X and y have different labels, first in row \d: .*;"):
        read_training(table_spec(exclude=None), data)


def test_rows_that_are_only_numbered_have_no_labels() -> None:
    for index in (INDICES["filtered"], INDICES["text"], INDICES["from 10"], INDICES["two levels"]):
        for pair in ((index, pd.RangeIndex(N)), (pd.RangeIndex(N), index)):
            data = _frame(pair[0]), _series(pair[1])
            assert read_training(table_spec(exclude=None), data)[1].hash == EXPECTED


WRONG_COLUMNS: dict[str, tuple[dict[str, Any], str]] = {
    "another order": (
        {"x1": pd.Series(X[:, 0], index=ORDER), "x2": pd.Series(X[:, 1]), "y": Y},
        r"data: the rows of column x1 and column x2 have different labels, first in row 1: 4 and 0; rows are"
        r" paired by position, so give column x2 in the order of column x1, or both after reset_index",
    ),
    "the third": (
        {
            "x1": pd.Series(X[:, 0]),
            "x2": pd.Series(X[:, 1], index=list("abcdef")),
            "y": pd.Series(Y, list("abcdfe")),
        },
        "the rows of column x2 and column y have different labels, first in row 5: e and f",
    ),
    "dictionaries": (
        {"x1": dict(enumerate(X[:, 0])), "y": dict(zip(ORDER, Y, strict=True))},
        "different labels",
    ),
    "lengths": (
        {"x1": pd.Series(X[:, 0]), "x2": X[:, 1], "y": pd.Series(Y[:4])},
        "do not make a table: .*length",
    ),
    "arrays of two lengths": ({"x1": X[:3, 0], "y": Y}, "do not make a table"),
    "two axes": ({"x1": X, "y": Y}, "do not make a table"),
    "a set": ({"x1": set(X[:, 0]), "y": Y}, "do not make a table"),
    "scalars": ({"x1": 1.0, "y": 2.0}, "do not make a table"),
}


@pytest.mark.parametrize("name", WRONG_COLUMNS)
def test_columns_that_do_not_belong_together_are_refused(name: str) -> None:
    columns, words = WRONG_COLUMNS[name]
    with pytest.raises(DataError, match=words):
        read_training(table_spec(exclude=None), columns)


def test_categories_keep_their_order_in_every_table() -> None:
    sizes = pd.Series(pd.Categorical(list("SLMSLM"), categories=list("SML"), ordered=True), index=ORDER)
    frame = pd.DataFrame({"size": sizes, "y": pd.Series(Y, index=ORDER)})
    for given in (frame, dict(frame.items()), pa.Table.from_pandas(frame)):
        _, cases = read_training(table_spec(exclude=None), given)
        assert cases.hash == read_training(table_spec(exclude=None), frame)[1].hash
        assert cases.input_names == ("size",)


def test_a_parquet_file_has_no_inputs_from_an_index(tmp_path: Any) -> None:
    for name in ("shuffled", "two levels", "named", "numbered"):
        frame = _frame(INDICES[name]).assign(y=Y)
        frame.to_parquet(tmp_path / "t.parquet")
        _, cases = read_training(table_spec(exclude=None), tmp_path / "t.parquet")
        assert cases.hash == EXPECTED and cases.input_names == ("x1", "x2")
    bare = pa.Table.from_pandas(_frame(INDICES["two levels"]).assign(y=Y)).replace_schema_metadata(None)
    pa.parquet.write_table(bare, tmp_path / "bare.parquet")
    assert read_training(table_spec(exclude=None), tmp_path / "bare.parquet")[1].hash == EXPECTED
