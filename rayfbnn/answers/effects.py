"""Effects of inputs on predictions: averaged partial dependence, and the change when one is permuted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.data.encoding import Encoding, InputColumn
from rayfbnn.draws.outputs import outputs_alone
from rayfbnn.draws.quantities import noise_sigmas
from rayfbnn.draws.subsets import thinned
from rayfbnn.streams import Purpose, Streams

if TYPE_CHECKING:
    from rayfbnn.draws.view import Draws

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
    if column.kind == "levels":
        points = np.arange(len(column.levels), dtype=np.float64)
        values = np.eye(len(column.levels))
    elif column.kind == "ordered":
        points = np.arange(len(column.levels), dtype=np.float64)
        values = points[:, None]
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
    for chains, draws, outputs in outputs_alone(run, standardized, memory_bytes=_MEMORY_BYTES):
        flat = np.moveaxis(outputs.reshape(-1, *outputs.shape[2:]), 0, -1)
        sigma = sigmas[:, chains, draws].reshape(1, len(sigmas), flat.shape[-1])
        parts.append(np.asarray(model.moments(flat, sigma)[0], dtype=np.float64))
    return np.concatenate(parts, axis=2)
