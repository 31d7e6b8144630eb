"""Statistics of chains, to be compared with those of FBM."""

from __future__ import annotations

import numpy as np


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
    """Mean of values (n_chains, n_draws) and its standard error, computed from independent chains."""
    per_chain = values.mean(axis=1)
    return float(per_chain.mean()), float(per_chain.std(ddof=1) / np.sqrt(len(per_chain)))


def statistics(draws: np.ndarray) -> dict[str, tuple[float, float]]:
    """Estimate and standard error of the mean, standard deviation and quantiles of draws."""
    variance, variance_error = mean_and_error((draws - draws.mean()) ** 2)
    estimates = {"mean": mean_and_error(draws), "sd": (variance**0.5, variance_error / (2 * variance**0.5))}
    for name, level in (("q05", 0.05), ("q50", 0.5), ("q95", 0.95)):
        low, quantile, high = np.quantile(draws, [level - 0.02, level, level + 0.02])
        _, error = mean_and_error(draws < quantile)
        estimates[name] = (float(quantile), float(error * (high - low) / 0.04))
    return estimates
