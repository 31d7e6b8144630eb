"""R-hat, effective sample sizes and Monte Carlo errors of one quantity, in little memory.

The formulas are those of Vehtari, Gelman, Simpson, Carpenter and Buerkner (2021), "Rank-normalization,
folding, and localization: an improved R-hat", and the numbers are those of arviz-stats. At most five arrays
as large as the draws are held, and Fourier transforms are computed for a few chains at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import scipy.fft
import scipy.special

from rayfbnn.arrays import Array

_BLOCK_BYTES = 4e6  # of chains that are transformed at once; more only wait for memory
_TOGETHER_BYTES = 250e3  # of quantities of few draws that are computed together
_RESOLUTION = 1e-15  # values that differ by less are one value
MIN_DRAWS = 4  # with fewer, the two halves of a chain have no variance and the results are NaN


class Convergence(NamedTuple):
    """The statistics that chains are judged by; see the functions of the same names."""

    rhat: float
    ess_bulk: float
    ess_tail: float
    mcse: float


def convergence(values: Array) -> Convergence:
    """Return all statistics of a quantity (n_chains, n_draws); the ranks are computed once."""
    if not _is_usable(values):
        return Convergence(math.nan, math.nan, math.nan, math.nan)
    rhats: list[float] = []
    size = math.nan
    for scores in both_scores(_halves(values)):
        if not rhats:
            size = _ess(scores)
        rhats.append(_plain_rhat(scores) if len(values) > 1 else math.nan)
        del scores  # before the next ones are computed
    return Convergence(max(rhats), size, ess_tail(values), float(mcse_mean(values)))


def rhat(values: Array) -> float:
    """Return the rank-normalised split R-hat, the larger of bulk and tail; NaN for one chain."""
    if not _is_usable(values) or len(values) < 2:
        return math.nan
    return max([_plain_rhat(scores) for scores in both_scores(_halves(values))])


def ess_bulk(values: Array) -> float:
    """Return the effective sample size of rank-normalised split chains."""
    return _ess(next(both_scores(_halves(values)))) if _is_usable(values) else math.nan


def ess_tail(values: Array) -> float:
    """Return the smaller effective sample size of the 5 % and 95 % quantiles."""
    return min(ess_quantile(values, 0.05), ess_quantile(values, 0.95))


def ess_quantile(values: Array, probability: float) -> float:
    """Return the effective sample size of a quantile."""
    return _ess(_halves(values <= np.quantile(values, probability))) if _is_usable(values) else math.nan


def ess_mean(values: Array) -> float:
    """Return the effective sample size of the mean."""
    return _ess(_halves(values)) if _is_usable(values) else math.nan


def draws_of_one_chain(values: Array) -> float:
    """Return the effective sample size of one chain's share of draws below the median, a mean over chains.

    The autocorrelations are about the share of each chain, and chains that disagree do not lower it. The
    result is the number of draws if there are too few, or if they are not finite.
    """
    if not _is_usable(values):
        return float(values.shape[1])
    is_below = (values <= np.median(values)).astype(np.float64)
    return _ess(is_below - is_below.mean(axis=1, keepdims=True)) / len(values)


def mcse_mean(values: Array) -> Array:
    """Return the Monte Carlo standard error of means, (...), of values (..., n_chains, n_draws)."""
    flat = values.reshape(-1, *values.shape[-2:])
    at_once = max(1, int(_TOGETHER_BYTES / (8 * flat[0].size))) if len(flat) else 1
    errors = [_mcse_of_means(flat[first : first + at_once]) for first in range(0, len(flat), at_once)]
    return np.concatenate([*errors, np.empty(0)]).reshape(values.shape[:-2])


def _mcse_of_means(values: Array) -> Array:
    """Return the errors of some quantities, (n_quantities,), of values (n_quantities, n_chains, n_draws)."""
    is_usable = np.isfinite(values).all(axis=(1, 2)) & (values.shape[2] >= MIN_DRAWS)
    errors = np.full(len(values), math.nan)
    if is_usable.any():
        some = values if is_usable.all() else values[is_usable]
        errors[is_usable] = some.std(axis=(1, 2), ddof=1) / np.sqrt(_sizes(_halves(some)))
    return errors


def both_scores(values: Array) -> Iterator[Array]:
    """Yield the normal scores of values among all of them, and then those of their distances from the median.

    The first show the bulk of a distribution, and the second its tails. Both have the shape of the values,
    which must be finite. The scores are the quantiles of a standard normal distribution at
    (rank - 3/8) / (n + 1/4), and equal values have the mean of their ranks.
    """
    order = np.argsort(values, axis=None)
    ordered: Array = values.reshape(-1)[order]
    yield _scores(order, ordered).reshape(values.shape)
    n = len(ordered)
    ordered -= (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    np.abs(ordered, out=ordered)
    # The distances fall up to the median and then rise, and a stable sort only merges the two parts.
    again = np.argsort(ordered, kind="stable")
    ordered = ordered[again]
    order = order[again]
    del again
    yield _scores(order, ordered).reshape(values.shape)


def _scores(order: Array, ordered: Array) -> Array:
    """Return the normal scores of values, given the numbers that sort them and the sorted values."""
    n = len(ordered)
    first = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1  # of equal values, except the smallest
    if len(first) == n - 1:
        ranks = np.arange(1.0, n + 1)
    else:
        bounds = np.concatenate([[0], first, [n]])
        ranks = np.repeat((bounds[:-1] + bounds[1:] + 1) / 2, np.diff(bounds))
    del first
    ranks -= 0.375
    ranks /= n + 0.25
    scores = np.empty(n)
    scores[order] = scipy.special.ndtri(ranks, out=ranks)
    return scores


def _is_usable(values: Array) -> bool:
    return values.shape[1] >= MIN_DRAWS and bool(np.isfinite(values).all())


def _halves(values: Array) -> Array:
    """Return both halves of each chain as chains, without the draw in the middle of an odd number.

    values  (..., n_chains, n_draws)
    """
    half = values.shape[-1] // 2
    return np.concatenate([values[..., :half], values[..., -half:]], axis=-2)


def _plain_rhat(chains: Array) -> float:
    """Return the R-hat of values (n_chains, n_draws) as they are; NaN if they never change."""
    n_draws = chains.shape[1]
    with np.errstate(all="ignore"):
        between = n_draws * chains.mean(axis=1).var(ddof=1)
        within = chains.var(axis=1, ddof=1).mean()
        return float(np.sqrt((between / within + n_draws - 1) / n_draws))


def _ess(chains: Array) -> float:
    """Return the effective sample size of the mean of chains (n_chains, n_draws), not split."""
    return float(_sizes(chains[None])[0])


def _sizes(chains: Array) -> Array:
    """Return the effective sample size of each mean, (n,), of chains (n, n_chains, n_draws), not split.

    The autocorrelations are summed as in Geyer (1992), "Practical Markov chain Monte Carlo": in pairs, which
    are positive and decrease.
    """
    n_chains, n_draws = chains.shape[1:]
    size = n_chains * n_draws
    covariances, means = _autocovariances(chains)
    with np.errstate(all="ignore"):
        within = covariances[:, :1] * n_draws / (n_draws - 1)
        between = means.var(axis=1, ddof=1)[:, None] if n_chains > 1 else 0.0
        correlations = 1 - (within - covariances) / (covariances[:, :1] + between)
    correlations[:, 0] = 1
    pairs = correlations[:, : n_draws // 2 * 2].reshape(len(chains), -1, 2).sum(axis=2)
    last = (n_draws - 3) // 2  # the last pair that may be looked at
    is_end = ~(pairs[:, :last] > 0)
    ends = np.zeros(len(chains), dtype=int)
    if last > 0:
        ends = np.where(is_end.any(axis=1), is_end.argmax(axis=1), last)
    rows = np.arange(len(chains))
    even = correlations[rows, 2 * ends]
    is_counted = np.arange(last) < ends[:, None]
    decreasing = np.minimum.accumulate(pairs[:, :last], axis=1) if last > 0 else pairs[:, :0]
    total = np.where(is_counted, decreasing, 0.0).sum(axis=1)
    tau = -1 + 2 * total + np.where((even > 0) | (pairs[rows, ends] >= 0), even, 0.0)
    sizes = size / np.maximum(tau, 1 / math.log10(size))
    values = chains.astype(np.uint8) if chains.dtype == bool else chains
    return np.asarray(np.where(np.ptp(values, axis=(1, 2)) < _RESOLUTION, float(size), sizes))


def _autocovariances(chains: Array) -> tuple[Array, Array]:
    """Return the autocovariance at each lag, a mean over chains, (n, n_draws), and means, (n, n_chains).

    Only the power spectra are averaged: one inverse transform is enough.
    """
    n, n_chains, n_draws = chains.shape
    length = scipy.fft.next_fast_len(2 * n_draws, real=True)
    at_once = max(1, int(_BLOCK_BYTES / (8 * length * n)))
    power, means = np.zeros((n, length // 2 + 1)), np.empty((n, n_chains))
    for first in range(0, n_chains, at_once):
        at = slice(first, first + at_once)
        some = chains[:, at].astype(np.float64)
        means[:, at] = some.mean(axis=2)
        some -= means[:, at, None]
        spectra = scipy.fft.rfft(some, length, axis=2)
        power += (spectra.real**2 + spectra.imag**2).sum(axis=1)
    return scipy.fft.irfft(power, length, axis=1)[:, :n_draws] / (n_chains * n_draws), means
