"""Stochastic dynamics: trajectories whose end is always taken, so that their error is not corrected."""

from __future__ import annotations

from dataclasses import dataclass

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.mcmc import leapfrog
from rayfbnn.mcmc.energy import require_finite, total_energy
from rayfbnn.mcmc.stepsizes import scaled_stepsizes
from rayfbnn.state import Advance, ChainState, Target, Trajectory
from rayfbnn.streams import Purpose, Streams


@dataclass(frozen=True)
class DynamicInfo:
    """What one uncorrected trajectory did; nothing is accepted or rejected.

    energy_change (n_chains,) float64: of the total energy, by which the draws' bias may be judged
    diverged      (n_chains,) bool: the energy at the end was not finite
    """

    energy_change: Array
    diverged: Array


def dynamic(
    state: ChainState,
    streams: Streams,
    *,
    target: Target,
    steps: int,
    stepsize: float,
    partitions: int = 1,
    permuted: bool = False,
    stepsize_jitter: float | None = None,
    advance: Advance = leapfrog.advance,
) -> tuple[ChainState, DynamicInfo]:
    """Follow the dynamics for `steps` leapfrog steps, position and momentum alike.

    Neal (1996) secs. 3.1.2 and 3.4.2. The distribution is left as it is only in the limit of small stepsizes.
    The momentum is not reversed. With K = partitions the gradients of E_1, ..., E_K follow one another, or,
    `permuted`, in a random order drawn once for the trajectory. A chain that blows up stays where it
    was, as it could go nowhere from there.
    """
    xp = array_namespace(state.position)
    order = None
    if permuted:
        order = streams.permutation(partitions, Purpose.PARTITION_ORDER)
    elif partitions > 1:
        order = xp.broadcast_to(xp.arange(partitions), (streams.n_chains, partitions))
    stepsizes = scaled_stepsizes(target, state, stepsize, stepsize_jitter, streams)
    start = Trajectory(state.position, state.momentum, state.precisions, stepsizes)
    _, potential = advance(target, start, n_steps=0, order=order)
    start_energy = total_energy(potential, state.momentum)
    require_finite(start_energy, streams)
    end, potential = advance(target, start, n_steps=steps, order=order)
    energy = total_energy(potential, end.momentum)
    diverged = ~xp.isfinite(energy)
    position = xp.where(diverged[:, None], state.position, end.position)
    momentum = xp.where(diverged[:, None], state.momentum, end.momentum)
    return ChainState(position, momentum, state.precisions), DynamicInfo(energy - start_energy, diverged)
