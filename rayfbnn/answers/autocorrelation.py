"""Autocorrelations of a quantity by lag, of each chain and of all chains together."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy.fft

from rayfbnn.arrays import Array

_NORMAL_95 = 1.96  # 97.5 % quantile of the standard normal distribution


@dataclass(frozen=True)
class Autocorrelations:
    """The autocorrelations of a quantity at lags 0, 1, ...

    The autocorrelations of independent draws lie within +- the chance of 0, each with a probability of 95 %.

    chains     (n_chains, n_lags) with the mean and variance of each chain
    together   (n_lags,) with the mean and variance of all draws; chains that disagree keep it above 0
    of_chain   the chance for one chain, 1.96/sqrt(n_draws)
    of_all     the chance for all chains together, 1.96/sqrt(n_chains n_draws)
    """

    chains: Array
    together: Array
    of_chain: float
    of_all: float

    @property
    def first_within_chance(self) -> int:
        """The first lag at which `together` is within its chance; the number of lags if there is none."""
        is_within = self.together <= self.of_all
        return int(is_within.argmax()) if is_within.any() else len(self.together)


def autocorrelations(values: Array) -> Autocorrelations:
    """Return the autocorrelations of a quantity, given its draws (n_chains, n_draws).

    rho_k = sum_t (x_t - m) (x_{t+k} - m) / sum_t (x_t - m)**2

    They are NaN for values that never change. Lags go up to half the number of draws.
    """
    n_draws = values.shape[1]
    n_lags = n_draws // 2 + 1
    within = _sums_of_products(values - values.mean(axis=1, keepdims=True), n_lags)
    around = _sums_of_products(values - values.mean(), n_lags).sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return Autocorrelations(
            within / within[:, :1],
            around / around[0],
            _NORMAL_95 / math.sqrt(n_draws),
            _NORMAL_95 / math.sqrt(values.size),
        )


def _sums_of_products(values: Array, n_lags: int) -> Array:
    """Return the sum over t of x_t x_{t+k} for each chain and lag k, (n_chains, n_lags)."""
    length = scipy.fft.next_fast_len(2 * values.shape[1], real=True)
    sums = np.empty((len(values), n_lags))
    for sum_of_chain, chain in zip(sums, values, strict=True):
        spectrum = scipy.fft.rfft(chain, length)
        sum_of_chain[:] = scipy.fft.irfft(spectrum.real**2 + spectrum.imag**2, length)[:n_lags]
    return sums
