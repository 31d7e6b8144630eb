"""Stochastic dynamics: the end of a trajectory is always accepted, and its error is not corrected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rayfbnn.arrays import array_namespace
from rayfbnn.mcmc.energy import require_finite, total_energy
from rayfbnn.mcmc.leapfrog import Integrator, integrator_of
from rayfbnn.mcmc.operation import BuildContext, TrajectoryOperation, Tuning, describe_length
from rayfbnn.mcmc.stepsizes import check_stepsize, describe_stepsize, scaled_stepsizes
from rayfbnn.state import ChainState, Trajectory, UncorrectedInfo
from rayfbnn.streams import Purpose, Streams


@dataclass(frozen=True)
class Dynamic(TrajectoryOperation):
    """A trajectory that always accepts its end. Its discretisation error therefore biases the draws.

    permuted  whether the partial gradients come in a random order instead of block by block
    The other settings are those of `Hybrid`.
    """

    steps: int
    stepsize: float
    partitions: int = 1
    permuted: bool = False
    stepsize_jitter: float | None = None
    integrator: Integrator = "leapfrog"
    op: ClassVar[str] = "dynamic"
    is_exact: ClassVar[bool] = False
    undivided: ClassVar[str] = (
        "visits parts only in their own order; leave out data.parts, or leave out permuted"
    )

    def __post_init__(self) -> None:
        self.check_steps(self.steps)
        if self.permuted and self.partitions == 1:
            raise ValueError("permuted: needs partitions > 1, since one block has no order, got true")
        check_stepsize(self.stepsize, self.stepsize_jitter)

    @property
    def is_cyclic(self) -> bool:
        """True if partial gradients are visited block by block, in the fixed order."""
        return not self.permuted

    def why_undivided(self) -> str | None:
        """Say that chains visit the parts in a fixed order, if the order of partial gradients is random."""
        return super().why_undivided() if self.permuted else None

    def gradients(self, tuning: Tuning | None = None) -> int:
        return self.gradients_of(self.steps)

    def description(self) -> str:
        length = f"dynamic: {describe_length(self.steps, self.integrator)}"
        stepsize = describe_stepsize(self.stepsize, self.stepsize_jitter)
        return f"{self.described(length, stepsize)}, never rejected"

    @property
    def order_in_words(self) -> str:
        """The order of the partial gradients if it is random; empty for block by block."""
        return " in random order" * self.permuted

    def update(
        self, state: ChainState, streams: Streams, *, context: BuildContext
    ) -> tuple[ChainState, UncorrectedInfo]:
        """Follow the dynamics of position and momentum for `steps` steps.

        Neal (1996) secs. 3.1.2 and 3.4.2. The distribution is invariant only in the limit of small stepsizes.
        The momentum is not reversed. With K = partitions, the gradients of E_1, ..., E_K follow one another.
        With `permuted` they come in a random order, which is drawn once for the trajectory. A chain that
        blows up stays where it was, because it could not continue from the place it reached.
        """
        xp, target, n = array_namespace(state.position), context.target, self.partitions
        advance = integrator_of(self.integrator, context.advance)
        order = None
        if self.permuted:
            order = streams.permutation(n, Purpose.PARTITION_ORDER)
        elif n > 1:
            order = xp.broadcast_to(xp.arange(n), (streams.n_chains, n))
        stepsizes = scaled_stepsizes(target, state, self.stepsize, self.stepsize_jitter, streams)
        start = Trajectory(state.position, state.momentum, state.precisions, stepsizes)
        _, potential = advance(target, start, n_steps=0, order=order)
        start_energy = total_energy(potential, state.momentum)
        require_finite(start_energy, streams)
        end, potential = advance(target, start, n_steps=self.steps, order=order)
        energy = total_energy(potential, end.momentum)
        diverged = ~xp.isfinite(energy)
        position = xp.where(diverged[:, None], state.position, end.position)
        momentum = xp.where(diverged[:, None], state.momentum, end.momentum)
        info = UncorrectedInfo(energy - start_energy, diverged)
        return ChainState(position, momentum, state.precisions), info
