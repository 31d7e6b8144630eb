"""Nested R-hat: whether many short chains agree, in groups of chains that started at one place."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.special
import scipy.stats

from rayfbnn.arrays import Array

_LEAST_DRAWS = 4  # of a chain, below which arviz-stats gives NaN


def nested_rhat(values: Array) -> float:
    """Return the rank-normalised nested R-hat of one quantity, the larger of bulk and tail.

    It is R = sqrt(1 + B / W) of Margossian et al. (2024), "Nested R-hat: assessing the convergence of Markov
    chain Monte Carlo when running many short chains", equations 6 to 8: B is the variance of the means of
    the superchains, and W the mean over superchains of the variance of the means of their chains plus the
    mean variance in a chain. It works with a single draw of each chain, where the last variance is zero.
    NaN for one superchain, or for a quantity that never changes.

    values  (n_superchains, n_chains, n_draws)
    """
    n_superchains, n_chains, n_draws = values.shape
    if n_superchains < 2:
        return float("nan")
    flat = np.asarray(values, dtype=np.float64)
    if not np.isfinite(flat).all() or np.ptp(flat) == 0:
        return float("nan")
    if n_draws >= _LEAST_DRAWS:
        from arviz_stats import base

        statistics: Any = base.array_stats  # type: ignore[attr-defined]
        superchains = np.repeat(np.arange(n_superchains), n_chains)
        chains = flat.reshape(n_superchains * n_chains, n_draws)
        with np.errstate(all="ignore"):  # constant chains that differ: B / 0 is the answer
            return float(statistics.rhat_nested(chains, superchains, method="rank"))
    return max(_of_ranks(flat), _of_ranks(np.abs(flat - np.median(flat))))


def _of_ranks(values: Array) -> float:
    """Return the nested R-hat of normal scores of the ranks, as Vehtari et al. (2021) normalise R-hat."""
    ranks = scipy.stats.rankdata(values, method="average", axis=None).reshape(values.shape)
    return plain_nested_rhat(scipy.special.ndtri((ranks - 0.375) / (values.size + 0.25)))


def plain_nested_rhat(values: Array) -> float:
    """Return sqrt(1 + B / W) of values (n_superchains, n_chains, n_draws) as they are."""
    means = values.mean(axis=2)
    between = means.mean(axis=1).var(ddof=1)
    within = np.zeros(len(values))
    if values.shape[1] > 1:
        within += means.var(axis=1, ddof=1)
    if values.shape[2] > 1:
        within += values.var(axis=2, ddof=1).mean(axis=1)
    with np.errstate(all="ignore"):
        return float(np.sqrt(1 + between / within.mean()))
