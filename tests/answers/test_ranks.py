"""The ranks of chains stay in their band if the chains agree, whatever their autocorrelation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.signal

from rayfbnn.answers.mixing import autocorrelations, ranks_of_chains
from rayfbnn.arrays import Array
from rayfbnn.streams import Purpose, Streams


def normal(seed: int, shape: tuple[int, int]) -> Array:
    return Streams(seed, np.arange(shape[0], dtype=np.uint64)).normal(Purpose.TARGET_VALUE, shape[1:])


def by_hand(chain: Array, mean: float, lag: int) -> float:
    moved = chain - mean
    return float(sum(moved[t] * moved[t + lag] for t in range(len(chain) - lag)))


@pytest.mark.parametrize("shape", [(3, 21), (1, 8), (2, 2)])
def test_autocorrelations_are_those_of_the_formula(shape: tuple[int, int]) -> None:
    values = normal(1, shape).cumsum(axis=1)
    found = autocorrelations(values)
    n_lags = shape[1] // 2 + 1
    assert found.chains.shape == (shape[0], n_lags)
    for lag in range(n_lags):
        expected = [by_hand(one, one.mean(), lag) / by_hand(one, one.mean(), 0) for one in values]
        np.testing.assert_allclose(found.chains[:, lag], expected, atol=1e-12)
        sums = [sum(by_hand(one, values.mean(), at) for one in values) for at in (lag, 0)]
        np.testing.assert_allclose(found.together[lag], sums[0] / sums[1], atol=1e-12)


def test_the_chance_contains_independent_draws() -> None:
    """At each of 500 lags with a probability of 95 %: 4 standard errors are 3.9 %."""
    values = normal(2, (20, 1000))
    found = autocorrelations(values)
    assert found.of_chain == pytest.approx(1.96 / math.sqrt(1000))
    assert found.of_all == pytest.approx(1.96 / math.sqrt(20_000))
    inside = np.mean(np.abs(found.together[1:]) <= found.of_all)
    assert abs(inside - 0.95) < 0.039
    assert found.first_within_chance <= 3


def test_chains_that_disagree_keep_the_autocorrelation_of_all_above_chance() -> None:
    found = autocorrelations(normal(3, (4, 200)) + np.array([0, 0, 3, 3])[:, None])
    assert (found.together > 0.3).all() and found.first_within_chance == len(found.together)
    assert abs(found.chains[:, 1]).max() < 0.3


@pytest.mark.parametrize("shape", [(3, 1), (2, 10)])
def test_values_that_never_change_have_no_autocorrelation(shape: tuple[int, int]) -> None:
    found = autocorrelations(np.ones(shape))
    assert np.isnan(found.together).all() and found.first_within_chance == shape[1] // 2 + 1


def autoregressive(seed: int, n_chains: int, n_draws: int, correlation: float) -> Array:
    """Stationary chains of normal values with this correlation between neighbours."""
    noise = Streams(seed, np.arange(n_chains, dtype=np.uint64)).normal(Purpose.TARGET_VALUE, (n_draws,))
    noise[:, 1:] *= np.sqrt(1 - correlation**2)
    return np.asarray(scipy.signal.lfilter([1.0], [1.0, -correlation], noise, axis=1))


def test_differences_are_those_of_the_distribution_function_by_hand() -> None:
    """The first chain has ranks 1 and 4 of 4, the second 2 and 3."""
    ranks = ranks_of_chains(np.array([[0.0, 3.0], [2.0, 1.0]]))
    np.testing.assert_allclose(ranks.fractions, [[0, 0.25, 1.0, 1], [0, 0.5, 0.75, 1]])
    np.testing.assert_allclose(ranks.differences, [[0, 0.25, 0, 0], [0, 0, 0.25, 0]])


@pytest.mark.parametrize(("correlation", "least"), [(0.0, 0.022), (0.9, 0.0)])
def test_at_most_five_per_cent_of_chains_leave_the_band(correlation: float, least: float) -> None:
    """Of 960 chains: 4 standard errors of a share of 5 % are 2.8 %; with autocorrelation fewer leave it.

    Most chains with autocorrelation would leave a band for independent draws.
    """
    left, left_narrow = 0, 0
    for seed in range(60):
        ranks = ranks_of_chains(autoregressive(seed, 16, 1000, correlation))
        farthest = np.abs(ranks.differences).max(axis=1)
        left += int((farthest > ranks.chance).sum())
        left_narrow += int((farthest > ranks.chance * np.sqrt(ranks.effective / 1000)).sum())
    assert least < left / 960 < 0.078
    assert left_narrow / 960 > 0.5 or correlation == 0


def test_effective_draws_are_those_of_an_autoregression() -> None:
    """Signs of normal values of correlation r have the correlation 2/pi arcsin(r)."""
    ranks = ranks_of_chains(autoregressive(3, 16, 4000, 0.9))
    tau = 1 + 4 / np.pi * np.arcsin(0.9 ** np.arange(1, 400)).sum()
    assert ranks.effective == pytest.approx(4000 / tau, rel=0.1)


def test_agreeing_chains_are_hardly_ever_outlying() -> None:
    """At most 1 of 100 sets of chains may name one; more than 5 of 100 have a probability of 0.05 %."""
    named = [bool(ranks_of_chains(autoregressive(seed, 16, 500, 0.7)).outlying) for seed in range(100)]
    assert sum(named) <= 5


def test_outlying_chains_are_found_the_farthest_first() -> None:
    values = autoregressive(4, 16, 400, 0.5)
    values[3] += 1.5
    values[11] -= 3
    assert ranks_of_chains(values).outlying == (11, 3)


def test_a_chain_that_never_moves_is_outlying() -> None:
    values = autoregressive(5, 8, 400, 0.5)
    values[2] = 1.0
    assert ranks_of_chains(values).outlying == (2,)


def test_chains_of_another_mode_are_outlying_however_many() -> None:
    values = autoregressive(7, 40, 300, 0.0)
    values[:15] += 5.0
    assert sorted(ranks_of_chains(values).outlying) == list(range(15))


@pytest.mark.parametrize("shape", [(1, 1), (1, 50), (2, 1), (3, 3)])
def test_few_draws_or_chains_name_no_outlier(shape: tuple[int, int]) -> None:
    values = autoregressive(6, *shape, 0.0)
    assert ranks_of_chains(values).outlying == ()
