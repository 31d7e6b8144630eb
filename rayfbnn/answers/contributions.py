"""Means and standard deviations over draws of each layer's contributions to the outputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.draws.linear import linear_approximation
from rayfbnn.draws.outputs import activation_bytes, networks_at_once, posterior_of
from rayfbnn.draws.view import Draws
from rayfbnn.errors import ConfigError
from rayfbnn.model.contributions import output_contributions
from rayfbnn.model.network import Buffers, forward, input_rows

if TYPE_CHECKING:
    from rayfbnn.draws.view import Draws

_COPIES = 8  # of the contributions in one network, in float64, held at the same time


def check_contributions(runs: Sequence[Draws]) -> None:
    """Raise ConfigError if the outputs of a run's draws are not sums of contributions of layers."""
    for run in runs:
        approximation = linear_approximation(run)
        if approximation is not None:
            raise ConfigError(
                f"contributions: the predictions of {run.path} are linear about the modes, so its"
                " layers have no separate contributions; leave contributions out, or fit again with"
                f" {approximation.setting_for_networks}"
            )


def contribution_columns(runs: Sequence[Draws], inputs: Array, *, memory_bytes: float) -> dict[str, Array]:
    """Return mean and standard deviation over draws of each contribution to each output, (n_cases,) each.

    The columns <output>_from_<source>_mean and _sd are on the scale of the data file for real targets, and on
    the scale of the network's outputs, such as log odds, for others. The centre of standardised targets
    counts as bias, even if the network's outputs have no biases. In each draw the contributions add up to the
    output, so their means add up to the mean of the output.

    inputs  (n_cases, n_inputs) as in the data file
    """
    data, model = runs[0].data, runs[0].spec.data_model
    moments = _moments_of_cases(runs, (inputs - data.input_center) / data.input_scale, memory_bytes)
    names = model.output_columns(data.target_names)
    # The pieces of a hazard are the values of one output at several times.
    units = model.output_units(data.target_center, data.target_scale)
    factor, added = (np.broadcast_to(one, len(names)) for one in units)
    if added.any() and "bias" not in moments:
        moments["bias"] = np.zeros((2, len(inputs), len(names)))
    columns = {}
    for output, name in enumerate(names):
        for source, (mean, sd) in moments.items():
            of_bias = added[output] if source == "bias" else 0.0
            columns[f"{name}_from_{source}_mean"] = mean[:, output] * factor[output] + of_bias
            columns[f"{name}_from_{source}_sd"] = sd[:, output] * factor[output]
    return columns


def _moments_of_cases(runs: Sequence[Draws], inputs: Array, memory_bytes: float) -> dict[str, Array]:
    """Return the moments of each contribution, (2, n_cases, n_values), computed for some cases at a time.

    inputs  (n_cases, n_inputs), standardised
    """
    per_case = 4 * runs[0].spec.data_model.n_cells * _bytes_of_a_case(runs[0])
    at_once = max(1, int(memory_bytes / 2 / per_case))
    pieces = []
    for first in range(0, len(inputs), at_once):
        some = inputs[first : first + at_once]
        blocks = (block for run in runs for block in _blocks(run, some, memory_bytes / 2))
        pieces.append(_moments(blocks, n_cases=len(some)))
    return {source: np.concatenate([piece[source] for piece in pieces], axis=1) for source in pieces[0]}


def _bytes_of_a_case(run: Draws) -> int:
    """Return about the number of bytes of one case in one network, layers and contributions together."""
    network = run.spec.network
    n_sources = len(network.hidden) + 2
    return activation_bytes(network, run.spec.dtype) + 8 * _COPIES * n_sources * network.outputs


def _blocks(run: Draws, inputs: Array, memory_bytes: float) -> Iterator[dict[str, Array]]:
    """Yield the contributions in blocks of draws, (n_draws, n_outputs, n_cases * n_cells) each."""
    posterior = posterior_of(run)
    rows = input_rows(posterior.data_model.cell_inputs(inputs), posterior.dtype)
    at_once = networks_at_once(_bytes_of_a_case(run) * rows.shape[1], memory_bytes / 2)
    for chains, draws in run.blocks_in_memory(2 * posterior.n_parameters, memory_bytes):
        positions = run.positions(chains, draws).reshape(-1, posterior.n_parameters)
        for first in range(0, len(positions), at_once):
            some = np.ascontiguousarray(positions[first : first + at_once], dtype=posterior.dtype)
            activity = forward(some, rows, posterior.wiring, buffers=Buffers())
            yield output_contributions(some, activity, posterior.wiring)


def _moments(blocks: Iterable[dict[str, Array]], *, n_cases: int) -> dict[str, Array]:
    """Return mean and standard deviation over all draws of each contribution, (2, n_cases, n_values).

    Means and sums of squared deviations are combined block by block (Chan, Golub and LeVeque 1983,
    "Algorithms for computing the sample variance"). A sum of squares would lose the digits of a contribution
    that varies little about a large mean.
    """
    n, mean, squares = 0, 0.0, 0.0
    for block in blocks:
        values = np.stack(list(block.values()), axis=1).astype(np.float64)
        n_new = len(values)
        block_mean = values.mean(axis=0)
        difference = block_mean - mean
        between = np.square(difference) * (n * n_new / (n + n_new))
        squares = squares + np.square(values - block_mean).sum(axis=0) + between
        mean = mean + difference * (n_new / (n + n_new))
        n += n_new
    moments = np.stack([mean, np.sqrt(squares / n)], axis=1)  # (n_sources, 2, n_outputs, n_cases * n_cells)
    by_case = np.moveaxis(moments, 2, 3).reshape(len(moments), 2, n_cases, -1)
    return dict(zip(block, by_case, strict=True))
