"""Weights of draws that leave a case out, for many cases at once, by Pareto-smoothed importance sampling."""

from __future__ import annotations

import math

import numpy as np

from rayfbnn.arrays import Array

_LEAST_TAIL = 5  # weights in a fit
_PRIOR_DRAWS, _PRIOR_K, _PRIOR_QUARTILE = 10, 0.5, 3  # of Zhang and Stephens, and of Vehtari and others
_TINY = math.log(np.finfo(np.float64).tiny)


def smoothed(log_weights: Array) -> tuple[Array, Array]:
    """Return weights that add up to one, and the Pareto k of each case.

    The largest weights of a case are replaced by quantiles of a Pareto distribution that is fitted to them:
    Vehtari, Simpson, Gelman, Yao and Gabry, JMLR 25 (2024). If the largest weights are all equal, or too
    few for a fit, all weights stay unchanged and k is NaN.

    Parameters
    ----------
    log_weights : (n_cases, n_draws)   finite, up to a constant of each case
    """
    n_draws = log_weights.shape[1]
    n_tail = int(min(0.2 * n_draws, 3 * math.sqrt(n_draws)))
    logs = log_weights - log_weights.max(axis=1, keepdims=True)
    k = np.full(len(logs), np.nan)
    if n_draws > n_tail >= _LEAST_TAIL:
        order = np.argpartition(logs, n_draws - n_tail - 1, axis=1)[:, n_draws - n_tail - 1 :]
        largest = np.take_along_axis(logs, order, axis=1)
        order = np.take_along_axis(order, np.argsort(largest, axis=1), axis=1)
        largest = np.take_along_axis(logs, order, axis=1)
        bound = np.exp(np.maximum(largest[:, :1], _TINY))
        excess = np.exp(largest[:, 1:]) - bound
        can_fit = excess[:, 0] > 0
        k[can_fit], sigma = _pareto_fit(excess[can_fit])
        share = (np.arange(n_tail) + 0.5) / n_tail
        tail = np.log(_pareto_quantiles(share, k[can_fit], sigma) + bound[can_fit])
        rows = np.flatnonzero(can_fit)[:, None]
        logs[rows, order[can_fit, 1:]] = np.minimum(tail, 0.0)
    weights = np.exp(logs)
    weights /= weights.sum(axis=1, keepdims=True)
    return weights, k


def _pareto_fit(excess: Array) -> tuple[Array, Array]:
    """Return the shape k and the scale of a generalised Pareto distribution, (n_cases,) each.

    Zhang and Stephens (2009), "A new and efficient estimation method for the generalized Pareto
    distribution".

    excess  (n_cases, n) increasing positive numbers
    """
    n = excess.shape[1]
    n_points = 30 + int(math.sqrt(n))
    points = 1 - np.sqrt(n_points / (np.arange(n_points) + 0.5))
    quartile = excess[:, int(n / 4 + 0.5) - 1, None]
    b = points / (_PRIOR_QUARTILE * quartile) + 1 / excess[:, -1:]  # (n_cases, n_points)
    shapes = np.log1p(-b[:, :, None] * excess[:, None]).mean(axis=2)
    with np.errstate(all="ignore"):
        logs = n * (np.log(-b / shapes) - shapes - 1)
    logs = np.where(np.isfinite(logs), logs, -np.inf)
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    best = (b * weights).sum(axis=1) / weights.sum(axis=1)
    k = np.log1p(-best[:, None] * excess).mean(axis=1)
    scale = -k / best
    return (n * k + _PRIOR_DRAWS * _PRIOR_K) / (n + _PRIOR_DRAWS), scale


def _pareto_quantiles(share: Array, k: Array, scale: Array) -> Array:
    """Return quantiles at shares (n,), (n_cases, n)."""
    shape = np.where(np.abs(k) < 1e-12, 1e-12, k)[:, None]
    return scale[:, None] * np.expm1(-shape * np.log1p(-share)) / shape
