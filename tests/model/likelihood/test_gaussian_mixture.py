"""Quantiles of mixtures agree with a plain root finder, also if the modes are far apart."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.optimize
import scipy.special

from rayfbnn.arrays import Array
from rayfbnn.model.mixtures.gaussian import mixture_quantiles
from tests.support.store.standin_store import normal, uniform

PROBABILITIES = np.array([0.01, 0.1, 0.5, 0.9, 0.99])
DFS = (math.inf, 4.0, 2.5, 1.0, 0.5)


def cdf(x: Array, means: Array, scales: Array, df: float) -> Array:
    z = (x[..., None] - means[:, None, :]) / scales[:, None, :]
    return (scipy.special.ndtr(z) if math.isinf(df) else scipy.special.stdtr(df, z)).mean(axis=2)


def examples() -> tuple[Array, Array]:
    """Mixtures of 150 components: narrow, broad, outliers, two far modes, very unequal scales."""
    n = 150
    means = np.concatenate(
        [
            0.01 * normal(1, (5, n)) + 3,
            10 * normal(2, (5, n)),
            normal(3, (5, n)) + 30 * (uniform(4, (5, n)) < 0.03),
            1e4 * (uniform(5, (5, n)) < 0.5),
            # The median may lie anywhere between the modes.
            1e4 * (np.arange(n) % 2)[None, :] * np.ones((1, n)),
            normal(6, (5, n)),
        ]
    )
    scales = 0.1 * np.exp(0.05 * normal(7, means.shape))
    scales[-5:] *= np.exp(4 * normal(8, (5, n)))
    return means, scales


@pytest.mark.parametrize("df", DFS)
def test_distribution_function_at_a_quantile_is_its_probability(df: float) -> None:
    means, scales = examples()
    quantiles = mixture_quantiles(means, scales, PROBABILITIES, df=df)
    assert np.abs(cdf(quantiles, means, scales, df) - PROBABILITIES).max() < 1e-6


@pytest.mark.parametrize("df", DFS)
def test_quantiles_agree_with_a_plain_root_finder(df: float) -> None:
    means, scales = normal(1, (3, 60)), 0.2 * np.exp(0.3 * normal(2, (3, 60)))
    quantiles = mixture_quantiles(means, scales, PROBABILITIES, df=df)
    for row in range(3):
        for column, p in enumerate(PROBABILITIES):
            one = slice(row, row + 1)
            expected = scipy.optimize.brentq(
                lambda x, one=one, p=p: cdf(np.array([[x]]), means[one], scales[one], df)[0, 0] - p,
                *(-1e6, 1e6),
                xtol=1e-12,
            )
            assert quantiles[row, column] == pytest.approx(expected, rel=1e-7, abs=1e-7)


@pytest.mark.parametrize("df", [math.inf, 1.0])
@pytest.mark.parametrize("far", [1e100, 1e200, 1e300])
def test_components_may_be_any_number_of_decades_apart(far: float, df: float) -> None:
    """A third about 0, a third about -far / 2, a third about far, as draws from a vague prior may be."""
    means = normal(1, (2, 30)) + far * np.array([0.0, -0.5, 1.0])[np.arange(30) % 3]
    quantiles = mixture_quantiles(means, np.ones((2, 30)), [0.1, 0.5, 0.9], df=df)
    np.testing.assert_allclose(quantiles[:, [0, 2]], [[-0.5 * far, far]] * 2, rtol=1e-12)
    middle = quantiles[:, 1:2]
    assert np.abs(cdf(middle, means[:, ::3], np.ones((2, 10)), df) - 0.5).max() < 1e-6


def test_one_gaussian_has_its_own_quantiles() -> None:
    quantiles = mixture_quantiles(np.full((1, 5), 7.0), np.full((1, 5), 0.5), PROBABILITIES)
    np.testing.assert_allclose(quantiles[0], 7 + 0.5 * scipy.special.ndtri(PROBABILITIES), rtol=1e-14)


def test_float32_means_lose_nothing_more() -> None:
    means, scales = normal(1, (4, 50)).astype(np.float32), np.full((4, 50), 0.1)
    exact = mixture_quantiles(means.astype(np.float64), scales, PROBABILITIES)
    np.testing.assert_array_equal(mixture_quantiles(means, scales, PROBABILITIES), exact)
