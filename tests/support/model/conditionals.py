"""Conditional densities of precisions, and the joint density on a grid."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.special
import scipy.stats

from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.state import ChainState


def grid_of_joint(target: SampledPosterior, state: ChainState, column: int) -> tuple[np.ndarray, np.ndarray]:
    """Return 200 values of one precision, and log prior + log likelihood at each of them."""
    values = np.exp(np.linspace(-5, 5, 200))
    precisions = np.repeat(state.precisions, 200, axis=0)
    precisions[:, column] = values
    position = np.repeat(state.position, 200, axis=0)
    return values, target.log_prior(position, precisions) + target.log_likelihood(position, precisions)


def log_gamma_conditional(tau: np.ndarray, alpha: float, mean: float, squares: np.ndarray) -> Any:
    """Log conditional density of a precision by Neal (2022), eq. 28."""
    rate = (alpha / mean + squares.sum()) / 2
    return scipy.stats.gamma.logpdf(tau, (alpha + squares.size) / 2, scale=1 / rate)
