"""Distances of an approximate predictive distribution from the exact one, and scores of either."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy.special
import scipy.stats

from rayfbnn.answers.measures import Places, places
from rayfbnn.arrays import Array
from rayfbnn.draws.outputs import activation_bytes, output_blocks
from rayfbnn.draws.subsets import hold, spread
from rayfbnn.draws.view import Draws
from rayfbnn.reduce.passes import TaskExecutor
from rayfbnn.reduce.predictive import joined, quantiles_of_points, summaries


def distances(approximate: Functions, exact: Functions) -> dict[str, Array]:
    """Return each distance by name.

    For labels these are total_variation, kl and agreement, (n_cases,), as the functions of these names return
    them, averaged over the targets of a case. For numbers they are w2 of the draws of each output and
    mean_difference, the squared difference of the means, (n_cases * n_outputs,), in standard deviations of
    the exact draws. Both kinds have log_sd_ratio, (n_cases * n_functions,), the log of the ratio of the
    standard deviations of log odds or outputs over draws.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = {"log_sd_ratio": np.log(approximate.spread / exact.spread).ravel()}
        if exact.outputs is None or approximate.outputs is None:
            assert approximate.probabilities is not None and exact.probabilities is not None
            q, p = approximate.probabilities, exact.probabilities
            return {
                "total_variation": total_variation(p, q).mean(axis=1),
                "kl": kl(p, q).mean(axis=1),
                "agreement": agreement(p, q).mean(axis=1),
            } | ratio
        difference = approximate.outputs.mean(axis=2, dtype=np.float64) - exact.outputs.mean(
            axis=2, dtype=np.float64
        )
        return {
            "w2": (w2(approximate.outputs, exact.outputs) / exact.spread).ravel(),
            "mean_difference": np.square(difference / exact.spread).ravel(),
        } | ratio


def total_variation(p: Array, q: Array) -> Array:
    """Return sum |p - q| / 2 over labels, (...), of distributions (..., n_labels)."""
    return np.abs(p - q).sum(axis=-1) / 2


def kl(p: Array, q: Array) -> Array:
    """Return sum p log(p/q) over labels, (...), of distributions (..., n_labels); infinite where q is 0."""
    return np.asarray(scipy.special.rel_entr(p, q).sum(axis=-1))


def agreement(p: Array, q: Array) -> Array:
    """Return 1 where both distributions (..., n_labels) have the same most probable label, else 0."""
    return (p.argmax(axis=-1) == q.argmax(axis=-1)).astype(np.float64)


