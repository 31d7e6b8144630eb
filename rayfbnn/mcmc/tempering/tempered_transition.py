"""Tempered transitions: proposals that go up a ladder of temperatures and down again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, cast

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.mcmc import leapfrog
from rayfbnn.mcmc.energy import finite_or_infinite, require_finite
from rayfbnn.mcmc.operation import BuildContext, Operation, Tuning, gradient_evaluations, unrolled
from rayfbnn.mcmc.schedule import Iteration, build_iteration
from rayfbnn.mcmc.tempering.inner import ThroughTemperatures, at_stage
from rayfbnn.state import Advance, ChainState, HMCInfo, TemperedTarget, Update
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

    def build(self, context: BuildContext) -> Update:
        return partial(
            tempered_transition,
            target=cast(TemperedTarget, context.target),
            operations=self.operations,
            inverse_temperatures=self.inverse_temperatures,
            first_operation=context.first_inner,
            advance=context.advance,
        )

    def gradients(self, tuning: Tuning | None = None) -> int:
        """Count the gradients of the inner operations, twice (up and down) for each level but the first."""
        n_levels = len(self.inverse_temperatures) - 1
        return 2 * n_levels * gradient_evaluations(self.operations)

    def description(self) -> str:
        return f"{self.describe_ladder()}, at each on the way:"


def tempered_transition(
    state: ChainState,
    streams: Streams,
    *,
    target: TemperedTarget,
    operations: tuple[Operation, ...],
    inverse_temperatures: tuple[float, ...],
    first_operation: int,
    advance: Advance = leapfrog.advance,
) -> tuple[ChainState, HMCInfo]:
    """Propose the end of a tempered transition along 1 = b_0 > b_1 > ... > b_n, and accept or reject it.

    x_0 -T_1-> x_1 -T_2-> ... -T_n-> y_n -R_n-> y_{n-1} -> ... -R_1-> y_0,    R_i the reversal of T_i

    y_0 is accepted with probability min(1, r). With E = data_energy of the target,

    log r = sum_i (b_{i-1} - b_i) (E(x_{i-1}) - E(y_{i-1}))

    Neal (1996b), "Sampling from multimodal distributions using tempered transitions", eq. 7. T_i runs the
    inner operations at b_i and leaves the target at b_i invariant. The momentum is part of the state, and
    needs no further reversal.

    first_operation  the number of the decision in the random streams; the numbers of the inner operations
                     follow
    """
    xp = array_namespace(state.position)
    b, n = inverse_temperatures, len(inverse_temperatures) - 1
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
        iteration = _inner_iteration(operations, tempered, advance, is_reversed=is_down)
        current, info = iteration(current, at_stage(streams, stage, first_operation=first_operation + 1))
        diverged += info.diverged
        if is_down:
            log_ratio -= (b[level - 1] - b[level]) * energy(current)
    deciding = at_stage(streams, 1, first_operation=first_operation)
    accepted = xp.log(deciding.uniform(Purpose.ACCEPT)) < log_ratio
    chosen = {
        name: xp.where(accepted[:, None], getattr(current, name), getattr(state, name))
        for name in ("position", "momentum", "precisions")
    }
    return replace(state, **chosen), HMCInfo(accepted, -log_ratio, diverged)


def _inner_iteration(
    operations: tuple[Operation, ...], target: TemperedTarget, advance: Advance, *, is_reversed: bool
) -> Iteration:
    """Build the iteration of the inner operations, or of the reversed operations in the opposite order."""
    if not is_reversed:
        return build_iteration(operations, target=target, updates=target.updates, advance=advance)
    backwards = unrolled(operations)[::-1]
    return build_iteration(backwards, target=target, updates=target.reversed_updates, advance=advance)
