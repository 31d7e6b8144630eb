"""Tests whether chains still travel, because chains can agree long before they arrive."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import scipy.special

from rayfbnn.arrays import Array

PARTS = 8  # of each chain; their means show whether the chain travels
_FALSE_ALARMS = 0.01  # rate of each test if chains do not drift
_FREQUENCIES = 4
_MOST_TREND = 0.5  # the trend of a long chain is 0.25, of a random walk 0.7, of a steady drift 1


def change_of(parts: Array, scale: Array) -> tuple[float, bool]:
    """Return the change between two parts (2, n_chains, n_values), and whether chance explains it."""
    changes = parts[1] - parts[0]
    change = root_mean_square(changes.mean(axis=0) ** 2, scale)
    chance = root_mean_square(squared_error(changes), scale)
    return change, change <= chance * quantile_of_t(1 - _FALSE_ALARMS / 2, len(changes) - 1)


def is_on_its_way(parts: Array, scale: Array, max_error: float) -> bool:
    """Return True if chains still travel, so their agreement does not show where they will end.

    Chains travel if one of three tests says so:

    * The average over chains still moves: it changes from the third quarter of the draws to the last. If
      later changes shrink at the same rate as the changes so far, its error is above the limit.
    * Single chains move like a random walk: the slowest cosine makes up most of a chain's movement between
      eighths of its draws.
    * The chains move apart.

    Parameters
    ----------
    parts : (8, n_chains, n_values)   means in eighths of each chain
    scale : (n_values,)               variances of predictions
    max_error : float                 limit of the error, in predictive standard deviations
    """
    quarters = parts.reshape(4, 2, *parts.shape[1:]).mean(axis=1)
    late, is_chance = change_of(quarters[2:], scale)
    if not is_chance and late > 0:
        early, _ = change_of(quarters[:2], scale)
        if _error_at_rate(late, early) > max_error:
            return True
    first, second = quarters.reshape(2, 2, *parts.shape[1:]).mean(axis=1)
    if move_apart(_scaled(first, scale), _scaled(second, scale), _FALSE_ALARMS):
        return True
    return _trend(parts, scale) > _MOST_TREND


def move_apart(first: Array, second: Array, rate: float) -> bool:
    """Return True if chains differ more in the second half of their draws than in the first.

    Chains that diffuse away from a common place move apart. The halves of a chain are correlated, so the test
    is that of Pitman (1939), "A note on normal correlation": two variances are equal if the sums and the
    differences of the pairs are uncorrelated. The sums run over all values.

    Parameters
    ----------
    first, second : (n_chains, n_values)   means of each half of each chain
    rate : float                           probability of a false alarm for chains without drift
    """
    n_chains = len(first)
    if n_chains < 3:
        return False
    first, second = first - first.mean(axis=0), second - second.mean(axis=0)
    sums, differences = ((first + second) ** 2).sum(), ((second - first) ** 2).sum()
    with np.errstate(all="ignore"):  # NaN if chains never move or all move alike
        correlation = (second**2 - first**2).sum() / np.sqrt(sums * differences)
        t = correlation * np.sqrt((n_chains - 2) / (1 - correlation**2))
    return bool(t > quantile_of_t(1 - rate, n_chains - 2))


def _scaled(values: Array, scale: Array) -> Array:
    """Return values in units of standard deviations; 0 for a value that never varies."""
    return np.asarray(np.divide(values, np.sqrt(scale), out=np.zeros_like(values), where=scale > 0))


def _error_at_rate(late: float, early: float) -> float:
    """Return the error of the mean over four quarters if the last two quarters differ by `late`.

    The distance from the final value is assumed to fall by a factor r from quarter to quarter, so the first
    two quarters differ by `early` = `late` / r**2. The error is infinite if the changes do not shrink.
    """
    if late >= early:
        return math.inf
    r = math.sqrt(late / early)
    last = late * r / (1 - r)  # distance of the last quarter
    return last * (1 + 1 / r + 1 / r**2 + 1 / r**3) / 4


def _trend(parts: Array, scale: Array) -> float:
    """Return the share of the slowest cosine in the movement of a chain, averaged over chains.

    With four frequencies the share is 1/4 for independent parts. The powers of a random walk fall with the
    square of the frequency, so its share is 1 / (1 + 1/4 + 1/9 + 1/16) = 0.7. The share of a chain that does
    not move is 0.
    """
    places = (np.arange(PARTS) + 0.5) / PARTS
    cosines = np.cos(np.pi * np.arange(1, _FREQUENCIES + 1)[:, None] * places)
    powers = np.tensordot(cosines, parts, axes=1) ** 2  # (n_frequencies, n_chains, n_values)
    by_chain = np.divide(powers, scale, out=np.zeros_like(powers), where=scale > 0).sum(axis=2)
    whole = by_chain.sum(axis=0)
    shares: Array = np.divide(by_chain[0], whole, out=np.zeros_like(whole), where=whole > 0)
    return float(shares.mean())


def squared_error(values: Array) -> Array:
    """Return the squared standard error of the mean over independent chains, (n_values,)."""
    return np.asarray(values.var(axis=0, ddof=1) / len(values))


def root_mean_square(squares: Array, scale: Array) -> float:
    """Return the root of the mean of squares / scale; a value that never varies counts as 0."""
    return float(np.sqrt(np.divide(squares, scale, out=np.zeros_like(scale), where=scale > 0).mean()))


@cache
def quantile_of_t(probability: float, degrees: int) -> float:
    """Return a quantile of Student's t distribution: the most standard errors that chance explains."""
    return float(scipy.special.stdtrit(degrees, probability))
