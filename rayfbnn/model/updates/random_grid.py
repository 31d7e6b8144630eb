"""Random-grid Metropolis updates, an alternative to Gibbs updates of precisions that govern precisions."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.model.layout import PrecisionGroup
from rayfbnn.model.prior import MAX_LOG_PRECISION
from rayfbnn.model.updates.gibbs import Sums
from rayfbnn.streams import Purpose, Streams


def update_upper_levels(
    sums: Sums | None,
    group: PrecisionGroup,
    precisions: Array,
    streams: Streams,
    *,
    stepsize: float,
    index: int,
) -> list[Array]:
    """Update one group's upper-level columns of `precisions`, units first, and return the decisions.

    The common precision is upper-level if units have precisions. A precision that governs t values is also
    upper-level, because the values have single precisions, which are integrated out here. This is FBM's
    rgrid-upper-sigmas.

    sums  needed only for t values

    Returns for each updated level which of its n precisions were accepted, (n_chains, n) bool.
    """
    alpha, alpha_unit, alpha_value = group.prior.alphas
    units, common = group.units, group.common_column
    has_t_values = math.isfinite(alpha_value)
    if has_t_values and units is None:
        assert sums is not None
        sums = sums.together()

    def log_density(columns: slice, x: Array) -> Array:
        """Return the log density of the log precisions x in these columns, given everything else."""
        if columns is common and units is not None:
            below = log_density_of_precisions(x, precisions[:, None, units], alpha_unit)
        else:
            assert sums is not None
            below = sums.sum_of_t_densities(x, alpha_value)
        if columns is common:
            return log_prior(x, alpha, group.mean) + below
        return log_prior(x, alpha_unit, precisions[:, common]) + below

    levels = []
    if units is not None and has_t_values:
        levels.append((units, 2 * index))
    if math.isfinite(alpha) and (units is not None or has_t_values):
        levels.append((common, 2 * index + 1))
    decisions = []
    for columns, number in levels:
        precisions[:, columns], accepted = _metropolis(
            precisions[:, columns], partial(log_density, columns), streams, stepsize=stepsize, index=number
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
