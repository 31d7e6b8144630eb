"""A linear model whose posterior is known exactly, and trajectories that hardly leave their start."""

from __future__ import annotations

from typing import Any

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.streams import Purpose, Streams

CASES, NOISE = 60, 0.02


def linear_data() -> tuple[Array, Array]:
    """Inputs (n_cases, 3) and targets (n_cases,)."""
    numbers = Streams(3, np.arange(CASES, dtype=np.uint64)).normal(Purpose.TARGET_VALUE, (4,))
    return numbers[:, :3], numbers[:, :3] @ [1.0, -2.0, 0.5] + 0.5 + NOISE * numbers[:, 3]


def linear_spec(*, chains: int, iterations: int, stepsize: float) -> dict[str, Any]:
    """Tables of a configuration without warm-up, whose chains all start with parameters of zero."""
    operations = [{"op": "heatbath"}, {"op": "hybrid", "steps": 1, "stepsize": stepsize}]
    return {
        "chains": chains,
        "data": {"inputs": ["x1", "x2", "x3"], "targets": ["y"]},
        "model": {"kind": "real", "noise": str(NOISE)},
        "network": {"hidden": [], "priors": {"io": "1", "bo": "1"}},
        "phase": [{"iterations": iterations, "operations": operations}],
    }


def exact_outputs() -> tuple[Array, Array]:
    """Posterior mean and standard deviation of the output at each case, (n_cases,) each."""
    inputs, targets = linear_data()
    design = np.column_stack([inputs, np.ones(CASES)])
    covariance = np.linalg.inv(design.T @ design / NOISE**2 + np.eye(4))
    mean = design @ covariance @ design.T @ targets / NOISE**2
    return mean, np.sqrt(np.einsum("ij,jk,ik->i", design, covariance, design))
