"""Checks of the settings shared by simulated tempering and tempered transitions."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from rayfbnn.mcmc.operation import Operation, automatic, unrolled

_MOST_LEVELS = 10_000


def check_ladder(inverse_temperatures: tuple[float, ...]) -> None:
    """Raise ValueError unless the inverse temperatures begin with 1, descend, and are not negative."""
    is_descending = all(a > b for a, b in itertools.pairwise(inverse_temperatures))
    is_ladder = len(inverse_temperatures) >= 2 and is_descending
    if not (is_ladder and inverse_temperatures[0] == 1 and inverse_temperatures[-1] >= 0):
        raise ValueError(
            "inverse_temperatures: must begin with 1 and descend, to 0 at the lowest,"
            f" got {list(inverse_temperatures)}"
        )
    if len(inverse_temperatures) > _MOST_LEVELS:
        raise ValueError(
            f"inverse_temperatures: must have at most {_MOST_LEVELS} levels, got {len(inverse_temperatures)}"
        )


def check_inner(
    operations: tuple[Operation, ...], is_allowed: Callable[[Operation], bool], *, right: str
) -> None:
    """Raise ValueError unless there are inner operations, all of them allowed and without "auto".

    right  the requirement in words, for the error
    """
    if not operations:
        raise ValueError("operations: must name at least one operation, got none")
    for operation in unrolled(operations):
        if not is_allowed(operation):
            raise ValueError(f"operations: {right}, got {operation.op}")
    for tunable in automatic(operations):
        raise ValueError(f'operations: must have steps and stepsizes as numbers, got "auto" in {tunable.op}')


def describe_ladder(inverse_temperatures: tuple[float, ...]) -> str:
    """List the inverse temperatures in one line."""
    return f"inverse temperatures {', '.join(f'{b:g}' for b in inverse_temperatures)}"
