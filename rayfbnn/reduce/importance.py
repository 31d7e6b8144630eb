"""Weights of draws that leave a case out, for many cases at once, by Pareto-smoothed importance sampling."""

from __future__ import annotations

import math

import numpy as np

from rayfbnn.arrays import Array

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
