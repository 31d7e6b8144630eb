"""Weights of draws that leave cases out, against those of ArviZ for one case at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arviz_stats import base

from rayfbnn.reduce.importance import smoothed
from tests.support.store.standin_store import normal


@pytest.mark.parametrize("n_draws", [30, 200, 1000])
def test_weights_are_those_of_arviz(n_draws: int) -> None:
    """From weights that are nearly equal to some with an infinite mean."""
    statistics: Any = base.array_stats  # type: ignore[attr-defined]
    logs = normal(3, (20, n_draws)) * np.linspace(0.01, 3, 20)[:, None]
    weights, k = smoothed(logs)
    for case, of_case in enumerate(logs):
        expected, expected_k = statistics.psislw(-of_case)
        np.testing.assert_allclose(weights[case], np.exp(expected), rtol=1e-9)
        assert k[case] == pytest.approx(float(expected_k), rel=1e-9)
    assert k[-1] > 0.7


def test_equal_weights_stay_equal() -> None:
    weights, k = smoothed(np.full((2, 100), -3.0))
    np.testing.assert_allclose(weights, 0.01)
    assert np.isnan(k).all()


def test_a_few_draws_are_not_smoothed() -> None:
    logs = normal(4, (3, 20))
    weights, k = smoothed(logs)
    np.testing.assert_allclose(weights, np.exp(logs) / np.exp(logs).sum(axis=1, keepdims=True))
    assert np.isnan(k).all()
