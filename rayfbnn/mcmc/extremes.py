"""The shortest and the longest trajectories that automatic operations can come to have."""

from __future__ import annotations

from rayfbnn.mcmc.tuning import FIRST_STEPSIZE, Settings, Tuning, lengths
from rayfbnn.operations import AUTO, Operation, Tunable, automatic


def extreme_tunings(operations: tuple[Operation, ...], *, is_measured: bool) -> tuple[Tuning, Tuning]:
    """The least and the most steps of each automatic operation, given its stepsize or the one tried first.

    is_measured  in the rounds that tune them, where trajectories go on beyond the length in use
    """
    found = automatic(operations)
    least, most = (
        Tuning({operation: _settings(operation, place) for operation in found}, is_measured=is_measured)
        for place in (0, -1)
    )
    return least, most


def _settings(operation: Tunable, place: int) -> Settings:
    there_are = lengths(operation)
    steps = there_are[place]
    stepsize = FIRST_STEPSIZE if operation.stepsize == AUTO else operation.stepsize
    return Settings(stepsize, steps, longest=min(2 * steps, there_are[-1]))
