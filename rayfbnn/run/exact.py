"""Exact draws as blocks of a store with one chain."""

from __future__ import annotations

from collections.abc import Iterator

from rayfbnn.arrays import Array
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.store.records import SECONDS, Block


def exact_blocks(
    posterior: SampledPosterior, positions: Array, precisions: Array, draws_per_block: int, seconds: float
) -> Iterator[Block]:
    """Yield the draws and their densities in blocks.

    positions   (n_draws, n_parameters)
    precisions  (n_draws, n_precisions)
    seconds     time that all draws took together
    """
    for first in range(0, len(positions), draws_per_block):
        rows = slice(first, first + draws_per_block)
        position, precision = positions[rows], precisions[rows]
        yield Block(
            first_iteration=first + 1,
            n_iterations=len(position),
            section="posterior",
            first_draw=first,
            positions=position[None],
            precisions=precision[None],
            stats={
                "log_likelihood": posterior.log_likelihood(position, precision)[None],
                "log_prior": posterior.log_prior(position, precision)[None],
            },
            summary={SECONDS: seconds * len(position) / len(positions)},
        )
