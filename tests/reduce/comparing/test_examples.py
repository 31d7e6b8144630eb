"""The examples of approximations reach the figures that their pages give, with the margins stated here.

Distances are from Markov chains of the same model; the intervals are around those of an independent
implementation of the methods in NumPy.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

import rayfbnn
from tests.support.pages import ROOT

EXAMPLES = ROOT / "examples" / "approximations"
pytestmark = pytest.mark.long


def fits(*arguments: str | Path) -> Any:
    """Return the table that examples/approximations/fits.py prints."""
    return runpy.run_path(str(EXAMPLES / "fits.py"))["main"]([str(argument) for argument in arguments])


def compared(name: str, test: str, out: Path) -> Any:
    """Return the table of hmc and sghmc of an example."""
    folder = EXAMPLES / name
    out.mkdir()
    rayfbnn.sample(folder / "sghmc.toml", out / "sghmc.zarr", workers=0, progress=False)
    return rayfbnn.compare(
        folder / f"{name}.toml",
        out,
        data=folder / test,
        methods="hmc,sghmc",
        decisive="predictions",
        workers=0,
        progress=False,
    )


def test_two_inputs_has_the_distances_of_its_page(tmp_path: Path) -> None:
    table = compared("two_inputs", "test.csv", tmp_path / "out")
    assert table.ok
    assert table.floor.values["total_variation"] < 0.004
    assert table.rows["sghmc"].values["total_variation"] < 0.01
    assert table.rows["hmc"].values["log_probability"] == pytest.approx(-0.552, abs=0.004)
    test = EXAMPLES / "two_inputs" / "test.csv"
    rows = fits(tmp_path / "out" / "hmc.zarr", "--data", test, "--methods", "laplace,sampled,bbb,vep").rows
    distance = {name: row.values["total_variation"] for name, row in rows.items()}
    assert 0.02 < distance["laplace"] < 0.05
    assert distance["sampled"] > 0.09
    assert 0.035 < distance["bbb"] < 0.07
    assert 0.045 < distance["vep"] < 0.08


def test_digits_has_the_distances_of_its_page(tmp_path: Path) -> None:
    table = compared("digits", "test.csv.gz", tmp_path / "out")
    hmc, sghmc = (table.rows[name].values for name in ("hmc", "sghmc"))
    assert 0.020 < hmc["error_rate"] < 0.036
    assert sghmc["total_variation"] < 1.5 * table.floor.values["total_variation"]
    test = EXAMPLES / "digits" / "test.csv.gz"
    rows = fits(
        tmp_path / "out" / "hmc.zarr", "--data", test, "--methods", "sampled,bbb", "--starts", "2"
    ).rows
    assert rows["sampled"].values["total_variation"] > 0.3
    assert 0.05 < rows["bbb"].values["total_variation"] < 0.10


def test_the_robot_arm_is_predicted_as_well_as_in_the_book(tmp_path: Path) -> None:
    """Scores of fits need no chains, so that a short run stands for the exact draws."""
    folder = ROOT / "examples" / "robot_arm"
    short = ["chains=2", "chains_per_batch=2", "iterations=4"]
    rayfbnn.sample(folder / "robot_arm.toml", tmp_path / "run.zarr", set=short, workers=0, progress=False)
    given = tmp_path / "run.zarr", "--data", folder / "test.csv"
    rows = fits(*given, "--methods", "laplace,committee", "--starts", "12").rows
    best, committee = rows["laplace"].values, rows["committee"].values
    assert 0.0052 < best["squared_error"] < 0.0058
    assert committee["squared_error"] < 0.0056
    assert best["log_probability"] > 3.04
    assert best["seconds"] < 60
    bbb = fits(*given, "--methods", "bbb", "--starts", "4").rows["bbb"].values
    assert bbb["squared_error"] < 0.0060
    assert 2.9 < bbb["log_probability"] < best["log_probability"]
    assert 150 < bbb["log_evidence"] < 260 < best["log_evidence"]
