"""Predictive distributions of overdispersed counts: equally weighted mixtures of negative binomial ones."""

from __future__ import annotations

import math

import numpy as np
import scipy.special

from rayfbnn.arrays import Array

_MAX_LOG_RATE = math.log(1e300)
_FROM_SERIES = 100.0  # from here on, three terms of Stirling's series are accurate to 1e-17
_RAISED_BELOW, _FROM_NORMAL = 8.0, 200.0  # FROM_STIRLING and FROM_NORMAL of kernels/shared/dispersed.hpp
_MOST_SUMMED = 64  # counts up to here are added up one by one
_HALF_LOG_2_PI = 0.5 * math.log(2 * math.pi)


def distribution_sums(log_means: Array, shapes: Array, counts: Array) -> tuple[Array, Array]:
    """Return the sums over draws of the probability of at most a count, and of the count itself, (...) each.

    Small counts are added up one by one, which takes a tenth of the time of incomplete beta functions.

    log_means (..., n_draws); shapes r broadcast to them; counts k (..., 1)
    """
    v = _finite(log_means)
    k, n_draws = counts.reshape(-1), v.shape[-1]
    v, r = (np.broadcast_to(part, log_means.shape).reshape(-1, n_draws) for part in (v, shapes))
    cdf, mass = np.empty(len(k)), np.empty(len(k))
    small = np.flatnonzero(k <= _MOST_SUMMED)
    small = small[np.argsort(-k[small], kind="stable")]
    cdf[small], mass[small] = _one_by_one(v[small], r[small], k[small])
    large = k > _MOST_SUMMED
    if large.any():
        cdf[large] = _at_most(v[large], r[large], k[large, None]).sum(axis=1)
        mass[large] = np.exp(log_mass(v[large], r[large], k[large, None])).sum(axis=1)
    shape = counts.shape[:-1]
    return cdf.reshape(shape), mass.reshape(shape)


def _one_by_one(v: Array, r: Array, k: Array) -> tuple[Array, Array]:
    """Return the two sums over draws for counts in descending order, (n,).

    P(0) = (r/(r + mu))**r  and  P(j) = P(j - 1) (r + j - 1)/j mu/(r + mu).  v and r are (n, n_draws)
    """
    share = scipy.special.expit(v - np.log(r))  # mu/(r + mu)
    with np.errstate(under="ignore"):
        mass = np.exp(-r * np.logaddexp(0.0, v - np.log(r)))
        cdf, times_shape = mass.copy(), r * share
        for j in range(1, int(k.max(initial=0)) + 1):
            n = int(np.searchsorted(-k, -j, side="right"))  # rows of counts from j on
            mass[:n] *= (times_shape[:n] + (j - 1) * share[:n]) / j
            cdf[:n] += mass[:n]
        return cdf.sum(axis=1), mass.sum(axis=1)


def _at_most(v: Array, shapes: Array, k: Array) -> Array:
    """Return P(Y <= k) = I(r/(r + mu); r, k + 1), the regularised incomplete beta function."""
    v, shapes, k = np.broadcast_arrays(v, shapes, k)
    odds = v - np.log(shapes)  # log(mu/r)
    # The smaller of the shares r/(r + mu) and mu/(r + mu) is free of rounding errors of 1 minus the other.
    smaller = scipy.special.expit(-np.abs(odds))
    is_of_shape = odds > 0
    is_of_mean = ~is_of_shape
    cdf = np.empty_like(odds)
    cdf[is_of_shape] = scipy.special.betainc(shapes[is_of_shape], k[is_of_shape] + 1, smaller[is_of_shape])
    cdf[is_of_mean] = scipy.special.betaincc(k[is_of_mean] + 1, shapes[is_of_mean], smaller[is_of_mean])
    return cdf


def mass_sums(log_means: Array, shapes: Array, counts: Array) -> Array:
    """Return the sums over draws of the probabilities of counts; arguments as in `distribution_sums`."""
    if counts.max(initial=0) <= _MOST_SUMMED:
        return distribution_sums(log_means, shapes, counts)[1]
    return np.asarray(np.exp(log_mass(log_means, shapes, counts)).sum(axis=-1))


def shape_constants(shapes: Array) -> Array:
    """Return what compiled code needs of each shape r, (..., 4).

    They are r, its logarithm, sqrt(r) exp(-s(r)) with the remainder s of Stirling's formula, and the number
    of terms of a continued fraction (kernels/shared/dispersed.hpp). With these the error of distribution
    functions is below 1e-9.
    """
    of_remainder = np.exp(0.5 * np.log(shapes) - _remainder(shapes))
    raised = np.where(shapes < _RAISED_BELOW, shapes + 8, np.minimum(shapes, _FROM_NORMAL))
    n_terms = np.ceil(4 + 2.5 * np.sqrt(raised))
    return np.stack([shapes, np.log(shapes), of_remainder, n_terms], axis=-1)


def log_mass(log_means: Array, shapes: Array, counts: Array) -> Array:
    """Return the log probability of counts k given means mu and shapes r, accurate even for large counts.

    The arguments broadcast to each other.

    With N = r + k, a = log(N mu/((r + mu) k)), b = log(N/(r + mu)) and the remainder s of Stirling's formula

        log P(k) = k a + r b + s(N) - s(r) - s(k) + log(r/(2 pi N k))/2

    k a + r b is written as k (a - expm1(a)) + r (b - expm1(b)), because k expm1(a) + r expm1(b) = 0: both
    terms are then at most 0 and nothing cancels. Loader (2000), "Fast and accurate computation of binomial
    probabilities".
    """
    v = _finite(log_means)
    k = np.maximum(counts, 1.0)
    total = shapes + k
    excess = np.logaddexp(0.0, v - np.log(shapes))  # log(1 + mu/r)
    b = np.log1p(k / shapes) - excess
    a = b + v - np.log(k)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        at_mean = _remainder(total) - _remainder(shapes) - _remainder(k) - _HALF_LOG_2_PI
        at_mean = at_mean + 0.5 * (np.log(shapes / total) - np.log(k))
        away = k * (a - np.expm1(a)) + shapes * (b - np.expm1(b))
    return np.asarray(np.where(counts > 0, at_mean + away, -shapes * excess))


def _finite(log_means: Array) -> Array:
    return np.minimum(log_means.astype(np.float64), _MAX_LOG_RATE)


def _remainder(z: Array) -> Array:
    """Return log Gamma(z + 1) - (z + 1/2) log z + z - log(2 pi)/2."""
    small = np.minimum(z, _FROM_SERIES)
    exact = scipy.special.gammaln(small + 1) - (small + 0.5) * np.log(small) + small - _HALF_LOG_2_PI
    large = np.maximum(z, _FROM_SERIES)
    square = 1 / (large * large)
    series = (1 / 12 - square * (1 / 360 - square / 1260)) / large
    return np.where(z < _FROM_SERIES, exact, series)
