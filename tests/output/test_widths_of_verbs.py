"""No verb breaks a word or exceeds the width of the terminal, whatever the names of columns."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from subprocess import run
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from rayfbnn import api, cli
from tests.support.small import small
from tests.support.store.standin_store import normal

INPUTS = [
    "the_temperature_of_the_cooling_water_at_the_inlet",
    "pressure / hPa (mean of the last 24 hours)",
    "x",
]
TARGETS = ["yield_of_the_first_product_in_percent", "yield_of_the_second_product_in_percent", "y"]
FEW = {"workers": 0, "progress": False}


def rayfbnn(*arguments: object) -> str:
    result = CliRunner().invoke(cli.app, [str(argument) for argument in arguments])
    assert result.exit_code in (0, 1, 2, 3), result.output
    return result.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a table with long names, an exact one, and a comparison; no test changes them."""
    folder = tmp_path_factory.mktemp("widths")
    names = [*INPUTS, *TARGETS]
    pd.DataFrame(normal(3, (24, 6)), columns=names).to_csv(folder / "train.csv", index=False)
    data: dict[str, Any] = {"train": "train.csv", "inputs": INPUTS, "targets": TARGETS}
    spec = small(data=data, network__priors__ih0="0.7:3:3")
    spec["data"]["train"] = str(folder / "train.csv")
    (folder / "run.json").write_text(json.dumps(spec))
    for name in ("run.zarr", "other.zarr"):
        api.sample(spec | {"seed": len(name)}, folder / name, **FEW)
    return folder


VERBS = {
    "diagnose": ["diagnose", "run.zarr"],
    "predict": ["predict", "run.zarr", "--data", "train.csv"],
    "show": ["show", "run.zarr"],
    "status": ["status", "run.zarr"],
    "verify": ["verify", "run.zarr"],
    "loo of one": ["loo", "run.zarr"],
    "loo of two": ["loo", "run.zarr", "other.zarr"],
    "check": ["check", "run.zarr", "other.zarr"],
    "no such file": ["predict", "run.zarr", "--data", "a folder that is not there/new.csv"],
    "no such input": ["plot", "run.zarr", "--out", "pictures", "--input-name", "z"],
    "no such store": ["diagnose", "nothing.zarr"],
}


def words(text: str) -> set[str]:
    """The words of an output, with 0 for each number: times differ from call to call."""
    return set(re.sub(r"\d[\d.]*", "0", text).split())


@pytest.mark.parametrize("columns", [80, 60])
@pytest.mark.parametrize("verb", VERBS)
def test_every_line_of_a_verb_fits_and_has_whole_words(
    verb: str, columns: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.delenv("COLUMNS", raising=False)
    whole = rayfbnn(*VERBS[verb])
    monkeypatch.setenv("COLUMNS", str(columns))
    narrow = rayfbnn(*VERBS[verb])
    assert words(narrow) == words(whole)
    for line in narrow.split("\n"):
        assert len(line) <= columns or len(line.split()) == 1, line


def test_json_is_one_line_on_a_narrow_terminal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "60")
    for verb in ("diagnose", "predict", "show", "status", "verify", "loo of two"):
        text = rayfbnn(*VERBS[verb], "--json")
        assert text.count("\n") == 1
        json.loads(text)


PROGRAM = [sys.executable, "-c", "from rayfbnn import cli; cli.main()"]


def test_warnings_fit_too(folder: Path) -> None:
    arguments = ["loo", str(folder / "run.zarr")]
    result = run([*PROGRAM, *arguments], capture_output=True, text=True, env={**os.environ, "COLUMNS": "60"})
    assert "have a Pareto k above" in " ".join(result.stderr.split())
    assert all(len(line) <= 60 or len(line.split()) == 1 for line in result.stderr.split("\n"))


@pytest.mark.parametrize("columns", [80, 60])
@pytest.mark.parametrize("verb", ["reject", "compare"])
def test_help_has_whole_words(verb: str, columns: int) -> None:
    program = [*PROGRAM, verb, "--help"]
    whole, narrow = (
        re.sub(r"[│╭╮╰╯─\[\]]", " ", run(program, capture_output=True, text=True, env=environment).stdout)
        for environment in ({**os.environ, "COLUMNS": "300"}, {**os.environ, "COLUMNS": str(columns)})
    )
    options = set(re.findall(r"--[a-z-]+", whole))
    assert len(options) > 5 and options == set(re.findall(r"--[a-z-]+", narrow)) and "…" not in narrow
    assert all(len(line) <= columns for line in narrow.split("\n"))


@pytest.mark.parametrize("columns", [80, 60])
def test_the_rows_of_a_table_keep_their_numbers(
    columns: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = rayfbnn(*VERBS["diagnose"]).split("\n")
    quantities = api.diagnose("run.zarr").quantities
    name = f"sigma_ih0_unit[{INPUTS[0]}]"
    at = lines.index(name)
    assert lines[at + 1].split()[0] == f"{quantities.loc[name, 'mean']:.4g}"
    assert np.isfinite(quantities.loc[name, "mean"])
