"""Predictors answer for every data model as `predict` does; quantiles and samples are of the same mixture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import rayfbnn
from rayfbnn.errors import ConfigError
from rayfbnn.store.store import Store
from tests.support.store.fits import MODELS, spec_of

HERE: dict[str, Any] = {"workers": 0, "progress": False}
N_SAMPLES = 3000


@pytest.fixture(scope="module", params=MODELS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The name of a data model, and a folder with its training file and a run."""
    name, folder = request.param, tmp_path_factory.mktemp("model")
    rayfbnn.sample(spec_of(name, folder), folder / "run.zarr", **HERE)
    return name, folder


@pytest.fixture(scope="module")
def real_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("real")
    rayfbnn.sample(spec_of("real", folder), folder / "run.zarr", **HERE)
    return folder / "run.zarr"


def test_all_draws_give_the_answers_of_predict(run: tuple[str, Path]) -> None:
    folder = run[1]
    prediction = rayfbnn.predict(folder / "run.zarr", data=folder / "train.csv")
    predictor = rayfbnn.load(folder / "run.zarr", max_mcse=0)
    assert predictor.n_draws == prediction.summary["draws"] == 50
    found = predictor.predict(folder / "train.csv")
    pd.testing.assert_frame_equal(found.table, prediction.table, rtol=1e-5, atol=1e-6)
    inputs = Store.open(folder / "run.zarr").data.inputs
    alone = pd.concat([predictor.predict(row).table for row in inputs], ignore_index=True)
    columns = list(alone.columns)  # an array has no targets, and so no errors
    pd.testing.assert_frame_equal(alone, prediction.table[columns], rtol=1e-5, atol=1e-6)


def test_quantiles_and_samples_are_those_of_the_table(run: tuple[str, Path]) -> None:
    name, folder = run
    predictor = rayfbnn.load(folder / "run.zarr", max_mcse=0)
    inputs = Store.open(folder / "run.zarr").data.inputs[:4]
    table = predictor.predict(inputs).table
    model = predictor._held.spec.data_model
    columns = model.probability_columns(predictor.target_names) or ["y_mean"]
    np.testing.assert_allclose(predictor.mean(inputs), table[columns], rtol=1e-5)
    samples = predictor.sample(inputs, N_SAMPLES, seed=3)
    assert samples.shape == (N_SAMPLES, 4, 1)
    if name in ("binary", "class"):
        labels = [1] if name == "binary" else [0, 1, 2]
        shares = np.stack([(samples[:, :, 0] == label).mean(axis=0) for label in labels], axis=1)
        np.testing.assert_allclose(shares, table[columns], atol=5 * 0.5 / np.sqrt(N_SAMPLES))
        with pytest.raises(ConfigError, match="quantiles: .* targets are labels"):
            predictor.quantiles(inputs, [0.5])
        return
    probabilities = {"y_q90": 0.9, "y_median": 0.5, "y_q01": 0.01}
    quantiles = predictor.quantiles(inputs, list(probabilities.values()))
    assert quantiles.shape == (3, 4, 1)
    in_parts = rayfbnn.load(folder / "run.zarr", max_mcse=0, max_memory=3e3)
    parts = in_parts.quantiles(inputs, [0.9, 0.5, 0.01])
    np.testing.assert_allclose(parts, quantiles, rtol=1e-5)
    np.testing.assert_allclose(quantiles[:, :, 0].T, table[list(probabilities)], rtol=1e-9)
    below = [(samples[:, :, 0] <= table[column].to_numpy()).mean(axis=0) for column in probabilities]
    error = [5 * np.sqrt(p * (1 - p) / N_SAMPLES) for p in probabilities.values()]
    if name.startswith("count"):  # a quantile of counts may have more below it
        assert all(
            (share >= p - e).all() for share, p, e in zip(below, probabilities.values(), error, strict=True)
        )
    else:
        for share, p, e in zip(below, probabilities.values(), error, strict=True):
            np.testing.assert_allclose(share, p, atol=e)


def test_a_sample_is_joint_over_cases_and_depends_on_the_seed(real_run: Path) -> None:
    """Twice the same case: all but the noise is shared within a sample."""
    store = Store.open(real_run)
    twice = store.data.inputs[[0, 0]] * 5  # far from the training cases, where functions differ most
    predictor = rayfbnn.load(real_run, max_mcse=0)
    samples = predictor.sample(twice, 400, seed=1)[:, :, 0]
    table = rayfbnn.predict(real_run, data=twice).table
    noise = store.read_precisions()[:, :, store.precision_layout.noise_columns] ** -1.0
    share = 1 - noise.mean() * store.data.target_scale[0] ** 2 / table["y_sd"][0] ** 2
    assert np.corrcoef(samples.T)[0, 1] == pytest.approx(share, abs=5 / np.sqrt(400))
    np.testing.assert_array_equal(predictor.sample(twice, 400, seed=1)[:, :, 0], samples)
    assert (predictor.sample(twice, 400, seed=2)[:, :, 0] != samples).all()


def test_probabilities_that_are_none_are_refused(real_run: Path) -> None:
    with pytest.raises(ConfigError, match="quantiles: must lie between 0 and 1, such as 0.9, got 90"):
        rayfbnn.load(real_run).quantiles([[0.0, 1.0]], [90])
