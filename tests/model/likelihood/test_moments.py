"""Means and variances given each draw agree with the mixture over all draws that predictions describe."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate

from rayfbnn.arrays import Array
from rayfbnn.model.architecture import ModelSpec, PriorSpec
from rayfbnn.model.likelihood.registry import data_model_from_spec
from rayfbnn.streams import Purpose, Streams

CASES, DRAWS = 3, 40


def numbers(n_values: int) -> Array:
    """Draw normal numbers (n_cases, n_values, n_draws)."""
    streams = Streams(4, np.arange(1, dtype=np.uint64))
    return streams.normal(Purpose.PROPOSAL, (CASES, n_values, DRAWS))[0]


@pytest.mark.parametrize(
    ("model", "n_outputs"),
    [
        (ModelSpec("real", noise=PriorSpec(0.3)), 2),
        (ModelSpec("real", noise=PriorSpec(0.3, (math.inf, math.inf, 5.0))), 2),
        (ModelSpec("heteroscedastic"), 4),
        (ModelSpec("count"), 2),
        (ModelSpec("count", dispersion=PriorSpec(0.3)), 2),
    ],
    ids=["Gaussian", "t", "heteroscedastic", "count", "dispersed count"],
)
def test_moments_are_those_of_the_targets(model: ModelSpec, n_outputs: int) -> None:
    data_model, outputs = data_model_from_spec(model), numbers(n_outputs)
    sigmas = np.exp(numbers(2)[:1])
    means, variances = data_model.moments(outputs, sigmas)
    of_targets = data_model.target_moments(outputs, sigmas)
    np.testing.assert_array_equal(means, of_targets[0])
    np.testing.assert_array_equal(variances, of_targets[1])


def test_t_noise_without_a_variance_counts_with_its_width() -> None:
    model = data_model_from_spec(ModelSpec("real", noise=PriorSpec(0.3, (math.inf, math.inf, 1.5))))
    sigmas = np.full((1, 1, DRAWS), 3.0)
    _, variances = model.moments(numbers(1), sigmas)
    np.testing.assert_array_equal(variances, 9.0)


@pytest.mark.parametrize(
    ("model", "n_outputs"), [(ModelSpec("binary"), 2), (ModelSpec("class", classes=3), 3)]
)
def test_moments_of_labels_are_their_probabilities(model: ModelSpec, n_outputs: int) -> None:
    outputs = numbers(n_outputs)
    p, variances = data_model_from_spec(model).moments(outputs, np.empty((1, 0, DRAWS)))
    odds = np.exp(outputs)
    expected = odds / (1 + odds) if model.kind == "binary" else odds / odds.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(p, expected, rtol=1e-12)
    np.testing.assert_allclose(variances, expected * (1 - expected), rtol=1e-12)


def test_survival_times_are_compared_by_their_logarithms() -> None:
    """The variance of the log of an exponential time, by integration, whatever the hazard is."""
    log_times, variances = data_model_from_spec(ModelSpec("survival")).moments(
        numbers(1), np.empty((1, 0, DRAWS))
    )
    np.testing.assert_allclose(log_times, -numbers(1), rtol=1e-12)  # the mean time is 1 / hazard

    def density(v: float) -> float:
        return math.exp(v - math.exp(v))

    mean = integrate.quad(lambda v: v * density(v), -40, 5)[0]
    square = integrate.quad(lambda v: v**2 * density(v), -40, 5)[0]
    np.testing.assert_allclose(variances, square - mean**2, rtol=1e-6)
