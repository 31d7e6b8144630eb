"""Statistics and p-values of rows of cases, for the tests of the verdict on fit."""

from __future__ import annotations

import numpy as np
import scipy.special

from rayfbnn.arrays import Array

LEAST_PLACE = 1e-16  # the distance of a place from 0 or 1 that float64 can tell
_LEAST_P = 1e-300


def normal_scores(places: Array) -> Array:
    """Return the standard normal quantiles of places; those at 0 or 1 are about 8.2 from the middle."""
    return np.asarray(scipy.special.ndtri(np.clip(places, LEAST_PLACE, 1 - LEAST_PLACE)))


def anderson_darling(places: Array) -> Array:
    """Return the p-value of uniformity of each row, (n_rows,).

    The statistic of Anderson and Darling (1954) weighs both tails; its distribution for many cases is that of
    Marsaglia and Marsaglia (2004), "Evaluating the Anderson-Darling distribution".

    places  (n_rows, n_cases)
    """
    n = places.shape[1]
    ordered = np.sort(np.clip(places, LEAST_PLACE, 1 - LEAST_PLACE), axis=1)
    odd = 2 * np.arange(1, n + 1) - 1
    square = -n - ((np.log(ordered) + np.log1p(-ordered[:, ::-1])) @ odd) / n
    return _anderson_p(square)


def _anderson_p(square: Array) -> Array:
    z = np.clip(square, 1e-3, None)
    low = np.minimum(z, 2.0)
    poly = np.polyval([0.00168691, -0.011672, 0.0347962, -0.0649821, 0.247105, 2.00012], low)
    below = 1 - np.exp(-1.2337141 / low) / np.sqrt(low) * poly
    high = np.clip(z, 2.0, 12.0)
    poly = np.polyval([-0.0003146, 0.008056, -0.082433, 0.43424, -2.30695, 1.0776], high)
    above = -np.expm1(-np.exp(poly)) * np.exp(-np.maximum(z - 12.0, 0))
    return np.clip(np.where(z < 2.0, below, above), _LEAST_P, 1.0)


def binomial_p(counts: Array, n: int, share: float) -> Array:
    """Return two-sided p-values of binomial counts: twice the smaller tail."""
    at_most = scipy.special.bdtr(counts, n, share)
    at_least = np.where(counts > 0, scipy.special.bdtrc(np.maximum(counts - 1, 0), n, share), 1.0)
    return np.clip(2 * np.minimum(at_most, at_least), _LEAST_P, 1.0)


def ranks(values: Array) -> Array:
    """Return the ranks in each row, centred and scaled to a sum of squares of one; zeros if all are equal."""
    n = values.shape[1]
    order = np.argsort(values, axis=1, kind="stable")
    of_sorted = np.take_along_axis(values, order, axis=1)
    is_new = np.concatenate([np.ones((len(values), 1), bool), of_sorted[:, 1:] != of_sorted[:, :-1]], axis=1)
    place = np.arange(n)[None]
    first = np.maximum.accumulate(np.where(is_new, place, 0), axis=1)
    is_last = np.concatenate([is_new[:, 1:], np.ones((len(values), 1), bool)], axis=1)
    last = np.minimum.accumulate(np.where(is_last, place, n)[:, ::-1], axis=1)[:, ::-1]
    result = np.empty(values.shape)
    np.put_along_axis(result, order, (first + last) / 2, axis=1)
    result -= result.mean(axis=1, keepdims=True)
    size = np.sqrt((result**2).sum(axis=1, keepdims=True))
    return np.divide(result, size, out=np.zeros_like(result), where=size > 0)


def correlation_p(spread: Array, covariate: Array) -> Array:
    """Return two-sided p-values of Spearman's rank correlation, (n_rows,); the arguments are from `ranks`."""
    n = spread.shape[1]
    correlation = np.clip((spread * covariate).sum(axis=1), -1 + 1e-12, 1 - 1e-12)
    t = correlation * np.sqrt((n - 2) / (1 - correlation**2))
    return np.clip(2 * scipy.special.stdtr(n - 2, -np.abs(t)), _LEAST_P, 1.0)


def two_sided(z: Array) -> Array:
    """Return two-sided p-values of standard normal statistics."""
    return np.clip(2 * scipy.special.ndtr(-np.abs(z)), _LEAST_P, 1.0)


def limits_of_share(n: int, share: float, probability: float = 0.95) -> tuple[float, float]:
    """Return the limits within which a binomial share lies with a probability of at least `probability`."""
    counts = np.arange(n + 1)
    at_most = scipy.special.bdtr(counts, n, share)
    tail = (1 - probability) / 2
    low, high = (int((at_most < share_below).sum()) for share_below in (tail, 1 - tail))
    return low / n, min(high, n) / n
