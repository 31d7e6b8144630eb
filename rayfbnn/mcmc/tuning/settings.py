"""The settings that a tunable operation may have: the lengths to choose from, and the first settings."""

from __future__ import annotations

from rayfbnn.mcmc.operation import AUTO, Operation, Settings, Tunable, Tuning, automatic

_FIRST_STEPSIZE = 0.5  # the heuristic stepsizes are meant for factors a little below one
_FIRST_STEPS = 16
# With a smaller minimum, tuning chose shorter trajectories before the rounds revealed a slow quantity
# (docs/decisions/0017).
_SHORTEST = 16


def lengths(operation: Tunable) -> tuple[int, ...]:
    """Return the lengths to choose from: powers of two, or only the configured length."""
    if operation.steps != AUTO:
        return (operation.steps,)
    return tuple(2**k for k in range(_SHORTEST.bit_length() - 1, operation.longest.bit_length()))


def first_settings(operation: Tunable) -> Settings:
    """Return the settings of the first round."""
    stepsize = _FIRST_STEPSIZE if operation.stepsize == AUTO else operation.stepsize
    return with_steps(operation, stepsize, _FIRST_STEPS if operation.steps == AUTO else operation.steps)


def with_steps(operation: Tunable, stepsize: float, steps: int, scales: tuple[float, ...] = ()) -> Settings:
    """Return settings with this number of steps; trajectories are measured up to twice this length."""
    return Settings(stepsize, steps, min(2 * steps, lengths(operation)[-1]), scales)


def extreme_tunings(operations: tuple[Operation, ...], *, is_measured: bool) -> tuple[Tuning, Tuning]:
    """Return two tunings, with the fewest and the most steps that each automatic operation may have.

    The stepsizes are those of the first round.

    is_measured  whether the tunings are for tuning rounds, which run longer trajectories than the current
                 settings
    """

    def extreme(place: int) -> Tuning:
        return Tuning(
            {
                operation: with_steps(
                    operation, first_settings(operation).stepsize, lengths(operation)[place]
                )
                for operation in automatic(operations)
            },
            is_measured,
        )

    return extreme(0), extreme(-1)
