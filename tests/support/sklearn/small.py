"""Estimators whose runs are so small that a fit takes a quarter of a second, and data for them."""

from __future__ import annotations

from typing import Any

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.sklearn import BayesianNetworkClassifier, BayesianNetworkRegressor

_SIGMAS, _HEATBATH = {"op": "sample-sigmas"}, {"op": "heatbath"}
_MARGINAL = {"op": "hybrid-marginal", "over": ["outputs", "precisions"], "steps": 8, "stepsize": 0.5}
_HYBRID = {"op": "hybrid", "steps": 12, "stepsize": 0.3}
_COMMON = {
    "network": {"hidden": [{"units": 4, "activation": "tanh"}]},
    "chains": 2,
    "draws_per_block": 1000,
}


def numbers_spec(*, first: int = 10, kept: int = 20) -> dict[str, Any]:
    """A configuration for the regressor that tunes nothing, with so many iterations in its two phases."""
    held = [{"op": "sample-noise"}, _HEATBATH, {**_MARGINAL, "over": ["outputs"]}]
    phases = [
        {"iterations": first, "keep": False, "operations": held},
        {"iterations": kept, "operations": [_SIGMAS, _HEATBATH, _MARGINAL]},
    ]
    return {**_COMMON, "phase": phases}


def labels_spec(*, kept: int = 30) -> dict[str, Any]:
    """A configuration for the classifier that tunes nothing, with one phase."""
    return {**_COMMON, "phase": [{"iterations": kept, "operations": [_SIGMAS, _HEATBATH, _HYBRID]}]}


def regressor(**parameters: Any) -> BayesianNetworkRegressor:
    return BayesianNetworkRegressor(**{"spec": numbers_spec(), "random_state": 1, **parameters})


def classifier(**parameters: Any) -> BayesianNetworkClassifier:
    return BayesianNetworkClassifier(**{"spec": labels_spec(), "random_state": 1, **parameters})


def line(n_cases: int = 30) -> tuple[Array, Array]:
    """Two inputs, of which the target is a line in the first, with some noise."""
    generator = np.random.default_rng(4)
    X = generator.normal(size=(n_cases, 2))
    return X, 3 + 2 * X[:, 0] + 0.2 * generator.normal(size=n_cases)


def three_groups(n_cases: int = 30) -> tuple[Array, Array]:
    """Two inputs in three groups, whose numbers are the targets."""
    generator = np.random.default_rng(5)
    groups = np.arange(n_cases) % 3
    centers = np.array([[0.0, 3.0], [3.0, 0.0], [-3.0, -3.0]])
    return centers[groups] + 0.5 * generator.normal(size=(n_cases, 2)), groups
