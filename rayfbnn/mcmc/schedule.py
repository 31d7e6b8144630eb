"""The operations of a configuration as one iteration, and iterations as a generator of draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, assert_never, cast

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.mcmc import fourth_order, leapfrog
from rayfbnn.mcmc import hybrid as hmc
from rayfbnn.mcmc.dynamic import DynamicInfo, dynamic
from rayfbnn.mcmc.hybrid_marginal import hybrid_marginal
from rayfbnn.mcmc.hybrid_max import hybrid_max
from rayfbnn.mcmc.metropolis import metropolis, metropolis_1
from rayfbnn.mcmc.one_at_a_time.slice_1 import slice_1
from rayfbnn.mcmc.operations import (
    AUTO,
    Dynamic,
    Heatbath,
    Hybrid,
    HybridMarginal,
    HybridMax,
    Integrator,
    Metropolis,
    Metropolis1,
    Negate,
    Operation,
    RadialHeatbath,
    RandomGrid,
    Repeat,
    Rescale,
    SampleNoise,
    SampleSigmas,
    SimulatedTempering,
    Slice1,
    TemperedTransition,
    Tunable,
    automatic,
    inner_operations,
    unrolled,
)
from rayfbnn.mcmc.tempering.simulated_tempering import TemperingInfo, simulated_tempering
from rayfbnn.mcmc.tempering.tempered_transition import tempered_transition
from rayfbnn.mcmc.tuning.measuring import Measured, MeasuredInfo, Tuning, measured_update
from rayfbnn.state import (
    Advance,
    ChainState,
    HMCInfo,
    Kernel,
    MarginalizableTarget,
    ProposalsInfo,
    Target,
    TemperedTarget,
)
from rayfbnn.streams import Streams

Update: TypeAlias = Callable[..., tuple[ChainState, Any]]
"""A kernel, or what becomes one with the settings of its operation."""


@dataclass(frozen=True)
class IterationInfo:
    """What one iteration did, one value a chain, (n_chains,) each.

    accepted       share of the hybrid and Metropolis updates that were accepted; NaN if there were none
    energy_change  of the last such update or uncorrected trajectory; NaN if there were none
    diverged       how many of both met an energy that was not finite; on a device NaN where one began at such
                   an energy, which on the host is an error at once
    accepted_by    share of each operation's updates that were accepted, of those that propose any
    measured       what each operation that is being tuned did, summed over the chains
    """

    accepted: Array
    energy_change: Array
    diverged: Array
    accepted_by: Mapping[Operation, Array] = field(default_factory=dict)
    measured: Mapping[Tunable, Measured] = field(default_factory=dict)


Step: TypeAlias = tuple[int, ChainState, IterationInfo]  # the number of an iteration, and what it gave


@dataclass(frozen=True)
class Iteration:
    """One iteration: its operations' updates in order, each with random numbers of its own."""

    kernels: tuple[Kernel, ...]
    operations: tuple[Operation, ...]

    def __call__(self, state: ChainState, streams: Streams) -> tuple[ChainState, IterationInfo]:
        """Run every update; `streams` gives seed, chains, iteration, and the first operation's number."""
        xp = array_namespace(state.position)
        n_updates = 0
        n_accepted, diverged = xp.zeros(streams.n_chains), xp.zeros(streams.n_chains)
        energy_change = xp.full(streams.n_chains, xp.nan)
        shares: dict[Operation, list[Array]] = {}
        measured: dict[Tunable, Measured] = {}
        for number, (operation, kernel) in enumerate(zip(self.operations, self.kernels, strict=True)):
            own = streams.at(iteration=streams.iteration, operation=streams.operation + number)
            state, info = kernel(state, own)
            if isinstance(info, HMCInfo | ProposalsInfo):
                shares.setdefault(operation, []).append(info.accepted)
            if isinstance(info, HMCInfo):
                n_updates += 1
                n_accepted += info.accepted
                diverged += info.diverged
                if xp is not np:
                    diverged += xp.where(xp.isnan(info.energy_change), xp.nan, 0.0)
                energy_change = info.energy_change
                if isinstance(info, MeasuredInfo):
                    before = measured.get(info.operation)
                    measured[info.operation] = info.measured if before is None else before + info.measured
            elif isinstance(info, TemperingInfo):
                diverged += info.diverged
            elif isinstance(info, DynamicInfo):
                diverged += info.diverged
                energy_change = info.energy_change
        accepted = n_accepted / n_updates if n_updates else xp.full(streams.n_chains, xp.nan)
        accepted_by = {
            operation: sum(each, xp.zeros(streams.n_chains)) / len(each) for operation, each in shares.items()
        }
        return state, IterationInfo(accepted, energy_change, diverged, accepted_by, measured)


