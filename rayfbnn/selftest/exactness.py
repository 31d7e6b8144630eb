"""Statistical tests of a sampler that starts at exact draws, with a known rate of false alarms."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.special

LEVEL = 1e-5  # rate of false alarms of a suite of statistics, over all looks together
LOOKS = 7

Values = np.ndarray[Any, Any]


def seed_of(name: str) -> int:
    """Return the seed of a test, which depends only on the name; results change only with the code."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")


def is_exact(p_values: Callable[[int, int], list[float]], *, name: str, n_chains: int) -> bool:
    """Return False if a suite of statistics does not have its distribution; false alarms are 1 in 100,000.

    Gandy and Scott (2021), "Unit testing for MCMC and other Monte Carlo methods", algorithm 2: decide at once
    if the smallest p-value is clearly large or clearly small, and otherwise look again with four times as
    many new chains. `p_values(seed, n_chains)` returns the p-values, which are combined by Bonferroni.
    """
    beta = LEVEL / LOOKS
    gamma = beta ** (1 / LOOKS)
    for look in range(LOOKS):
        values = p_values(seed_of(f"{name}, look {look}"), n_chains if look == 0 else 4 * n_chains)
        smallest = min(values) * len(values)
        if not smallest > beta:
            return False
        if smallest > gamma + beta:
            return True
        beta /= gamma
    return True


def ks_p_value(uniforms: Values) -> float:
    """Return the Kolmogorov-Smirnov p-value for values uniform on (0, 1); asymptotic, Stephens (1970)."""
    n = uniforms.size
    ordered = np.sort(uniforms.ravel())
    distance = max(np.max(np.arange(1, n + 1) / n - ordered), np.max(ordered - np.arange(n) / n))
    root = np.sqrt(n)
    return float(scipy.special.kolmogorov((root + 0.12 + 0.11 / root) * distance))


def ks_two_sample_p_value(a: Values, b: Values) -> float:
    """Return the Kolmogorov-Smirnov p-value for two samples from the same distribution."""
    root = np.sqrt(len(a) * len(b) / (len(a) + len(b)))
    return float(scipy.special.kolmogorov((root + 0.12 + 0.11 / root) * ks_distance(a, b)))


def ks_distance(a: Values, b: Values) -> float:
    """Return the largest distance between the empirical distribution functions of two samples, (n,) each."""
    a, b = np.sort(a), np.sort(b)
    points = np.concatenate([a, b])
    below_a = np.searchsorted(a, points, side="right") / len(a)
    below_b = np.searchsorted(b, points, side="right") / len(b)
    return float(np.abs(below_a - below_b).max())


def chi2_p_value(counts: Values) -> float:
    """Return the p-value of Pearson's test for equally likely cells."""
    expected = counts.sum() / counts.size
    statistic = float(((counts - expected) ** 2).sum() / expected)
    return float(scipy.special.chdtrc(counts.size - 1, statistic))


def square_p_value(u: Values, v: Values, *, bins: int = 20) -> float:
    """Return the p-value for pairs uniform on the unit square, from counts in bins x bins cells."""
    cell = (bins * u).astype(int).clip(0, bins - 1) * bins + (bins * v).astype(int).clip(0, bins - 1)
    return chi2_p_value(np.bincount(cell, minlength=bins * bins))
