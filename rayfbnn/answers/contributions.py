"""Means and standard deviations over draws of each layer's contributions to the outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.draws.linear import linear_approximation
from rayfbnn.draws.outputs import activation_bytes, networks_at_once, posterior_of
from rayfbnn.draws.view import Draws
from rayfbnn.errors import ConfigError
from rayfbnn.model.network import Buffers, forward, input_rows, output_contributions
from rayfbnn.reduce.blocks import Block, Reader, first_draw
from rayfbnn.reduce.executors import Executor
from rayfbnn.reduce.passes import Job, Passes

_COPIES = 8  # of the contributions in one network, in float64, held at once


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


def contribution_columns(
    runs: Sequence[Draws], inputs: Array, *, executor: Executor, memory_bytes: float
) -> dict[str, Array]:
    """Return mean and standard deviation over draws of each contribution to each output, (n_cases,) each.

    The columns <output>_from_<source>_mean and _sd are on the scale of the data file for real targets, and on
    the scale of the network's outputs, such as log odds, for others. The centre of standardised targets
    counts as bias, even if the network's outputs have no biases. In each draw the contributions add up to the
    output, so their means add up to the mean of the output.

    inputs  (n_cases, n_inputs) as in the data file
    """
    data, model = runs[0].data, runs[0].spec.data_model
    passes = Passes(runs, data.standardized(inputs), executor, memory_bytes=memory_bytes)
    moments = _moments(passes, data.standardized(inputs))
    names = model.output_columns(data.modelled_names)
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


def _moments(passes: Passes, inputs: Array) -> dict[str, Array]:
    """Return mean and standard deviation over all draws of each contribution, (2, n_cases, n_values).

    The contributions in the first draw are subtracted before squares are summed. This saves the digits of a
    contribution that varies little about a large mean.

    inputs  (n_cases, n_inputs), standardised
    """
    first, block = passes.runs[0], first_draw(passes.runs[0])
    shifts = {}
    for at in passes.all_cases():
        by_source = next(_contributions(first, block, inputs[at], 0.0))
        shifts[at.start] = np.stack(list(by_source.values()))[:, 0]
    sources = list(by_source)
    sums = {start: np.zeros((2, *shift.shape)) for start, shift in shifts.items()}
    for _, at, part in passes.map(_contribution_sums, lambda at: (shifts[at.start],)):
        sums[at.start] += part
    mean, square = np.concatenate(list(sums.values()), axis=3) / passes.n_draws
    sd = np.sqrt(np.maximum(square - mean**2, 0.0))
    values = np.stack([mean + np.concatenate(list(shifts.values()), axis=2), sd], axis=1)
    # (n_sources, 2, n_outputs, n_cases * n_cells), where outputs or cells are the values
    by_case = np.moveaxis(values, 2, 3).reshape(len(sources), 2, len(inputs), -1)
    return dict(zip(sources, by_case, strict=True))


def _contribution_sums(reader: Reader, job: Job) -> Array:
    """Return sums over the draws of each contribution less its shift, and of the squares of these.

    The shift is (n_sources, n_outputs, n_cases * n_cells), and the result (2, *shift.shape).
    """
    (shift,) = job.arguments
    sums = np.zeros((2, *shift.shape))
    run, block = reader.runs[job.unit.run], reader.block(job.unit)
    for by_source in _contributions(run, block, job.inputs, job.memory_bytes):
        for source, values in enumerate(by_source.values()):
            excess = values - shift[source]
            sums[0, source] += excess.sum(axis=0)
            sums[1, source] += np.square(excess).sum(axis=0)
    return sums


def _contributions(
    run: Draws, block: Block, inputs: Array, memory_bytes: float
) -> Iterator[dict[str, Array]]:
    """Yield the contributions by source, some draws at a time, (n_draws, n_outputs, n_cases * n_cells) each.

    inputs  (n_cases, n_inputs), standardised
    """
    posterior = posterior_of(run)
    rows = input_rows(posterior.data_model.cell_inputs(inputs), posterior.dtype)
    network = run.spec.network
    of_a_case = activation_bytes(network, run.spec.dtype)
    of_a_case += 8 * _COPIES * (len(network.hidden) + 2) * network.outputs
    at_once = networks_at_once(of_a_case * rows.shape[1], memory_bytes)
    for first in range(0, len(block), at_once):
        some = np.ascontiguousarray(block.positions[first : first + at_once])
        activity = forward(some, rows, posterior.wiring, buffers=Buffers())
        yield output_contributions(some, activity, posterior.wiring)