def build_iteration(
    operations: tuple[Operation, ...],
    *,
    target: Target,
    updates: Mapping[str, Update],
    advance: Advance = leapfrog.advance,
    tuning: Tuning | None = None,
) -> Iteration:
    """The iteration that `operations` describe, every `repeat` written out.

    `updates` holds the updates that belong to the model: "sample-sigmas", "sample-noise" and, with their
    settings still to be given, "random-grid" and "rescale". `tuning` has the settings of operations with
    "auto" in them.
    """

    flat, kernels = unrolled(operations), []
    number = len(flat)  # operations inside others are numbered after all these
    for operation in flat:
        kernels.append(
            _kernel(
                operation,
                target=target,
                updates=updates,
                advance=advance,
                first_inside=number,
                tuning=tuning,
            )
        )
        if inside := inner_operations(operation):
            number += 1 + len(unrolled(inside))
    return Iteration(tuple(kernels), flat)


def _reversible(
    operations: tuple[Operation, ...], *, target: TemperedTarget, is_reversed: bool, advance: Advance
) -> Iteration:
    """The operations, or their reversals in the opposite order."""
    if not is_reversed:
        return build_iteration(operations, target=target, updates=target.updates, advance=advance)
    backwards = unrolled(operations)[::-1]
    return build_iteration(backwards, target=target, updates=target.reversed_updates, advance=advance)


def _kernel(
    operation: Operation,
    *,
    target: Target,
    updates: Mapping[str, Update],
    advance: Advance,
    first_inside: int,
    tuning: Tuning | None,
) -> Kernel:
    match operation:
        case SampleSigmas(level=None, groups=None) | SampleNoise():
            return updates[operation.op]
        case SampleSigmas():
            return partial(updates[operation.op], level=operation.level, groups=operation.groups)
        case RandomGrid(groups=None):
            return partial(updates[operation.op], stepsize=operation.stepsize)
        case RandomGrid():
            return partial(updates[operation.op], stepsize=operation.stepsize, groups=operation.groups)
        case Rescale():
            return partial(
                updates[operation.op], along=operation.along, stepsize=operation.stepsize, advance=advance
            )
        case Heatbath():
            return partial(hmc.heatbath, decay=operation.decay)
        case RadialHeatbath():
            return hmc.radial_heatbath
        case Negate():
            return hmc.negate
        case Hybrid():
            update = partial(
                hmc.hybrid,
                target=target,
                window=operation.window,
                jump=operation.jump,
                partitions=operation.partitions,
                stepsize_jitter=operation.stepsize_jitter,
            )
            return _with_settings(
                update, operation, advance=_integrator(operation.integrator, advance), tuning=tuning
            )
        case HybridMarginal():
            update = partial(
                hybrid_marginal,
                marginal=cast(MarginalizableTarget, target).marginal(operation.over),
                window=operation.window,
                jump=operation.jump,
                partitions=operation.partitions,
                stepsize_jitter=operation.stepsize_jitter,
            )
            return _with_settings(update, operation, advance=advance, tuning=tuning)
        case HybridMax():
            return partial(
                hybrid_max,
                target=target,
                max_steps=operation.max_steps,
                max_ok=operation.max_ok,
                stepsize=operation.stepsize,
                jump=operation.jump,
                partitions=operation.partitions,
                stepsize_jitter=operation.stepsize_jitter,
                advance=_integrator(operation.integrator, advance),
            )
        case Dynamic():
            return partial(
                dynamic,
                target=target,
                steps=operation.steps,
                stepsize=operation.stepsize,
                partitions=operation.partitions,
                permuted=operation.permuted,
                stepsize_jitter=operation.stepsize_jitter,
                advance=_integrator(operation.integrator, advance),
            )
        case Metropolis():
            return partial(
                metropolis,
                target=target,
                stepsize=operation.stepsize,
                stepsize_jitter=operation.stepsize_jitter,
            )
        case Metropolis1():
            return partial(
                metropolis_1,
                target=target,
                stepsize=operation.stepsize,
                stepsize_jitter=operation.stepsize_jitter,
                random=operation.random,
            )
        case Slice1():
            return partial(
                slice_1,
                target=target,
                stepsize=operation.stepsize,
                max_steps=operation.max_steps,
                stepsize_jitter=operation.stepsize_jitter,
                random=operation.random,
                doubling=operation.doubling,
            )
        case SimulatedTempering():
            return partial(
                simulated_tempering,
                target=cast(TemperedTarget, target),
                build=partial(_reversible, operation.operations, is_reversed=False, advance=advance),
                inverse_temperatures=operation.inverse_temperatures,
                log_weights=operation.log_weights,
                first_operation=first_inside,
            )
        case TemperedTransition():
            return partial(
                tempered_transition,
                target=cast(TemperedTarget, target),
                build=partial(_reversible, operation.operations, advance=advance),
                inverse_temperatures=operation.inverse_temperatures,
                first_operation=first_inside,
            )
        case Repeat():
            raise AssertionError("repeat is written out by `unrolled`")
        case _:
            assert_never(operation)


