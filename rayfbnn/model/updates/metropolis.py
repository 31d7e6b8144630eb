"""Metropolis updates of precisions, alone on random grids, or together with the parameters on their scale.

Updates on random grids are an alternative to Gibbs updates of precisions that govern precisions. Updates that
scale parameters and precisions together move along the ridges of the posterior.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.model.architecture import NetworkSpec, destination
from rayfbnn.model.layout import ParameterLayout, PrecisionGroup, PrecisionLayout
from rayfbnn.model.prior import MAX_LOG_PRECISION
from rayfbnn.model.updates.gibbs import Sums
from rayfbnn.state import ChainState, ProposalsInfo
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


Along = Literal["sigmas", "incoming"]


@dataclass(frozen=True)
class Level:
    """Free precisions that are scaled, while the mean in their Gamma prior is not.

    columns  columns of the precisions
    half     half their alpha, the shape
    mean     a number, or the column of the precision that is their mean
    """

    columns: slice
    half: float
    mean: float | slice


@dataclass(frozen=True)
class Orbit:
    """The variables scaled by one factor f: a parameter w becomes w f, a precision tau becomes tau/f**2.

    parameters  parts of a chain's parameters
    precisions  columns of its precisions
    levels      the precisions with a distribution that is not scaled
    n_free      number of parameters with a prior that is not scaled, because its sigmas are fixed
    """

    parameters: tuple[slice, ...]
    precisions: tuple[slice, ...]
    levels: tuple[Level, ...]
    n_free: int = 0

    def moved(self, position: Array, precisions: Array, log_f: Array) -> tuple[Array, Array]:
        """Return copies of parameters and precisions, scaled by each chain's factor."""
        f = array_namespace(log_f).exp(log_f)[:, None]
        position, precisions = position.copy(), precisions.copy()
        for part in self.parameters:
            position[:, part] *= f.astype(position.dtype)
        for columns in self.precisions:
            precisions[:, columns] /= f**2
        return position, precisions

    def log_prior_ratio(self, precisions: Array, log_f: Array) -> Array:
        """Return the log of the Jacobian times the ratio of priors, without the energies of parameters.

        The result has shape (n_chains,). If the scale of a variable moves with it, the Jacobian cancels the
        change of its density. The density of the logarithm of each precision of a level remains. It is a
        power of tau/mean times exp(-half tau/mean); Neal (2022), eqs. 13, 14.
        """
        total = self.n_free * log_f
        shrunk = array_namespace(log_f).expm1(-2 * log_f)
        for level in self.levels:
            mean = precisions[:, level.mean] if isinstance(level.mean, slice) else level.mean
            ratio = precisions[:, level.columns] / mean
            n = ratio.shape[1]
            total = total - level.half * (2 * n * log_f + ratio.sum(axis=1) * shrunk)
        return total


def rescale(
    state: ChainState,
    streams: Streams,
    *,
    orbits: tuple[Orbit, ...],
    potential: Callable[[Array, Array], Array],
    stepsize: float,
) -> tuple[ChainState, ProposalsInfo]:
    """Make one Metropolis update along each orbit in turn, with log f = stepsize * n, n standard normal.

    A proposal is accepted with probability min(1, p(w', tau')/p(w, tau) |d(w', tau')/d(w, tau)|). The factors
    of an orbit form a group, and f is as likely as 1/f. The update therefore leaves p invariant. Liu and
    Sabatti (2000), "Generalised Gibbs sampler and multigrid Monte Carlo for Bayesian computation".

    potential  returns the potential of parameters and precisions, without factors that depend only on
               precisions, (n_chains,) float64
    """
    xp = array_namespace(state.position)
    position, precisions = state.position, state.precisions
    steps = stepsize * streams.normal(Purpose.PROPOSAL, (len(orbits),))  # log f
    thresholds = xp.log(streams.uniform(Purpose.ACCEPT, (len(orbits),)))
    n_accepted = xp.zeros(streams.n_chains)
    with np.errstate(all="ignore"):  # a potential that is not finite leads to a rejection
        current = potential(position, precisions)
        for number, orbit in enumerate(orbits):
            log_f = steps[:, number]
            moved, moved_precisions = orbit.moved(position, precisions, log_f)
            proposed = potential(moved, moved_precisions)
            accepted = thresholds[:, number] < current - proposed + orbit.log_prior_ratio(precisions, log_f)
            accepted &= (abs(xp.log(moved_precisions)) <= MAX_LOG_PRECISION).all(axis=1)
            position = xp.where(accepted[:, None], moved, position)
            precisions = xp.where(accepted[:, None], moved_precisions, precisions)
            current = xp.where(accepted, proposed, current)
            n_accepted += accepted
    share = n_accepted / len(orbits) if orbits else n_accepted * xp.nan
    return replace(state, position=position, precisions=precisions), ProposalsInfo(share)


def orbits_along(
    along: Along, network: NetworkSpec, parameters: ParameterLayout, layout: PrecisionLayout
) -> tuple[Orbit, ...]:
    """Return the orbits of an operation.

    sigmas    for each group, the sigma of each unit with the unit's parameters, then all of its sigmas with
              all parameters; w/sigma does not change
    incoming  for each hidden layer, then for the outputs, the sigmas and parameters of all groups that lead
              into it, because the values of saturated units hardly depend on the scale of these weights
    """
    groups = [group for group in layout.groups if not group.is_of_targets]
    if along == "sigmas":
        return tuple(orbit for group in groups for orbit in _of_sigmas(group, parameters.slices))
    layers = [*(f"h{number}" for number in range(len(network.hidden))), "o"]
    return tuple(
        _of_groups([group for group in groups if destination(group.name) == layer], parameters.slices)
        for layer in layers
    )


def _of_sigmas(group: PrecisionGroup, slices: dict[str, slice]) -> list[Orbit]:
    orbits = []
    if group.units is not None:
        start, n = (
            slices[group.name].start,
            (slices[group.name].stop - slices[group.name].start) // group.n_units,
        )
        for unit in range(group.n_units):
            weights = slice(start + unit * n, start + (unit + 1) * n)
            column = slice(group.units.start + unit, group.units.start + unit + 1)
            level = Level(column, group.prior.alphas[1] / 2, group.common_column)
            orbits.append(Orbit((weights,), (column,), (level,)))
    if math.isfinite(group.prior.alphas[0]):
        orbits.append(_of_groups([group], slices))
    return orbits


def _of_groups(groups: list[PrecisionGroup], slices: dict[str, slice]) -> Orbit:
    """Return the orbit of all free sigmas and all parameters of some groups."""
    precisions, levels, n_free = [], [], 0
    for group in groups:
        alpha_common, alpha_unit, _ = group.prior.alphas
        if group.units is not None:
            precisions.append(group.units)
        if math.isfinite(alpha_common):
            precisions.append(group.common_column)
            levels.append(Level(group.common_column, alpha_common / 2, group.mean))
        elif group.units is not None:
            levels.append(Level(group.units, alpha_unit / 2, group.mean))
        else:
            n_free += slices[group.name].stop - slices[group.name].start
    parameters = tuple(slices[group.name] for group in groups)
    return Orbit(parameters, tuple(precisions), tuple(levels), n_free)
