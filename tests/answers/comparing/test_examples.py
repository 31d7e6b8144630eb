"""The examples of approximations have the figures that docs/approximations.md gives, within stated margins.

The intervals of distances are around those of an independent implementation of the methods in NumPy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rayfbnn
from rayfbnn.answers.comparison import Comparison
from tests.support.pages import ROOT

EXAMPLES = ROOT / "examples" / "approximations"
ROBOT_ARM = ROOT / "examples" / "robot_arm"
pytestmark = pytest.mark.long


def table_of(name: str, data: Path, out: Path, methods: str, **options: Any) -> Comparison:
    return rayfbnn.compare(
        EXAMPLES / name / f"{name}.toml",
        out,
        data=data,
        methods=methods,
        workers=0,
        progress=False,
        **options,
    )


def test_two_inputs_has_the_distances_of_the_page(tmp_path: Path) -> None:
    test = EXAMPLES / "two_inputs" / "test.csv"
    table = table_of("two_inputs", test, tmp_path / "out", "hmc,sghmc,laplace,bbb,vep")
    assert table.ok
    distance = {name: row.values["total_variation"] for name, row in table.rows.items()}
    assert table.floor.values["total_variation"] < 0.004
    assert distance["sghmc"] < 0.01
    assert 0.02 < distance["laplace"] < 0.05
    assert 0.035 < distance["bbb"] < 0.07
    assert 0.045 < distance["vep"] < 0.08
    assert table.rows["hmc"].values["log_probability"] == pytest.approx(-0.552, abs=0.004)


def test_networks_drawn_from_a_gaussian_approximation_are_far_off(tmp_path: Path) -> None:
    folder, out = EXAMPLES / "two_inputs", tmp_path / "out"
    table = rayfbnn.compare(
        folder / "two_inputs.toml",
        out,
        data=folder / "test.csv",
        methods="hmc,laplace",
        set=['methods.laplace.prediction="sampled"'],
        workers=0,
        progress=False,
    )
    assert table.rows["laplace"].values["total_variation"] > 0.09


def test_digits_by_networks_of_a_gaussian_approximation_are_far_off(tmp_path: Path) -> None:
    test = EXAMPLES / "digits" / "test.csv.gz"
    sampled = ['methods.laplace.prediction="sampled"']
    table = table_of("digits", test, tmp_path / "out", "hmc,laplace", decisive="predictions", set=sampled)
    assert table.rows["laplace"].values["total_variation"] > 0.3


def test_digits_has_the_distances_of_the_page(tmp_path: Path) -> None:
    test = EXAMPLES / "digits" / "test.csv.gz"
    table = table_of("digits", test, tmp_path / "out", "hmc,sghmc,bbb", decisive="predictions")
    assert 0.020 < table.rows["hmc"].values["error_rate"] < 0.036
    distance = {name: row.values["total_variation"] for name, row in table.rows.items()}
    assert distance["sghmc"] < 1.5 * table.floor.values["total_variation"]
    assert 0.05 < distance["bbb"] < 0.10


def test_the_robot_arm_is_predicted_as_well_as_in_the_book(tmp_path: Path) -> None:
    """Scores need no exact draws, so that a short run stands for them."""
    short = ["chains=2", "chains_per_batch=2", "iterations=4"]
    rayfbnn.sample(
        ROBOT_ARM / "robot_arm.toml", tmp_path / "short.zarr", set=short, workers=0, progress=False
    )
    table = table_of(
        "robot_arm",
        ROBOT_ARM / "test.csv",
        tmp_path / "out",
        "laplace,bbb",
        exact=str(tmp_path / "short.zarr"),
    )
    laplace, bbb = table.rows["laplace"].values, table.rows["bbb"].values
    assert 0.0052 < laplace["squared_error"] < 0.0058
    assert laplace["log_probability"] > 3.04
    assert laplace["seconds"] < 60
    assert bbb["squared_error"] < 0.0060
    assert 2.9 < bbb["log_probability"] < laplace["log_probability"]
    assert 150 < bbb["log_evidence"] < 260 < laplace["log_evidence"]


def test_networks_of_greatest_density_overfit_with_their_size(tmp_path: Path) -> None:
    folder = EXAMPLES / "network_size"

    def errors(n_units: int, method: str) -> tuple[float, float, float]:
        store = tmp_path / f"{method}_{n_units}.zarr"
        rayfbnn.sample(
            folder / "network_size.toml",
            store,
            set=[f"network.hidden[0].units={n_units}"],
            method=method,
            workers=0,
            progress=False,
        )
        training = rayfbnn.predict(store, data=folder / "train.csv").summary
        test = rayfbnn.predict(store, data=folder / "test.csv").summary
        return training["squared_error"], test["squared_error"], test["log_probability"]

    noise = 2 * 0.05**2
    few, many, exact = errors(6, "map"), errors(16, "map"), errors(16, "hmc")
    assert many[0] < 0.6 * noise < noise < few[0]
    assert many[1] > 1.05 * few[1] > 1.05 * exact[1] > noise
    assert many[2] < few[2] < exact[2]
