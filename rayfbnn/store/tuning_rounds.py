"""The rounds of iterations that find automatic settings, or the levels of ladders."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rayfbnn.mcmc.operation import Tunable, automatic

if TYPE_CHECKING:
    from rayfbnn.spec import RunSpec

MOST_ROUNDS = 40  # in a phase; after each round the workers wait for each other


@dataclass(frozen=True)
class Round:
    """Iterations first .. last; after them some operations, or all ladders, get new settings.

    of  "operations" if automatic operations are measured; "ladders" if the levels of ladders are; "starts" if
        ladders have no levels yet, and the noise of the chains that they start from is measured
    """

    number: int
    phase: int
    first: int
    last: int
    operations: tuple[Tunable, ...] = ()
    of: Literal["operations", "starts", "ladders"] = "operations"

    @property
    def n_measured(self) -> int:
        """Number of measurements in the record of a block of this round."""
        return len(self.operations) if self.of == "operations" else 1


def rounds(spec: RunSpec) -> tuple[Round, ...]:
    """Return the rounds of a run, in order: at most 40 of equal length in each tuning phase.

    A phase tunes if it has automatic operations, is not kept, and comes before all kept phases. The last of
    these phases finds the levels of a run with a ladder, in rounds of its own.
    """
    return tuple(_rounds(spec))


def _rounds(spec: RunSpec) -> Iterator[Round]:
    number, first = 0, 1
    for index in spec.tuning_phases:
        phase = spec.phase[index]
        end, operations = first + phase.iterations, automatic(phase.operations)
        if spec.ladder is not None and index == spec.annealing_phase:
            yield Round(number, index, first, first + spec.ladder.n_measuring - 1, of="starts")
            number += 1
        elif spec.ladder is not None and index > spec.annealing_phase:
            for length in spec.ladder.rounds:
                yield Round(number, index, first, first + length - 1, of="ladders")
                number, first = number + 1, first + length
        elif operations:
            length = -(-phase.iterations // MOST_ROUNDS)
            for start in range(first, end, length):
                yield Round(number, index, start, min(start + length, end) - 1, operations)
                number += 1
        first = end


def round_of(all_rounds: tuple[Round, ...], iteration: int) -> Round | None:
    """Return the round that an iteration belongs to."""
    return next((one for one in all_rounds if one.first <= iteration <= one.last), None)


def n_finished(all_rounds: tuple[Round, ...], iteration: int) -> int:
    """Return the number of rounds that end before an iteration; their settings apply to it."""
    return sum(one.last < iteration for one in all_rounds)


def n_rounds(all_rounds: tuple[Round, ...], operation: Tunable) -> int:
    """Return the number of rounds that tune an operation."""
    return sum(operation in one.operations for one in all_rounds)
