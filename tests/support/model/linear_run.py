"""A run of a linear network with fixed sigmas, and its leave-one-out densities in closed form."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy.stats import norm

import rayfbnn
from rayfbnn.store.store import Store
from tests.support.small import write_train

NOISE = 0.8
N_CASES = 30


def linear_run(folder: Path) -> Path:
    """Sample 8 chains of 400 draws into run.zarr in the folder, and return its path."""
    write_train(folder, n_cases=N_CASES)
    operations = [{"op": "heatbath"}, {"op": "hybrid", "steps": 8, "stepsize": 0.3}]
    spec = {
        "chains": 8,
        "draws_per_block": 400,
        "dtype": "float64",
        "data": {"train": str(folder / "train.csv"), "inputs": ["x1", "x2"], "targets": ["y"]},
        "model": {"kind": "real", "noise": str(NOISE)},
        "network": {"hidden": [], "priors": {"io": "1", "bo": "1"}},
        "phase": [
            {"iterations": 20, "keep": False, "operations": operations},
            {"iterations": 400, "operations": operations},
        ],
    }
    rayfbnn.sample(spec, folder / "run.zarr", workers=0, progress=False)
    return folder / "run.zarr"


def loo_of_linear(path: Path, *, leaves_out: bool = True) -> np.ndarray:
    """log p(y_i | all other cases) of the Gaussian regression, in closed form, (30,).

    leaves_out  False for log p(y_i | all cases)
    """
    store = Store.open(path)
    x = np.column_stack([store.data.inputs, np.ones(N_CASES)])
    y = store.data.targets[:, 0]
    densities = np.empty(N_CASES)
    for case in range(N_CASES):
        others = (np.arange(N_CASES) != case) | (not leaves_out)
        covariance = np.linalg.inv(np.eye(3) + x[others].T @ x[others] / NOISE**2)
        mean = covariance @ x[others].T @ y[others] / NOISE**2
        sd = np.sqrt(NOISE**2 + x[case] @ covariance @ x[case])
        densities[case] = norm.logpdf(y[case], x[case] @ mean, sd)
    return densities
