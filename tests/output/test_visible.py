"""Control characters in names and files never reach a terminal, and never forge a line."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import threading
from pathlib import Path
from typing import Any, TextIO, cast

import pandas as pd
import pytest

from rayfbnn import api
from rayfbnn.data import read_cases, read_training
from rayfbnn.errors import DataError, visible, visible_but_styles, visible_name
from rayfbnn.output.printing import LastingStream, answer, say, say_from_handler, tell
from rayfbnn.run.progress import LiveTable
from rayfbnn.store.store import Store
from rayfbnn.study import Study
from tests.support.data.tables import table_spec
from tests.support.output.forked import run_forked
from tests.support.sklearn.small import labels_spec
from tests.support.small import make_store, small_spec

CONTROLS = [
    *range(32),
    *range(127, 160),
    0x61C,
    0x200E,
    0x200F,
    *range(0x2028, 0x202F),
    *range(0x2066, 0x206A),
]
# The clipboard, a line up and wiped, the title, an 8-bit CSI, text from right to left, and a line of its own.
ATTACK = (
    "\x1b]52;c;aGk=\x07\x1b[1A\x1b[2K\x1b]0;t\x1b\\\x9b31m\u202e\u2028\r\npredictions: converged\n[red]$_{z}"
)
FEW: dict[str, Any] = {"workers": 0, "progress": False}


@pytest.mark.parametrize("code", CONTROLS)
def test_each_control_character_becomes_an_escape(code: int) -> None:
    shown = visible_name(f"a{chr(code)}b")
    assert shown.isprintable() and len(shown) in (4, 6, 8) and shown != visible_name("ab")
    assert visible(f"a{chr(code)}b") == (f"a{chr(code)}b" if code in (9, 10) else shown)


@pytest.mark.parametrize("text", ["", "höhe", "日本 🙂", "a\\x1b", "5 µm", "שלום", "é", "€", "a b"])
def test_ordinary_text_stays(text: str) -> None:
    assert visible(text) == visible_name(text) == visible_but_styles(text) == text


def test_only_colours_pass_a_stream() -> None:
    file = io.StringIO()
    LastingStream(file).write("\x1b[1;31mred\x1b[0m \x1b[2J \x1b]0;title\x07\n")
    assert file.getvalue() == "\x1b[1;31mred\x1b[0m \\x1b[2J \\x1b]0;title\\x07\n"


def test_everything_that_prints_escapes(capfd: pytest.CaptureFixture[str]) -> None:
    for show in (answer, tell, say, say_from_handler):
        show(f"name: {ATTACK}")
    answer(json.dumps({"name": ATTACK + "\x7f"}), as_is=True)
    out, err = capfd.readouterr()
    assert not re.search(f"[{''.join(map(chr, set(CONTROLS) - {9, 10}))}]", out + err)
    assert (out + err).count(r"\x1b]52;c;aGk=\x07") == 4
    assert json.loads(out.splitlines()[-1]) == {"name": ATTACK + "\x7f"}


def test_a_live_table_takes_no_markup_and_no_escapes(tmp_path: Path) -> None:
    from rich.console import Console

    table = LiveTable(make_store(tmp_path / "run.zarr", small_spec(tmp_path)))
    table.note(f"{ATTACK} [/]")
    file = io.StringIO()
    Console(file=file, force_terminal=True, width=200).print(table._table())
    assert r"\x1b]52;" in file.getvalue() and "[red]" in file.getvalue() and "\x1b]" not in file.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose columns, levels and labels are attacks, its cases, and a study of the same."""
    folder = tmp_path_factory.mktemp("visible")
    n = 24
    levels = [f"u{ATTACK}", f"v{ATTACK}"]
    frame = pd.DataFrame(
        {
            f"x{ATTACK}": [i / 9 for i in range(n)],
            f"k{ATTACK}": [levels[i // 2 % 2] for i in range(n)],
            f"y{ATTACK}": [levels[i % 2] for i in range(n)],
        }
    )
    frame.to_parquet(folder / "t.parquet")
    frame.to_csv(folder / "t.csv", index=False)
    data = {"train": str(folder / "t.parquet"), "targets": [f"y{ATTACK}"]}
    keys = labels_spec(kept=14) | {"data": data, "model": {"kind": "binary"}}
    (folder / "run.json").write_text(json.dumps(keys))
    api.sample(keys, folder / "run.zarr", **FEW)
    Study.create(folder / "study", keys, seeds=2)
    return folder


def on_terminal(*arguments: object) -> tuple[int, str]:
    """Run the program on a terminal; return its code and what the terminal got."""
    master, slave = pty.openpty()
    parts: list[bytes] = []

    def read() -> None:
        try:
            while part := os.read(master, 65536):
                parts.append(part)
        except OSError:  # the terminal has been closed
            pass

    reader = threading.Thread(target=read)
    reader.start()
    code = run_forked(*arguments, stdout=slave, stderr=slave)
    os.close(slave)
    reader.join()
    os.close(master)
    return code, b"".join(parts).decode()


VERBS: dict[str, tuple[list[str], int]] = {
    "show": (["show", "run.zarr"], 0),
    "diagnose": (["diagnose", "run.zarr"], 3),
    "diagnose as JSON": (["diagnose", "run.zarr", "--json"], 3),
    "status": (["status", "run.zarr"], 0),
    "verify": (["verify", "run.zarr"], 0),
    "predict": (["predict", "run.zarr", "--data", "t.parquet"], 0),
    "predict from CSV": (["predict", "run.zarr", "--data", "t.csv"], 0),
    "loo": (["loo", "run.zarr"], 0),
    "report": (["report", "run.zarr", "--data", "t.parquet", "--out", "report.html"], 0),
    "export": (["export", "run.zarr", "--out", "draws.csv"], 0),
    "study status": (["study", "status", "study"], 0),
    "no such file": (["predict", "run.zarr", "--data", f"{ATTACK}.csv"], 2),
    "no such store": (["show", f"{ATTACK}.zarr"], 2),
    "no such option": (["show", f"--{ATTACK}"], 2),
    "a wrong key": (["show", "run.zarr", "--set", f"{ATTACK}=1"], 2),
    "a missing column": (["show", "run.zarr", "--data", "other.csv"], 0),
    "an unknown level": (["predict", "run.zarr", "--data", "unknown.parquet"], 2),
}


@pytest.mark.parametrize(
    "verb", [pytest.param(verb, marks=[pytest.mark.long] * (verb == "report")) for verb in VERBS]
)
def test_no_verb_writes_a_control_character(folder: Path, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    monkeypatch.chdir(folder)
    other = pd.read_parquet("t.parquet")
    other.rename(columns={f"x{ATTACK}": f"z{ATTACK}"}).to_csv("other.csv", index=False)
    other.assign(**{f"k{ATTACK}": f"w{ATTACK}"}).to_parquet("unknown.parquet")
    words, expected = VERBS[verb]
    code, text = on_terminal(*words)
    assert code == expected, text
    drawn = re.sub(r"\x1b\[[\d;]*m|\r\n", "", text)  # colours, and ends of lines
    assert not re.search(f"[{''.join(map(chr, set(CONTROLS) - {9}))}]", drawn), text
    of_names = [line for line in text.splitlines() if line.strip().startswith("predictions: converged")]
    if not verb.startswith("no such"):  # their texts are those of the command line
        assert of_names == []


def test_a_table_and_a_configuration_have_the_same_visible_names(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {"a\x1b\n": [1.0, 2.0, 4.0], "k": ["u\x07", "v\r\nw", "u\x07"], "y\u202e": [0.5, 1, 2]}
    )
    frame.to_parquet(tmp_path / "t.parquet")
    spec, cases = read_training(table_spec(exclude=None, targets=["y\u202e"]), frame)
    assert cases.input_names == (r"a\x1b", r"k=u\x07", r"k=v\r\nw") and cases.target_names == (r"y\u202e",)
    for source in (frame, tmp_path / "t.parquet"):
        assert read_cases(source, spec)[0].tolist() == read_cases(frame, spec)[0].tolist()


def test_a_hostile_store_has_visible_names(folder: Path) -> None:
    names = Store.open(folder / "run.zarr").data.input_names
    assert len(names) > 1 and all(name.isprintable() for name in names)


def test_a_traceback_is_visible(tmp_path: Path) -> None:
    file = io.StringIO()
    stream = cast(TextIO, LastingStream(file))
    import traceback

    try:
        raise ValueError(ATTACK)
    except ValueError:
        traceback.print_exc(file=stream)
    assert "\x1b" not in file.getvalue() and r"\x1b]52" in file.getvalue()


def test_levels_that_differ_only_by_an_escape_are_not_merged() -> None:
    levels = ["a\tb", "a\\tb"] * 20
    table = pd.DataFrame({"t": levels, "y": [float(row) for row in range(40)]})
    spec = {"data": {"targets": ["y"]}, "model": {"kind": "real"}}
    with pytest.raises(DataError, match=r"column t: has a\\tb with a control character and with the escape"):
        api.show(spec, data=table)
    assert api.show(spec, data=table.replace("a\\tb", "a b"))
