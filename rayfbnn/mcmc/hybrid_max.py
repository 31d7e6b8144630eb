"""Hybrid Monte Carlo with trajectories that end after a given number of acceptable states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rayfbnn.arrays import array_namespace
from rayfbnn.mcmc.energy import require_finite, total_energy
from rayfbnn.mcmc.leapfrog import Integrator, Order, drawn_order, integrator_of
from rayfbnn.mcmc.operation import BuildContext, TrajectoryOperation, Tuning
from rayfbnn.mcmc.stepsizes import check_stepsize, describe_stepsize, scaled_stepsizes
from rayfbnn.state import ChainState, HMCInfo, Trajectory
from rayfbnn.streams import Purpose, Streams


@dataclass(frozen=True)
class HybridMax(TrajectoryOperation):
    """A hybrid Monte Carlo update. Its trajectory ends at acceptable state number `max_ok`.

    max_steps  largest number of steps; the last state is then accepted or rejected, as in `Hybrid`
    max_ok     number of acceptable states; the trajectory ends at the last of them
    The other settings are those of `Hybrid`.
    """

    max_steps: int
    max_ok: int
    stepsize: float
    partitions: int = 1
    stepsize_jitter: float | None = None
    jump: int = 1
    integrator: Integrator = "leapfrog"
    order: Order | None = None
    op: ClassVar[str] = "hybrid-max"

    def __post_init__(self) -> None:
        self.check_steps(self.max_steps, name="max_steps")
        if self.max_ok < 1:
            raise ValueError(f"max_ok: must be at least 1, got {self.max_ok}")
        self.check_order()
        check_stepsize(self.stepsize, self.stepsize_jitter)

    def gradients(self, tuning: Tuning | None = None) -> int:
        """Count the gradients of the longest trajectory."""
        return self.gradients_of(self.max_steps)

    def description(self) -> str:
        return self.described(
            f"hybrid-max: trajectories of at most {self.max_steps} {self.integrator} steps",
            f"ending at acceptable state number {self.max_ok}",
            describe_stepsize(self.stepsize, self.stepsize_jitter),
        )

    def update(
        self, state: ChainState, streams: Streams, *, context: BuildContext
    ) -> tuple[ChainState, HMCInfo]:
        """Follow a trajectory of at most max_steps steps, and accept or reject its last state.

        A threshold is drawn first: a state is ok if H - H0 < e, with e exponential of mean 1. States are
        considered after every `jump` steps. The trajectory ends at the max_ok-th ok state, or after max_steps
        steps. If the last state is ok, it is accepted and its momentum is reversed. Otherwise the chain
        stays.

        Given H0 + e the update is its own inverse. The start is ok, so a trajectory back from an accepted end
        meets the same number of ok states, and the start is the last of them. FBM's `hybrid
        max-steps/max-ok`. With max_ok above max_steps / jump this is plain hybrid Monte Carlo. The info is
        that of `hybrid.hybrid`.
        """
        xp, target = array_namespace(state.position), context.target
        advance = integrator_of(self.integrator, context.advance)
        order = drawn_order(streams, self.partitions, self.order)
        stepsizes = scaled_stepsizes(target, state, self.stepsize, self.stepsize_jitter, streams)
        threshold = -xp.log(streams.uniform(Purpose.ACCEPT))
        start = Trajectory(state.position, state.momentum, state.precisions, stepsizes)
        _, potential = advance(target, start, n_steps=0, order=order)
        start_energy = total_energy(potential, state.momentum)
        require_finite(start_energy, streams)

        current, energy_change = start, xp.zeros(streams.n_chains)
        n_ok = xp.zeros(streams.n_chains, dtype=xp.int64)
        moving = n_ok < self.max_ok
        for _ in range(self.max_steps // self.jump):
            moved, potential = advance(target, current, n_steps=self.jump, order=order)
            change = total_energy(potential, moved.momentum) - start_energy
            current = current.moved(
                xp.where(moving[:, None], moved.position, current.position),
                xp.where(moving[:, None], moved.momentum, current.momentum),
            )
            energy_change = xp.where(moving, change, energy_change)
            n_ok += moving & (energy_change < threshold)
            moving = n_ok < self.max_ok
            if not bool(moving.any()):
                break
        accepted = energy_change < threshold
        position = xp.where(accepted[:, None], current.position, state.position)
        momentum = xp.where(accepted[:, None], -current.momentum, state.momentum)
        info = HMCInfo(accepted, energy_change, ~xp.isfinite(energy_change))
        return ChainState(position, momentum, state.precisions), info
