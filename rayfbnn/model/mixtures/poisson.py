"""Predictive distributions of counts: equally weighted mixtures of Poisson distributions."""

from __future__ import annotations

import math

import numpy as np
import scipy.special

from rayfbnn.arrays import Array

_MAX_LOG_RATE = math.log(1e300)  # SciPy's incomplete gamma function is NaN from 3e305
_LARGE = 1e4  # above this count, two terms of Stirling's series are accurate to 1 / (360 k**3)


def mass_sums(log_rates: Array, counts: Array) -> Array:
    """Return the sums over draws of the probabilities of counts, (...).

    log_rates (..., n_draws); counts (..., 1)
    """
    v = np.minimum(log_rates.astype(np.float64), _MAX_LOG_RATE)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):  # k = 0
        log_k = np.log(counts)
        d = v - log_k
        log_mass = np.where(counts > 0, _at_best(counts) + counts * (d - np.expm1(d)), -np.exp(v))
    return np.asarray(np.exp(log_mass).sum(axis=-1))


def count_constants(counts: Array) -> Array:
    """Return log(k) and the probability of k if the rate is k, (2, ...); for 0 those of 1."""
    k = np.maximum(counts, 1.0)
    return np.stack([np.log(k), np.exp(_at_best(k))])


def _at_best(k: Array) -> Array:
    """Return the log probability of a count k if the rate is k; by Stirling's series for large ones."""
    exact = k * np.log(k) - k - scipy.special.gammaln(k + 1)
    stirling = -0.5 * np.log(2 * np.pi * k) - 1 / (12 * k)
    return np.where(k == 0, 0.0, np.where(k < _LARGE, exact, stirling))
