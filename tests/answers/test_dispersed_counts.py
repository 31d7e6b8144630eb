"""What runs with dispersion predict, beside a regression that knows the form of the counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.optimize
import scipy.stats

import rayfbnn
from rayfbnn.answers.measures import places
from rayfbnn.arrays import Array
from rayfbnn.draws.subsets import with_draws
from rayfbnn.draws.view import committed
from rayfbnn.store.store import Store
from rayfbnn.streams import Purpose
from tests.support.problems import streams

N_TRAIN, N_TEST = 500, 1500
HMC = {"op": "hybrid", "steps": 20, "window": 4, "stepsize": 0.4, "stepsize_jitter": -0.2}


def table(shape: float) -> pd.DataFrame:
    """Counts with mean exp(1 + 0.6 x1 - 0.4 x2) and this shape; the training cases, then the test cases."""
    random, n = streams("dispersed counts", 1), N_TRAIN + N_TEST
    x = random.normal(Purpose.PROPOSAL, (n, 2))[0]
    means = np.exp(1 + x @ [0.6, -0.4])
    rates = means * np.exp(random.log_gamma(shape, Purpose.TARGET_VALUE, (n,))[0]) / shape
    counts = scipy.stats.poisson.ppf(random.uniform(Purpose.TARGET_VALUE, (n,), index=1)[0], rates)
    return pd.DataFrame({"x1": x[:, 0], "x2": x[:, 1], "y": counts})


def regression_score(train: pd.DataFrame, test: pd.DataFrame) -> float:
    """Mean log probability of the test cases under the best negative binomial regression."""

    def log_mass(values: Array, cases: pd.DataFrame) -> Array:
        mean = np.exp(values[0] + cases[["x1", "x2"]].to_numpy() @ values[1:3])
        shape = np.exp(values[3])
        return np.asarray(scipy.stats.nbinom.logpmf(cases["y"], shape, shape / (shape + mean)))

    best = scipy.optimize.minimize(lambda values: -log_mass(values, train).sum(), np.zeros(4))
    return float(log_mass(best.x, test).mean())


def sampled(folder: Path, train: pd.DataFrame, model: dict[str, Any]) -> Path:
    """A short run on the training cases."""
    spec = {
        "seed": 3,
        "chains": 4,
        "data": {"targets": ["y"], "inputs": ["x1", "x2"], "standardize": ["inputs"]},
        "model": model,
        "network": {
            "hidden": [{"units": 4, "activation": "tanh"}],
            "priors": {"ih0": "0.5:4", "bh0": "0.5:4", "ho0": "x1:4", "io": "0.5:2", "bo": "10"},
        },
        "phase": [
            {
                "iterations": 50,
                "keep": False,
                "operations": [{"op": "sample-noise"}, {"op": "heatbath"}, HMC],
            },
            {"iterations": 250, "operations": [{"op": "sample-sigmas"}, {"op": "heatbath"}, HMC]},
        ],
    }
    rayfbnn.sample(spec, folder / "run.zarr", data=train, workers=0, progress=False)
    return folder / "run.zarr"


def coverage(store: Path, test: pd.DataFrame) -> float:
    """The share of test counts in central 80 % intervals, with counts spread evenly over their steps."""
    run = committed(Store.open(store))
    some = with_draws(run, np.arange(0, run.n_draws, 5))
    placed = places([some], test[["x1", "x2"]].to_numpy(), test[["y"]].to_numpy())
    return float(placed.coverage([0.8]).item())


def test_predictions_are_those_of_a_regression_that_knows_the_form(tmp_path: Path) -> None:
    counts = table(1.0)
    train, test = counts[:N_TRAIN], counts[N_TRAIN:].reset_index(drop=True)
    store = sampled(tmp_path, train, {"kind": "count", "dispersion": "0.3:0.5"})
    prediction = rayfbnn.predict(store, data=test, draws=200)
    assert prediction.table["log_probability"].mean() > regression_score(train, test) - 0.02
    assert 0.75 < coverage(store, test) < 0.85
    sigma = Store.open(store).read_precisions()[..., -1] ** -0.5
    assert sigma.mean() == pytest.approx(1.0, abs=4 * sigma.std())


def test_without_dispersion_intervals_are_too_narrow(tmp_path: Path) -> None:
    counts = table(1.0)
    train, test = counts[:N_TRAIN], counts[N_TRAIN : N_TRAIN + 500].reset_index(drop=True)
    assert coverage(sampled(tmp_path, train, {"kind": "count"}), test) < 0.65
