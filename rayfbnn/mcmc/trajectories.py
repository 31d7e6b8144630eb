"""Checks, integrators, costs and descriptions shared by the operations that follow trajectories."""

from __future__ import annotations

import math
from functools import partial

from rayfbnn.arrays import Array
from rayfbnn.mcmc import compositions
from rayfbnn.mcmc.operation import AUTO, Auto, Integrator, Operation, Tunable, Tuning, unrolled
from rayfbnn.mcmc.orders import Order, check_order
from rayfbnn.mcmc.stepsizes import check_stepsize, describe_stepsize, jittered_stepsize
from rayfbnn.state import Advance
from rayfbnn.streams import Streams


def check_trajectory(
    steps: int, partitions: int, integrator: Integrator, *, jump: int = 1, name: str = "steps"
) -> None:
    """Raise ValueError unless there are steps and partitions, and the jump divides the steps.

    name  the key that gives the number of steps
    """
    if steps < 1:
        raise ValueError(f"{name}: must be at least 1, got {steps}")
    if partitions < 1:
        raise ValueError(f"partitions: must be at least 1, got {partitions}")
    if partitions > 1 and integrator != "leapfrog":
        raise ValueError(
            f"partitions: the {integrator} integrator takes the full gradient, got {partitions}; leave it out"
        )
    if jump < 1 or steps % jump:
        raise ValueError(f"jump: must divide {name} = {steps}, got {jump}")


def check_tunable(operation: Tunable) -> None:
    """Raise ValueError unless the settings of a tunable operation make sense together."""
    steps, window, jump = operation.steps, operation.window, operation.jump
    if steps == AUTO:
        check_trajectory(1, operation.partitions, operation.integrator)
        for name, value in (("window", window), ("jump", jump)):
            if value != 1:
                raise ValueError(f'{name}: must be 1 with steps = "auto", got {value}; leave it out')
    else:
        check_trajectory(steps, operation.partitions, operation.integrator, jump=jump)
        most, formula = steps // jump + 1, "steps" if jump == 1 else "steps / jump"
        if not 1 <= window <= most:
            raise ValueError(f"window: must be from 1 to {formula} + 1 = {most}, got {window}")
    check_order(operation.order, operation.partitions)
    check_stepsize(1.0 if operation.stepsize == AUTO else operation.stepsize, operation.stepsize_jitter)
    if operation.scaling == AUTO and operation.stepsize != AUTO:
        raise ValueError(f'scaling: "auto" needs stepsize = "auto", got stepsize {operation.stepsize}')


def integrator_of(name: Integrator, advance: Advance) -> Advance:
    """Return the Advance that runs steps of this kind; `advance` itself runs leapfrog steps."""
    if name == "leapfrog":
        return advance
    return partial(compositions.advance, composition=compositions.COMPOSITIONS[name])


def gradients_of_steps(n_steps: int, integrator: Integrator) -> int:
    """Count the gradients of n_steps steps, without the one at the start of the trajectory."""
    return n_steps * compositions.COMPOSITIONS[integrator].gradients_per_step


def trajectory_length(operation: Tunable, tuning: Tuning | None) -> int:
    """Return the number of steps of a trajectory, as configured or tuned; 0 if it is not known yet."""
    if operation.steps != AUTO:
        return operation.steps
    if tuning is None or operation not in tuning.settings:
        return 0
    settings = tuning.settings[operation]
    return settings.longest if tuning.is_measured else settings.steps


def total_steps(operations: tuple[Operation, ...], tuning: Tuning) -> float:
    """Return the number of steps of all trajectories of an iteration.

    It is NaN for trajectories of variable length, or without trajectories.
    """
    with_gradients = [operation for operation in unrolled(operations) if operation.gradients(tuning)]
    steps = (getattr(_settings(operation, tuning), "steps", math.nan) for operation in with_gradients)
    return sum(steps) or math.nan


def last_stepsizes(operations: tuple[Operation, ...], tuning: Tuning, streams: Streams) -> Array | None:
    """Return the stepsizes of the update whose energy change an iteration reports, (n_chains,) float64.

    This is the last update that has an energy change. The stepsize is the factor on the heuristic stepsizes,
    with its jitter, which is drawn again from the random numbers of the update. None if there is no such
    update, or if it has no stepsize of its own.
    """
    updates = list(enumerate(unrolled(operations)))
    last = next((pair for pair in reversed(updates) if pair[1].has_energy_change), None)
    if last is None:
        return None
    number, operation = last
    stepsize = getattr(_settings(operation, tuning), "stepsize", None)
    if stepsize is None:
        return None
    jitter = getattr(operation, "stepsize_jitter", None)
    return jittered_stepsize(stepsize, jitter, streams.at(iteration=streams.iteration, operation=number))


def _settings(operation: Operation, tuning: Tuning) -> object:
    """Return the operation, or the settings that tuning has found for it."""
    return operation if operation.tuned is None else tuning.settings.get(operation.tuned, operation)


def describe_tunable(operation: Tunable) -> str:
    """Describe the trajectories of a tunable operation: their length, stepsizes, windows and partitions."""
    parts = [
        describe_length(operation.steps, operation.integrator),
        describe_stepsize(operation.stepsize, operation.stepsize_jitter),
    ]
    if operation.scaling == AUTO:
        parts.append("automatic scales of groups")
    if operation.window > 1:
        parts.append(f"windows of {operation.window} states")
    partial_gradients = describe_partitions(operation.partitions, operation.order)
    return ", ".join([*parts, *describe_jump(operation.jump), *partial_gradients])


def describe_length(steps: int | Auto, integrator: Integrator) -> str:
    """Describe the length of trajectories."""
    if steps == AUTO:
        return f"trajectories of an automatic number of {integrator} steps"
    return f"trajectories of {steps} {integrator} {'step' if steps == 1 else 'steps'}"


def describe_jump(jump: int) -> list[str]:
    """Say which states are considered, unless all are."""
    return [f"considering a state after every {jump} steps"] if jump > 1 else []


def describe_partitions(partitions: int, order: Order | None = None) -> list[str]:
    """Give the number and order of the partial gradients of a step; empty for the full gradient."""
    if partitions == 1:
        return []
    return [f"{partitions} partial gradients per step{' in cyclic order' if order == 'cyclic' else ''}"]
