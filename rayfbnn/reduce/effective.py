"""R-hat, effective sample sizes and Monte Carlo errors of arrays (..., n_chains, n_draws), by arviz-stats."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rayfbnn.arrays import Array

_UNDERFLOW = 600.0  # exp(-708) is the smallest normal number
_LEAST_TAIL = 5  # fewest weights for a fit of a Pareto distribution
MIN_DRAWS = 4  # with fewer, the two halves of a chain have no variance and the results are NaN


def rhat(values: Array) -> Array:
    """Return the rank-normalised split R-hat, the larger of bulk and tail, (...); NaN for one chain."""
    return _call("rhat", values, method="rank")


def ess_mean(values: Array) -> Array:
    """Return the effective sample size of the mean, (...)."""
    return _call("ess", values, method="mean")


def ess_bulk(values: Array) -> Array:
    """Return the effective sample size of rank-normalised split chains, (...)."""
    return _call("ess", values, method="bulk")


def ess_tail(values: Array) -> Array:
    """Return the smaller effective sample size of the 5 % and 95 % quantiles, (...)."""
    return _call("ess", values, method="tail", prob=(0.05, 0.95))


def ess_quantile(values: Array, probability: float) -> Array:
    """Return the effective sample size of a quantile, (...)."""
    return _call("ess", values, method="quantile", prob=probability)


def mcse_mean(values: Array) -> Array:
    """Return the Monte Carlo standard error of the mean, (...)."""
    return _call("mcse", values, method="mean")


def pareto_k(log_weights: Array) -> float:
    """Return the shape k of the Pareto distribution of the largest weights, given their logs (n_draws,).

    The result is NaN if a weight is not finite, if there are too few weights, or if the largest are all
    equal. It is infinite if the largest weight exceeds others in the tail by so much that they underflow to
    zero, because no shape can be fitted then.
    """
    from arviz_stats import base

    if not np.isfinite(log_weights).all() or np.ptp(log_weights) == 0:
        return math.nan
    n = len(log_weights)
    tail = math.ceil(min(0.2 * n, 3 * math.sqrt(n)))  # number of weights in the fit
    largest = np.sort(log_weights)[-tail:]
    if tail < _LEAST_TAIL or np.ptp(largest) == 0:
        return math.nan
    if np.ptp(largest) > _UNDERFLOW:
        return math.inf
    statistics: Any = base.array_stats  # type: ignore[attr-defined]
    with np.errstate(all="ignore"):
        k = float(statistics.psislw(-np.asarray(log_weights))[1])  # it takes minus the logs
    return k if math.isfinite(k) else math.nan


def _call(name: str, values: Array, **settings: Any) -> Array:
    """Call arviz-stats, which follows Vehtari, Gelman, Simpson, Carpenter and Buerkner (2021)."""
    from arviz_stats import base

    statistics: Any = base.array_stats  # type: ignore[attr-defined]
    with np.errstate(all="ignore"):  # constant chains: 0/0 is NaN, which is the answer
        return np.asarray(getattr(statistics, name)(values, **settings))
