"""Scores of predictions at cases with known targets, and the errors of their means and differences."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.answers.calibration import Places, places
from rayfbnn.answers.comparing.functions import distributions
from rayfbnn.arrays import Array
from rayfbnn.draws.held import hold
from rayfbnn.draws.subsets import spread
from rayfbnn.reduce.predictive import summaries
from rayfbnn.reduce.summary import Cases, joined, quantiles_of_points

if TYPE_CHECKING:
    from rayfbnn.draws.view import Draws
    from rayfbnn.reduce.executors import Executor

BINS = 15
BAND = 0.8  # from the 10 % to the 90 % quantile
INTERVALS = np.arange(1, 20) / 20  # levels of the central intervals in a picture
_LEVELS = (np.arange(64) + 0.5) / 64  # of the quantiles in the average that gives CRPS
_MOST_DRAWS = 1000  # evenly spaced draws of all chains for these quantiles


def scores(
    run: Draws, inputs: Array, targets: Array, *, executor: Executor, memory_bytes: float
) -> dict[str, Array]:
    """Return scores by name, (n_cases,) or (n_cases, n_targets) each, NaN where a target is missing.

    log_probability is that of all targets of a case. Labels have error_rate and expected_error_rate, which is
    one minus the mean of the largest probabilities; and for each target `confidence`, the largest
    probability, and `is_right`, 1 if its label was the right one. Numbers have squared_error, summed over
    targets; and for each target crps, and the places `low` and `high` of `calibration.Places`.

    inputs   (n_cases, n_inputs) as in the data file
    targets  (n_cases, n_targets) as in the data file
    """
    data = run.data
    units = data.target_units
    cases = Cases(data.standardized(inputs), units.to_network(targets))
    wanted = quantiles_of_points(run)
    whole = joined(summaries([run], cases, executor=executor, quantiles=wanted, memory_bytes=memory_bytes))
    is_known = ~np.isnan(targets)
    log_jacobian = units.log_jacobian(targets).sum(axis=1)
    of_all = {"log_probability": np.where(is_known.any(axis=1), whole.log_probability - log_jacobian, np.nan)}
    if run.spec.data_model.has_labels:
        return of_all | _of_labels(distributions(run, whole.mean), targets)
    is_known &= ~(run.spec.data_model.are_times & (targets < 0))
    error = np.where(is_known, np.square(whole.in_file_units(units).point - targets), np.nan)
    placed = places([run], inputs, targets, executor=executor, memory_bytes=memory_bytes / 4)
    loss = crps(units.to_file(_quantiles(run, cases, executor, memory_bytes)), targets)
    return of_all | {
        "squared_error": np.where(is_known.any(axis=1), np.nansum(error, axis=1), np.nan),
        "crps": np.where(is_known, loss, np.nan),
        "low": placed.low,
        "high": placed.high,
    }


def _quantiles(run: Draws, cases: Cases, executor: Executor, memory_bytes: float) -> Array:
    """Return the quantiles at `_LEVELS` given some of the draws, (n_levels, n_cases, n_targets)."""
    some = hold(run, spread(run.n_draws, max(1, _MOST_DRAWS // run.n_chains)))
    wanted = {f"{level:g}": float(level) for level in _LEVELS}
    parts = summaries(
        [some], cases, executor=executor, quantiles=wanted, with_modes=False, memory_bytes=memory_bytes
    )
    found = joined(parts).quantiles
    return np.stack([found[name] for name in wanted])


def _of_labels(probabilities: Array, targets: Array) -> dict[str, Array]:
    missing = np.isnan(targets)
    is_right = np.where(missing, np.nan, probabilities.argmax(axis=-1) == targets)
    confidence = np.where(missing, np.nan, probabilities.max(axis=-1))
    return {
        "error_rate": 1 - _mean_of_known(is_right),
        "expected_error_rate": 1 - _mean_of_known(confidence),
        "confidence": confidence,
        "is_right": is_right,
    }


def _mean_of_known(values: Array) -> Array:
    """Return the mean of the known values of each row, (n_rows,); NaN if a row has none."""
    n_known = (~np.isnan(values)).sum(axis=1)
    return np.where(n_known > 0, np.nansum(values, axis=1) / np.maximum(n_known, 1), np.nan)


def crps(quantiles: Array, targets: Array) -> Array:
    """Return the continuous ranked probability score of each target, (n_cases, n_targets).

    It is twice the integral over u of (1{y < q_u} - u)(q_u - y), the pinball loss at the quantile q_u
    (Gneiting and Ranjan 2011, "Comparing density forecasts", eq. 8).

    quantiles  (n_levels, n_cases, n_targets), at the middles of equal intervals of (0, 1)
    targets    (n_cases, n_targets)
    """
    levels = ((np.arange(len(quantiles)) + 0.5) / len(quantiles))[:, None, None]
    losses = ((targets < quantiles) - levels) * (quantiles - targets)
    return 2 * losses.mean(axis=0)


def calibration_error(confidence: Array, is_right: Array, n_bins: int = BINS) -> float:
    """Return the expected calibration error over equal bins from 0 to 1 of the largest probability.

    It is the mean over cases of |share that was right - mean confidence| in the case's bin (Guo et al. 2017,
    "On calibration of modern neural networks", eq. 3); NaN without cases.

    confidence, is_right  of the same shape, NaN where a target is missing
    """
    n_cases, gap = _bins(confidence, is_right, n_bins)[::3]
    return float(np.abs(gap).sum() / n_cases.sum()) if n_cases.sum() else math.nan


def reliability(confidence: Array, is_right: Array, n_bins: int = BINS) -> tuple[Array, Array]:
    """Return mean confidence and the share that was right in each bin that has cases, (n_used_bins,) each."""
    n_cases, sum_confidence, sum_right, _ = _bins(confidence, is_right, n_bins)
    is_used = n_cases > 0
    return sum_confidence[is_used] / n_cases[is_used], sum_right[is_used] / n_cases[is_used]


def _bins(confidence: Array, is_right: Array, n_bins: int) -> tuple[Array, Array, Array, Array]:
    """Return cases, sums of confidence and of right guesses, and their difference, (n_bins,) each."""
    is_known = ~np.isnan(is_right)
    confidence, is_right = confidence[is_known], is_right[is_known]
    bins = np.minimum((confidence * n_bins).astype(int), n_bins - 1)
    counted, said, right = (np.bincount(bins, weights, n_bins) for weights in (None, confidence, is_right))
    return counted, said, right, right - said


def coverage(low: Array, high: Array, levels: Array) -> Array:
    """Return the share of known targets in central intervals of some levels, (n_levels,); NaN without any.

    low, high  of `scores`, (n_cases, n_targets)
    """
    is_known = ~np.isnan(low)
    if not is_known.any():
        return np.full(len(levels), math.nan)
    return Places(low[is_known], high[is_known]).coverage(levels)


def mean_and_error(values: Array) -> tuple[float, float]:
    """Return the mean of the known values and its standard error; NaN if there are too few."""
    known = values[~np.isnan(values)]
    if len(known) == 0:
        return math.nan, math.nan
    error = float(known.std(ddof=1) / math.sqrt(len(known))) if len(known) > 1 else math.nan
    return float(known.mean()), error
