"""R-hat, effective sample sizes and Monte Carlo errors of arrays (..., n_chains, n_draws), by arviz-stats."""

from __future__ import annotations

from typing import Any

import numpy as np

from rayfbnn.arrays import Array

MIN_DRAWS = 4  # below, a chain cannot be split in two halves that have a variance: NaN


def rhat(values: Array) -> Array:
    """Return the rank-normalised split R-hat, the larger of bulk and tail, (...); NaN for one chain."""
    return _call("rhat", values, method="rank")


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


def _call(name: str, values: Array, **settings: Any) -> Array:
    """Call arviz-stats, which follows Vehtari, Gelman, Simpson, Carpenter and Buerkner (2021)."""
    from arviz_stats import base

    statistics: Any = base.array_stats  # type: ignore[attr-defined]
    with np.errstate(all="ignore"):  # constant chains: 0/0 is NaN, which is the answer
        return np.asarray(getattr(statistics, name)(values, **settings))
