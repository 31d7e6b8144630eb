"""How chains mix, for pictures: ranks of draws among those of all chains, and autocorrelations."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy.fft

from rayfbnn.arrays import Array
from rayfbnn.reduce.effective import draws_of_one_chain

_KOLMOGOROV_95 = 1.358  # 95 % quantile of sqrt(n) times the largest distance, for n uniform numbers
_FALSE_ALARM_RATE = 0.01  # of naming any chain of a quantity
_MOST_SORTED, _LEAST_LEFT_OUT = 2e7, 6  # values that are ranked anew, and chains left out one after another


@dataclass(frozen=True)
class Ranks:
    """The distribution of each chain's ranks among all draws, minus the uniform distribution.

    fractions    (n_chains, n_draws + 2): the ranks of each chain, divided by the number of all draws, from 0
                 to 1
    differences  (n_chains, n_draws + 2): the distribution function there, minus the fraction
    effective    number of effective draws of one chain, a mean over chains
    chance       half the width of the band that contains a chain with a probability of 95 %
    outlying     places of the chains that differ from the others by more than chance, the farthest first
    """

    fractions: Array
    differences: Array
    effective: float
    chance: float
    outlying: tuple[int, ...]


def ranks_of_chains(values: Array) -> Ranks:
    """Return the ranks of a quantity's draws, (n_chains, n_draws).

    The band is that of Säilynoja, Bürkner and Vehtari (2022), with the constant width of Kolmogorov's test
    for as many independent draws as a chain is worth. With autocorrelation fewer chains than 5 % leave the
    band, about 1 to 3 %: the distribution function moves less at other values than at the median. A chain is
    outlying if it leaves a wider band, which any of the chains leaves by chance with a probability of 1 %.
    """
    n_chains, n_draws = values.shape
    effective = min(draws_of_one_chain(values), float(n_draws))
    fractions, differences = _differences(values)
    # The ranks of one chain vary less than uniform numbers, because the chain is itself a share of all draws.
    chance = _KOLMOGOROV_95 * math.sqrt((1 - 1 / n_chains) / effective)
    return Ranks(fractions, differences, effective, chance, tuple(_outlying(values, differences, effective)))


def _differences(values: Array) -> tuple[Array, Array]:
    """Return fractions and differences, as in `Ranks`."""
    n_chains, n_draws = values.shape
    ranks = values.ravel().argsort(kind="stable").argsort().reshape(values.shape) + 1
    fractions = np.zeros((n_chains, n_draws + 2))
    fractions[:, 1:-1], fractions[:, -1] = np.sort(ranks, axis=1) / values.size, 1
    return fractions, np.append(np.linspace(0, 1, n_draws + 1), 1) - fractions


def _outlying(values: Array, differences: Array, effective: float) -> list[int]:
    """Return the chains that differ from the others, the farthest first.

    A chain that is found is left out of the ranks of the others, which it would move; if there are very many
    draws, only the first few are left out. Of two chains none is named.
    """
    chains = np.arange(len(values))
    # P(K > k) is about 2 exp(-2 k**2) in the tail of Kolmogorov's distribution.
    most = math.sqrt(math.log(2 * len(values) / _FALSE_ALARM_RATE) / 2 / effective)
    found: list[int] = []
    while len(chains) > 2:
        farthest = np.abs(differences).max(axis=1)
        is_far = farthest > most * math.sqrt(1 - 1 / len(chains))
        if not is_far.any():
            break
        if len(found) >= max(_LEAST_LEFT_OUT, _MOST_SORTED / values.size):
            order = np.argsort(-farthest, kind="stable")
            return found + [int(chains[place]) for place in order if is_far[place]]
        place = int(farthest.argmax())
        found.append(int(chains[place]))
        chains = np.delete(chains, place)
        _, differences = _differences(values[chains])
    return found


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
