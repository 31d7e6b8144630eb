"""Chains in different modes are recognised by their log likelihoods, and only they."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import studentized_range

from rayfbnn.answers.judging.verdicts import _studentized_range, mode_sentences, modes
from rayfbnn.answers.judging.words import numbered
from rayfbnn.arrays import Array
from tests.support.store.standin_store import normal


def autocorrelated(seed: int, shape: tuple[int, int], coefficient: float) -> Array:
    """An autoregressive process of standard deviation one for each chain."""
    values = normal(seed, shape)
    for draw in range(1, shape[1]):
        values[:, draw] = coefficient * values[:, draw - 1] + math.sqrt(1 - coefficient**2) * values[:, draw]
    return values


def test_chains_in_another_mode_are_named_with_both_log_likelihoods() -> None:
    values = -95 + 3 * normal(1, (8, 200))
    values[[3, 7]] -= 25
    found = modes(values)
    assert [mode.chains for mode in found] == [(0, 1, 2, 4, 5, 6), (3, 7)]
    (sentence,) = mode_sentences(found)
    assert sentence.startswith("chains 3 and 7 sit in a mode of lower log likelihood (-1")
    assert [round(mode.log_likelihood, -1) for mode in found] == pytest.approx([-90, -120], abs=10)


def test_three_modes_are_told_apart_and_compared_with_the_largest() -> None:
    values = normal(2, (6, 100)) + np.array([0.0, 0, 0, -20, -20, 30])[:, None]
    lower, higher = mode_sentences(modes(values))
    assert lower.startswith("chains 3 and 4 sit in a mode of lower")
    assert higher.startswith("chain 5 sits in a mode of higher")


@pytest.mark.parametrize("coefficient", [0.0, 0.9])
def test_chains_of_one_distribution_are_in_one_mode(coefficient: float) -> None:
    """At most one in a hundred is taken apart, also where the autocorrelation time is a fifth of the run."""
    n_runs = 40
    apart = sum(len(modes(autocorrelated(seed, (6, 100), coefficient))) > 1 for seed in range(n_runs))
    assert apart <= 3  # 1 in 1,400 if the rate is one in a hundred


def test_a_difference_below_two_standard_deviations_is_no_mode() -> None:
    values = normal(4, (4, 2000)) + np.array([0.0, 0, 0, 1.5])[:, None]
    assert len(modes(values)) == 1


def test_a_difference_that_chance_allows_to_slow_chains_is_no_mode() -> None:
    """Chains that cross their range once tell little of their mean: 2.4 standard deviations may be chance."""
    slow = np.linspace(-1, 1, 100) + 0.01 * normal(6, (4, 100))
    apart = np.array([0.0, 0, 0, 2.4])[:, None] * slow.std()
    assert len(modes(slow + apart)) == 1
    fast = normal(6, (4, 100))
    assert len(modes(fast + np.array([0.0, 0, 0, 2.4])[:, None])) == 2


def test_chains_that_never_change_are_apart_by_their_values() -> None:
    values = np.repeat(np.array([[1.0], [1.0], [5.0]]), 10, axis=1)
    assert [mode.chains for mode in modes(values)] == [(0, 1), (2,)]


@pytest.mark.parametrize("shape", [(1, 50), (4, 3)])
def test_nothing_is_told_from_one_chain_or_few_draws(shape: tuple[int, int]) -> None:
    assert modes(normal(5, shape)) == ()
    assert mode_sentences(()) == []


def test_many_chains_are_not_all_named() -> None:
    assert numbered([3]) == "chain 3"
    assert numbered(list(range(10))) == "chains 0, 1, 2, 3, 4, 5, 6, 7 and 2 more"


@pytest.mark.parametrize("n_chains", [2, 5, 40])
def test_chance_is_that_of_the_studentized_range(n_chains: int) -> None:
    expected = studentized_range.ppf(0.99, n_chains, np.inf)
    assert _studentized_range(n_chains) == pytest.approx(expected, rel=1e-8)
