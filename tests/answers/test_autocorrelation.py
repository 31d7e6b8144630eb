"""Autocorrelations are those of the formula, for each chain and for all chains together."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rayfbnn.answers.mixing import autocorrelations
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
