"""Effects of inputs on predictions: partial dependence, permutations, and contributions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.data.encoding import Encoding, InputColumn
from rayfbnn.draws.outputs import activation_bytes, networks_at_once, output_blocks, posterior_of
from rayfbnn.draws.quantities import noise_sigmas
from rayfbnn.draws.subsets import thinned
from rayfbnn.draws.view import Draws
from rayfbnn.errors import ConfigError
from rayfbnn.model.network import Buffers, forward, input_rows, output_contributions
from rayfbnn.reduce.passes import Passes, PassJob, TaskExecutor
from rayfbnn.reduce.tile import DrawBlock, Reader, first_draw
from rayfbnn.streams import Purpose, Streams

_MEMORY_BYTES, _BAND_BYTES = 64e6, 80e6
_POINTS = 21
_FEW_VALUES = 12  # a column with no more distinct values is evaluated at each of them


@dataclass(frozen=True)
class Dependence:
    """The predictions averaged over cases, by the value of one column.

    column  its name
    points  (n_points,) values of a column of numbers; for any other column the numbers of its levels, from 0
    levels  the names of the levels, () for numbers
    mean    (n_points, n_values): averaged over cases and draws, see `value_names`
    low, high  (n_points, n_values): 10 % and 90 % quantiles over draws of the average over cases
    """

    column: str
    points: Array
    levels: tuple[str, ...]
    mean: Array
    low: Array
    high: Array


def value_names(run: Draws) -> list[str]:
    """Return the names of the predicted values: the probability of each label, or the mean of each target.

    The mean over cases of a target on a log scale is the geometric mean.
    """
    model, names = run.spec.data_model, run.data.target_names
    is_log = run.data.target_units.is_log
    means = ["geometric mean" if log else "mean" for log in is_log]
    return model.probability_words(names) or [
        f"{mean} of {name}" for mean, name in zip(means, names, strict=True)
    ]


def columns_of(run: Draws) -> tuple[InputColumn, ...]:
    """Return the columns of the table that the network's inputs come from, without the exposure."""
    encoding = run.spec.encoding or Encoding.from_numbers(run.data.input_names)
    return tuple(column for column in encoding.inputs if column.kind != "exposure")


def permutation_shares(run: Draws, inputs: Array, columns: Sequence[InputColumn]) -> Array:
    """Return the relative change of the predictions when each column is permuted, (n_columns,).

    The change is E[(f(x) - f(x'))**2] / (2 Var f(x)), where f is the predictive mean (for times and for
    targets on a log scale, that of their logarithm), and x' has the column's inputs from another case. If
    inputs are independent, this is the total-effect index of Sobol': Jansen (1999), "Analysis of variance
    designs for model output". It is the share of the variance of the predictions that is lost if the column
    is unknown. Both expressions are summed over targets or labels. The change is NaN if all predictions are
    equal.

    inputs  (n_cases, n_inputs) as in the data file
    """
    names = run.data.input_names
    uniform = Streams(run.spec.seed, np.zeros(1, dtype=np.uint64)).uniform(
        Purpose.PERMUTATION, (len(inputs),)
    )
    order = np.argsort(uniform[0])
    before = _means(run, inputs).mean(axis=2)  # (n_cases, n_values)
    variance = before.var(axis=0)
    # Targets on different scales have equal weight; probabilities share one scale.
    scale = np.ones_like(variance)
    if not run.spec.data_model.has_labels:
        scale = np.where(variance > 0, variance, np.inf)
    total = 2 * float((variance / scale).sum())
    shares = np.empty(len(columns))
    for number, column in enumerate(columns):
        permuted, at = inputs.copy(), [names.index(name) for name in column.input_names]
        permuted[:, at] = inputs[order][:, at]
        change = np.square(_means(run, permuted).mean(axis=2) - before).mean(axis=0)
        shares[number] = (change / scale).sum() / total if total > 0 else np.nan
    return shares


