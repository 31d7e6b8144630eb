"""Random-grid Metropolis updates, an alternative to Gibbs updates of precisions that govern precisions."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.model.layout import PrecisionGroup
from rayfbnn.model.prior import MAX_LOG_PRECISION
from rayfbnn.streams import Purpose, Streams


def update_upper_levels(
    values: Array,
    group: PrecisionGroup,
    precisions: Array,
    streams: Streams,
    *,
    stepsize: float,
    index: int,
    weights: float | Array = 1.0,
) -> list[Array]:
    """Update one group's upper-level columns of `precisions`, units first, and return the decisions.

    The common precision is upper-level if units have precisions. A precision that governs t values is also
    upper-level, because the values have single precisions, which are integrated out here. This is FBM's
    rgrid-upper-sigmas.

    values   (n_chains, n_units, n) parameters or residuals that the precisions govern
    weights  weight of each value, a number or an array that broadcasts to values

    Returns for each updated level which of its n precisions were accepted, (n_chains, n) bool.
    """
    xp = array_namespace(precisions)
    alpha = group.prior.alphas[2]
    squares = values.astype(xp.float64) ** 2
    weights = xp.broadcast_to(xp.asarray(weights, dtype=xp.float64), squares.shape)
    if group.units is None:
        squares, weights = (array.reshape(len(precisions), 1, -1) for array in (squares, weights))
    return update_levels(
        lambda x: log_density_of_t_values(x, squares, weights, alpha),
        group,
        precisions,
        streams,
        stepsize=stepsize,
        index=index,
    )


def update_levels(
    t_density: Callable[[Array], Array],
    group: PrecisionGroup,
    precisions: Array,
    streams: Streams,
    *,
    stepsize: float,
    index: int,
) -> list[Array]:
    """Update the levels as `update_upper_levels` does, given the density of t values.

    t_density  returns the log density of the t values given the log precisions x, up to a constant. x and the
               result are (n_chains, n_units), with one column if units have no precisions
    """
    alpha_common, alpha_unit, alpha_value = group.prior.alphas
    common = slice(group.common, group.common + 1)
    decisions: list[Array] = []
    if group.units is not None and math.isfinite(alpha_value):
        precisions[:, group.units], accepted = _metropolis(
            precisions[:, group.units],
            lambda x: log_prior(x, alpha_unit, precisions[:, common]) + t_density(x),
            streams,
            stepsize=stepsize,
            index=2 * index,
        )
        decisions.append(accepted)
    if math.isinf(alpha_common):
        return decisions
    if group.units is not None:
        below = precisions[:, None, group.units]
        precisions[:, common], accepted = _metropolis(
            precisions[:, common],
            lambda x: (
                log_prior(x, alpha_common, group.mean) + log_density_of_precisions(x, below, alpha_unit)
            ),
            streams,
            stepsize=stepsize,
            index=2 * index + 1,
        )
        decisions.append(accepted)
    elif math.isfinite(alpha_value):
        precisions[:, common], accepted = _metropolis(
            precisions[:, common],
            lambda x: log_prior(x, alpha_common, group.mean) + t_density(x),
            streams,
            stepsize=stepsize,
            index=2 * index + 1,
        )
        decisions.append(accepted)
    return decisions


def _metropolis(
    precisions: Array,
    log_density: Callable[[Array], Array],
    streams: Streams,
    *,
    stepsize: float,
    index: int,
) -> tuple[Array, Array]:
    """Update the logarithm x of each precision once; return precisions (n_chains, n_units), and which moved.

    A grid with cells of width 2 * stepsize is placed at random, and the centre of the cell that contains x is
    the proposal. It is uniform within stepsize of x. Given the grid, all x in a cell have the same proposal.
    """
    xp = array_namespace(precisions)
    x = xp.log(precisions)
    shape, cell = precisions.shape[1:], 2 * stepsize
    place = streams.uniform(Purpose.GRID, shape, index=index)
    proposal = cell * (xp.floor(x / cell - place) + place + 0.5)
    with np.errstate(all="ignore"):  # a density that is not finite leads to a rejection
        change = log_density(proposal) - log_density(x)
        accepted = xp.log(streams.uniform(Purpose.ACCEPT, shape, index=index)) < change
    accepted &= abs(proposal) <= MAX_LOG_PRECISION
    return xp.where(accepted, xp.exp(proposal), precisions), accepted


def log_prior(x: Array, alpha: float, mean: Array | float) -> Array:
    """Return the log density of x = log tau up to a constant, tau Gamma of shape alpha/2 and mean; eq. 13."""
    return alpha / 2 * (x - array_namespace(x).exp(x) / mean)


def log_density_of_precisions(x: Array, below: Array, alpha: float) -> Array:
    """Return the log density of n Gamma precisions given the log mean x, up to a constant; eq. 14.

    x (n_chains, n_units), below (n_chains, n_units, n)
    """
    xp = array_namespace(x)
    return -alpha / 2 * (below.shape[2] * x + below.sum(axis=2) * xp.exp(-x))


def log_density_of_t_values(x: Array, squares: Array, weights: Array, alpha: float) -> Array:
    """Return the log density of t values given the log precision x, up to a constant; eq. 17.

    x (n_chains, n_units), squares and weights (n_chains, n_units, n)
    """
    xp = array_namespace(x)
    terms = 0.5 * x[:, :, None] - (alpha + 1) / 2 * xp.log1p(xp.exp(x)[:, :, None] * squares / alpha)
    return (weights * terms).sum(axis=2)
