"""Metropolis updates that scale parameters and precisions together, along the ridges of the posterior."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from rayfbnn.architecture import NetworkSpec, destination
from rayfbnn.arrays import Array, array_namespace
from rayfbnn.model.layout import NOISE, ParameterLayout, PrecisionGroup, PrecisionLayout
from rayfbnn.model.prior import MAX_LOG_PRECISION
from rayfbnn.state import ChainState, ProposalsInfo
from rayfbnn.streams import Purpose, Streams

Along = Literal["sigmas", "incoming"]


@dataclass(frozen=True, eq=False)
class Orbit:
    """What one factor f scales: each parameter w becomes w f**a, each precision tau becomes tau f**b.

    NumPy arrays on a device too: the sum of all exponents is a number that the host knows.

    parameters  (n_parameters,) the exponents a, 0 for what stays
    precisions  (n_precisions,) the exponents b
    """

    parameters: Array
    precisions: Array

    @property
    def log_jacobian(self) -> float:
        """d log |d(w', tau')/d(w, tau)| / d log f: the sum of all exponents."""
        return float(self.parameters.sum() + self.precisions.sum())


def rescale(
    state: ChainState,
    streams: Streams,
    *,
    orbits: tuple[Orbit, ...],
    log_density: Callable[[Array, Array], Array],
    stepsize: float,
) -> tuple[ChainState, ProposalsInfo]:
    """One Metropolis update along each orbit in turn, log f = stepsize * n, n standard normal.

    Accepted with probability min(1, p(w', tau')/p(w, tau) |d(w', tau')/d(w, tau)|): the factors of an orbit
    form a group, f is as likely as 1/f, so that this leaves p as it is. Liu and Sabatti (2000), "Generalised
    Gibbs sampler and multigrid Monte Carlo for Bayesian computation".

    log_density  of parameters and free precisions (as densities in tau), (n_chains,) float64
    """
    xp = array_namespace(state.position)
    position, precisions = state.position, state.precisions
    steps = stepsize * streams.normal(Purpose.PROPOSAL, (len(orbits),))  # log f
    thresholds = xp.log(streams.uniform(Purpose.ACCEPT, (len(orbits),)))
    n_accepted = xp.zeros(streams.n_chains)
    with np.errstate(all="ignore"):  # a density that is not finite is a rejection
        current = log_density(position, precisions)
        for number, orbit in enumerate(orbits):
            log_f = steps[:, number]
            powers, powers_of_precisions = xp.asarray(orbit.parameters), xp.asarray(orbit.precisions)
            moved = position * xp.exp(log_f[:, None] * powers).astype(position.dtype)
            moved_precisions = precisions * xp.exp(log_f[:, None] * powers_of_precisions)
            proposed = log_density(moved, moved_precisions)
            accepted = thresholds[:, number] < proposed - current + orbit.log_jacobian * log_f
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
    """The orbits of an operation.

    sigmas    of each group the sigmas of its units one by one, each with the unit's parameters, then all of
              its sigmas with all parameters; w/sigma stays
    incoming  for each hidden layer, then for the outputs, the sigmas and parameters of all groups that lead
              there: saturated units say the same, whatever the scale of their weights
    """
    builder = _Builder(parameters, layout)
    groups = [group for group in layout.groups if group.name != NOISE]
    if along == "sigmas":
        return tuple(orbit for group in groups for orbit in builder.of_sigmas(group))
    layers = [*(f"h{number}" for number in range(len(network.hidden))), "o"]
    return tuple(
        builder.of_groups([group for group in groups if destination(group.name) == layer]) for layer in layers
    )


@dataclass(frozen=True, eq=False)
class _Builder:
    parameters: ParameterLayout
    layout: PrecisionLayout

    def of_sigmas(self, group: PrecisionGroup) -> list[Orbit]:
        found = []
        part = self.parameters.slices[group.name]
        if group.units is not None:
            n = (part.stop - part.start) // group.n_units
            for unit in range(group.n_units):
                orbit = self._empty()
                orbit.parameters[part.start + unit * n : part.start + (unit + 1) * n] = 1
                orbit.precisions[group.units.start + unit] = -2
                found.append(orbit)
        if math.isfinite(group.prior.alphas[0]):
            found.append(self.of_groups([group]))
        return found

    def of_groups(self, groups: list[PrecisionGroup]) -> Orbit:
        """All free sigmas and all parameters of some groups."""
        orbit = self._empty()
        for group in groups:
            orbit.parameters[self.parameters.slices[group.name]] = 1
            if math.isfinite(group.prior.alphas[0]):
                orbit.precisions[group.common] = -2
            if group.units is not None:
                orbit.precisions[group.units] = -2
        return orbit

    def _empty(self) -> Orbit:
        return Orbit(np.zeros(self.parameters.n_parameters), np.zeros(self.layout.n_precisions))
