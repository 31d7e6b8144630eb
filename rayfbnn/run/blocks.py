"""The plan of a block: the iterations that a batch does next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rayfbnn.spec import RunSpec
from rayfbnn.store.rounds import round_of, rounds


@dataclass(frozen=True)
class BlockPlan:
    """The iterations that make up a block, and the place of their draws.

    The iterations are first .. first + count - 1 of the run, all in one phase. section is None if draws are
    not kept; else first_draw is the place of the first draw in that section.
    """

    phase: int
    first: int
    count: int
    section: Literal["posterior", "warmup"] | None
    first_draw: int

    @property
    def last(self) -> int:
        """Number of the last iteration."""
        return self.first + self.count - 1


def next_block(spec: RunSpec, iteration: int) -> BlockPlan | None:
    """Return the block that follows `iteration` finished iterations, or None when the run is complete.

    Blocks end where a phase or a round of tuning ends and, while draws are kept, where a chunk of
    draws_per_block draws is full. A run that was stopped inside a block goes on with what is left of it, so a
    chunk is soon whole again.
    """
    done = 0
    kept = {"posterior": 0, "warmup": 0}
    sections: dict[object, Literal["posterior", "warmup"]] = {True: "posterior", "warmup": "warmup"}
    for number, phase in enumerate(spec.phase):
        section = sections.get(phase.keep)
        within = iteration - done
        if within < phase.iterations:
            first_draw = kept[section] + within if section else 0
            room = spec.draws_per_block - (first_draw if section else within) % spec.draws_per_block
            current = round_of(rounds(spec), iteration + 1)
            end = done + phase.iterations if current is None else current.last
            count = min(room, end - iteration)
            return BlockPlan(number, iteration + 1, count, section, first_draw)
        done += phase.iterations
        if section:
            kept[section] += phase.iterations
    return None