def _with_settings(
    update: Callable[..., tuple[ChainState, HMCInfo]],
    operation: Tunable,
    *,
    advance: Advance,
    tuning: Tuning | None,
) -> Kernel:
    """The update with its steps and stepsize, as given or as tuned; measured while it is being tuned."""
    if operation not in automatic((operation,)):
        return partial(update, steps=operation.steps, stepsize=operation.stepsize, advance=advance)
    if tuning is None or operation not in tuning.settings:
        raise AssertionError(f"{operation.op} has not been tuned")
    settings = tuning.settings[operation]
    if tuning.is_measured:
        return partial(
            measured_update, update=update, operation=operation, settings=settings, advance=advance
        )
    return partial(
        update,
        steps=settings.steps,
        stepsize=settings.stepsize,
        scales=settings.scales,
        advance=advance,
    )


def _integrator(name: Integrator, advance: Advance) -> Advance:
    """What runs trajectories: `advance` in place of the leapfrog."""
    return advance if name == "leapfrog" else fourth_order.advance


def run(
    state: ChainState, streams: Streams, *, iteration: Iteration, first: int, count: int
) -> Iterator[Step]:
    """Iterations first .. first + count - 1, yielding (number, state, info) after each.

    The number alone decides the random numbers, so a run may stop after any iteration and go on from its
    state.
    """
    for number in range(first, first + count):
        state, info = iteration(state, streams.at(iteration=number))
        yield number, state, info


def gradient_evaluations(operations: tuple[Operation, ...], *, tuning: Tuning | None = None) -> int:
    """Gradients over all training cases in one iteration; K partial gradients count as one.

    One for each leapfrog step, seven for each fourth-order step; for `hybrid-max` of the longest trajectory.
    The gradient at the start of a piece of trajectory is left out: it is one for a trajectory, and one more
    for each state in a window or looked at by `hybrid-max`. An excursion of simulated tempering takes, on
    average and with right weights, as many steps as there are levels. Steps that are automatic are those of
    `tuning`, or none without.
    """
    total = 0
    for operation in unrolled(operations):
        if isinstance(operation, Hybrid | HybridMax | Dynamic):
            each = 1 if operation.integrator == "leapfrog" else fourth_order.GRADIENTS_PER_STEP
            total += each * _steps(operation, tuning)
        elif isinstance(operation, HybridMarginal):
            total += _steps(operation, tuning)
        elif isinstance(operation, TemperedTransition):
            n_levels = len(operation.inverse_temperatures) - 1
            total += 2 * n_levels * gradient_evaluations(operation.operations)
        elif isinstance(operation, SimulatedTempering):
            total += gradient_evaluations(operation.operations) * len(operation.inverse_temperatures)
    return total


def _steps(operation: Tunable | HybridMax | Dynamic, tuning: Tuning | None) -> int:
    if isinstance(operation, HybridMax):
        return operation.max_steps
    if isinstance(operation, Dynamic):
        return operation.steps
    if operation.steps != AUTO:
        return operation.steps
    if tuning is None or operation not in tuning.settings:
        return 0
    settings = tuning.settings[operation]
    return settings.longest if tuning.is_measured else settings.steps