def w2(first: Array, second: Array) -> Array:
    """Return the Wasserstein distance of order 2 between two samples (..., n_draws) of numbers, (...).

    W2^2 is the integral over u in (0, 1) of the squared difference of the samples' quantile functions, which
    are steps of widths 1/n; the samples may have different sizes (Villani 2003, "Topics in Optimal
    Transportation", eq. 2.47).
    """
    sizes = first.shape[-1], second.shape[-1]
    # With whole numbers, common ends of steps are exactly equal.
    step_ends = [np.arange(1, n + 1) * (sizes[0] * sizes[1] // n) for n in sizes]
    ends = np.union1d(*step_ends)
    widths = np.diff(ends, prepend=0) / (sizes[0] * sizes[1])
    a, b = (
        np.sort(sample, axis=-1)[..., np.searchsorted(of_sample, ends)].astype(np.float64)
        for sample, of_sample in zip((first, second), step_ends, strict=True)
    )
    return np.sqrt(np.square(a - b) @ widths)


_SMALLEST = 1e-12  # probability; smaller ones have the same log odds
_COPIES = 6  # of all draws of a function at some cases, while methods are compared


@dataclass(frozen=True)
class Functions:
    """The functions of a run at some cases: averages over draws for labels, all draws for numbers.

    n_draws        number of draws of all chains together
    probabilities  (n_cases, n_targets, n_labels) for labels, None for numbers
    log_odds       (2, n_cases, n_targets, n_labels), the mean and the mean square over draws of each label's
                   log odds, None for numbers
    outputs        (n_cases, n_outputs, n_draws) on the networks' scale, None for labels
    """

    n_draws: int
    probabilities: Array | None = None
    log_odds: Array | None = None
    outputs: Array | None = None

    @property
    def spread(self) -> Array:
        """Standard deviation over draws of log odds or outputs, (n_cases, n_functions)."""
        if self.outputs is not None:
            return np.asarray(self.outputs.std(axis=2, dtype=np.float64))
        assert self.log_odds is not None
        mean, square = self.log_odds.reshape(2, self.log_odds.shape[1], -1)
        return np.sqrt(np.maximum(square - mean**2, 0.0))


def cases_at_once(runs: list[Draws], memory_bytes: float) -> int:
    """Return the number of cases to compare these runs at together."""
    spec, model = runs[0].spec, runs[0].spec.data_model
    n_draws = max(run.total for run in runs)
    per_case = 8 * _COPIES * spec.network.outputs * model.n_cells * (1 if model.has_labels else n_draws)
    per_case = max(per_case, 4 * model.n_cells * activation_bytes(spec.network, spec.dtype))
    return max(1, int(memory_bytes / 2 / per_case))


def functions_of(run: Draws, inputs: Array, *, memory_bytes: float) -> Functions:
    """Return the functions of all draws of a run.

    inputs : (n_cases, n_inputs)   standardised
    memory_bytes : float           approximate memory for a block of draws
    """
    model = run.spec.data_model
    sums, kept = np.zeros(()), []
    for _, _, outputs in output_blocks(run, inputs, memory_bytes=memory_bytes):
        flat = outputs.reshape(-1, len(inputs), outputs.shape[-1])
        if model.has_labels:
            p = distributions(run, model.probabilities(flat))
            odds = scipy.special.logit(np.clip(p, _SMALLEST, 1 - _SMALLEST))
            sums = sums + np.stack([p.sum(axis=0), odds.sum(axis=0), np.square(odds).sum(axis=0)])
        else:
            kept.append(np.moveaxis(flat, 0, 2))
    if model.has_labels:
        probabilities, *log_odds = sums / run.total
        return Functions(run.total, probabilities, np.stack(log_odds))
    return Functions(run.total, outputs=np.concatenate(kept, axis=2))


def distributions(run: Draws, probabilities: Array) -> Array:
    """Return probabilities (..., n_outputs) as a distribution for each target, (..., n_targets, n_labels)."""
    has_opposites = run.spec.data_model.n_labels == 2
    return (
        np.stack([1 - probabilities, probabilities], axis=-1)
        if has_opposites
        else probabilities[..., None, :]
    )


def merged(first: Functions, second: Functions) -> Functions:
    """Return the functions of the draws of both together."""
    n_draws = first.n_draws + second.n_draws
    share = first.n_draws / n_draws

    def mean(a: Array | None, b: Array | None) -> Array | None:
        return None if a is None or b is None else share * a + (1 - share) * b

    if first.outputs is None or second.outputs is None:
        probabilities = mean(first.probabilities, second.probabilities)
        return Functions(n_draws, probabilities, mean(first.log_odds, second.log_odds))
    return Functions(n_draws, outputs=np.concatenate([first.outputs, second.outputs], axis=2))


BINS = 15
BAND = 0.8  # from the 10 % to the 90 % quantile
INTERVALS = np.arange(1, 20) / 20  # levels of the central intervals in a picture
_LEVELS = (np.arange(64) + 0.5) / 64  # of the quantiles in the average that gives CRPS
_MOST_DRAWS = 1000  # evenly spaced draws of all chains for these quantiles


def scores(
    run: Draws, inputs: Array, targets: Array, *, executor: TaskExecutor, memory_bytes: float
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
    standardized = data.standardized(inputs)
    wanted = quantiles_of_points(run)
    whole = joined(
        summaries(
            [run],
            standardized,
            units.to_network(targets),
            executor=executor,
            quantiles=wanted,
            memory_bytes=memory_bytes,
        )
    )
    is_known = ~np.isnan(targets)
    log_jacobian = units.log_jacobian(targets).sum(axis=1)
    of_all = {"log_probability": np.where(is_known.any(axis=1), whole.log_probability - log_jacobian, np.nan)}
    if run.spec.data_model.has_labels:
        probabilities = distributions(run, whole.mean)
        is_right = np.where(is_known, probabilities.argmax(axis=-1) == targets, np.nan)
        confidence = np.where(is_known, probabilities.max(axis=-1), np.nan)
        return of_all | {
            "error_rate": 1 - _mean_of_known(is_right),
            "expected_error_rate": 1 - _mean_of_known(confidence),
            "confidence": confidence,
            "is_right": is_right,
        }
    is_known &= ~(run.spec.data_model.are_times & (targets < 0))
    error = np.where(is_known, np.square(whole.in_file_units(units).point - targets), np.nan)
    placed = places([run], inputs, targets, executor=executor, memory_bytes=memory_bytes / 4)
    loss = crps(units.to_file(_quantiles(run, standardized, executor, memory_bytes)), targets)
    return of_all | {
        "squared_error": np.where(is_known.any(axis=1), np.nansum(error, axis=1), np.nan),
        "crps": np.where(is_known, loss, np.nan),
        "low": placed.low,
        "high": placed.high,
    }


def _quantiles(run: Draws, inputs: Array, executor: TaskExecutor, memory_bytes: float) -> Array:
    """Return the quantiles at `_LEVELS` given some of the draws, (n_levels, n_cases, n_targets)."""
    some = hold(run, spread(run.n_draws, max(1, _MOST_DRAWS // run.n_chains)))
    wanted = {f"{level:g}": float(level) for level in _LEVELS}
    parts = summaries(
        [some], inputs, executor=executor, quantiles=wanted, with_modes=False, memory_bytes=memory_bytes
    )
    found = joined(parts).quantiles
    return np.stack([found[name] for name in wanted])


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


def calibration_error(confidence: Array, is_right: Array) -> float:
    """Return the expected calibration error over equal bins from 0 to 1 of the largest probability.

    It is the mean over cases of |share that was right - mean confidence| in the case's bin (Guo et al. 2017,
    "On calibration of modern neural networks", eq. 3); NaN without cases.

    confidence, is_right  of the same shape, NaN where a target is missing
    """
    n_cases, gap = _bins(confidence, is_right)[::3]
    return float(np.abs(gap).sum() / n_cases.sum()) if n_cases.sum() else math.nan


def reliability(confidence: Array, is_right: Array) -> tuple[Array, Array]:
    """Return mean confidence and the share that was right in each bin that has cases, (n_used_bins,) each."""
    n_cases, sum_confidence, sum_right, _ = _bins(confidence, is_right)
    is_used = n_cases > 0
    return sum_confidence[is_used] / n_cases[is_used], sum_right[is_used] / n_cases[is_used]


def _bins(confidence: Array, is_right: Array) -> tuple[Array, Array, Array, Array]:
    """Return cases, sums of confidence and of right guesses, and their difference, (BINS,) each."""
    is_known = ~np.isnan(is_right)
    confidence, is_right = confidence[is_known], is_right[is_known]
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    counted, said, right = (np.bincount(bins, weights, BINS) for weights in (None, confidence, is_right))
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


def log_probability_without_inputs(training: Array, test: Array, *, has_labels: bool) -> float:
    """Return the mean log probability of test cases, in nats a case, if only the training targets are known.

    The probability of a label is its share of the training cases, with one case of each label added. Numbers
    are Gaussian with the mean and the standard deviation of the training targets. A case's targets are
    independent.

    training : (n_training_cases, n_targets)  on the network's scale, NaN where missing
    test : (n_test_cases, n_targets)          on the network's scale, NaN where missing
    has_labels : bool                         True for labels, 0, 1, ..., and False for real numbers
    """
    total, is_known = np.zeros(len(test)), ~np.isnan(test)
    for known, right, at in zip(training.T, test.T, is_known.T, strict=True):
        known = known[~np.isnan(known)]
        if has_labels:
            labels = np.union1d(known, right[at])
            shares = (1 + (known[:, None] == labels).sum(axis=0)) / (len(known) + len(labels))
            total[at] += np.log(shares[np.searchsorted(labels, right[at])])
        else:
            total[at] += scipy.stats.norm.logpdf(right[at], known.mean(), known.std())
    return float(total[is_known.any(axis=1)].mean())
