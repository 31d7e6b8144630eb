"""Predictive distributions of counts: equally weighted mixtures of Poisson distributions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import scipy.special

from rayfbnn.arrays import Array

_MAX_FIRST = 4096  # candidates for a mode
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


def mixture_modes(log_rates: Array, low: Array, high: Array) -> Array:
    """Return the most probable count of each case between low and high, (n_cases,).

    The first candidates are a quarter of a standard deviation apart, because a Poisson distribution, and so
    the mixture, is smooth on that scale. The search continues among all counts next to the best one. For
    counts above a few hundred thousand, the 4096 first candidates are further apart and may miss a narrow
    peak.

    log_rates (n_cases, n_draws); low, high (n_cases,) whole numbers such as the 1 % and 99 % points
    """
    modes = np.empty(len(log_rates))
    for case, log_rate in enumerate(log_rates):
        v = np.minimum(log_rate.astype(np.float64), _MAX_LOG_RATE)
        # Even steps of the square root are proportional to the standard deviation.
        roots = np.sqrt(low[case]), np.sqrt(high[case])
        n_first = int(min(_MAX_FIRST, 8 * (roots[1] - roots[0]) + 2))
        k = np.unique(np.floor(np.linspace(*roots, n_first) ** 2))
        while True:
            at = int(np.argmax(_log_mass(k, v)))
            first, last = k[max(at - 1, 0)], k[min(at + 1, len(k) - 1)]
            if last - first <= max(2, 2 * np.spacing(last)):
                break
            k = np.unique(np.floor(np.linspace(first, last, 17)))
        modes[case] = k[at]
    return modes


def mixture_mass(log_rates: Array, counts: Array) -> Array:
    """Return the probability of a count in each case, (n_cases,).

    log_rates (n_cases, n_draws); counts (n_cases,)
    """
    v = np.minimum(log_rates.astype(np.float64), _MAX_LOG_RATE)
    log_mass = [_log_mass(counts[case : case + 1], v[case])[0] for case in range(len(v))]
    return np.minimum(np.exp(log_mass) / log_rates.shape[1], 1.0)  # rounding could exceed one


def _log_mass(k: Array, v: Array) -> Array:
    """Return the log probability of each count plus log n_draws; one count at a time saves memory.

    k v - exp(v) - log k! is computed as k (d - (exp(d) - 1)) + (k log k - k - log k!) with d = v - log k.
    For large counts, the original terms nearly cancel and would lose all digits.
    """
    with np.errstate(divide="ignore", invalid="ignore"):  # k = 0
        log_k = np.log(k)
        exact = k * log_k - k - scipy.special.gammaln(k + 1)
        stirling = -0.5 * np.log(2 * np.pi * k) - 1 / (12 * k)
        at_best = np.where(k == 0, 0.0, np.where(k < _LARGE, exact, stirling))
        rates = np.exp(v)
        of_others = [
            scipy.special.logsumexp(one * (v - log_one - np.expm1(v - log_one)) if one > 0 else -rates)
            for one, log_one in zip(k, log_k, strict=True)
        ]
    return np.asarray(at_best + of_others)
