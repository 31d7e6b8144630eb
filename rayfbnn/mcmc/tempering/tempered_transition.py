"""Tempered transitions: up a ladder of temperatures and down again, the end a proposal to be decided on."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.mcmc.energy import finite_or_infinite, require_finite
from rayfbnn.mcmc.tempering.stages import at_stage
from rayfbnn.state import ChainState, HMCInfo, Kernel, TemperedTarget
from rayfbnn.streams import Purpose, Streams


class BuildReversible(Protocol):
    """The inner operations as one kernel, or as the kernel that is its reversal."""

    def __call__(self, *, target: TemperedTarget, is_reversed: bool) -> Kernel: ...


def tempered_transition(
    state: ChainState,
    streams: Streams,
    *,
    target: TemperedTarget,
    build: BuildReversible,
    inverse_temperatures: tuple[float, ...],
    first_operation: int,
) -> tuple[ChainState, HMCInfo]:
    """One tempered transition of every chain, along 1 = b_0 > b_1 > ... > b_n.

    x_0 -T_1-> x_1 -T_2-> ... -T_n-> y_n -R_n-> y_{n-1} -> ... -R_1-> y_0,    R_i the reversal of T_i

    y_0 is accepted with probability min(1, r), where with E = data_energy of the target

    log r = sum_i (b_{i-1} - b_i) (E(x_{i-1}) - E(y_{i-1}))

    Neal (1996b), "Sampling from multimodal distributions using tempered transitions", eq. 7.
    T_i leaves the target at b_i as it is; the momentum goes along, and no other reversal is needed.

    first_operation  the number of the decision in the random streams; those of the inner operations follow
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
        kernel = build(target=target.tempered(b[level]), is_reversed=is_down)
        current, info = kernel(current, at_stage(streams, stage, first_operation=first_operation + 1))
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
