"""Bennett's acceptance ratio: log Z from level to level of a ladder, with its error."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rayfbnn.arrays import Array

_LARGEST = 1e6  # nats; larger differences are as good as infinite
_TOLERANCE = 1e-8  # nats
# Draws that belong to both levels of a pair. A ladder whose colder levels are in another phase than its
# hotter ones has a pair with fewer. Errors of 2 nats were stated there, and log Z was 130 nats below others.
_LEAST_DRAWS = 5.0


@dataclass(frozen=True)
class LogRatios:
    """The logs of ratios of normalising constants along one ladder.

    increments      (K-1,) log Z_{k+1} - log Z_k
    standard_error  of the total. It allows for the autocorrelation of the draws, and for the dependence of
                    levels on each other. It is infinite if the draws of a pair hardly overlap
    """

    increments: tuple[float, ...]
    standard_error: float

    @property
    def total(self) -> float:
        """Log Z of the top less log Z of the hot level."""
        return math.fsum(self.increments)


def bennett(forward: Array, reverse: Array) -> LogRatios:
    """Estimate log Z from level to level of one ladder, from the same number n of draws at each level.

    With f = E_{k+1} - E_k at draws of level k and r = E_k - E_{k+1} at draws of level k+1, C = log Z_{k+1} -
    log Z_k solves

    sum sigma(-f - C) = sum sigma(-r + C),  sigma(t) = 1/(1 + exp(-t))

    Bennett (1976), "Efficient estimation of free energy differences from Monte Carlo data", eqs. 12a and 12b.
    An iteration of the ladder contributes u = sum over k of sigma(-f - C)/m_f - sigma(-r + C)/m_r, where m_f
    and m_r are means over the draws. To first order the total is its true value plus the mean of u, whose
    error it therefore has.

    forward, reverse  (n, K-1) of one ladder, on the host
    """
    f, r = _limited(forward), _limited(reverse)
    increments = [_solved(f[:, k], r[:, k]) for k in range(f.shape[1])]
    of_f, of_r = _sigmoid(-f - np.array(increments)), _sigmoid(-r + np.array(increments))
    # The means of sigma go from 0 for distributions without a common state to 1/2 for equal ones.
    overlaps = of_f.mean(axis=0)
    error = math.inf
    if len(f) * overlaps.min() >= _LEAST_DRAWS:
        influence = of_f / overlaps - of_r / of_r.mean(axis=0)
        error = standard_error_of_mean(influence.sum(axis=1))
    return LogRatios(tuple(increments), error)


def _limited(differences: Array) -> Array:
    """Return differences of energies as float64; of two infinite energies the difference is large."""
    values = np.nan_to_num(np.asarray(differences, dtype=np.float64), nan=_LARGEST)
    return np.clip(values, -_LARGEST, _LARGEST)


def _solved(f: Array, r: Array) -> float:
    """Solve for C; the difference of both sums falls as C rises."""
    from scipy.optimize import brentq  # takes a fifth of a second to import

    low, high = float(min(-f.max(), r.min())) - 1, float(max(-f.min(), r.max())) + 1
    solution: float = brentq(
        lambda c: _sigmoid(-f - c).sum() - _sigmoid(-r + c).sum(), low, high, xtol=_TOLERANCE
    )
    return solution


def _sigmoid(t: Array) -> Array:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-t))


def standard_error_of_mean(series: Array) -> float:
    """Return the standard error of the mean of an autocorrelated series (n,).

    The sum of autocovariances ends where the sum of a pair is no longer positive, and these sums do not rise:
    the initial monotone sequence of Geyer (1992), "Practical Markov chain Monte Carlo", section 3.3.
    """
    n = len(series)
    if n < 4 or not np.isfinite(series).all():
        return math.inf
    centred = series - series.mean()
    transform = np.fft.rfft(centred, 2 * n)
    covariance = np.fft.irfft(transform * np.conj(transform))[:n] / n
    pairs = covariance[: 2 * (n // 2)].reshape(-1, 2).sum(axis=1)
    positive = np.flatnonzero(pairs <= 0)
    pairs = np.minimum.accumulate(pairs[: positive[0] if len(positive) else len(pairs)])
    variance = max(2 * float(pairs.sum()) - float(covariance[0]), float(covariance[0]) / n)
    return math.sqrt(variance / n)
