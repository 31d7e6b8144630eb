"""Predictive distributions of counts: equally weighted mixtures of Poisson distributions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import scipy.special

from rayfbnn.arrays import Array

_MAX_LOG_RATE = math.log(1e300)  # SciPy's incomplete gamma function is NaN from 3e305
_LARGE = 1e4  # above this count, two terms of Stirling's series are accurate to 1 / (360 k**3)


def mixture_quantiles(log_rates: Array, probabilities: Sequence[float]) -> Array:
    """Return the smallest k with P(Y <= k) >= p for each case and p, (n_cases, n_probabilities) float64.

    P(Y <= k) = (1/n) sum_d Q(k + 1, rate_d), Q the regularised upper incomplete gamma function; by bisection.
    Above 2**53, k is a whole number that float64 can represent. Rates are limited to 1e300.

    log_rates (n_cases, n_draws)
    """
    quantiles = np.empty((len(log_rates), len(probabilities)))
    for case, log_rate in enumerate(log_rates):
        rates = np.exp(np.minimum(log_rate.astype(np.float64), _MAX_LOG_RATE))
        for column, p in enumerate(probabilities):
            low, high = -1.0, 1.0
            while _cdf(high, rates) < p:
                low, high = high, 4 * high
            # The ends need not become 1 apart: float64 numbers above 2**53 never are.
            while low < (middle := np.floor((low + high) / 2)) < high:
                low, high = (low, middle) if _cdf(middle, rates) >= p else (middle, high)
            quantiles[case, column] = high
    return quantiles


def _cdf(k: float, rates: Array) -> float:
    return float(scipy.special.gammaincc(k + 1, rates).mean())


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


def _at_best(k: Array) -> Array:
    """Return the log probability of a count k if the rate is k; by Stirling's series for large ones."""
    exact = k * np.log(k) - k - scipy.special.gammaln(k + 1)
    stirling = -0.5 * np.log(2 * np.pi * k) - 1 / (12 * k)
    return np.where(k == 0, 0.0, np.where(k < _LARGE, exact, stirling))
