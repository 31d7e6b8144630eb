"""Left-out cases by Pareto-smoothed importance sampling: weights of draws, and places of targets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.special

from rayfbnn.arrays import Array
from rayfbnn.draws.outputs import activation_bytes
from rayfbnn.draws.view import Draws
from rayfbnn.model.likelihood.data_model import DataModel
from rayfbnn.reduce.blocks import KEPT_BYTES, Reader, bytes_of, units_of
from rayfbnn.reduce.passes import TaskExecutor
from rayfbnn.reduce.tile import Tile, by_draw

_LEAST_TAIL = 5  # weights in a fit
_PRIOR_DRAWS, _PRIOR_K, _PRIOR_QUARTILE = 10, 0.5, 3  # of Zhang and Stephens, and of Vehtari and others
_NEGLIGIBLE = 10 * np.finfo(np.float64).eps  # share of a point in the fit, below which it is left out
_UNDERFLOW = 600.0  # exp(-708) is the smallest normal number
_NEARLY_EQUAL = 1.01  # the largest weight over the mean; no probability by such weights is off by more


def smoothed(log_weights: Array) -> tuple[Array, Array]:
    """Return weights that add up to one, and the Pareto k of each case.

    The largest weights of a case are replaced by quantiles of a Pareto distribution that is fitted to them:
    Vehtari, Simpson, Gelman, Yao and Gabry, JMLR 25 (2024). The weights are those of arviz-stats, also where
    draws are repeated. If no distribution can be fitted, because the largest weights are equal, or too few,
    or too many of them are equal to the largest of the others, all weights stay unchanged. Then k is minus
    infinity if the weights of all draws are nearly equal, and NaN if not: such weights are not reliable.

    Parameters
    ----------
    log_weights : (n_cases, n_draws)   finite, up to a constant of each case
    """
    n_draws = log_weights.shape[1]
    n_tail = _tail(n_draws)
    logs = log_weights - log_weights.max(axis=1, keepdims=True)
    k = np.full(len(logs), np.nan)
    if n_draws > n_tail >= _LEAST_TAIL:
        order = np.argsort(logs, axis=1)[:, n_draws - n_tail - 1 :]
        largest = np.exp(np.take_along_axis(logs, order, axis=1))
        bound, tail = largest[:, :1], largest[:, 1:]
        k, sigma = _pareto_fit(tail - bound)
        is_fitted = np.isfinite(k) & (sigma > 0) & (tail[:, 0] < tail[:, -1])
        k = np.where(is_fitted, k, np.nan)
        share = (np.arange(n_tail) + 0.5) / n_tail
        quantiles = np.log(_pareto_quantiles(share, k[is_fitted], sigma[is_fitted]) + bound[is_fitted])
        rows = np.flatnonzero(is_fitted)[:, None]
        logs[rows, order[is_fitted, 1:]] = np.minimum(quantiles, 0.0)
    weights = np.exp(logs)
    weights /= weights.sum(axis=1, keepdims=True)
    is_flat = np.isnan(k) & (weights.max(axis=1) * n_draws <= _NEARLY_EQUAL)
    return weights, np.where(is_flat, -np.inf, k)


def pareto_k(log_weights: Array) -> float:
    """Return the Pareto k of weights, given their logs (n_draws,); see `smoothed`.

    It is NaN if a weight is not finite. It is infinite if the largest weight exceeds others in the tail by so
    much that they underflow to zero, because no shape can be fitted then.
    """
    if not np.isfinite(log_weights).all():
        return math.nan
    n_tail = _tail(len(log_weights))
    if n_tail >= _LEAST_TAIL and np.ptp(np.sort(log_weights)[-n_tail:]) > _UNDERFLOW:
        return math.inf
    return float(smoothed(log_weights[None])[1][0])


def is_unreliable(k: Array, limit: float) -> Array:
    """Return True where means by importance weights of Pareto k are unreliable: it is too large, or NaN."""
    return np.asarray(~(k <= limit))


def tail_shape(values: Array) -> float:
    """Return the Pareto k of the heavier tail of values (n,); NaN if it cannot be estimated.

    With 1/2 or more, the variance is infinite, and the mean has no standard error; with 1 or more, as for a
    Cauchy distribution, the mean does not exist.
    """
    n_tail = _tail(len(values))
    if n_tail < _LEAST_TAIL or not np.isfinite(values).all():
        return math.nan
    ordered = np.sort(values)
    tails = np.stack([ordered[-n_tail - 1 :], -ordered[n_tail::-1]])
    k, _ = _pareto_fit(tails[:, 1:] - tails[:, :1])
    return float(np.fmax(k[0], k[1]))


def _tail(n_draws: int) -> int:
    """Return the number of the largest weights that a Pareto distribution is fitted to."""
    return int(min(0.2 * n_draws, 3 * math.sqrt(n_draws)))


def _pareto_fit(excess: Array) -> tuple[Array, Array]:
    """Return the shape k and the scale of a generalised Pareto distribution, (n_cases,) each.

    Zhang and Stephens (2009), "A new and efficient estimation method for the generalized Pareto
    distribution". Both are NaN where a quarter of the numbers is zero.

    excess  (n_cases, n) increasing numbers, zero or more
    """
    n = excess.shape[1]
    n_points = 30 + int(math.sqrt(n))
    points = 1 - np.sqrt(n_points / (np.arange(n_points) + 0.5))
    quartile = excess[:, int(n / 4 + 0.5) - 1, None]
    with np.errstate(all="ignore"):
        b = points / (_PRIOR_QUARTILE * quartile) + 1 / excess[:, -1:]  # (n_cases, n_points)
        shapes = np.log1p(-b[:, :, None] * excess[:, None]).mean(axis=2)
        logs = n * (np.log(-b / shapes) - shapes - 1)
        weights = np.exp(logs - logs.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        weights = np.where(weights < _NEGLIGIBLE, 0.0, weights)
        best = (b * weights).sum(axis=1) / weights.sum(axis=1)
        k = np.log1p(-best[:, None] * excess).mean(axis=1)
        scale = -k / best
    return (n * k + _PRIOR_DRAWS * _PRIOR_K) / (n + _PRIOR_DRAWS), scale


def _pareto_quantiles(share: Array, k: Array, scale: Array) -> Array:
    """Return quantiles at shares (n,), (n_cases, n)."""
    shape = np.where(np.abs(k) < 1e-12, 1e-12, k)[:, None]
    return scale[:, None] * np.expm1(-shape * np.log1p(-share)) / shape


_MOST_CASES = 128  # of a tile whose draws a process keeps in memory


@dataclass(frozen=True)
class Placed:
    """Predictive distributions at some cases, and the places of the targets in them.

    A value is a target, or the probability of a label.

    low, high    (n_cases, n_targets) ends of the place of each target that is a number, as in
                 `answers.calibration.Places`; NaN for labels
    probability  (n_cases, n_labels) of each label; no labels for numbers
    mean, sd     (n_cases, n_values) of the targets by all draws, on the scale of `DataModel.moments`
    p            (n_cases,) effective number of parameters that a case takes; zero if none is left out
    pareto_k     (n_cases,) of the weights, as in `importance.smoothed`; NaN if none is left out
    is_finite    (n_cases,) whether the outputs of all networks are finite; other fields say nothing if not
    """

    low: Array
    high: Array
    probability: Array
    mean: Array
    sd: Array
    p: Array
    pareto_k: Array
    is_finite: Array

    def some(self, at: Array) -> Placed:
        """Return the fields at some cases."""
        return Placed(*(part[at] for part in _fields(self)))


def place(
    runs: Sequence[Draws],
    inputs: Array,
    targets: Array,
    *,
    leaves_out: bool,
    executor: TaskExecutor,
    memory_bytes: float = 64e6,
) -> Placed:
    """Place the targets of some cases within the predictive distributions of one or several runs.

    With `leaves_out` the cases are training cases. Each is placed within the predictive distribution given
    all other cases: draw d has the weight 1 / p_d, where p_d is the density of the case's targets, and the
    largest weights are smoothed (`importance.smoothed`). At a temperature T the weights are p_d**(-1/T).

    The values of all draws at the cases of a tile are held at once. The tiles depend on the runs and
    `memory_bytes`, not on the executor.

    Parameters
    ----------
    inputs, targets : (n_cases, ...)   standardised; a missing target is NaN
    memory_bytes : float               approximate memory of a task, besides the draws that it keeps
    """
    at_once = _cases_at_once(runs, memory_bytes)
    slices = [slice(first, first + at_once) for first in range(0, len(inputs), at_once)]
    jobs = [PlaceJob(inputs[at], targets[at], leaves_out, memory_bytes / 4) for at in slices]
    tiles = list(executor.map(place_tile, runs, jobs))
    return Placed(*(np.concatenate(parts) for parts in zip(*map(_fields, tiles), strict=True)))


def _fields(placed: Placed) -> tuple[Array, ...]:
    return tuple(vars(placed).values())


@dataclass(frozen=True)
class PlaceJob:
    """Some cases to place; the fields are as in `place`."""

    inputs: Array
    targets: Array
    leaves_out: bool
    memory_bytes: float


def place_tile(reader: Reader, job: PlaceJob) -> Placed:
    """Return the places at some cases. They depend on the draws and the job alone."""
    runs = reader.runs
    model, n_cases = runs[0].spec.data_model, len(job.targets)
    tiles = [Tile(run, job.inputs, memory_bytes=job.memory_bytes) for run in runs]
    values, densities, moments, is_finite = [], [], np.zeros(()), np.ones(n_cases, bool)
    for unit in units_of(runs):
        for _, some, outputs in tiles[unit.run].parts(reader.block(unit)):
            is_finite &= np.isfinite(outputs).all(axis=(0, 2))
            if not is_finite.all():
                outputs = np.where(np.isfinite(outputs), outputs, 0)
            given = by_draw(outputs, some)
            mean, variance = (part.astype(np.float64) for part in model.moments(*given))
            moments = moments + np.stack([mean.sum(axis=2), (mean**2 + variance).sum(axis=2)])
            values.append(mean if model.has_labels else _places(model, *given, job.targets))
            if job.leaves_out:
                densities.append(model.log_density(outputs, job.targets, some.noise).T)
    n_draws = sum(run.total for run in runs)
    weights = np.full((n_cases, n_draws), 1 / n_draws)
    p, pareto_k = np.zeros(n_cases), np.full(n_cases, np.nan)
    if job.leaves_out:
        density = _finite(np.concatenate(densities, axis=1))
        weights, pareto_k = smoothed(-density / runs[0].spec.temperature)
        p = _log_mean(density, 1 / n_draws) - _log_mean(density, weights)
    weighted = np.einsum("...cd,cd->...c", _by_row(values), weights)  # (2 or 1, n_values, n_cases)
    mean, square = moments / n_draws
    sd = np.sqrt(np.maximum(square - mean**2, 0))
    return Placed(*_ends(model, weighted, job.targets), mean, sd, p, pareto_k, is_finite)


def _by_row(values: list[Array]) -> Array:
    """Return values of all draws, (..., n_values, n_cases, n_draws)."""
    return np.moveaxis(np.concatenate(values, axis=-1), -3, -2)


def _places(model: DataModel, outputs: Array, sigmas: Array, targets: Array) -> Array:
    """Return P(Y < y) and P(Y <= y) given each draw, (2, n_cases, n_targets, n_draws).

    The sums of `DataModel.distribution` are over a single draw each: every draw is treated as a case.
    """
    n_cases, _, n_draws = outputs.shape
    each = outputs.transpose(0, 2, 1).reshape(n_cases * n_draws, -1, 1)
    of_noise = np.broadcast_to(sigmas.transpose(0, 2, 1), (n_cases, n_draws, sigmas.shape[1]))
    values = np.repeat(np.nan_to_num(np.abs(targets) if model.are_times else targets), n_draws, axis=0)
    cdf, mass, _ = model.distribution(each, of_noise.reshape(n_cases * n_draws, -1, 1), values)
    low = np.maximum(cdf - mass, 0) if model.has_modes else cdf  # a count
    return np.stack([low, cdf]).reshape(2, n_cases, n_draws, -1).swapaxes(2, 3)


def _ends(model: DataModel, weighted: Array, targets: Array) -> tuple[Array, Array, Array]:
    """Return low, high and probability of `Placed`."""
    nothing = np.full(targets.shape, np.nan)
    if model.has_labels:
        return nothing, nothing, weighted.T
    low, high = np.clip(weighted.swapaxes(1, 2), 0, 1)
    if model.are_times:  # a censored time has a minus sign, and the event comes later
        high = np.where(targets < 0, 1.0, high)
    is_known = ~np.isnan(targets)
    low, high = (np.where(is_known, end, np.nan) for end in (low, high))
    return low, high, np.empty((len(targets), 0))


def _finite(log_density: Array) -> Array:
    """Return log densities with a very small number for minus infinity."""
    return np.nan_to_num(log_density.astype(np.float64), nan=0.0, neginf=-1e8, posinf=1e8)


def _log_mean(logs: Array, weights: Array | float) -> Array:
    """Return the log of the weighted mean over draws, (n_cases,)."""
    return np.asarray(scipy.special.logsumexp(logs, axis=1, b=weights))


def _cases_at_once(runs: Sequence[Draws], memory_bytes: float) -> int:
    """Return the number of cases in a tile, whose values and densities take at most half of the memory."""
    first, n_draws = runs[0], sum(run.total for run in runs)
    n_values = 2 * max(first.data.n_targets, first.spec.network.outputs)
    of_network = first.spec.data_model.n_cells * activation_bytes(first.spec.network, first.spec.dtype)
    is_kept = sum(map(bytes_of, runs)) <= KEPT_BYTES
    needed = max(8 * n_draws * (3 + 2 * n_values), 4 * of_network)
    return max(1, min(_MOST_CASES if is_kept else 1 << 16, int(memory_bytes / 2 / needed)))
