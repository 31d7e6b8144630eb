"""The inputs of a posterior's cases, from which another posterior can be made."""

from __future__ import annotations

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.model.posterior import Posterior


def covariates_of(target: Posterior) -> Array:
    """Return inputs (n_cases, n_inputs) float64, without those that the data model adds."""
    if target.covariates is not None:
        return target.covariates
    return np.ascontiguousarray(target.inputs[:-1].T, dtype=np.float64)
