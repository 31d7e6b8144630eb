"""Calibration of predictions: how often events with a predicted probability happened.

A target y that is a number is placed within its predictive distribution F: its probability integral transform
(PIT) F(y) is uniform over cases if predictions are calibrated. A count is spread evenly over the interval
from P(Y < y) to P(Y <= y) (Czado, Gneiting and Held 2009, "Predictive model assessment for count data"). A
censored time is spread evenly over the interval from P(T <= y) to 1 (Haider et al. 2020, "Effective ways to
build and evaluate individual survival distributions").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy.special

from rayfbnn.arrays import Array
from rayfbnn.reduce.passes import Passes, TaskExecutor, TasksInProcess, distribution_sums

if TYPE_CHECKING:
    import pandas as pd

    from rayfbnn.draws.view import Draws

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
    data, model = runs[0].data, runs[0].spec.data_model
    passes = Passes(runs, data.standardized(inputs), executor or TasksInProcess(), memory_bytes=memory_bytes)
    y = data.target_units.to_network(targets)
    is_known, values = ~np.isnan(y), np.nan_to_num(y)
    ends = np.abs(values)[None] if model.are_times else values[None]
    if model.has_modes:  # a count: P(Y < y) = P(Y <= y - 1)
        ends = np.stack([np.maximum(values - 1, 0), values])
    (sums,) = passes.sums(distribution_sums, [(np.arange(len(inputs)), ends)], shape=(3,))
    low, high = sums[0, 0] / passes.n_draws, sums[0, -1] / passes.n_draws
    if model.has_modes:
        low = np.where(values > 0, low, 0.0)
    if model.are_times:  # a censored time has a minus sign, and the event comes later
        high = np.where(values < 0, 1.0, high)
    return Places(np.where(is_known, low, np.nan), np.where(is_known, high, np.nan))


def share_limits(n_cases: int, share: float, probability: float = 0.95) -> tuple[float, float]:
    """Return the limits within which a binomial share of `n_cases` lies with a given probability."""
    if n_cases == 0:
        return 0.0, 1.0
    import scipy.stats  # takes a second to import, and `places` does not need it

    low, high = scipy.stats.binom.interval(probability, n_cases, share)
    return float(low) / n_cases, float(high) / n_cases


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


def reliability(probability: Array, happened: Array, n_bins: int = BINS) -> pd.DataFrame:
    """Return a row for each bin of probabilities that has cases: cases, predicted, observed, low, high.

    `predicted` is the mean probability in the bin, and `observed` the share of its cases that have the label.
    If predictions are calibrated, `observed` lies from `low` to `high` with a probability of about 95 %.
    """
    import pandas as pd

    bins = np.minimum((probability * n_bins).astype(int), n_bins - 1)
    rows = []
    for one in np.unique(bins):
        inside = bins == one
        n, mean = int(inside.sum()), float(probability[inside].mean())
        low, high = share_limits(n, mean)
        rows.append((n, mean, float(happened[inside].mean()), low, high))
    return pd.DataFrame(rows, columns=["cases", "predicted", "observed", "low", "high"])
