"""Harrell's C-index against all pairs one by one, and its standard error against the jackknife."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest

from rayfbnn.answers.measures import Concordance, concordance
from rayfbnn.arrays import Array
from tests.support.store.standin_store import normal, uniform


def pair_by_pair(times: Array, predicted: Array) -> tuple[float, int]:
    """The sum over comparable pairs, and their number."""
    total, n_pairs = 0.0, 0
    for one, other in combinations(range(len(times)), 2):
        if np.isnan([times[one], times[other], predicted[one], predicted[other]]).any():
            continue
        sooner, later = sorted((one, other), key=lambda case: (abs(times[case]), times[case] < 0))
        if times[sooner] < 0:
            continue
        if abs(times[sooner]) == abs(times[later]) and times[later] > 0:
            continue
        n_pairs += 1
        total += float(predicted[sooner] < predicted[later]) + 0.5 * (predicted[sooner] == predicted[later])
    return total, n_pairs


def made(seed: int, n: int, *, n_times: int = 10**6, n_values: int = 10**6, censored: float = 0.4) -> Array:
    """Times of which some are censored, and predictions; few distinct times or values give ties."""
    times = np.ceil(uniform(seed, (n,)) * n_times)
    predicted = np.floor((0.5 * times / n_times + uniform(seed + 1, (n,))) * n_values)
    return np.where(uniform(seed + 2, (n,)) < censored, -times, times), predicted


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("ties", [{}, {"n_times": 7}, {"n_values": 4}, {"n_times": 5, "n_values": 3}])
def test_the_index_is_that_of_all_pairs(seed: int, ties: dict[str, int]) -> None:
    for n in (2, 3, 17, 64, 130):
        times, predicted = made(10 * seed, n, **ties)
        total, n_pairs = pair_by_pair(times, predicted)
        found = concordance(times, predicted)
        if n_pairs == 0:
            assert found is None
            continue
        assert found is not None and found.n_pairs == n_pairs
        assert found.index == pytest.approx(total / n_pairs, rel=1e-12)


def test_perfect_and_reversed_orders_are_1_and_0() -> None:
    times = np.array([3.0, 1.0, -4.0, 2.0])
    assert concordance(times, np.abs(times)) == Concordance(1.0, 0.0, 6)
    assert concordance(times, -np.abs(times)) == Concordance(0.0, 0.0, 6)
    assert concordance(times, np.ones(4)) == Concordance(0.5, 0.0, 6)


def test_censored_cases_are_compared_only_with_events_before_them() -> None:
    """The second case may have outlived the third, and nobody knows."""
    times, predicted = np.array([1.0, -2.0, 3.0]), np.array([1.0, 9.0, 2.0])
    found = concordance(times, predicted)
    assert found is not None and (found.index, found.n_pairs) == (1.0, 2)
    equal = concordance(np.array([2.0, -2.0, 2.0]), np.array([1.0, 2.0, 3.0]))
    assert equal is not None and (equal.index, equal.n_pairs) == (0.5, 2)
    assert concordance(np.array([-1.0, -2.0]), np.array([1.0, 2.0])) is None


def test_infinite_medians_are_equal_and_missing_values_are_left_out() -> None:
    times = np.array([1.0, 2.0, math.nan, 3.0, 4.0])
    found = concordance(times, np.array([math.inf, math.inf, 1.0, math.nan, math.inf]))
    assert found is not None and (found.index, found.n_pairs) == (0.5, 3)


def test_the_standard_error_is_about_that_of_the_jackknife() -> None:
    times, predicted = made(3, 200)
    found = concordance(times, predicted)
    without = [concordance(np.delete(times, case), np.delete(predicted, case)) for case in range(200)]
    indices = np.array([one.index for one in without if one is not None])
    jackknife = math.sqrt(199 / 200 * np.square(indices - indices.mean()).sum())
    assert found is not None and found.error == pytest.approx(jackknife, rel=0.03)


def test_many_cases_need_no_pairs() -> None:
    """Twenty thousand cases have two hundred million pairs."""
    n = 20_000
    times, predicted = np.arange(1.0, n + 1), np.arange(1.0, n + 1) + 3 * normal(5, (n,))
    found = concordance(times, predicted)
    assert found is not None and found.n_pairs == n * (n - 1) // 2 and 0.99 < found.index < 1
