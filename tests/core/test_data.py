"""Data files as arrays: how they are read, and the words with which bad ones are refused.

Inputs laid out piece by piece have the bits of those laid out at once.

Results that are remembered by the contents of an array, and what the posterior remembers.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import math
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rayfbnn import api
from rayfbnn.arrays import Array
from rayfbnn.data import (
    first_difference,
    make_dataset,
    parquet,
    paths,
    read_cases,
    read_dataset,
)
from rayfbnn.errors import DataError
from rayfbnn.model.cases import PIECE_BYTES, pieces_of, rows_and_mean_squares
from rayfbnn.model.network import input_rows
from rayfbnn.model.posterior import Remembered
from rayfbnn.spec import RunSpec
from rayfbnn.streams import Purpose, Streams
from tests.support.problems import chain_streams, problem
from tests.support.small import small, small_spec

GOOD = "x1,x2,y\n1,2,0\n3,5,1\n-4,6.5,1\n"


def test_values_are_those_on_file(tmp_path: Path) -> None:
    spec = small_spec(tmp_path)
    table = pd.read_csv(tmp_path / "train.csv", dtype=str)
    data = read_dataset(spec)
    assert data.inputs.tolist() == [[float(a), float(b)] for a, b in zip(table.x1, table.x2, strict=True)]
    assert data.targets[:, 0].tolist() == [float(value) for value in table.y]
    assert (data.input_names, data.target_names) == (("x1", "x2"), ("y",))


def test_standardised_columns_have_mean_zero_and_sd_one(tmp_path: Path) -> None:
    data = read_dataset(small_spec(tmp_path, data__standardize=["inputs", "targets"]))
    for values in (data.standardized_inputs, data.standardized_targets):
        np.testing.assert_allclose(values.mean(axis=0), 0, atol=1e-14)
        np.testing.assert_allclose(values.std(axis=0), 1, rtol=1e-14)


def test_columns_that_are_not_standardised_are_left_alone(tmp_path: Path) -> None:
    data = read_dataset(small_spec(tmp_path, data__standardize=[]))
    assert (data.standardized_inputs == data.inputs).all()
    assert (data.standardized_targets == data.targets).all()


def test_columns_may_stand_in_any_order_among_others(tmp_path: Path) -> None:
    spec = small_spec(tmp_path)
    table = pd.read_csv(tmp_path / "train.csv", dtype=str)
    table["note"] = "text that nobody reads"
    other = tmp_path / "other.csv"
    table[["note", "y", "x2", "x1"]].to_csv(other, index=False)
    assert read_dataset(spec, other).hash == read_dataset(spec).hash


def test_hash_is_of_the_content_whatever_the_file(tmp_path: Path) -> None:
    spec = small_spec(tmp_path)
    text = (tmp_path / "train.csv").read_text()
    (tmp_path / "spaces.csv").write_text("\ufeff" + text.replace(",", ", ").replace("\n", "\r\n"))
    (tmp_path / "train.csv.gz").write_bytes(gzip.compress(text.encode()))
    table = pd.read_csv(tmp_path / "train.csv", dtype=str).astype(np.float64)
    table.to_parquet(tmp_path / "train.parquet")
    expected = read_dataset(spec).hash
    for name in ("spaces.csv", "train.csv.gz", "train.parquet"):
        assert read_dataset(spec, tmp_path / name).hash == expected, name


def test_hash_does_not_depend_on_byte_order_or_memory_layout() -> None:
    values = np.arange(6.0).reshape(3, 2)
    hashes = {
        make_dataset(inputs, values[:, :1], input_names=["a", "b"], target_names=["y"]).hash
        for inputs in (values, np.asfortranarray(values), values.astype(">f8"), values[:, ::-1][:, ::-1])
    }
    assert len(hashes) == 1


@pytest.mark.parametrize("change", ["order of rows", "one value", "a name", "a row less"])
def test_hash_changes_with_the_content(tmp_path: Path, change: str) -> None:
    data = read_dataset(small_spec(tmp_path))
    inputs, targets, names = data.inputs.copy(), data.targets.copy(), ["x1", "x2"]
    if change == "order of rows":
        inputs, targets = inputs[::-1], targets[::-1]
    elif change == "one value":
        inputs[4, 1] = np.nextafter(inputs[4, 1], 9)
    elif change == "a name":
        names = ["x1", "x3"]
    else:
        inputs, targets = inputs[:-1], targets[:-1]
    other = make_dataset(inputs, targets, input_names=names, target_names=["y"])
    assert other.hash != data.hash
    assert first_difference(data, other) is not None


def test_first_difference_names_row_column_and_values(tmp_path: Path) -> None:
    data = read_dataset(small_spec(tmp_path))
    changed = data.inputs.copy()
    changed[4, 1] = 2.5
    other = make_dataset(changed, data.targets, input_names=["x1", "x2"], target_names=["y"])
    found = first_difference(data, other)
    assert found is not None and found.startswith(
        f"row 5, column x2: {float(data.inputs[4, 1])!r} in the store"
    )
    assert "2.5 in the file" in found
    assert first_difference(data, data) is None


def test_cases_without_targets_have_none(tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("x2,x1\n1,2\n")
    inputs, targets = read_cases(tmp_path / "new.csv", small_spec(tmp_path))
    assert inputs.tolist() == [[2.0, 1.0]] and targets is None


def test_cases_with_some_targets_are_refused(tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("x,y1\n1,2\n")
    spec = RunSpec.from_dict(small(data__inputs=["x"], data__targets=["y1", "y2"]))
    with pytest.raises(DataError, match=r"no column named y2 \(did you mean y1\?\)"):
        read_cases(tmp_path / "new.csv", spec)


# Bad files, each with the words that the message must contain. The specification is SMALL, for a kind of
# model.
CORPUS: dict[str, tuple[str | bytes, str, list[str]]] = {
    "empty file": ("", "real", ["train.csv"]),
    "header only": ("x1,x2,y\n", "real", ["no rows"]),
    "no header": ("1,2,3\n4,5,6\n", "real", ["no column named x1", "1, 2, 3"]),
    "missing input": ("x1,y\n1,2\n", "real", ["no column named x2", "did you mean x1"]),
    "missing target": ("x1,x2\n1,2\n", "real", ["no column named y"]),
    "column in capitals": ("X1,x2,y\n1,2,3\n", "real", ["no column named x1"]),
    "column twice": ("x1,x2,x2,y\n1,2,2,3\n", "real", ["column x2", "2 times"]),
    "semicolons": ("x1;x2;y\n1;2;3\n", "real", ["separated by semicolons", "x1;x2;y", "sep=';'"]),
    "tabs": ("x1\tx2\ty\n1\t2\t3\n", "real", ["separated by tabs", "sep='\\t'"]),
    "decimal commas": ("x1;x2;y\n1,5;2;3\n", "real", ["separated by semicolons", 'decimal=","']),
    "nan": (GOOD + "nan,1,1\n", "real", ["in 1 of 4 rows", "column x1 in 1", "row 4 ('nan')"]),
    "NaN in a target": (GOOD + "1,1,NaN\n", "real", ["row 4, column y", "'NaN'"]),
    "NA": (GOOD + "1,NA,1\n", "real", ["column x2 in 1", "row 4 ('NA')", "indicator"]),
    "empty cell": (GOOD + "1,,3\n", "real", ["column x2 in 1", "row 4 ('')", "indicator", "drop"]),
    "empty column": (
        "x1,x2,y\n1,,3\n1,,4\n",
        "real",
        ["x1: the value is 1", "x2: the value is empty"],
    ),
    "short row": (GOOD + "1,2\n", "real", ["row 4, column y"]),
    "long row": (GOOD + "1,2,3,4\n", "real", ["train.csv"]),
    "inf": (GOOD + "inf,1,1\n", "real", ["row 4, column x1", "'inf'"]),
    "overflow": (GOOD + "1e400,1,1\n", "real", ["row 4, column x1", "'1e400'"]),
    "text": (GOOD + "1,two,1\n", "real", ["row 4, column x2", "'two'"]),
    "true": (GOOD + "1,true,1\n", "real", ["row 4, column x2", "'true'"]),
    "date": (GOOD + "2026-01-01,1,1\n", "real", ["row 4, column x1", "'2026-01-01'", "days since"]),
    "decimal comma": (GOOD + '"1,5",1,1\n', "real", ["row 4, column x1", "'1,5'", "decimal point"]),
    "thousands": (GOOD + "1_000,1,1\n", "real", ["row 4, column x1", "'1_000'"]),
    "fullwidth minus": (GOOD + "\u22121,1,1\n", "real", ["row 4, column x1"]),
    "NUL byte": (GOOD.encode() + b"1\x002,1,1\n", "real", ["train.csv"]),
    "latin-1": (GOOD.encode() + b"1,\xe9,1\n", "real", ["cannot be read", "save it as UTF-8", "latin-1"]),
    "utf-16": (GOOD.encode("utf-16"), "real", ["is UTF-16 text; save it as UTF-8"]),
    "utf-16 without a mark": (GOOD.encode("utf-16-le"), "real", ["is UTF-16 text; save it as UTF-8"]),
    "utf-16, high bytes first": (GOOD.encode("utf-16-be"), "real", ["is UTF-16 text; save it as UTF-8"]),
    "empty zip": (b"PK\x05\x06" + bytes(18), "real", ["an empty zip archive"]),
    "other digits": (GOOD + "\u0661,1,1\n", "real", ["row 4, column x1", "the digits 0 to 9"]),
    "only other digits": ("x1,x2,y\n\u0661,1,1\n\u0662,2,3\n", "real", ["row 1, column x1", "0 to 9"]),
    "open quote": (GOOD + '"1,1,1\n', "real", ["train.csv"]),
    "binary junk": (bytes(range(256)), "real", ["train.csv"]),
    "Excel": (b"PK\x03\x04\x14\x00\x06\x00" + bytes(50), "real", ["a zip archive or an Excel file"]),
    "constant input": (
        "x1,x2,y\n1,2,0\n1,2,1\n",
        "real",
        ["x1: the value is 1 in every row", "column x2"],
    ),
    "a single row": ("x1,x2,y\n1,2,0\n", "real", ["column x1", "is 1 in every row"]),
    "too large to standardise": ("x1,x2,y\n1e308,2,0\n-1e308,3,1\n", "real", ["column x1", "too large"]),
    "too small to standardise": ("x1,x2,y\n1e-320,2,0\n0,3,1\n", "real", ["column x1", "too small"]),
    "too large for float32": (GOOD + "1,1,1e30\n", "real", ["row 4, column y", "float32"]),
    "label 2": (GOOD + "1,1,2\n", "binary", ["row 4, column y", "0 or 1", "got 2"]),
    "label 0.5": (GOOD + "1,1,0.5\n", "binary", ["row 4, column y", "0 or 1", "got 0.5"]),
    "label yes": (GOOD + "1,1,yes\n", "binary", ["row 4, column y", "'yes'"]),
    "class 3 of 3": (GOOD + "1,1,3\n", "class", ["row 4, column y", "from 0 to 2", "got 3"]),
    "class from 1": ("x1,x2,y\n1,2,1\n2,3,2\n3,1,4\n", "class", ["row 3, column y", "from 1 to 3", "got 4"]),
    "class 1.5": (GOOD + "1,1,1.5\n", "class", ["row 4, column y", "whole number", "got 1.5"]),
    "class name": (GOOD + "1,1,cat\n", "class", ["row 4, column y", "'cat'"]),
    "count -1": (GOOD + "1,1,-1\n", "count", ["row 4, column y", "a whole number of at least 0"]),
    "count 1.5": (GOOD + "1,1,1.5\n", "count", ["row 4, column y", "a whole number of at least 0"]),
    "time 0": ("x1,x2,y\n1,2,3\n2,3,\n3,1,0\n", "survival", ["row 3, column y", "a time above 0"]),
    "no targets": ("x1,x2,y\n1,2,\n2,3,\n", "real", ["column y: every cell is empty"]),
    "no input beside no target": ("x1,x2,y\n1,2,\n2,,3\n", "real", ["in 1 of 2 rows: column x2 in 1"]),
    "short row among blank lines": ("x1,x2,y\n1,2,3\n  \n4,4,5\n2,3\n", "real", ["row 3, column y"]),
    "cell too long": (
        f"x1,x2,y,note\n1,2,,{'a' * 200_000}\n2,3,1,b\n",
        "real",
        ["cannot be read: field larger than"],
    ),
    "a blank line only": ("\n", "real", ["train.csv"]),
    "header without its end": ("x1,x2,y", "real", ["no rows"]),
    "misspelt column": ("x1,xx2,y\n1,2,3\n", "real", ["no column named x2", "did you mean xx2"]),
    "every row long": ("x1,x2,y\n1,2,3,4\n5,6,7,8\n", "real", ["train.csv"]),
    "-Infinity": (GOOD + "1,-Infinity,1\n", "real", ["row 4, column x2", "'-Infinity'"]),
    "hexadecimal": (GOOD + "0x10,1,1\n", "real", ["row 4, column x1", "'0x10'"]),
    "complex": (GOOD + "1+2j,1,1\n", "real", ["row 4, column x1", "'1+2j'"]),
    "fraction": (GOOD + "1/2,1,1\n", "real", ["row 4, column x1", "'1/2'"]),
    "label -1": (GOOD + "1,1,-1\n", "binary", ["row 4, column y", "0 or 1", "got -1"]),
    "class -1": (GOOD + "1,1,-1\n", "class", ["row 4, column y", "got -1"]),
}


def _spec(kind: str, folder: Path, train: str = "train.csv") -> RunSpec:
    models = {
        "real": {"kind": "real", "noise": "0.3:3"},
        "binary": {"kind": "binary"},
        "class": {"kind": "class", "classes": 3},
        "count": {"kind": "count"},
        "survival": {"kind": "survival", "hazard": "constant"},
    }
    raw = small(model=models[kind], data__train=train)
    raw["phase"] = raw["phase"][2:]  # without sample-noise
    return RunSpec.from_dict(raw, base_dir=folder)


def _sample_is_refused(spec: RunSpec, folder: Path) -> str:
    """Return the message of a refusal, and check that the folder did not change."""
    before = sorted(folder.rglob("*"))
    with pytest.raises(DataError) as caught:
        api.sample(spec, folder / "run.zarr", workers=0, progress=False)
    assert caught.value.exit_code == 2
    assert sorted(folder.rglob("*")) == before
    return str(caught.value)


@pytest.mark.parametrize("name", CORPUS)
def test_bad_data_is_refused_by_name_and_leaves_no_file(tmp_path: Path, name: str) -> None:
    content, kind, named = CORPUS[name]
    (tmp_path / "train.csv").write_bytes(content.encode() if isinstance(content, str) else content)
    message = _sample_is_refused(_spec(kind, tmp_path), tmp_path)
    assert "train.csv" in message
    for words in named:
        assert words in message
    assert "\n" not in message


def test_a_file_that_is_not_there_or_is_a_folder_is_refused(tmp_path: Path) -> None:
    assert "no such file" in _sample_is_refused(_spec("real", tmp_path), tmp_path)
    (tmp_path / "train.csv").mkdir()
    assert "is a folder" in _sample_is_refused(_spec("real", tmp_path), tmp_path)


BAD_FILES = {
    "cut.csv.gz": gzip.compress(GOOD.encode() * 100)[:40],
    "damaged.csv.gz": gzip.compress(GOOD.encode() * 100)[:30] + b"\xff" * 30,
    "plain.csv.gz": GOOD.encode(),
    "csv.parquet": GOOD.encode(),
    "empty.parquet": b"",
    "cut.parquet": b"PAR1" + bytes(20),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_damaged_file_is_refused_and_leaves_no_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(BAD_FILES[name])
    assert f"{name}: cannot be read" in _sample_is_refused(_spec("real", tmp_path, name), tmp_path)


def test_a_small_archive_of_a_huge_file_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "_ALWAYS_UNPACKED", 100_000)
    (tmp_path / "train.csv.gz").write_bytes(gzip.compress(GOOD.encode() + b"1,2,3\n" * 500_000))
    message = _sample_is_refused(_spec("real", tmp_path, "train.csv.gz"), tmp_path)
    assert "holds more than" in message
    assert "unpack it yourself" in message


@pytest.mark.parametrize("name", ["train.csv", "train.csv.gz", "train.parquet"])
def test_a_table_that_no_memory_holds_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for module in (paths, parquet):
        monkeypatch.setattr(module, "memory_of_machine", lambda: 100)
    table = pd.read_csv(io.StringIO(GOOD))
    if name == "train.parquet":
        table.to_parquet(tmp_path / name)
    else:
        table.to_csv(tmp_path / name, index=False)
    assert "this machine has 100 bytes" in _sample_is_refused(_spec("real", tmp_path, name), tmp_path)


def test_decimals_of_a_parquet_file_are_numbers(tmp_path: Path) -> None:
    texts = {"x1": ["0.1", "2.25", "-3"], "x2": ["1.5", "2", "1e-7"], "y": ["12345678.5", "0", "1"]}
    table = pd.DataFrame({name: [Decimal(text) for text in column] for name, column in texts.items()})
    table.to_parquet(tmp_path / "train.parquet")
    data = read_dataset(_spec("real", tmp_path, "train.parquet"))
    expected = np.array([[float(text) for text in texts[name]] for name in ("x1", "x2")]).T
    np.testing.assert_array_equal(data.inputs, expected)
    np.testing.assert_array_equal(data.targets[:, 0], [12345678.5, 0, 1])


@pytest.mark.parametrize("cell", ["-0", "5e-324", "1E3", " 7 ", "+2", ".5", '"8"', "00012"])
def test_unusual_numbers_are_read(tmp_path: Path, cell: str) -> None:
    (tmp_path / "train.csv").write_text(GOOD + f"1,{cell},1\n")
    data = read_dataset(_spec("real", tmp_path))
    assert data.inputs[3, 1] == float(cell.strip('"'))


def test_integer_parquet_columns_are_read(tmp_path: Path) -> None:
    table = pd.DataFrame({"x1": [1, 2, 3], "x2": np.array([1, 2, 255], dtype=np.uint8), "y": [0, 1, 1]})
    table.to_parquet(tmp_path / "train.parquet")
    assert read_dataset(_spec("binary", tmp_path, "train.parquet")).inputs[2].tolist() == [3.0, 255.0]


def test_empty_cells_of_targets_are_missing(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("x1,x2,y\n1,2,3\n2,3,\n3,1,  \n4,4,5\n")
    data = read_dataset(_spec("real", tmp_path))
    assert np.isnan(data.targets[:, 0]).tolist() == [False, True, True, False]
    pd.DataFrame({"x1": [1, 2, 3, 4], "x2": [2, 3, 1, 4], "y": [3.0, None, None, 5.0]}).to_parquet(
        tmp_path / "train.parquet"
    )
    other = read_dataset(_spec("real", tmp_path, "train.parquet"))
    assert other.hash == data.hash and first_difference(data, other) is None
    changed = make_dataset(
        data.inputs, np.nan_to_num(data.targets), input_names=["x1", "x2"], target_names=["y"]
    )
    assert changed.hash != data.hash
    assert "row 2, column y: nan in the store, 0.0 in the file (2 values" in str(
        first_difference(data, changed)
    )


def test_empty_targets_are_found_among_blank_lines(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("x1,x2,y\n1,2,3\n  \n2,3,\n\t\n4,4,5\n")
    data = read_dataset(_spec("real", tmp_path))
    assert np.isnan(data.targets[:, 0]).tolist() == [False, True, False]


@pytest.mark.parametrize("suffix", [".bz2", ".xz", ".zip"])
def test_other_compressed_files_are_refused(tmp_path: Path, suffix: str) -> None:
    name = f"train.csv{suffix}"
    pd.read_csv(io.StringIO(GOOD + "5,1,\n")).to_csv(tmp_path / name, index=False)
    message = _sample_is_refused(_spec("real", tmp_path, name), tmp_path)
    assert name in message and "a CSV (.csv, .csv.gz) or Parquet (.parquet) file is needed" in message


def test_a_gzip_file_is_known_by_its_suffix_in_capitals(tmp_path: Path) -> None:
    (tmp_path / "TRAIN.CSV.GZ").write_bytes(gzip.compress((GOOD + "5,1,\n").encode()))
    data = read_dataset(_spec("real", tmp_path, "TRAIN.CSV.GZ"))
    assert np.isnan(data.targets[:, 0]).tolist() == [False, False, False, True]


@pytest.mark.parametrize("rows", ["x1,x2,y\n1,{},3\n2,3,4\n", "x1,{},y\n1,2,3\n"], ids=["cell", "header"])
def test_long_cells_are_not_quoted_whole(tmp_path: Path, rows: str) -> None:
    (tmp_path / "train.csv").write_text(rows.format("a" * 200_000))
    message = _sample_is_refused(_spec("real", tmp_path), tmp_path)
    assert "x2" in message and "aaa..." in message and len(message) < 500


def test_missing_targets_are_left_out_of_their_standardisation() -> None:
    names = {"input_names": ["x"], "target_names": ["y"]}
    data = make_dataset(
        np.arange(4.0)[:, None], np.array([[1], [np.nan], [3], [5]]), standardize=["targets"], **names
    )
    assert data.target_center == [3.0] and data.target_scale == np.sqrt(8 / 3)


def test_a_run_with_missing_targets_is_stored_and_read(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text(GOOD + "5,1,\n6,2,\n7,1,2\n")
    spec = _spec("real", tmp_path)
    api.sample(spec, tmp_path / "run.zarr", workers=0, progress=False)
    prediction = api.predict(tmp_path / "run.zarr", data=tmp_path / "train.csv")
    n = len(prediction.table)
    known = ~np.isnan(read_dataset(spec).targets[:, 0])
    assert (prediction.table["squared_error"].notna() == known).all() and known.sum() == n - 2
    assert (prediction.table["log_probability"].notna() == known).all()
    assert prediction.summary["squared_error"] == prediction.table["squared_error"].mean()


@pytest.mark.parametrize("value", [1e30, -1e30])
@pytest.mark.parametrize("column", ["a", "b", "y"])
def test_values_of_either_sign_are_too_large_for_float32(value: float, column: str) -> None:
    values = np.ones((3, 3))
    values[1, ["a", "b", "y"].index(column)] = value
    columns = {"input_names": ["a", "b"], "target_names": ["y"]}
    make_dataset(values[:, :2], values[:, 2:], **columns)
    with pytest.raises(DataError, match=f"row 2, column {column}: .*1e[+]30 .*too large for float32"):
        make_dataset(values[:, :2], values[:, 2:], **columns, dtype="float32")


def test_targets_of_other_cases_are_checked_too() -> None:
    data = make_dataset(np.ones((3, 2)), np.ones((3, 1)), input_names=["a", "b"], target_names=["y"])
    inputs, targets = np.ones((2, 2)), np.array([[1.0], [1e30]])
    data.check_range(inputs, None, dtype="float32", source="new.csv")
    data.check_range(inputs, targets, dtype="float64", source="new.csv")
    with pytest.raises(DataError, match="row 2, column y: .*too large for float32"):
        data.check_range(inputs, targets, dtype="float32", source="new.csv")


def test_the_log_scale_counts_the_observed_cases_of_each_target() -> None:
    targets = np.array([[2.0, 10.0], [6.0, np.nan], [np.nan, 20.0], [4.0, np.nan]])
    scales = [math.sqrt(8 / 3), 5.0]  # of 2, 6 and 4, and of 10 and 20
    names = {"input_names": ["a"], "target_names": ["y", "z"]}
    data = make_dataset(np.ones((4, 1)), targets, **names, standardize=["targets"])
    np.testing.assert_allclose(data.target_scale, scales)
    assert data.log_scale == pytest.approx(3 * math.log(scales[0]) + 2 * math.log(scales[1]))
    assert make_dataset(np.ones((4, 1)), targets, **names).log_scale == 0


def test_hash_and_range_do_not_depend_on_pieces() -> None:
    inputs = np.arange(2 * 3 * PIECE_BYTES / 8).reshape(-1, 3)
    targets = inputs[:, :1].copy()
    columns = {"input_names": "abc", "target_names": "y"}
    data = make_dataset(inputs, targets, **columns)
    names = json.dumps({"inputs": list("abc"), "targets": ["y"], "cases": len(inputs)}, sort_keys=True)
    expected = hashlib.sha256(names.encode() + inputs.tobytes() + targets.tobytes()).hexdigest()
    assert data.hash == expected
    inputs[-2, 1] = 1e30
    with pytest.raises(DataError, match=f"row {len(inputs) - 1}, column b: 1e[+]30 is beyond"):
        make_dataset(inputs, targets, **columns, dtype="float32")


@pytest.mark.parametrize("n_inputs", [1, 2, 3, 8, 17, 100])
@pytest.mark.parametrize("size", [1, 37, 128, 3000])
def test_pieces_give_the_bits_of_the_whole(n_inputs: int, size: int) -> None:
    inputs = Streams(1, np.arange(1000, dtype=np.uint64)).normal(Purpose.PROPOSAL, (n_inputs,))
    pieces = (inputs[first : first + size] for first in range(0, len(inputs), size))
    rows, mean_squares = rows_and_mean_squares(pieces, len(inputs), "float32")
    expected = input_rows(inputs, "float32")
    assert (rows.dtype, rows.flags.c_contiguous) == (expected.dtype, True)
    assert (rows == expected).all()
    assert (mean_squares == (inputs**2).mean(axis=0)).all()


def test_pieces_are_small_and_hold_every_case_in_order() -> None:
    inputs = np.arange(300_000.0).reshape(-1, 3)
    pieces = list(pieces_of(inputs))
    assert len(pieces) > 2 and max(piece.nbytes for piece in pieces) <= PIECE_BYTES
    assert (np.concatenate(pieces) == inputs).all()


@pytest.mark.parametrize("n_inputs", [1, 3])
def test_some_rows_can_be_kept(n_inputs: int) -> None:
    inputs = Streams(1, np.arange(100, dtype=np.uint64)).normal(Purpose.PROPOSAL, (n_inputs,))
    pieces = (inputs[first : first + 7] for first in range(0, len(inputs), 7))
    kept = np.array([0, 5, 6, 7, 7, 50, 98, 99, 99])
    rows, mean_squares = rows_and_mean_squares(pieces, len(inputs), "float32", kept=kept)
    assert np.array_equal(rows, input_rows(inputs[kept], "float32"))
    assert (mean_squares == (inputs**2).mean(axis=0)).all()


def counted(remembered: Remembered[Array], arrays: list[Array]) -> int:
    """Ask for the double of each array in turn; return how often it was computed."""
    computed = []

    def double(array: Array) -> Array:
        computed.append(array)
        return 2 * array

    for array in arrays:
        assert np.array_equal(remembered.get(array, double), 2 * array)
    return len(computed)


def test_a_result_is_computed_once_for_each_content() -> None:
    one, two, three = (np.full((2, 3), value) for value in (1.0, 2.0, 3.0))
    assert counted(Remembered(2), [one, one.copy(), two, one, two]) == 2
    assert counted(Remembered(2), [one, two, three, one]) == 4, "only the last two are kept"


def test_an_array_that_was_changed_in_place_is_computed_again() -> None:
    remembered, array = Remembered[Array](1), np.ones((1, 4))
    for value in (1.0, 5.0):
        array[0, 0] = value
        assert remembered.get(array, np.negative)[0, 0] == -value


def test_arrays_of_other_shapes_and_large_arrays_are_not_confused() -> None:
    one = np.zeros((1, 4))
    assert counted(Remembered(2), [one, one.reshape(2, 2)]) == 2
    assert counted(Remembered(2), [np.zeros((8, 2**11))] * 2) == 2


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_posterior_that_remembers_gives_the_bits_of_one_that_does_not(dtype: str) -> None:
    used = problem("t by target", dtype=dtype)
    state = used.initial_state(chain_streams(5, 3), sigmas=None)
    other = used.initial_state(chain_streams(6, 3), sigmas=None)
    for at in (state, other, state):
        new = problem("t by target", dtype=dtype)
        for name in ("potential", "log_likelihood"):
            expected = getattr(new, name)(at.position, at.precisions)
            assert np.array_equal(getattr(used, name)(at.position, at.precisions), expected)
        assert np.array_equal(used.stepsizes(at.precisions), new.stepsizes(at.precisions))
        assert np.array_equal(used.residuals(at.position).squares, new.residuals(at.position).squares)
