"""Hierarchies of precisions with every combination of levels, and their conditional distributions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.special
import scipy.stats

from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.state import ChainState

# Every combination of finite and infinite levels: common, unit, parameter.
HIERARCHIES = {
    "ti": "0.4:5:4",
    "ih0": "0.7:3:4",
    "bh0": "0.7:3",
    "th0": "0.3::5",
    "h0h1": "0.8:4:5:6",
    "ho0": "x0.5::4",
    "ho1": "x0.7:4::6",
    "io": "0.5::3:4",
    "bo": "1",
}


def uniforms_of(target: SampledPosterior, state: ChainState, targets: np.ndarray) -> list[np.ndarray]:
    """Conditional distribution functions of the values of each level of each group; uniform if exact."""
    values = target.parameter_layout.views(state.position)
    if target.model.noise is not None:
        outputs = target.outputs(state.position, target.inputs[:-1].T)
        values["noise"] = (targets - outputs).swapaxes(1, 2)
    uniforms = []
    for adjustments in target.precision_layout.adjustments:
        a, drawn = adjustments.alpha / 2, state.precisions[:, adjustments.columns]
        uniforms.append(scipy.special.gammainc(a, a * drawn))
    for group in target.precision_layout.groups:
        alpha, alpha_unit, alpha_value = group.prior.alphas
        common = state.precisions[:, group.common, None]
        rows = values[group.name].reshape(len(common), group.n_units, -1)
        if group.name in target.precision_layout.adjusted:
            _, columns = target.precision_layout.adjusted[group.name]
            rows = rows * np.sqrt(state.precisions[:, None, columns])
        rule = common
        if math.isfinite(alpha):
            uniforms.append(scipy.special.gammainc(alpha / 2, alpha * common / (2 * group.mean)))
        if group.units is not None:
            rule = state.precisions[:, group.units]
            uniforms.append(scipy.special.gammainc(alpha_unit / 2, alpha_unit * rule / (2 * common)))
        scaled = rows * np.sqrt(rule)[:, :, None]
        is_gaussian = math.isinf(alpha_value)
        uniforms.append(
            scipy.special.ndtr(scaled) if is_gaussian else scipy.special.stdtr(alpha_value, scaled)
        )
        # A whole group depends on its precision only through the sum of squares.
        if is_gaussian:
            squares = (scaled**2).sum(axis=(1, 2))
            uniforms.append(scipy.special.chdtr(rows[0].size, squares))
    return uniforms


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
