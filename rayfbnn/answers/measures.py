"""Measures of how good predictions are over all cases together, with standard errors, and calibration.

A target y that is a number is placed within its predictive distribution F: its probability integral transform
(PIT) F(y) is uniform over cases if predictions are calibrated. A count is spread evenly over the interval
from P(Y < y) to P(Y <= y) (Czado, Gneiting and Held 2009, "Predictive model assessment for count data"). A
censored time is spread evenly over the interval from P(T <= y) to 1 (Haider et al. 2020, "Effective ways to
build and evaluate individual survival distributions").
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy.special

from rayfbnn.arrays import Array
from rayfbnn.draws.view import Draws
from rayfbnn.model.likelihood.data_model import point_column
from rayfbnn.reduce.importance import ends_of_places, values_at
from rayfbnn.reduce.passes import Passes, TaskExecutor, TasksInProcess, distribution_sums

if TYPE_CHECKING:
    import pandas as pd


LEVELS = (0.5, 0.8, 0.9, 0.95)
BINS = 10
_MEMORY_BYTES = 64e6
_MAX_SCORE = 8.0  # in float64 the normal distribution function is 1 beyond this


@dataclass(frozen=True)
class Places:
    """The places of targets within their predictive distributions.

    low, high  (n_cases, n_targets) ends of each place, between 0 and 1, NaN for a missing target; they are
               equal for targets with a density
    """

    low: Array
    high: Array

    def of_target(self, target: int) -> Places:
        """Return the places of one target that are known, (n_known_cases,) each."""
        low, high = self.low[:, target], self.high[:, target]
        is_known = ~np.isnan(low)
        return Places(low[is_known], high[is_known])

    @property
    def scores(self) -> Array:
        """Normal scores, the standard normal quantiles at the middle of each place, clipped at -8 and 8.

        They are standard normal if predictions are calibrated: Dunn and Smyth (1996), "Randomized quantile
        residuals", without the randomisation.
        """
        scores = scipy.special.ndtri((self.low + self.high) / 2)
        return np.asarray(np.clip(scores, -_MAX_SCORE, _MAX_SCORE))

    def share_below(self, at: Array) -> Array:
        """Return the mean over cases of the share of each place that lies below the points, (n_points,)."""
        width = (self.high - self.low)[:, None]
        above_low = np.asarray(at) - self.low[:, None]
        is_wide = width > 0
        share = np.where(is_wide, above_low / np.where(is_wide, width, 1.0), above_low >= 0)
        return np.asarray(np.clip(share, 0, 1).mean(axis=0))

    def histogram(self, n_bins: int = BINS) -> Array:
        """Return the share of cases in each of `n_bins` equal bins from 0 to 1."""
        below = self.share_below(np.linspace(0, 1, n_bins + 1))
        below[0], below[-1] = 0.0, 1.0
        return np.diff(below)

    def coverage(self, levels: Sequence[float] | Array = LEVELS) -> Array:
        """Return the share of cases within their central interval of each level, (n_levels,)."""
        tails = (1 - np.asarray(levels)) / 2
        return self.share_below(1 - tails) - self.share_below(tails)


def places(
    runs: Sequence[Draws],
    inputs: Array,
    targets: Array,
    *,
    executor: TaskExecutor | None = None,
    memory_bytes: float = _MEMORY_BYTES,
) -> Places:
    """Place targets that are numbers within the predictive distributions of one or several runs.

    inputs (n_cases, n_inputs) and targets (n_cases, n_targets) are as in the data file.

    executor      runs the tasks; this process unless given
    memory_bytes  approximate memory of a task
    """
    data, executor = runs[0].data, executor or TasksInProcess()
    rows = data.target_units.to_network(targets)[None]
    low, high = ends_at(runs, data.standardized(inputs), rows, executor, memory_bytes)
    return Places(low[0], high[0])


def ends_at(
    runs: Sequence[Draws],
    inputs: Array,
    rows: Array,
    executor: TaskExecutor,
    memory_bytes: float = _MEMORY_BYTES,
) -> tuple[Array, Array]:
    """Return the ends of places in the mixture of all draws, (n_rows, n_cases, n_targets) each.

    inputs  (n_cases, n_inputs), standardised
    rows    (n_rows, n_cases, n_targets) targets on the network's scale
    """
    model = runs[0].spec.data_model
    passes = Passes(runs, inputs, executor, memory_bytes=memory_bytes)
    (sums,) = passes.sums(distribution_sums, [(np.arange(len(inputs)), values_at(model, rows))], shape=(3,))
    cdf, mass, _ = sums / passes.n_draws
    return ends_of_places(model, cdf, mass, rows)


def share_limits(n_cases: int, share: float) -> tuple[float, float]:
    """Return the limits within which a binomial share of `n_cases` lies with at least 95 % probability."""
    if n_cases == 0:
        return 0.0, 1.0
    at_most = scipy.special.bdtr(np.arange(n_cases + 1), n_cases, share)
    low, high = (int((at_most < below).sum()) for below in (0.025, 0.975))
    return low / n_cases, min(high, n_cases) / n_cases


def labelled(run: Draws, table: pd.DataFrame, targets: Array) -> dict[str, tuple[Array, Array]]:
    """Return each label's predicted probabilities and whether each case has it, by the label in words.

    Both are (n_known_cases,). Of two labels, only the second is included.

    table    the table of predictions
    targets  (n_cases, n_targets)
    """
    model, names = run.spec.data_model, run.data.target_names
    by_label = {}
    columns, in_words = model.probability_columns(names), model.probability_words(names)
    for column, words, (has_label, has_opposite) in zip(
        columns, in_words, model.labelled_cases(targets), strict=True
    ):
        is_known = ~np.isnan(targets[:, 0]) if has_opposite is None else has_label | has_opposite
        by_label[words] = table[column].to_numpy()[is_known], has_label[is_known]
    return by_label


def reliability(probability: Array, happened: Array) -> pd.DataFrame:
    """Return a row for each bin of probabilities that has cases: cases, predicted, observed, low, high.

    `predicted` is the mean probability in the bin, and `observed` the share of its cases that have the label.
    If predictions are calibrated, `observed` lies from `low` to `high` with a probability of about 95 %.
    """
    import pandas as pd

    bins = np.minimum((probability * BINS).astype(int), BINS - 1)
    rows = []
    for one in np.unique(bins):
        inside = bins == one
        n, mean = int(inside.sum()), float(probability[inside].mean())
        low, high = share_limits(n, mean)
        rows.append((n, mean, float(happened[inside].mean()), low, high))
    return pd.DataFrame(rows, columns=["cases", "predicted", "observed", "low", "high"])


if TYPE_CHECKING:
    import pandas as pd


MEASURES = ("squared_error", "absolute_error", "log_probability", "error_rate", "expected_error_rate")


def means_over_cases(table: pd.DataFrame) -> dict[str, float]:
    """Return the mean over cases of each column that is a measure, and its standard error as <measure>_se.

    A case with missing targets does not count. There is no standard error for a single case.
    """
    means = {}
    for measure in MEASURES:
        if measure in table:
            n_known = int(table[measure].count())
            means[measure] = float(table[measure].mean())
            if n_known > 1:
                means[f"{measure}_se"] = float(table[measure].std(ddof=1) / math.sqrt(n_known))
    return means


def measures_of_targets(run: Draws, table: pd.DataFrame, targets: Array) -> dict[str, float]:
    """Return the measures that are not means over cases, with their standard errors if these are known.

    Targets that are numbers have the root of the mean squared error of each target's mean, or of its median
    if it has no mean, <target>_rmse; censored times are left out. Survival times have the C-index of their
    medians, c_index; it is absent if no two cases are comparable.

    targets  (n_cases, n_targets) as on file
    """
    model, names = run.spec.data_model, run.data.target_names
    measures: dict[str, tuple[float, float]] = {}
    observed = np.where(targets < 0, np.nan, targets) if model.are_times else targets
    if not (model.has_labels or (model.are_times and np.isnan(observed).all())):
        for name, values in zip(names, observed.T, strict=True):
            differences = table[point_column(table, name)].to_numpy() - values
            measures[f"{name}_rmse"] = root_mean_square(differences)
    if model.are_times:
        found = concordance(targets[:, 0], table[f"{names[0]}_median"].to_numpy())
        if found is not None:
            measures["c_index"] = found.index, found.error
    result = {}
    for name, (value, error) in measures.items():
        result[name] = value
        if not math.isnan(error):
            result[f"{name}_se"] = error
    return result


def root_mean_square(differences: Array) -> tuple[float, float]:
    """Return the root of the mean of squares, and its standard error by the delta method.

    The error is NaN for a single difference, and if all are zero.

    differences  (n_cases,), NaN if unknown
    """
    squares = np.square(differences[~np.isnan(differences)])
    if len(squares) == 0:
        return math.nan, math.nan
    root = math.sqrt(squares.mean())
    if len(squares) == 1 or root == 0:
        return root, math.nan
    return root, float(squares.std(ddof=1) / math.sqrt(len(squares)) / (2 * root))


@dataclass(frozen=True)
class Concordance:
    """Harrell's C-index.

    index    share of the comparable pairs with predicted times in the observed order
    error    its standard error over cases; NaN for two cases
    n_pairs  number of comparable pairs
    """

    index: float
    error: float
    n_pairs: int


def concordance(times: Array, predicted: Array) -> Concordance | None:
    """Return Harrell's C-index of predicted times ; None if no two cases are comparable.

    A pair of cases is comparable if the shorter time is that of an event, and the other case is observed for
    longer or censored at the same time. A pair scores 1 if the predicted times are in the same order, 1/2 if
    they are equal, and 0 otherwise. The index C is the mean score of the comparable pairs.
    Harrell, Lee and Mark, Statistics in Medicine 15 (1996), 361-387.

    The standard error is that of a ratio of two U-statistics. If case i has the total score a_i in its c_i
    comparable pairs, the error is 2 sqrt(n / (n - 1) sum_i (a_i - C c_i)^2) / sum_i c_i.

    times : (n_cases,)      negative if observation ended before the event, NaN if missing
    predicted : (n_cases,)  such as medians; cases without one (NaN) are left out
    """
    is_known = ~np.isnan(times) & ~np.isnan(predicted)
    times, predicted = times[is_known], predicted[is_known]
    is_event, n = times > 0, len(times)
    # Two events at one time have the same place, and a case that is censored then has the next.
    order = np.lexsort([~is_event, np.abs(times)])
    is_new = np.any(np.diff([np.abs(times)[order], ~is_event[order]], axis=1), axis=0)
    groups = np.split(order, np.flatnonzero(is_new) + 1)
    n_later, not_above = _counts(groups[::-1], predicted, asks=is_event, counts=np.ones(n, bool))
    n_sooner, below = _counts(groups, predicted, asks=np.ones(n, bool), counts=is_event)
    scores, pairs = n_later - not_above + below, n_later + n_sooner
    if not pairs.any():
        return None
    index = float(scores.sum() / pairs.sum())
    squares = float(np.square(scores - index * pairs).sum())
    error = 2 * math.sqrt(n / (n - 1) * squares) / float(pairs.sum()) if n > 2 else math.nan
    return Concordance(index, error, int(pairs.sum()) // 2)


def _counts(groups: list[Array], predicted: Array, *, asks: Array, counts: Array) -> tuple[Array, Array]:
    """Return how many cases of earlier groups each case can be compared with, and how many have lower values.

    Equal values count one half. Both are (n_cases,), and zero for cases that do not ask.

    groups  the numbers of the cases of each group
    asks    whether a case is compared with earlier ones
    counts  whether later cases are compared with a case
    """
    n_before, n_lower, values = np.zeros(len(predicted), int), np.zeros(len(predicted)), predicted.tolist()
    before: list[float] = []
    for group in groups:
        for case in group[asks[group]].tolist():
            n_before[case] = len(before)
            n_lower[case] = (bisect_left(before, values[case]) + bisect_right(before, values[case])) / 2
        for case in group[counts[group]].tolist():
            insort(before, values[case])
    return n_before, n_lower
