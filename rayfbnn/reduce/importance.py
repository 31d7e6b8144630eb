"""Cases left out by Pareto-smoothed importance sampling: weights of draws, densities, and places."""

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
from rayfbnn.reduce.effective import MIN_DRAWS, ess_mean
from rayfbnn.reduce.passes import TaskExecutor
from rayfbnn.reduce.tile import KEPT_BYTES, Reader, Tile, by_draw, bytes_of, units_of

_LEAST_TAIL = 5  # weights in a fit
_PRIOR_DRAWS, _PRIOR_K, _PRIOR_QUARTILE = 10, 0.5, 3  # of Zhang and Stephens, and of Vehtari and others
_NEGLIGIBLE = 10 * np.finfo(np.float64).eps  # share of a point in the fit, below which it is left out
_UNDERFLOW = 600.0  # exp(-708) is the smallest normal number
_NEARLY_EQUAL = 1.01  # the largest weight over the mean; no probability by such weights is off by more


def smoothed(log_weights: Array, *, efficiency: float = 1.0) -> tuple[Array, Array]:
    """Return log weights up to a constant of each case, zero at most, and the Pareto k of each case.

    The largest weights of a case are replaced by quantiles of a Pareto distribution that is fitted to them:
    Vehtari, Simpson, Gelman, Yao and Gabry, JMLR 25 (2024). The weights are those of arviz-stats, also where
    draws are repeated. If no distribution can be fitted, because the largest weights are equal, or too few,
    or too many of them are equal to the largest of the others, all weights stay unchanged. Then k is minus
    infinity if the weights of all draws are nearly equal, and NaN if not: such weights are not reliable.

    Parameters
    ----------
    log_weights : (n_cases, n_draws)   finite, up to a constant of each case
    efficiency : float                 effective sample size of the weights, divided by the number of draws
    """
    n_draws = log_weights.shape[1]
    n_tail = _tail(n_draws, efficiency)
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
    is_flat = np.isnan(k) & (n_draws <= _NEARLY_EQUAL * np.exp(logs).sum(axis=1))
    return logs, np.where(is_flat, -np.inf, k)


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


def _tail(n_draws: int, efficiency: float = 1.0) -> int:
    """Return the number of the largest weights that a Pareto distribution is fitted to."""
    return int(min(0.2 * n_draws, 3 * math.sqrt(n_draws / efficiency)))


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
class TileJob:
    """Some cases at which the values of all draws are held at once.

    inputs, targets  (n_cases, ...), standardised; a missing target is NaN
    leaves_out       whether the cases are training cases, each to be left out
    memory_bytes     memory for networks at work
    """

    inputs: Array
    targets: Array
    leaves_out: bool
    memory_bytes: float


def tile_jobs(
    runs: Sequence[Draws],
    inputs: Array,
    targets: Array,
    *,
    memory_bytes: float,
    leaves_out: bool = True,
    n_values: int = 1,
) -> list[TileJob]:
    """Return the tiles of all cases, which depend on the runs and the memory.

    The values of all draws, and four networks, each take at most half of the memory. If a process keeps all
    draws in memory, small tiles cost no reading.

    n_values  numbers that are held for each draw and case
    """
    first, n_draws = runs[0], sum(run.total for run in runs)
    of_network = first.spec.data_model.n_cells * activation_bytes(first.spec.network, first.spec.dtype)
    at_most = _MOST_CASES if sum(map(bytes_of, runs)) <= KEPT_BYTES else len(inputs)
    needed = max(8 * n_draws * n_values, 4 * of_network)
    at_once = max(1, min(at_most, int(memory_bytes / 2 / needed)))
    tiles = [slice(at, at + at_once) for at in range(0, len(inputs), at_once)]
    return [TileJob(inputs[at], targets[at], leaves_out, memory_bytes / 4) for at in tiles]


def leave_out_tile(reader: Reader, job: TileJob) -> Array:
    """Return elpd, p and Pareto k of some cases of a run, (3, n_cases); see `leave_out_one`."""
    (run,) = reader.runs
    tile = Tile(run, job.inputs, memory_bytes=job.memory_bytes)
    densities = np.empty((len(job.targets), run.n_chains, run.n_draws))
    for unit in units_of([run]):
        for at, some, outputs in tile.finite_parts(reader.block(unit)):
            rows, draws = np.divmod(np.arange(at.start, at.stop), unit.draws[1] - unit.draws[0])
            of_draws = tile.model.log_density(outputs, job.targets, some.noise)
            densities[:, unit.chains[0] + rows, unit.draws[0] + draws] = of_draws.T
    return np.array([leave_out_one(of_case) for of_case in densities]).T


def leave_out_one(log_densities: Array) -> tuple[float, float, float]:
    """Return elpd, p and Pareto k of a case, given its log density in every draw, (n_chains, n_draws).

    The weights are not smoothed if no Pareto distribution can be fitted to the largest. Then k is minus
    infinity if all weights are nearly equal, and else infinite; the case then counts as unreliable.
    """
    if np.isneginf(log_densities).any():
        return -math.inf, math.inf, math.inf
    flat = log_densities.reshape(1, -1)
    log_weights, (k,) = smoothed(-flat, efficiency=relative_efficiency(log_densities))
    (elpd,), (p,) = _elpd_and_p(flat, log_weights)
    return float(elpd), float(p), math.inf if np.isnan(k) else float(k)


