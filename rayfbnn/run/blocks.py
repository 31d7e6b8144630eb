"""The plan of a block: the iterations that a batch does next."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from rayfbnn.spec import RunSpec
from rayfbnn.store.tuning_rounds import round_of, rounds


@dataclass(frozen=True)
class BlockPlan:
    """The iterations of a block, and where its draws are stored.

    The block has the iterations first .. first + count - 1 of the run, all in one phase. `section` is None if
    the draws are not kept; otherwise `first_draw` is the number of the first draw in that section.
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


MOST_SECONDS = 10.0  # longest block if draws_per_block is not configured


def next_block(spec: RunSpec, iteration: int, *, draws_per_chunk: int) -> BlockPlan | None:
    """Return the block that follows `iteration` finished iterations, or None when the run is complete.

    The block is as long as possible. It ends with a phase or a tuning round, when a chunk is full and, if
    draws_per_block is configured, after that many iterations. A run that was stopped inside a block continues
    with the rest of that block.
    """
    done = 0
    kept = {"posterior": 0, "warmup": 0}
    sections: dict[object, Literal["posterior", "warmup"]] = {True: "posterior", "warmup": "warmup"}
    for number, phase in enumerate(spec.phase):
        section = sections.get(phase.keep)
        within = iteration - done
        if within < phase.iterations:
            first_draw = kept[section] + within if section else 0
            current = round_of(rounds(spec), iteration + 1)
            end = done + phase.iterations if current is None else current.last
            count = end - iteration
            if section:
                count = min(count, draws_per_chunk - first_draw % draws_per_chunk)
            if spec.draws_per_block is not None:
                within_block = (first_draw if section else within) % spec.draws_per_block
                count = min(count, spec.draws_per_block - within_block)
            return BlockPlan(number, iteration + 1, count, section, first_draw)
        done += phase.iterations
        if section:
            kept[section] += phase.iterations
    return None


def seconds_of_block(spec: RunSpec, n_blocks: int) -> float:
    """Return the longest duration, in seconds, of a block that follows `n_blocks` others.

    The first blocks of a run are shorter, because predictions can only use committed draws.
    """
    return min(1.0 + n_blocks, MOST_SECONDS) if spec.draws_per_block is None else math.inf
