"""Runs of each data model from a file of cases to predictions, pictures and exact draws."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfbnn import api
from rayfbnn.data import read_dataset
from rayfbnn.draws.view import committed
from rayfbnn.errors import ConfigError
from rayfbnn.pictures import along_input, predicted
from rayfbnn.store.store import Store
from tests.support.output.undrawn import leave_undrawn
from tests.support.small import assert_same_draws, small
from tests.support.store.fits import spec_of

MODELS = ("count", "count, dispersion", "constant hazard", "hazard of pieces", "heteroscedastic")


@pytest.mark.parametrize("name", MODELS)
def test_a_run_is_sampled_resumed_and_predicted_from(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of(name, tmp_path, chains=3)
    api.sample(spec, tmp_path / "run.zarr", workers=0, progress=False)
    phases = [*small()["phase"][:2], {**small()["phase"][2], "iterations": 4}]
    shorter = spec_of(name, tmp_path, chains=3, phase=phases)
    api.sample(shorter, tmp_path / "short.zarr", workers=0, progress=False)
    api.resume(tmp_path / "short.zarr", iterations=10, workers=0, progress=False)
    assert_same_draws(tmp_path / "run.zarr", tmp_path / "short.zarr")
    prediction = api.predict(tmp_path / "run.zarr", data=tmp_path / "train.csv")
    assert len(prediction.table) == 12
    assert np.isfinite(list(prediction.summary.values())).all()
    assert prediction.table["log_probability"].isna().tolist() == [case == 5 for case in range(12)]
    tree: Any = api.open(tmp_path / "run.zarr")
    expected = ["time", "x1", "x2"] if name == "hazard of pieces" else ["x1", "x2"]
    assert tree["posterior"]["input"].values.tolist() == expected
    assert tree["posterior"]["sigma_ih0_unit"].shape[-1] == len(expected)
    diagnosis = api.diagnose(tmp_path / "run.zarr")
    assert {f"sigma_ih0_unit[{name_}]" for name_ in expected} <= set(diagnosis.quantities.index)
    assert ("sigma_dispersion" in diagnosis.quantities.index) == (name == "count, dispersion")
    with monkeypatch.context() as patched:
        leave_undrawn(patched)
        out, data = tmp_path / "plots", tmp_path / "train.csv"
        pictures = {picture.name for picture in api.plot(tmp_path / "run.zarr", out=out, data=data)}
    assert {"traces.png", "bands.png", "relevance.png", "autocorrelation.png", "errors.png"} <= pictures
    assert "energy_errors.png" not in pictures  # all stepsizes are the same
    run = committed(Store.open(tmp_path / "run.zarr"))
    drawn = [along_input.predictive_bands(run, tmp_path / "bands.png")]
    if "survival.png" in pictures:
        drawn.append(predicted.survival_curves(run, tmp_path / "survival.png"))
    assert ("survival.png" in pictures) == ("hazard" in name)
    assert all(picture.stat().st_size > 5000 for picture in drawn)


def test_log_likelihoods_of_a_store_are_of_its_data(tmp_path: Path) -> None:
    spec = spec_of("hazard of pieces", tmp_path, dtype="float64")
    api.sample(spec, tmp_path / "run.zarr", workers=0, progress=False)
    table = api.predict(tmp_path / "run.zarr", data=tmp_path / "train.csv").table
    stored = Store.open(tmp_path / "run.zarr").read_stat("log_likelihood")
    assert read_dataset(spec).targets[5, 0] != read_dataset(spec).targets[5, 0]  # NaN
    # By Jensen's inequality the sum of log means is above the mean of sums, and below their largest here.
    assert stored.mean() <= table["log_probability"].sum() <= stored.max() + 12


def test_exact_draws_of_heteroscedastic_targets_need_a_floor(tmp_path: Path) -> None:
    spec = spec_of("heteroscedastic", tmp_path, model={"kind": "heteroscedastic"})
    with pytest.raises(ConfigError, match=r"model\.noise_floor: missing"):
        api.reject(spec, tmp_path / "exact.zarr", draws=1, progress=False)
    assert not (tmp_path / "exact.zarr").exists()
