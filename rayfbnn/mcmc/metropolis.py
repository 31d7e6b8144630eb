"""Random-walk Metropolis, for comparison with hybrid Monte Carlo."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.mcmc.energy import finite_or_infinite, require_finite
from rayfbnn.mcmc.jitter import jittered_stepsize
from rayfbnn.state import ChainState, HMCInfo, Target
from rayfbnn.streams import Purpose, Streams


def metropolis(
    state: ChainState,
    streams: Streams,
    *,
    target: Target,
    stepsize: float,
    stepsize_jitter: float | None = None,
) -> tuple[ChainState, HMCInfo]:
    """One Metropolis update of all parameters of every chain at once; the momentum stays as it is.

    q' = q + stepsize * target.stepsizes * n, n standard normal, accepted with probability
    min(1, exp(U - U'))

    Neal (1996) sec. 1.3.3.
    """
    xp = array_namespace(state.position)
    factor = jittered_stepsize(stepsize, stepsize_jitter, streams)
    noise = streams.normal(Purpose.PROPOSAL, state.position.shape[1:])
    with np.errstate(all="ignore"):
        change = factor[:, None] * target.stepsizes(state.precisions) * noise
        proposal = state.position + change.astype(state.position.dtype)
        start_energy = _energy(target, state.position, state.precisions)
        proposal_energy = _energy(target, proposal, state.precisions)
    require_finite(start_energy, streams)
    energy_change = proposal_energy - start_energy
    accepted = xp.log(streams.uniform(Purpose.ACCEPT)) < -energy_change
    position = xp.where(accepted[:, None], proposal, state.position)
    return replace(state, position=position), HMCInfo(accepted, energy_change, xp.isinf(proposal_energy))


def _energy(target: Target, position: Array, precisions: Array) -> Array:
    return finite_or_infinite(target.potential(position, precisions))
