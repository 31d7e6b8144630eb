"""Parts of all updates through temperatures: ladders, inner operations, and the chains that take part."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

from rayfbnn.arrays import Array
from rayfbnn.mcmc.operation import Operation, automatic, unrolled
from rayfbnn.state import ChainState
from rayfbnn.streams import Streams

_STAGE = 2**17
# No run reaches this stage, and so a run and its evidence share no random numbers even with the same seed.
ANNEALING = 2**15 - 1
LAST_STAGE = ANNEALING - 1


def at_stage(streams: Streams, stage: int, *, first_operation: int) -> Streams:
    """Return the streams of inner operations at one stage; stages count from 1.

    The number of an operation in a stream has 32 bits. The lower 17 distinguish all operations of an
    iteration, including nested ones; a configuration has at most 100,000 of them. The upper 15 are the stage,
    which distinguishes the repetitions of an inner operation.

    first_operation  the number of the first inner operation
    """
    assert 0 < stage <= ANNEALING and first_operation < _STAGE
    return replace(streams, operation=stage * _STAGE + first_operation)


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


def taken(state: ChainState, streams: Streams, chosen: Array) -> tuple[ChainState, Streams]:
    """Return the state and streams of the chains that `chosen` selects, by a mask or by indices."""
    part = ChainState(state.position[chosen], state.momentum[chosen], state.precisions[chosen])
    return part, replace(streams, chains=streams.chains[chosen])


def put_back(state: ChainState, part: ChainState, chosen: Array) -> ChainState:
    """Return a copy of the state with the chains that `chosen` selects replaced by the chains of `part`."""
    whole = ChainState(state.position.copy(), state.momentum.copy(), state.precisions.copy())
    whole.position[chosen] = part.position
    whole.momentum[chosen] = part.momentum
    whole.precisions[chosen] = part.precisions
    return whole
