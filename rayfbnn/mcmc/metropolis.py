"""Random-walk Metropolis, of all parameters at once or of one at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.mcmc.energy import finite_or_infinite, require_finite
from rayfbnn.mcmc.one_at_a_time.coordinates import Line, turns
from rayfbnn.mcmc.stepsizes import jittered_stepsize, scaled_stepsizes
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


def metropolis_1(
    state: ChainState,
    streams: Streams,
    *,
    target: Target,
    stepsize: float,
    stepsize_jitter: float | None = None,
    random: bool = False,
) -> tuple[ChainState, HMCInfo]:
    """Metropolis updates of single parameters: every one in order, or one at random; the momentum stays.

    Each is a proposal and a decision as in `metropolis`, for one parameter. The info holds the share of
    proposals accepted, and the change of energy of the last one.
    """
    xp = array_namespace(state.position)
    parameters = turns(streams, target.n_parameters, random=random)  # (n_turns, n_chains)
    normal = streams.normal(Purpose.PROPOSAL, (len(parameters),))
    threshold = -xp.log(streams.uniform(Purpose.ACCEPT, (len(parameters),)))
    stepsizes = scaled_stepsizes(target, state, stepsize, stepsize_jitter, streams)
    n_accepted, diverged = xp.zeros(streams.n_chains), xp.zeros(streams.n_chains, dtype=bool)
    with np.errstate(all="ignore"):
        position, energy = state.position, _energy(target, state.position, state.precisions)
        require_finite(energy, streams)
        for turn, parameter in enumerate(parameters):
            line = Line(target, position, state.precisions, parameter)
            step = stepsizes[xp.arange(streams.n_chains), parameter] * normal[:, turn]
            proposal, proposal_energy = line.at(line.value + step)
            energy_change = proposal_energy - energy
            accepted = energy_change < threshold[:, turn]
            position = xp.where(accepted[:, None], proposal, position)
            energy = xp.where(accepted, proposal_energy, energy)
            n_accepted += accepted
            diverged |= xp.isinf(proposal_energy)
    return replace(state, position=position), HMCInfo(n_accepted / len(parameters), energy_change, diverged)


def _energy(target: Target, position: Array, precisions: Array) -> Array:
    return finite_or_infinite(target.potential(position, precisions))
