"""A Parquet file that is damaged, lies, or has unusual columns costs one line with its path.

Tables from memory, and the errors about files that are no tables.
"""

from __future__ import annotations

import datetime
import decimal
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from rayfbnn import cli
from rayfbnn.data import read_cases, read_training
from rayfbnn.errors import ConfigError, DataError
from tests.support.data.tables import mixed_table, table_spec

N = 8
TABLE = pd.DataFrame({"x": np.arange(N) ** 2.0, "k": ["a", "b"] * (N // 2), "y": np.sin(np.arange(N))})


def attempt(path: Path, raw: bytes) -> bool:
    """Read a file with this content; return True if it is refused, in one line with its path."""
    path.write_bytes(raw)
    try:
        read_training(table_spec(exclude=None), path)
    except DataError as error:
        assert str(path) in str(error) and "\n" not in str(error) and len(str(error)) < 1000
        return True
    return False


def file_of(table: pa.Table, path: Path, **options: Any) -> bytes:
    pq.write_table(table, path, **options)
    return path.read_bytes()


def start_of_footer(raw: bytes) -> int:
    return len(raw) - 8 - int.from_bytes(raw[-8:-4], "little")


@pytest.mark.parametrize("mask", [0xFF, pytest.param(0x01, marks=pytest.mark.long)])
def test_any_byte_of_a_footer_may_be_wrong(tmp_path: Path, mask: int) -> None:
    table = pa.Table.from_pandas(TABLE).replace_schema_metadata(None)
    raw = file_of(table, tmp_path / "t.parquet", store_schema=False)
    refused = 0
    for place in range(start_of_footer(raw), len(raw)):
        refused += attempt(
            tmp_path / "t.parquet", raw[:place] + bytes([raw[place] ^ mask]) + raw[place + 1 :]
        )
    assert refused > 100


@pytest.mark.long
@pytest.mark.parametrize("mask", [0xFF, 0x80, 0x01])
def test_any_byte_of_a_file_of_pandas_may_be_wrong(tmp_path: Path, mask: int) -> None:
    TABLE.to_parquet(tmp_path / "t.parquet")
    raw = (tmp_path / "t.parquet").read_bytes()
    for place in range(len(raw)):
        attempt(tmp_path / "t.parquet", raw[:place] + bytes([raw[place] ^ mask]) + raw[place + 1 :])


def test_a_file_may_be_cut_off_anywhere(tmp_path: Path) -> None:
    TABLE.to_parquet(tmp_path / "t.parquet")
    raw = (tmp_path / "t.parquet").read_bytes()
    for size in range(0, len(raw), 64):
        assert attempt(tmp_path / "t.parquet", raw[:size])


def test_the_command_exits_with_2(tmp_path: Path) -> None:
    raw = file_of(pa.Table.from_pandas(TABLE), tmp_path / "t.parquet")
    raw = raw[: start_of_footer(raw)] + raw[start_of_footer(raw) :].replace(b"\x01k", b"\x01q", 1)
    (tmp_path / "t.parquet").write_bytes(raw)
    (tmp_path / "c.toml").write_text(
        'data = {train = "t.parquet", targets = ["y"]}\nmodel = {kind = "real"}\n'
    )
    result = CliRunner().invoke(cli.app, ["show", str(tmp_path / "c.toml")])
    assert result.exit_code == 2 and len(result.stderr.splitlines()) == 1
    assert "t.parquet: cannot be read: its footer has two names for one column" in result.stderr


def footer(*fields: bytes) -> bytes:
    content = b"".join(fields)
    return b"PAR1" + content + len(content).to_bytes(4, "little") + b"PAR1"


SCHEMA = b"\x15\x04\x19\x2c\x48\x01r\x15\x02\x00\x15\x0a\x25\x02\x18\x01x\x00"  # a root with a number, x
CRAFTED: dict[str, bytes] = {
    "empty": b"",
    "nothing inside": footer(),
    "a footer of another size": b"PAR1" + b"\xff" * 4 + b"PAR1",
    "a million groups": footer(SCHEMA, b"\x16\x02\x19\xfc\xc0\x84\x3d", b"\x00" * 50),
    "a million columns": footer(SCHEMA, b"\x16\x02\x19\x1c\x19\xfc\xc0\x84\x3d", b"\x00" * 50),
    "two billion names": footer(b"\x15\x04\x19\xfc\xff\xff\xff\xff\x07", b"\x00" * 50),
    "deep structures": footer(SCHEMA, b"\x16\x02\x19\x1c", b"\x1c" * 100_000),
    "deep groups": footer(b"\x15\x04\x19\xfc\xd1\x86\x03", b"\x35\x02\x18\x01a\x15\x02\x00" * 50_001),
}


@pytest.mark.parametrize("name", CRAFTED)
def test_a_crafted_footer_is_refused(tmp_path: Path, name: str) -> None:
    assert attempt(tmp_path / "t.parquet", CRAFTED[name])


def _sizes(raw: bytes, place: int) -> bytes:
    """Change the size in the header of the first page, whose fields are a type and two sizes."""
    assert raw[4:6] == b"\x15\x00" and raw[6] == 0x15
    return raw[:7] + bytes([raw[7] ^ place]) + raw[8:]


@pytest.mark.parametrize("mask", [0x02, 0x01, 0x40, 0x80])
def test_a_page_may_lie_about_its_size(tmp_path: Path, mask: int) -> None:
    table = pa.table({"x": np.zeros(N), "y": np.arange(float(N))})
    raw = file_of(table, tmp_path / "t.parquet", compression="gzip", use_dictionary=False)
    assert attempt(tmp_path / "t.parquet", _sizes(raw, mask))


ODD: dict[str, Any] = {
    "structures": pa.array([{"a": 1, "b": "x"}, None] * 4),
    "lists": pa.array([[1.0, 2.0], []] * 4),
    "lists of texts": pa.array([["a", "b"], None] * 4),
    "maps": pa.array([[("k", "v")], []] * 4, pa.map_(pa.string(), pa.string())),
    "deep lists": pa.array([[{"a": [["x"]]}]] * N),
    "bytes": pa.array([b"a\xff", b""] * 4),
    "fixed bytes": pa.array([b"ab", b"cd"] * 4, pa.binary(2)),
    "times of day": pa.array([datetime.datetime(2024, 1, 1)] * N, pa.timestamp("us", "UTC")),
    "dates": pa.array([datetime.date(2024, 1, 1)] * N),
    "times": pa.array([datetime.time(1, 2)] * N),
    "durations": pa.array([datetime.timedelta(1)] * N),
    "decimals and nothing": pa.array([decimal.Decimal("1.5"), None] * 4),
    "far dates": pa.array([2**30] * N, pa.date32()),
}


@pytest.mark.parametrize("name", ODD)
def test_a_column_of_another_type_is_refused_by_name_and_may_be_left_out(tmp_path: Path, name: str) -> None:
    table = pa.Table.from_pandas(TABLE).append_column("odd", ODD[name])
    assert attempt(tmp_path / "t.parquet", file_of(table, tmp_path / "t.parquet"))
    if name != "far dates":  # Python has no such dates
        _, cases = read_training(table_spec(exclude=["odd"]), tmp_path / "t.parquet")
        assert cases.input_names == ("x", "k=a", "k=b")


NUMBERS: dict[str, Any] = {
    "decimals": pa.array([decimal.Decimal("1.5"), decimal.Decimal(2)] * 4, pa.decimal256(60, 2)),
    "half": pa.array(np.arange(N, dtype=np.float16)),
    "large": pa.array([2**64 - 1, 1] * 4, pa.uint64()),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_of_any_type_are_inputs(tmp_path: Path, name: str) -> None:
    table = pa.Table.from_pandas(TABLE).append_column("odd", NUMBERS[name])
    assert not attempt(tmp_path / "t.parquet", file_of(table, tmp_path / "t.parquet"))


def test_texts_that_are_not_utf_8_are_refused(tmp_path: Path) -> None:
    raw = file_of(
        pa.Table.from_pandas(TABLE), tmp_path / "t.parquet", use_dictionary=False, compression="none"
    )
    assert raw.count(b"\x01\x00\x00\x00a") >= N // 2
    assert attempt(tmp_path / "t.parquet", raw.replace(b"\x01\x00\x00\x00a", b"\x01\x00\x00\x00\xff"))


RANGE = {"kind": "range", "name": None, "start": 0, "stop": 10**15, "step": 1}
METADATA: dict[str, Any] = {
    "no JSON": "{",
    "a list": "[]",
    "a number": "3",
    "nothing": "{}",
    "deep": "[" * 100_000,
    "an index that is absent": {"index_columns": ["gone"], "columns": [], "column_indexes": []},
    "an index that is an input": {"index_columns": ["x"], "columns": [], "column_indexes": []},
    "a long range": {"index_columns": [RANGE], "columns": [], "column_indexes": []},
    "a range of texts": {"index_columns": [{**RANGE, "stop": "a"}], "columns": [], "column_indexes": []},
    "columns of a wrong type": {"index_columns": [], "columns": [3], "column_indexes": [None]},
    "a wrong type": {
        "index_columns": [],
        "columns": [
            {"name": "x", "field_name": "x", "pandas_type": "a", "numpy_type": "b" * 50, "metadata": 3}
        ],
        "column_indexes": [
            {"name": None, "field_name": None, "pandas_type": "z", "numpy_type": "no", "metadata": 1}
        ],
    },
}


@pytest.mark.parametrize("name", METADATA)
def test_what_pandas_noted_may_be_wrong(tmp_path: Path, name: str) -> None:
    noted = METADATA[name] if isinstance(METADATA[name], str) else json.dumps(METADATA[name])
    table = pa.Table.from_pandas(TABLE).replace_schema_metadata({"pandas": noted})
    attempt(tmp_path / "t.parquet", file_of(table, tmp_path / "t.parquet"))


def test_a_folder_adds_no_column(tmp_path: Path) -> None:
    folder = tmp_path / "year=2024"
    folder.mkdir()
    TABLE.to_parquet(folder / "t.parquet")
    assert read_training(table_spec(exclude=None), folder / "t.parquet")[1].input_names == ("x", "k=a", "k=b")


WRITERS: dict[str, Callable[[Path, pa.Table], None]] = {
    "pages of version 2": lambda path, table: pq.write_table(table, path, data_page_version="2.0"),
    "groups of rows": lambda path, table: pq.write_table(table, path, row_group_size=3),
    "small pages": lambda path, table: pq.write_table(table, path, data_page_size=1, write_batch_size=2),
    "an old version": lambda path, table: pq.write_table(table, path, version="1.0", compression="gzip"),
    "checksums": lambda path, table: pq.write_table(table, path, write_page_checksum=True),
    "an index of pages": lambda path, table: pq.write_table(table, path, write_page_index=True),
    "long statistics": lambda path, table: pq.write_table(
        table.set_column(1, "k", pa.array(["z" * 4000, "a" * 4000] * 4)), path
    ),
    "names with points": lambda path, table: pq.write_table(table.rename_columns(["x.1", "k.l", "y"]), path),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_of_any_writer_is_read(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / "t.parquet", pa.Table.from_pandas(TABLE))
    _, cases = read_training(table_spec(exclude=None), tmp_path / "t.parquet")
    assert cases.n_cases == N and len(cases.input_names) == 3


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
