"""The ranks of each chain's draws among the draws of all chains, and what chance allows them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

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
