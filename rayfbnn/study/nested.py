"""Nested R-hat: whether many short chains agree, in groups of chains that started at one place."""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
import scipy.special
import scipy.stats

from rayfbnn.arrays import Array

Scores: TypeAlias = tuple[Array, Array]


def nested_rhat(values: Array) -> float:
    """Return the rank-normalised nested R-hat of one quantity, the larger of bulk and tail.

    The result is NaN for one superchain, for a quantity that never changes, and for values that are not
    finite. A single draw of each chain is enough.

    values  (n_superchains, n_chains, n_draws)
    """
    scores = rank_scores(values)
    return math.nan if scores is None else nested_rhat_of_scores(scores)


def rank_scores(values: Array) -> Scores | None:
    """Return normal scores of the ranks of values, and of the ranks of the distances from the median.

    Vehtari et al. (2021), "Rank-normalization, folding, and localization: an improved R-hat", eq. 14, compute
    R-hat from these scores: the first show the bulk, the second the tails. Both have the shape of `values`.
    The result is None for a quantity that never changes, and for values that are not finite.
    """
    values = np.asarray(values, dtype=np.float64)
    if not np.isfinite(values).all() or np.ptp(values) == 0:
        return None
    return _normal_scores(values), _normal_scores(np.abs(values - np.median(values)))


def _normal_scores(values: Array) -> Array:
    ranks = scipy.stats.rankdata(values, method="average", axis=None).reshape(values.shape)
    return np.asarray(scipy.special.ndtri((ranks - 0.375) / (values.size + 0.25)))


def nested_rhat_of_scores(scores: Scores) -> float:
    """Return the larger nested R-hat of two scores (n_superchains, n_chains, n_draws).

    A quantity with two values, equally far from its median, has no tails to compare. The bulk alone counts.
    """
    bulk, tails = scores
    return float(np.fmax(plain_nested_rhat(bulk), plain_nested_rhat(tails)))


def plain_nested_rhat(values: Array) -> float:
    """Return the nested R-hat of values (n_superchains, n_chains, n_draws) as they are.

    It is sqrt(1 + B / W) of Margossian et al. (2024), "Nested R-hat: assessing the convergence of Markov
    chain Monte Carlo when running many short chains", equations 6 to 8: B is the variance of the means of
    the superchains, and W the mean over superchains of the variance of the chains' means plus the mean
    variance in a chain. Chains are not split, because both halves of a chain would be in one superchain,
    and a drift would make W larger. The result is NaN for one superchain.
    """
    if len(values) < 2:
        return math.nan
    means = values.mean(axis=2)
    between = means.mean(axis=1).var(ddof=1)
    within = np.zeros(len(values))
    if values.shape[1] > 1:
        within += means.var(axis=1, ddof=1)
    if values.shape[2] > 1:
        within += values.var(axis=2, ddof=1).mean(axis=1)
    with np.errstate(all="ignore"):  # constant chains that differ: B / 0 is the answer
        return float(np.sqrt(1 + between / within.mean()))
