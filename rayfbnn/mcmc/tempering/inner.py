"""Parts of all updates through temperatures: ladders, inner operations, and the chains that take part."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

from rayfbnn.arrays import Array
from rayfbnn.mcmc.operation import Nesting, Operation, automatic, unrolled
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


class ThroughTemperatures(Nesting):
    """An operation that goes through temperatures, with updates at each of them.

    inverse_temperatures  1 and then descending numbers; they multiply the inverse temperature of the run
    """

    inverse_temperatures: tuple[float, ...]
    is_tempering: ClassVar[bool] = True
    undivided: ClassVar[str] = (
        "needs all cases in one place; leave out data.parts, or sample at one temperature"
    )

    def check(self, is_allowed: Callable[[Operation], bool], *, right: str) -> None:
        """Raise ValueError unless the temperatures descend, and all inner operations are numbers and allowed.

        right  the requirement on operations in words, for the error
        """
        b = self.inverse_temperatures
        is_descending = len(b) >= 2 and all(one > next_one for one, next_one in itertools.pairwise(b))
        if not (is_descending and b[0] == 1 and b[-1] >= 0):
            raise ValueError(
                f"inverse_temperatures: must begin with 1 and descend, to 0 at the lowest, got {list(b)}"
            )
        if len(b) > _MOST_LEVELS:
            raise ValueError(f"inverse_temperatures: must have at most {_MOST_LEVELS} levels, got {len(b)}")
        self.check_operations()
        for operation in unrolled(self.operations):
            if not is_allowed(operation):
                raise ValueError(f"operations: {right}, got {operation.op}")
        for tunable in automatic(self.operations):
            raise ValueError(
                f'operations: must have steps and stepsizes as numbers, got "auto" in {tunable.op}'
            )

    def describe_ladder(self) -> str:
        """List the inverse temperatures in one line."""
        return f"{self.op}: inverse temperatures {', '.join(f'{b:g}' for b in self.inverse_temperatures)}"


def taken(state: ChainState, streams: Streams, chosen: Array) -> tuple[ChainState, Streams]:
    """Return the state and streams of the chains that `chosen` selects, by a mask or by indices."""
    return state.of_chains(chosen), streams.of_some(chosen)
