"""Simulated tempering: an excursion to higher temperatures that ends on return to the lowest."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import count
from typing import ClassVar, Literal, TypeAlias, cast

import numpy as np

from rayfbnn.arrays import Array, array_namespace, to_host
from rayfbnn.errors import SamplingError
from rayfbnn.mcmc.energy import finite_or_infinite
from rayfbnn.mcmc.operation import BuildContext, Operation, Tuning, gradient_evaluations
from rayfbnn.mcmc.schedule import ExcursionInfo, build_iteration
from rayfbnn.mcmc.tempering.inner import LAST_STAGE, ThroughTemperatures, at_stage, taken
from rayfbnn.state import ChainState, TemperedTarget
from rayfbnn.streams import Purpose, Streams

Direction: TypeAlias = Literal["random", "persistent"]


@dataclass(frozen=True)
class SimulatedTempering(ThroughTemperatures):
    """A walk among temperatures that ends when it is back at the temperature of the run.

    log_weights           a weight for each level, close to minus its log normaliser; only differences count
    operations            the updates at each step of the walk
    direction             "random": drawn for each step; "persistent": kept until a step is rejected
    """

    inverse_temperatures: tuple[float, ...]
    log_weights: tuple[float, ...]
    operations: tuple[Operation, ...]
    direction: Direction = "random"
    op: ClassVar[str] = "simulated-tempering"

    def __post_init__(self) -> None:
        self.check(
            lambda operation: operation.is_exact and not operation.is_tempering,
            right="must be exact and must not be tempering operations themselves",
        )
        if len(self.log_weights) != len(self.inverse_temperatures):
            raise ValueError(
                f"log_weights: must have one number for each of the {len(self.inverse_temperatures)}"
                f" inverse_temperatures, got {len(self.log_weights)}"
            )
        if not all(math.isfinite(weight) for weight in self.log_weights):
            raise ValueError(f"log_weights: must be finite numbers, got {list(self.log_weights)}")

    def gradients(self, tuning: Tuning | None = None) -> int:
        """Count the gradients of a walk of average length, with weights that make all levels equally likely.

        The extended chain of `update` is at level 0 in one of n steps. If the direction
        persists, every other visit to level 0 is the single step that turns the direction upwards. No
        excursion contains this step.
        """
        n_levels = len(self.inverse_temperatures)
        n_steps = n_levels if self.direction == "random" else 2 * n_levels - 1
        return gradient_evaluations(self.operations) * n_steps

    def description(self) -> str:
        how = "" if self.direction == "random" else ", in a direction that is kept until a step is rejected"
        return f"{self.describe_ladder()}{how}, at each step:"

    def update(
        self, state: ChainState, streams: Streams, *, context: BuildContext
    ) -> tuple[ChainState, ExcursionInfo]:
        """Walk along a ladder of inverse temperatures b_0 = 1 > b_1 > ..., from level 0 until back there.

        A step of the walk begins with a Metropolis update of the level k. Level k' = k + d is proposed, and
        rejected if it is off the ladder. With E = data_energy of the target it is accepted with probability

            min(1, exp(c_k' - c_k - (b_k' - b_k) E)).

        The direction d is 1 or -1 with equal probability. The inner operations follow at b_k. The density
        exp(c_k - b_k E) * (the rest of the target) of states and levels is invariant; Marinari and Parisi
        (1992), "Simulated tempering". A chain that is observed only at level 0 has the conditional
        distribution given level 0, which is the target itself. If c_k is close to -log of the integral of
        exp(-b_k E) * (the rest), all levels are visited about equally often.

        If the direction persists, d begins as 1, is kept when a level is accepted, and is reversed when one
        is rejected. The pair (k, d) is then part of the chain's state, and the density above times 1/2 for
        each d is invariant: the proposal of (k + d, -d) from (k, d) is its own inverse, and the density does
        not depend on d, so reversing d does not change it. Therefore a state at level 0 has the target
        density p for either direction. The direction alternates there. From d = 1 the walk is rejected at
        once or comes back from level 1, and has d = -1 in both cases. From d = -1 the proposal is off the
        ladder, and d becomes 1 in one step. An excursion thus takes the states with d = 1 to the states with
        d = -1. Both have the density p, and so an excursion leaves p invariant. The idle step from d = -1 to
        1 is left out. FBM's `sim-temp neg-dir` is the same walk, with level and direction kept in the state
        from one iteration to the next.
        """
        xp, target = array_namespace(state.position), cast(TemperedTarget, context.target)
        first = context.first_inner  # the number of the level's update; the inner operations follow
        b, c = xp.asarray(self.inverse_temperatures), xp.asarray(self.log_weights)
        places = xp.arange(streams.n_chains)  # the chains that have not returned
        level, direction = xp.zeros(streams.n_chains, dtype=int), xp.ones(streams.n_chains, dtype=int)
        diverged = xp.zeros(streams.n_chains)
        current, random = state, streams
        for stage in count(1):
            if stage > LAST_STAGE:
                raise SamplingError(_too_long(random))
            choosing = at_stage(random, stage, first_operation=first)
            if self.direction == "random":
                direction = xp.where(choosing.uniform(Purpose.PROPOSAL) < 0.5, -1, 1)
            level, direction = _next_level(current, choosing, level, direction, target, b, c)
            tempered = target.tempered(b[level])
            iteration = build_iteration(
                self.operations, target=tempered, updates=tempered.updates, advance=context.advance
            )
            current, info = iteration(current, at_stage(random, stage, first_operation=first + 1))
            diverged[places] += info.diverged
            is_back = level == 0
            if bool(is_back.any()):
                state = state.with_chains(current.of_chains(is_back), places[is_back])
                current, random = taken(current, random, ~is_back)
                places, level, direction = places[~is_back], level[~is_back], direction[~is_back]
                if len(places) == 0:
                    break
        return state, ExcursionInfo(diverged)


def _next_level(
    state: ChainState,
    streams: Streams,
    level: Array,
    direction: Array,
    target: TemperedTarget,
    b: Array,
    c: Array,
) -> tuple[Array, Array]:
    """Update the level of each chain, (n_chains,), by a Metropolis step in its direction.

    Return the level and the direction, which is reversed if the step was rejected.
    """
    xp = array_namespace(level)
    proposal = level + direction
    is_on_ladder = (proposal >= 0) & (proposal < len(b))
    proposal = xp.clip(proposal, 0, len(b) - 1)
    with np.errstate(all="ignore"):
        energy = finite_or_infinite(target.data_energy(state.position, state.precisions))
        log_ratio = c[proposal] - c[level] - (b[proposal] - b[level]) * energy
    accepted = is_on_ladder & (xp.log(streams.uniform(Purpose.ACCEPT)) < log_ratio)
    return xp.where(accepted, proposal, level), xp.where(accepted, direction, -direction)


def _too_long(streams: Streams) -> str:
    chains = ", ".join(str(chain) for chain in to_host(streams.chains)[:8])
    return (
        f"iteration {streams.iteration}: chain {chains} is not back at temperature 1 after {LAST_STAGE} steps"
        " of simulated tempering; set log_weights close to minus the log normalisers that `evidence` finds,"
        " or use fewer temperatures"
    )
