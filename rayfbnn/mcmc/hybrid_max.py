"""Hybrid Monte Carlo that ends its trajectory after a number of states that would be accepted."""

from __future__ import annotations

from rayfbnn.arrays import array_namespace
from rayfbnn.mcmc import leapfrog
from rayfbnn.mcmc.energy import require_finite, total_energy
from rayfbnn.mcmc.stepsizes import scaled_stepsizes
from rayfbnn.state import Advance, ChainState, HMCInfo, Target, Trajectory
from rayfbnn.streams import Purpose, Streams


def hybrid_max(
    state: ChainState,
    streams: Streams,
    *,
    target: Target,
    max_steps: int,
    max_ok: int,
    stepsize: float,
    jump: int = 1,
    partitions: int = 1,
    stepsize_jitter: float | None = None,
    advance: Advance = leapfrog.advance,
) -> tuple[ChainState, HMCInfo]:
    """One update of every chain by a trajectory of at most max_steps leapfrog steps.

    A threshold is drawn first: a state is ok if H - H0 < e, e exponential of mean 1. States are looked at
    after every `jump` steps. The trajectory ends at the max_ok-th that is ok, or after max_steps steps; its
    last state is accepted if it is ok, with its momentum reversed, else the chain stays.

    Given H0 + e the update is its own inverse: the start is ok, so from an accepted end the way back meets as
    many states that are ok, the start the last of them. FBM's `hybrid max-steps/max-ok`. With max_ok above
    max_steps / jump it is plain hybrid Monte Carlo.
    """
    xp = array_namespace(state.position)
    precisions = state.precisions
    order = streams.permutation(partitions, Purpose.PARTITION_ORDER) if partitions > 1 else None
    stepsizes = scaled_stepsizes(target, state, stepsize, stepsize_jitter, streams)
    threshold = -xp.log(streams.uniform(Purpose.ACCEPT))
    start = Trajectory(state.position, state.momentum, precisions, stepsizes)
    _, potential = advance(target, start, n_steps=0, order=order)
    start_energy = total_energy(potential, state.momentum)
    require_finite(start_energy, streams)

    current, energy_change = start, xp.zeros(streams.n_chains)
    n_ok = xp.zeros(streams.n_chains, dtype=xp.int64)
    moving = n_ok < max_ok
    for _ in range(max_steps // jump):
        moved, potential = advance(target, current, n_steps=jump, order=order)
        change = total_energy(potential, moved.momentum) - start_energy
        current = current.moved(
            xp.where(moving[:, None], moved.position, current.position),
            xp.where(moving[:, None], moved.momentum, current.momentum),
        )
        energy_change = xp.where(moving, change, energy_change)
        n_ok += moving & (energy_change < threshold)
        moving = n_ok < max_ok
        if not bool(moving.any()):
            break
    accepted = energy_change < threshold
    return (
        ChainState(
            xp.where(accepted[:, None], current.position, state.position),
            xp.where(accepted[:, None], -current.momentum, state.momentum),
            precisions,
        ),
        HMCInfo(accepted, energy_change, ~xp.isfinite(energy_change)),
    )
