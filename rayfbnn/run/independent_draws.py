"""Independent draws as blocks of a store with one chain: exact draws, or draws from the prior."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.kernels import choose
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.store.records import SECONDS, Block
from rayfbnn.streams import Streams

if TYPE_CHECKING:
    from rayfbnn.data import Dataset

_MEMORY_BYTES = 100e6  # for the units of the networks that are evaluated together


def prior_blocks(
    posterior: SampledPosterior, dataset: Dataset, seed: int, draws: int, draws_per_block: int
) -> Iterator[Block]:
    """Yield draws in blocks: positions, precisions, log densities, outputs and targets at training inputs.

    Draw d uses the random numbers of chain d at iteration 0. Outputs are on the network's scale, targets on
    that of the data file.
    """
    streams_class = choose.streams_class("cpu")
    inputs = posterior.data_model.cell_inputs(dataset.standardized_inputs)
    for first in range(0, draws, draws_per_block):
        parts = [
            _draw(posterior, dataset, inputs, streams_class(seed, chains))
            for chains in _pieces(posterior, first, min(first + draws_per_block, draws))
        ]
        drawn = {name: np.concatenate([part[name] for part in parts])[None] for name in parts[0]}
        yield Block(
            first_iteration=first + 1,
            n_iterations=drawn["position"].shape[1],
            section="posterior",
            first_draw=first,
            positions=drawn["position"],
            precisions=drawn["precisions"],
            stats={name: drawn[name] for name in ("log_likelihood", "log_prior")},
            predictive={name: drawn[name] for name in ("outputs", "targets")},
        )


def _pieces(posterior: SampledPosterior, first: int, last: int) -> Iterator[Array]:
    n_values = 4 * sum(posterior.wiring.units) * posterior.n_cases * posterior.data_model.n_cells
    at_once = max(1, int(_MEMORY_BYTES / (8 * n_values)))
    for start in range(first, last, at_once):
        yield np.arange(start, min(start + at_once, last), dtype=np.uint64)


def _draw(posterior: SampledPosterior, dataset: Dataset, inputs: Array, streams: Streams) -> dict[str, Array]:
    """Draw networks and targets for some chains; return the arrays to store, with the draw axis first.

    inputs  standardised inputs of the network for the training cases, at every cell
    """
    state = posterior.initial_state(streams, sigmas=None)
    position, precisions = state.position, state.precisions
    targets = posterior.sample_targets(position, precisions, streams)
    outputs = posterior.outputs(position, inputs).astype(np.float64)
    if posterior.data_model.n_cells > 1:
        outputs = outputs.reshape(len(outputs), dataset.n_cases, -1)  # a log hazard for each piece
    return {
        "position": position,
        "precisions": precisions,
        "log_likelihood": posterior.log_likelihood(position, precisions),
        "log_prior": posterior.log_prior(position, precisions),
        "outputs": outputs,
        "targets": dataset.target_units.to_file(targets),
    }


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
