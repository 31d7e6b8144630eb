"""Tempered transitions: proposals that go up a ladder of temperatures and down again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.mcmc.energy import finite_or_infinite, require_finite
from rayfbnn.mcmc.operation import BuildContext, Operation, Tuning, gradient_evaluations, unrolled
from rayfbnn.mcmc.schedule import build_iteration
from rayfbnn.mcmc.tempering.inner import ThroughTemperatures, at_stage
from rayfbnn.state import ChainState, HMCInfo, TemperedTarget
from rayfbnn.streams import Purpose, Streams


@dataclass(frozen=True)
class TemperedTransition(ThroughTemperatures):
    """A proposal that goes through higher temperatures: up the ladder and down again.

    operations            the updates at each level; they must be reversible
    """

    inverse_temperatures: tuple[float, ...]
    operations: tuple[Operation, ...]
    op: ClassVar[str] = "tempered-transition"
    has_energy_change: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.check(
            lambda operation: operation.is_reversible,
            right="must be reversible, such as sample-sigmas, heatbath, hybrid or metropolis",
        )

    def gradients(self, tuning: Tuning | None = None) -> int:
        """Count the gradients of the inner operations, twice (up and down) for each level but the first."""
        n_levels = len(self.inverse_temperatures) - 1
        return 2 * n_levels * gradient_evaluations(self.operations)

    def description(self) -> str:
        return f"{self.describe_ladder()}, at each on the way:"

    def update(
        self, state: ChainState, streams: Streams, *, context: BuildContext
    ) -> tuple[ChainState, HMCInfo]:
        """Propose the end of a tempered transition along 1 = b_0 > b_1 > ... > b_n, and accept or reject it.

        x_0 -T_1-> x_1 -T_2-> ... -T_n-> y_n -R_n-> y_{n-1} -> ... -R_1-> y_0,    R_i the reversal of T_i

        y_0 is accepted with probability min(1, r). With E = data_energy of the target,

        log r = sum_i (b_{i-1} - b_i) (E(x_{i-1}) - E(y_{i-1}))

        Neal (1996b), "Sampling from multimodal distributions using tempered transitions", eq. 7. T_i runs the
        inner operations at b_i and leaves the target at b_i invariant. R_i runs their reversals in the
        opposite order. The momentum is part of the state, and needs no further reversal.
        """
        xp, target = array_namespace(state.position), cast(TemperedTarget, context.target)
        first = context.first_inner  # the number of the decision; the inner operations follow
        b, n = self.inverse_temperatures, len(self.inverse_temperatures) - 1
        log_ratio, diverged = xp.zeros(streams.n_chains), xp.zeros(streams.n_chains)

        def energy(of: ChainState) -> Array:
            with np.errstate(all="ignore"):
                return finite_or_infinite(target.data_energy(of.position, of.precisions))

        current = state
        require_finite(energy(state), streams)
        for stage in range(1, 2 * n + 1):
            is_down = stage > n
            level = 2 * n + 1 - stage if is_down else stage
            if not is_down:
                log_ratio += (b[level - 1] - b[level]) * energy(current)
            tempered = target.tempered(b[level])
            iteration = build_iteration(
                unrolled(self.operations)[::-1] if is_down else self.operations,
                target=tempered,
                updates=tempered.reversed_updates if is_down else tempered.updates,
                advance=context.advance,
            )
            current, info = iteration(current, at_stage(streams, stage, first_operation=first + 1))
            diverged += info.diverged
            if is_down:
                log_ratio -= (b[level - 1] - b[level]) * energy(current)
        deciding = at_stage(streams, 1, first_operation=first)
        accepted = xp.log(deciding.uniform(Purpose.ACCEPT)) < log_ratio
        chosen = {
            name: xp.where(accepted[:, None], getattr(current, name), before)
            for name, before in vars(state).items()
        }
        return ChainState(**chosen), HMCInfo(accepted, -log_ratio, diverged)
