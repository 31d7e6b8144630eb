"""What is too large is refused with exit code 2 before it is read, in little time and little memory."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rayfbnn.data.parquet import check_parquet_size, unpacked_sizes
from rayfbnn.errors import DataError

# Seconds of processor time, which the command may not have after its imports; memory is looked at afterwards.
SECONDS, MEGABYTES = 6, 300
RUN = f"""
import resource, sys
import pandas, pyarrow.parquet, rayfbnn.api, rayfbnn.spec, rayfbnn.study
from rayfbnn.cli import app

def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])

used = int(sum(resource.getrusage(resource.RUSAGE_SELF)[:2])) + 1
resource.setrlimit(resource.RLIMIT_CPU, (used + {SECONDS}, used + {SECONDS}))
before, code = peak(), None
try:
    app(sys.argv[1:])
except SystemExit as end:
    code = end.code
print("exit", code, "kB", peak() - before)
"""
SPEC = 'chains = 2\niterations = 10\n[data]\ntrain = "train.csv"\ntargets = ["y"]\n[model]\nkind = "real"\n'
N = 400_000


def assert_refused(folder: Path, *words: str, names: str) -> None:
    """Run a command, and look at its exit code, its one line, and the memory that it took."""
    before = sorted(os.listdir(folder))
    # `make test` keeps freed memory in the process, which users do not.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", RUN, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr[-2000:] or done.returncode
    found = re.search(r"exit (\d+) kB (\d+)", done.stdout)
    assert found is not None, done.stdout
    assert found[1] == "2", done.stderr[-2000:]
    assert int(found[2]) < MEGABYTES * 1000
    assert names in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr) < 20_000
    assert sorted(os.listdir(folder)) == before


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.csv").write_text("x,y\n" + "".join(f"{i},{i % 7}\n" for i in range(20)))
    (tmp_path / "run.toml").write_text(SPEC)
    return tmp_path


CONFIGURATIONS = {
    "a key of 50,000 parts": "a" + ".a" * 50_000 + " = 1\n",
    "a table of 50,000 parts": "[a" + ".a" * 50_000 + "]\n",
    "a key in braces": "x = {a" + ".a" * 50_000 + " = 1}\n",
    "a key in quotes": '"a"' + '."a"' * 50_000 + " = 1\n",
    "a key without a value": "a." * 200_000,
    "lists in lists": "a = " + "[" * N,
    "tables in tables": "a = " + "{a = " * (N // 6),
    "a number of many digits": "chains = " + "1" * N,
    "a number of many hexadecimal digits": "chains = 0x" + "f" * N,
    "many keys": "".join(f"k{i} = 1\n" for i in range(N // 13)),
    "many tables": "".join(f"[t{i}]\n" for i in range(N // 10)),
    "many layers": SPEC + "[network]\nhidden = [" + "1," * (N // 2) + "]\n",
    "many inputs": SPEC.replace('["y"]', '["y"]\ninputs = [' + "1," * (N // 2) + "]"),
    "many phases": SPEC + "[[phase]]\n" * (N // 12),
    "a long pattern": SPEC.replace('["y"]', '["y"]\nexclude = ["' + "*a" * (N // 3) + '"]'),
    "a million keys": "".join(f"key{i} = 1\n" for i in range(1_000_000)),
}
QUICK = {"a key of 50,000 parts"}


def named(values: dict[str, str], quick: set[str]) -> list[object]:
    return [name if name in quick else pytest.param(name, marks=pytest.mark.long) for name in values]


@pytest.mark.parametrize("name", named(CONFIGURATIONS, QUICK))
def test_a_configuration_that_is_too_large_is_refused(folder: Path, name: str) -> None:
    (folder / "large.toml").write_text(CONFIGURATIONS[name])
    assert_refused(folder, "show", "large.toml", names="")


@pytest.mark.parametrize(
    "override",
    [
        "a" + ".a" * 50_000 + "=1",
        "data={a" + ".a" * 50_000 + "=1}",
        "network.hidden=" + "[" * 50_000,
        "chains=" + "1" * 100_000,
        "chains=0x" + "f" * 100_000,
    ],
    ids=["path", "table", "list", "number", "hexadecimal"],
)
@pytest.mark.long
def test_an_override_that_is_too_large_is_refused(folder: Path, override: str) -> None:
    assert_refused(
        folder, "show", "run.toml", "--set", override, names=override[:4] if "a." not in override else ""
    )


@pytest.mark.parametrize(
    "path",
    [
        "/dev/zero",
        *(
            pytest.param(path, marks=pytest.mark.long)
            for path in ("/dev/urandom", "/proc/self/mem", "/dev/full")
        ),
        pytest.param("sparse", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("verb", ["show", pytest.param("sample", marks=pytest.mark.long)])
def test_a_configuration_without_an_end_is_refused(folder: Path, verb: str, path: str) -> None:
    os.mkfifo(folder / "fifo")
    with open(folder / "sparse", "wb") as file:
        file.truncate(10 * 2**30)
    words = [verb, path] + (["new.zarr"] if verb == "sample" else [])
    assert_refused(folder, *words, names=path)


UNITS = 'network.hidden=[{units=1000000000,activation="tanh"}]'


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("chains=1000000000", "chains: "),
        pytest.param("chains=4294967295", "chains: ", marks=pytest.mark.long),
        pytest.param("iterations=4000000000", "iterations: ", marks=pytest.mark.long),
        pytest.param("iterations=1000000000000000", "iterations: ", marks=pytest.mark.long),
        pytest.param("chains_per_batch=1000000000000000000", "chains_per_batch: ", marks=pytest.mark.long),
        pytest.param(
            'network.hidden=[{units=1000000000,activation="tanh"}]', "units: ", marks=pytest.mark.long
        ),
        pytest.param("data.parts=1000000000000", "data.parts: ", marks=pytest.mark.long),
    ],
)
def test_a_run_that_is_too_long_is_refused_by_show(folder: Path, override: str, key: str) -> None:
    assert_refused(folder, "show", "run.toml", "--set", override, names=key)


GRID = [
    word
    for key in ("chains", "iterations", "chains_per_batch", "draws_per_block")
    for word in ("--vary", f"{key}={','.join(str(1 + i) for i in range(1000))}")
]


@pytest.mark.parametrize(
    ("words", "key"),
    [
        pytest.param(["--seeds", "1000000000"], "seeds: ", marks=pytest.mark.long),
        pytest.param(["--seeds", "9" * 4400], "seeds: ", marks=pytest.mark.long),
        pytest.param(["--seeds", "2", *GRID], "vary: ", marks=pytest.mark.long),
        pytest.param(["--seeds", "2", "--looks", "1000000000000"], "looks: ", marks=pytest.mark.long),
    ],
    ids=["seeds", "digits", "grid", "looks"],
)
def test_a_study_that_is_too_large_is_refused(folder: Path, words: list[str], key: str) -> None:
    assert_refused(folder, "study", "create", "study", "run.toml", *words, names=key)


def shared(text: str, n: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(n, np.int32)), pa.array([text]))


def zigzag(number: int) -> bytes:
    """A number in the compact protocol of Thrift."""
    number, out = 2 * number, b""
    while number > 127:
        number, out = number >> 7, out + bytes([number & 127 | 128])
    return out + bytes([number])


def lying(path: Path, table: pa.Table, lie: tuple[bytes, bytes] | None = None, **options: Any) -> None:
    """Write a file whose footer has 100 for each large size or count, or `lie[1]` instead of `lie[0]`."""
    pq.write_table(table, path, write_statistics=False, **options)
    group = pq.read_metadata(path).row_group(0)
    columns = [group.column(place).to_dict() for place in range(group.num_columns)]
    names = ("total_uncompressed_size", "num_values")
    large = {column[name] for column in columns for name in names} | {group.total_byte_size}
    lies = [
        (old, b"\xc8\x81" + b"\x80" * (len(old) - 3) + b"\x00") for old in map(zigzag, large) if len(old) > 2
    ]
    raw = path.read_bytes()
    start = len(raw) - 8 - int.from_bytes(raw[-8:-4], "little")
    footer = raw[start:]
    for old, new in lies if lie is None else [lie]:
        assert old in footer
        footer = footer.replace(old, new)
    path.write_bytes(raw[:start] + footer)


PARQUET: dict[str, Callable[[Path], None]] = {
    "a footer that belies a long text": lambda path: lying(
        path, pa.table({"x": ["a" * 80_000_000]}), compression="gzip", use_dictionary=False
    ),
    "a footer that belies a long list": lambda path: lying(
        path, pa.table({"x": pa.array([np.zeros(30_000_000)])}), compression="zstd"
    ),
    "a footer that belies a dictionary": lambda path: lying(
        path, pa.table({"x": shared("x" * 250_000, 20_000)}), (b"\x00\x06\x10", b"\x00\x06\x00")
    ),
    "many empty lists": lambda path: pq.write_table(
        pa.table({"x": pa.ListArray.from_arrays(np.zeros(2_000_001, np.int32), pa.nulls(0))}), path
    ),
    "one text for a million cells": lambda path: pq.write_table(
        pa.table({"x": shared("x" * 2500, 1_000_000), "y": np.arange(1_000_000) % 7}), path
    ),
    "one long text": lambda path: pq.write_table(
        pa.table({"x": shared("x" * 1_000_000, 5000), "y": np.arange(5000) % 7}), path
    ),
    "equal numbers": lambda path: pq.write_table(
        pa.table({f"x{i}": np.zeros(2_000_000) for i in range(12)}), path
    ),
    "nothing": lambda path: pq.write_table(
        pa.table({name: pa.nulls(10_000_000, pa.float64()) for name in ("x", "y")}), path
    ),
    "texts that share a beginning": lambda path: pq.write_table(
        pa.table({"x": ["z" * 100_000] * 2000}),
        path,
        use_dictionary=False,
        column_encoding={"x": "DELTA_BYTE_ARRAY"},
    ),
    "compressed pages": lambda path: pq.write_table(
        pa.table({"x": ["z" * 100_000] * 2000}), path, use_dictionary=False, compression="zstd"
    ),
    "lists of texts": lambda path: pq.write_table(pa.table({"x": [["w" * 100_000] * 10] * 200}), path),
}


@pytest.mark.parametrize("name", named(dict.fromkeys(PARQUET, ""), {"one text for a million cells"}))
def test_a_small_parquet_file_of_a_huge_table_is_refused(folder: Path, name: str) -> None:
    PARQUET[name](folder / "large.parquet")
    assert (folder / "large.parquet").stat().st_size < 500_000
    assert_refused(
        folder, "show", "run.toml", "--data", "large.parquet", names="large.parquet: a Parquet file"
    )


def test_a_parquet_file_counts_its_texts_as_they_are_written_out(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    pq.write_table(pa.table({"x": ["red", "green"] * 50_000, "y": np.arange(100_000.0)}), path)
    n_bytes = sum(unpacked_sizes(path))
    assert 800_000 + 400_000 <= n_bytes < 3_000_000
    check_parquet_size(path)


def test_a_parquet_file_of_many_columns_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rayfbnn.data.paths._MOST_COLUMNS", 3)
    pq.write_table(pa.table({name: [1.0] for name in "abcd"}), tmp_path / "wide.parquet")
    with pytest.raises(DataError, match="has 4 columns"):
        check_parquet_size(tmp_path / "wide.parquet")


def _archive(path: Path) -> None:
    with gzip.open(path, "wb") as file:
        file.write(b"x,y\n" + b"1,2\n" * 30_000_000)


CSV: dict[str, Callable[[Path], object]] = {
    "many.csv": lambda path: path.write_bytes(b",".join([b"c"] * 1_000_000) + b"\n"),
    "empty.csv": lambda path: path.write_bytes(b"," * 3_000_000 + b"y\n1,2\n"),
    "zeros.csv": lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 500 * 2**20),
    "sparse.csv": lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 2**42),
    "archive.csv.gz": _archive,
    "fifo.csv": os.mkfifo,
    "link.csv": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("name", named(dict.fromkeys(CSV, ""), {"many.csv"}))
def test_a_csv_file_that_is_too_large_is_refused(folder: Path, name: str) -> None:
    CSV[name](folder / name)
    assert_refused(folder, "show", "run.toml", "--data", name, names=name)


@pytest.mark.parametrize("rows", [1_500_000, 7_000_000])
@pytest.mark.long
def test_a_file_of_too_many_connections_is_refused(folder: Path, rows: int) -> None:
    (folder / "c.csv").write_bytes(b"source,destination,weight\n" + b"0,0,0\n" * rows)
    override = 'network.connections={ih0={file="c.csv"}}'
    assert_refused(folder, "show", "run.toml", "--set", override, names="network.connections.ih0.file")


@pytest.mark.parametrize("verb", ["prior", "reject"])
@pytest.mark.long
def test_more_draws_than_fit_are_refused(folder: Path, verb: str) -> None:
    words = [verb, "run.toml", "new.zarr", "--draws", "1000000000000"]
    assert_refused(folder, *words, names="draws: ")
