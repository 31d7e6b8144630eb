"""Weights of draws that leave cases out, against those of ArviZ for one case at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from arviz_stats import base

from rayfbnn.arrays import Array
from rayfbnn.reduce.importance import is_unreliable, pareto_k, smoothed, tail_shape
from tests.support.store.standin_store import normal


def weights_of(logs: Array) -> tuple[Array, Array]:
    """Return smoothed weights that add up to one, and Pareto k."""
    smoothed_logs, k = smoothed(logs)
    return np.exp(smoothed_logs) / np.exp(smoothed_logs).sum(axis=1, keepdims=True), k


@pytest.mark.parametrize("n_draws", [30, 200, 1000])
def test_weights_are_those_of_arviz(n_draws: int) -> None:
    """From weights that are nearly equal to some with an infinite mean."""
    statistics: Any = base.array_stats  # type: ignore[attr-defined]
    logs = normal(3, (20, n_draws)) * np.linspace(0.01, 3, 20)[:, None]
    weights, k = weights_of(logs)
    for case, of_case in enumerate(logs):
        expected, expected_k = statistics.psislw(-of_case)
        np.testing.assert_allclose(weights[case], np.exp(expected), rtol=1e-9)
        assert k[case] == pytest.approx(float(expected_k), rel=1e-9)
    assert k[-1] > 0.7


def _tied(n: int) -> Iterator[tuple[str, Array]]:
    """Yield log weights of n draws in which rejected trajectories, or rounding, repeat values."""
    values, tail = normal(5, (1, n))[0], int(min(0.2 * n, 3 * np.sqrt(n)))
    for length in (2, 3, 10, n // 2):
        repeated: Array = np.resize(np.repeat(values, length), n)
        for scale in (0.1, 1, 10):
            yield f"blocks of {length}, {scale}", scale * repeated
        yield f"blocks of {length}, in another order", repeated[np.argsort(normal(6, (1, n))[0])]
    for n_equal in range(tail + 2):
        ordered = np.sort(values)
        ordered[n - tail - 1 : n - tail - 1 + n_equal] = ordered[n - tail - 1]
        yield f"{n_equal} at the cutoff", ordered[np.argsort(normal(7, (1, n))[0])]
    yield "two values", (values > 1).astype(float)
    yield "two values, more of the larger", (values > -1).astype(float)
    yield "two values far apart", 1000.0 * (values > 1)
    yield "rounded", np.round(values, 1)
    yield "one is huge", np.where(np.arange(n) == 3, 50, values)
    yield "one is beyond numbers", np.where(np.arange(n) == 3, 5000, values)
    yield "half are zero", np.where(np.arange(n) < n // 2, -np.inf, values)
    yield "most are zero", np.where(np.arange(n) < n - 3, -np.inf, values)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("n_draws", [25, 26, 60, 200, 225, 226, 1001])
def test_weights_of_repeated_draws_are_those_of_arviz(n_draws: int) -> None:
    """Where ArviZ fits nothing (NaN, or an error), the weights stay unchanged and k is NaN."""
    statistics: Any = base.array_stats  # type: ignore[attr-defined]
    n_unknown = 0
    for name, logs in _tied(n_draws):
        (weights,), (k,) = weights_of(logs[None])
        expected, expected_k = np.full(n_draws, np.nan), np.nan
        with suppress(ValueError):  # the largest weights are all equal
            expected, expected_k = statistics.psislw(-logs)
        if np.isfinite(expected_k) and not np.isnan(expected).any():
            np.testing.assert_allclose(weights, np.exp(expected), rtol=1e-11, atol=1e-300, err_msg=name)
            assert k == pytest.approx(float(expected_k), rel=1e-12, abs=1e-12), name
        else:
            plain = np.exp(logs - logs.max())
            np.testing.assert_allclose(weights, plain / plain.sum(), rtol=1e-12, err_msg=name)
            assert np.isnan(k) and is_unreliable(k, 0.7), name
            assert np.isnan(pareto_k(logs)) or pareto_k(logs) == np.inf, name
            n_unknown += 1
    assert n_unknown >= 5


@pytest.mark.parametrize("n_draws", [20, 100])
@pytest.mark.parametrize("share", [0, 1e-7, 1e-3])
def test_draws_that_nearly_agree_need_no_fit(n_draws: int, share: float) -> None:
    """Probabilities near one are a number of float32, or a few: the weights are reliable as they are."""
    logs = np.full((2, n_draws), -3.0)
    logs[:, :4] += share
    weights, k = weights_of(logs)
    np.testing.assert_allclose(weights, 1 / n_draws, rtol=2e-3)
    assert (k == -np.inf).all() and pareto_k(logs[0]) == -np.inf and not is_unreliable(k, 0.7).any()


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("df", "is_heavy"), [(1, True), (1.5, True), (5, False), (1e6, False)])
def test_the_shape_of_the_heavier_tail_is_one_over_the_degrees(df: float, is_heavy: bool, sign: int) -> None:
    """The lower tail of the values is that of a normal distribution; the estimate's error is about 0.07."""
    values = np.random.default_rng(3).standard_t(df, 6400)
    one_sided = sign * np.where(values > 0, values, normal(8, (1, 6400))[0])
    k = tail_shape(one_sided)
    assert k == pytest.approx(1 / df, abs=0.25) and (k >= 0.5) == is_heavy
    assert tail_shape(5 + 1000 * one_sided) == pytest.approx(k, rel=1e-6)


def test_the_shape_of_few_or_infinite_values_is_not_known() -> None:
    assert np.isnan([tail_shape(np.arange(24.0)), tail_shape(np.repeat([0.0, 1.0, 2.0], 40))]).all()
    assert np.isnan(tail_shape(np.append(np.arange(50.0), np.inf)))


def test_weights_that_are_not_finite_have_no_k() -> None:
    logs = normal(3, (2, 100))
    logs[0, 3], logs[1, 4] = np.inf, np.nan
    with np.errstate(invalid="ignore"):
        _, k = weights_of(logs)
    assert np.isnan(k).all() and is_unreliable(k, 0.7).all()
    assert np.isnan([pareto_k(one) for one in logs]).all()


def test_a_few_draws_are_not_smoothed() -> None:
    logs = normal(4, (3, 20))
    weights, k = weights_of(logs)
    np.testing.assert_allclose(weights, np.exp(logs) / np.exp(logs).sum(axis=1, keepdims=True))
    assert np.isnan(k).all()
