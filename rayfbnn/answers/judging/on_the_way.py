"""Tests whether chains still move: their agreement then does not tell where they will end."""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from rayfbnn.arrays import Array

PARTS = 8  # of each chain, whose means show whether it travels
_FALSE_ALARMS = 0.01  # of each test, where there is no drift
_FREQUENCIES = 4
_MOST_TREND = 0.5  # a quarter where a chain is long, 0.7 for a random walk, 1 for a steady drift


def change_of(parts: Array, scale: Array) -> tuple[float, bool]:
    """Return the change between two parts (2, n_chains, n_values), and whether chance explains it."""
    changes = parts[1] - parts[0]
    change = root_mean_square(changes.mean(axis=0) ** 2, scale)
    chance = root_mean_square(squared_error(changes), scale)
    return change, change <= chance * quantile_of_t(1 - _FALSE_ALARMS / 2, len(changes) - 1)


def is_on_its_way(parts: Array, scale: Array, max_error: float) -> bool:
    """Return True if chains still travel, so that their agreement tells nothing of where they will end.

    Either the average over chains moves on: it changes from the third quarter of the draws to the last, and
    if every further change is smaller than the one before in the same proportion as until now, the error is
    above the limit. Or the single chains travel: most of what a chain moves between eighths of its draws is
    the slowest cosine, as in a random walk. Or they move apart from each other.

    Parameters
    ----------
    parts : (8, n_chains, n_values)   means in eighths of each chain
    scale : (n_values,)               variances of predictions
    max_error : float                 the limit of an error, in units of their roots
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

    Chains that diffuse away from one place move apart. The halves of a chain are correlated, so that the
    test is that of Pitman (1939), "A note on normal correlation": two variances are equal if sums and
    differences of the pairs are not correlated. Several values are summed over.

    Parameters
    ----------
    first, second : (n_chains, n_values)   means of each half of each chain
    rate : float                           probability that chains without drift seem to move apart
    """
    n_chains = len(first)
    if n_chains < 3:
        return False
    first, second = first - first.mean(axis=0), second - second.mean(axis=0)
    sums, differences = ((first + second) ** 2).sum(), ((second - first) ** 2).sum()
    with np.errstate(all="ignore"):  # chains that never move, or that all move by the same: NaN
        correlation = (second**2 - first**2).sum() / np.sqrt(sums * differences)
        t = correlation * np.sqrt((n_chains - 2) / (1 - correlation**2))
    return bool(t > quantile_of_t(1 - rate, n_chains - 2))


def _scaled(values: Array, scale: Array) -> Array:
    """Return values in units of standard deviations; 0 for one that never varies."""
    return np.asarray(np.divide(values, np.sqrt(scale), out=np.zeros_like(values), where=scale > 0))


def _error_at_rate(late: float, early: float) -> float:
    """Return the error of the mean over four quarters, of which the last two differ by `late`.

    The distance from the end is taken to fall by a factor r from quarter to quarter; the first two differ by
    `early` = `late` / r**2. Infinite where the changes do not become smaller.
    """
    if late >= early:
        return math.inf
    r = math.sqrt(late / early)
    last = late * r / (1 - r)  # distance of the last quarter
    return last * (1 + 1 / r + 1 / r**2 + 1 / r**3) / 4


def _trend(parts: Array, scale: Array) -> float:
    """Return the mean over chains of the share that the slowest cosine has in the movement of a chain.

    Of four frequencies it is a quarter for independent parts. The powers of a random walk fall with the
    square of the frequency, so that it is 1 / (1 + 1/4 + 1/9 + 1/16) = 0.7. 0 for chains that do not move.
    """
    places = (np.arange(PARTS) + 0.5) / PARTS
    cosines = np.cos(np.pi * np.arange(1, _FREQUENCIES + 1)[:, None] * places)
    powers = np.tensordot(cosines, parts, axes=1) ** 2  # (n_frequencies, n_chains, n_values)
    by_chain = np.divide(powers, scale, out=np.zeros_like(powers), where=scale > 0).sum(axis=2)
    whole = by_chain.sum(axis=0)
    shares: Array = np.divide(by_chain[0], whole, out=np.zeros_like(whole), where=whole > 0)
    return float(shares.mean())


def squared_error(values: Array) -> Array:
    """Squared standard error of the mean over independent chains, (n_values,)."""
    return np.asarray(values.var(axis=0, ddof=1) / len(values))


def root_mean_square(squares: Array, scale: Array) -> float:
    """Root of the mean of squares / scale; a value that never varies has no error."""
    return float(np.sqrt(np.divide(squares, scale, out=np.zeros_like(scale), where=scale > 0).mean()))


@cache
def quantile_of_t(probability: float, degrees: int) -> float:
    """Return a quantile of Student's t: how many standard errors chance stays below."""
    from scipy.stats import t

    return float(t.ppf(probability, degrees))