def partial_dependence(run: Draws, inputs: Array, column: InputColumn) -> Dependence:
    """Average the predictive mean over cases, for each of several values of one column set in all cases.

    Friedman (2001), "Greedy function approximation: a gradient boosting machine", section 8.2. Times
    and targets on a log scale are averaged by their logarithms.

    inputs  (n_cases, n_inputs) as in the data file, the cases to average over
    """
    data, model = run.data, run.spec.data_model
    points, settings = _settings(column, data.inputs, data.input_names)
    at = [data.input_names.index(name) for name in column.input_names]
    averages = []
    for setting in settings:
        changed = inputs.copy()
        changed[:, at] = setting
        averages.append(_means(run, changed).mean(axis=0))
    by_draw = np.stack(averages)  # (n_points, n_values, n_draws)
    if model.is_real:
        scale, center = data.target_scale[:, None], data.target_center[:, None]
        by_draw = by_draw * scale + center
    low, high = np.quantile(by_draw, [0.1, 0.9], axis=2)
    mean = by_draw.mean(axis=2)
    mean, low, high = (data.target_units.from_logs(values) for values in (mean, low, high))
    if model.are_times:
        mean, low, high = np.exp(mean), np.exp(low), np.exp(high)
    levels = column.levels if column.kind in ("levels", "ordered") else ()
    return Dependence(column.name, points, levels, mean, low, high)


def probability_bands(runs: Sequence[Draws], inputs: Array) -> tuple[Array, Array]:
    """Return the 10 % and 90 % quantiles over draws of each label's probability, (n_cases, n_labels) each.

    So many draws are used that their probabilities take about 80 MB.

    inputs  (n_cases, n_inputs) as in the data file
    """
    n_labels = len(runs[0].spec.data_model.probability_columns(runs[0].data.target_names))
    n_chains = sum(run.n_chains for run in runs)
    at_most = max(1, int(_BAND_BYTES / (8 * len(inputs) * n_labels * n_chains)))
    of_draws = np.concatenate([_means(thinned(run, at_most), inputs) for run in runs], axis=2)
    low, high = np.quantile(of_draws, [0.1, 0.9], axis=2)
    return low, high


def _settings(column: InputColumn, inputs: Array, names: Sequence[str]) -> tuple[Array, Array]:
    """Return points of a column, and the values of its inputs at each, (n_points, n_inputs_of_column)."""
    n_others = len(column.input_names) - len(column.value_names)  # "is it missing" inputs: 0
    if column.kind in ("levels", "ordered"):
        points = np.arange(len(column.levels), dtype=np.float64)
        values = np.eye(len(points)) if column.kind == "levels" else points[:, None]
    elif column.kind == "missing":
        return np.array([0.0, 1.0]), np.array([[0.0], [1.0]])
    else:
        there = inputs[:, names.index(column.name)]
        points = np.unique(there)
        if len(points) > _FEW_VALUES:
            low, high = np.quantile(there, [0.02, 0.98])
            points = np.linspace(low, high, _POINTS)
        values = points[:, None]
    return points, np.hstack([values, np.zeros((len(points), n_others))])


def _means(run: Draws, inputs: Array) -> Array:
    """Return the predictive mean of each value given each draw, (n_cases, n_values, n_draws) float64.

    They are on the network's scale, times as logarithms.
    """
    data, model = run.data, run.spec.data_model
    standardized = (inputs - data.input_center) / data.input_scale
    sigmas = noise_sigmas(run)
    parts = []
    for chains, draws, outputs in output_blocks(run, standardized, memory_bytes=_MEMORY_BYTES):
        flat = np.moveaxis(outputs.reshape(-1, *outputs.shape[2:]), 0, -1)
        sigma = sigmas[:, chains, draws].reshape(1, len(sigmas), flat.shape[-1])
        parts.append(np.asarray(model.moments(flat, sigma)[0], dtype=np.float64))
    return np.concatenate(parts, axis=2)


_COPIES = 8  # of the contributions in one network, in float64, held at once


def check_contributions(runs: Sequence[Draws]) -> None:
    """Raise ConfigError if the outputs of a run's draws are not sums of contributions of layers."""
    for run in runs:
        approximation = run.spec.fit if run.is_linear else None
        if approximation is not None:
            raise ConfigError(
                f"contributions: the predictions of {run.path} are linear about the modes, so its"
                " layers have no separate contributions; leave contributions out, or fit again with"
                f" {approximation.setting_for_networks}"
            )


def contribution_columns(
    runs: Sequence[Draws], inputs: Array, *, executor: TaskExecutor, memory_bytes: float
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


def _contribution_sums(reader: Reader, job: PassJob) -> Array:
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
    run: Draws, block: DrawBlock, inputs: Array, memory_bytes: float
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
