"""Simulated tempering: an excursion to higher temperatures that ends when it is back at the lowest."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Protocol

import numpy as np

from rayfbnn.arrays import Array, array_namespace, to_host
from rayfbnn.errors import SamplingError
from rayfbnn.mcmc.energy import finite_or_infinite
from rayfbnn.mcmc.tempering.selection import put_back, taken
from rayfbnn.mcmc.tempering.stages import LAST_STAGE, at_stage
from rayfbnn.state import ChainState, Kernel, TemperedTarget
from rayfbnn.streams import Purpose, Streams


class BuildIteration(Protocol):
    """The inner operations as one kernel, for a target at a temperature."""

    def __call__(self, *, target: TemperedTarget) -> Kernel: ...


@dataclass(frozen=True)
class TemperingInfo:
    """What one excursion did, one value a chain, (n_chains,) each.

    diverged  how many of the inner updates met an energy that was not finite
    """

    diverged: Array


def simulated_tempering(
    state: ChainState,
    streams: Streams,
    *,
    target: TemperedTarget,
    build: BuildIteration,
    inverse_temperatures: tuple[float, ...],
    log_weights: tuple[float, ...],
    first_operation: int,
) -> tuple[ChainState, TemperingInfo]:
    """Walk along a ladder of inverse temperatures b_0 = 1 > b_1 > ..., from level 0 until at level 0 again.

    A step is a Metropolis update of the level k, to k - 1 or k + 1 with equal probability, off the ladder
    being rejected,

        accepted with min(1, exp(c_k' - c_k - (b_k' - b_k) E)),      E = data_energy of the target

    and then the inner operations at b_k. It leaves exp(c_k - b_k E) * (the rest of the target) over states
    and levels as it is; Marinari and Parisi (1992), "Simulated tempering". A chain that is watched only
    while it is at level 0 has what that distribution is there, which is the target itself. c_k should be
    near -log of the integral of exp(-b_k E) * (the rest), so that all levels are visited alike.

    first_operation  the number of the level's update in the random streams; those of the inner operations
                     follow
    """
    xp = array_namespace(state.position)
    b, c = xp.asarray(inverse_temperatures), xp.asarray(log_weights)
    places = xp.arange(streams.n_chains)  # of the chains that are on their way
    level = xp.zeros(streams.n_chains, dtype=int)
    diverged = xp.zeros(streams.n_chains)
    current, random = state, streams
    for stage in count(1):
        if stage > LAST_STAGE:
            raise SamplingError(_too_long(random))
        level = _next_level(
            current, at_stage(random, stage, first_operation=first_operation), level, target, b, c
        )
        tempered = target.tempered(b[level])
        kernel = build(target=tempered)
        current, info = kernel(current, at_stage(random, stage, first_operation=first_operation + 1))
        diverged[places] += info.diverged
        is_back = level == 0
        if bool(is_back.any()):
            arrived, _ = taken(current, random, is_back)
            state = put_back(state, arrived, places[is_back])
            current, random = taken(current, random, ~is_back)
            places, level = places[~is_back], level[~is_back]
            if len(places) == 0:
                break
    return state, TemperingInfo(diverged)


def _next_level(
    state: ChainState, streams: Streams, level: Array, target: TemperedTarget, b: Array, c: Array
) -> Array:
    """The Metropolis update of the level, (n_chains,)."""
    xp = array_namespace(level)
    proposal = level + xp.where(streams.uniform(Purpose.PROPOSAL) < 0.5, -1, 1)
    is_on_ladder = (proposal >= 0) & (proposal < len(b))
    proposal = xp.clip(proposal, 0, len(b) - 1)
    with np.errstate(all="ignore"):
        energy = finite_or_infinite(target.data_energy(state.position, state.precisions))
        log_ratio = c[proposal] - c[level] - (b[proposal] - b[level]) * energy
    accepted = is_on_ladder & (xp.log(streams.uniform(Purpose.ACCEPT)) < log_ratio)
    return xp.where(accepted, proposal, level)


def _too_long(streams: Streams) -> str:
    chains = ", ".join(str(chain) for chain in to_host(streams.chains)[:8])
    return (
        f"iteration {streams.iteration}: chain {chains} is not back at temperature 1 after {LAST_STAGE} steps"
        " of simulated tempering; give log_weights near minus the log normalisers that `evidence` finds, or"
        " fewer temperatures"
    )