def relative_efficiency(log_densities: Array) -> float:
    """Return the effective sample size of a case's density divided by the number of draws; 1 if unknown.

    It decides how many of the largest weights are smoothed. It is unknown for a single chain (where ArviZ
    takes 1 too), for fewer than MIN_DRAWS draws a chain, and for a constant density.

    log_densities  (n_chains, n_draws)
    """
    if len(log_densities) == 1 or log_densities.shape[1] < MIN_DRAWS:
        return 1.0
    share = float(ess_mean(np.exp(log_densities - log_densities.max()))) / log_densities.size
    return share if math.isfinite(share) and share > 0 else 1.0


def _elpd_and_p(log_densities: Array, log_weights: Array) -> tuple[Array, Array]:
    """Return elpd and p of cases, (n_cases,) each, given the arrays (n_cases, n_draws)."""
    elpd = _log_sum(log_densities + log_weights) - _log_sum(log_weights)
    return elpd, _log_sum(log_densities) - math.log(log_densities.shape[1]) - elpd


def _log_sum(logs: Array) -> Array:
    return np.asarray(scipy.special.logsumexp(logs, axis=1))


@dataclass(frozen=True)
class Placed:
    """Predictive distributions at some cases, and the places of the targets in them.

    A value is a target, or the probability of a label.

    low, high    (n_cases, n_targets) ends of the place of each target that is a number, as in
                 `answers.measures.Places`; NaN for labels
    probability  (n_cases, n_labels) of each label; no labels for numbers
    mean, sd     (n_cases, n_values) of the targets by all draws, on the scale of `DataModel.moments`
    p            (n_cases,) effective number of parameters that a case takes; zero if none is left out
    pareto_k     (n_cases,) of the weights, as in `smoothed`; NaN if none is left out
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
        return Placed(*(part[at] for part in vars(self).values()))


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

    Parameters
    ----------
    inputs, targets : (n_cases, ...)   standardised; a missing target is NaN
    memory_bytes : float               approximate memory of a task, besides the draws that it keeps
    """
    n_values = 3 + 4 * max(runs[0].data.n_targets, runs[0].spec.network.outputs)
    jobs = tile_jobs(
        runs, inputs, targets, memory_bytes=memory_bytes, leaves_out=leaves_out, n_values=n_values
    )
    parts = [vars(tile).values() for tile in executor.map(place_tile, runs, jobs)]
    return Placed(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def place_tile(reader: Reader, job: TileJob) -> Placed:
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
            values.append(mean if model.has_labels else _distributions(model, *given, job.targets))
            if job.leaves_out:
                densities.append(model.log_density(outputs, job.targets, some.noise).T)
    n_draws = sum(run.total for run in runs)
    weights = np.full((n_cases, n_draws), 1 / n_draws)
    p, pareto_k = np.zeros(n_cases), np.full(n_cases, np.nan)
    if job.leaves_out:
        density = np.concatenate(densities, axis=1).astype(np.float64)
        density = np.nan_to_num(density, nan=0.0, neginf=-1e8, posinf=1e8)
        log_weights, pareto_k = smoothed(-density / runs[0].spec.temperature)
        _, p = _elpd_and_p(density, log_weights)
        weights = np.exp(log_weights)
        weights /= weights.sum(axis=1, keepdims=True)
    by_row = np.moveaxis(np.concatenate(values, axis=-1), -3, -2)  # (..., n_values, n_cases, n_draws)
    weighted = np.einsum("...cd,cd->...c", by_row, weights).swapaxes(-1, -2)
    mean, square = moments / n_draws
    sd = np.sqrt(np.maximum(square - mean**2, 0))
    if model.has_labels:
        nothing = np.full(job.targets.shape, np.nan)
        return Placed(nothing, nothing, weighted, mean, sd, p, pareto_k, is_finite)
    cdf, mass = weighted
    low, high = ends_of_places(model, np.clip(cdf, 0, 1), mass, job.targets)
    return Placed(low, high, np.empty((n_cases, 0)), mean, sd, p, pareto_k, is_finite)


def values_at(model: DataModel, targets: Array) -> Array:
    """Return the values at which distribution functions place targets; zero for missing ones."""
    return np.nan_to_num(np.abs(targets) if model.are_times else targets)


def ends_of_places(model: DataModel, cdf: Array, mass: Array, targets: Array) -> tuple[Array, Array]:
    """Return the ends of the places of targets, in the shape of the arrays; NaN for missing targets.

    A count is placed between P(Y < y) and P(Y <= y). A censored time has a minus sign, and its event comes
    later.

    cdf, mass  P(Y <= y), and for counts P(Y = y), by predictive distributions
    """
    low = np.maximum(cdf - mass, 0) if model.has_modes else cdf
    high = np.where(targets < 0, 1.0, cdf) if model.are_times else cdf
    return np.where(np.isnan(targets), np.nan, low), np.where(np.isnan(targets), np.nan, high)


def _distributions(model: DataModel, outputs: Array, sigmas: Array, targets: Array) -> Array:
    """Return P(Y <= y) and P(Y = y) given each draw, (2, n_cases, n_targets, n_draws).

    The sums of `DataModel.distribution` are over a single draw each: every draw is treated as a case.
    """
    n_cases, _, n_draws = outputs.shape
    each = outputs.transpose(0, 2, 1).reshape(n_cases * n_draws, -1, 1)
    of_noise = np.broadcast_to(sigmas.transpose(0, 2, 1), (n_cases, n_draws, sigmas.shape[1]))
    values = np.repeat(values_at(model, targets), n_draws, axis=0)
    sums = model.distribution(each, of_noise.reshape(n_cases * n_draws, -1, 1), values)
    return np.asarray(sums[:2].reshape(2, n_cases, n_draws, -1).swapaxes(2, 3))
