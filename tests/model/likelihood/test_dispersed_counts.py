"""Negative binomial counts: densities, distribution functions and curvatures over all shapes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.special
import scipy.stats

from rayfbnn.arrays import Array
from rayfbnn.model.architecture import ModelSpec, PriorSpec
from rayfbnn.model.likelihood.count import CountTargets
from rayfbnn.model.likelihood.dispersed_count import (
    DispersedCountTargets,
    distribution_sums,
    log_gamma_ratio,
    log_mass,
    mass_sums,
    sliced,
)
from rayfbnn.model.likelihood.registry import data_model_from_spec
from tests.support.model.data_models import problem
from tests.support.problems import streams

MODEL = DispersedCountTargets()
SHAPES = [1e-4, 0.03, 1.0, 5.0, 99.0, 101.0, 1e5]
POISSON = [1e11, 1e12, 1e200]


def terms(v: Array, counts: Array, shape: float) -> tuple[Array, Array]:
    """Log densities and their gradient at outputs and counts (n,)."""
    rows, noise = MODEL.target_rows(counts[:, None]), np.array([[shape]])
    values, gradient = MODEL.terms_and_gradient(v[None, None], rows, noise)
    return values[0, 0], gradient[0, 0]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_density_is_negative_binomial(shape: float) -> None:
    counts = np.array([0.0, 1, 2, 7, 60, 5000])
    for v in (-9.0, 0.0, 2.5, 9.0):
        expected = scipy.stats.nbinom.logpmf(counts, shape, shape / (shape + math.exp(v)))
        values, _ = terms(np.full(6, v), counts, shape)
        np.testing.assert_allclose(values, expected, rtol=1e-8, atol=1e-9)
        by_mixture = log_mass(np.full((6, 1), v), np.array(shape), counts[:, None])[:, 0]
        np.testing.assert_allclose(by_mixture, values, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("shape", POISSON)
def test_a_very_large_shape_is_poisson(shape: float) -> None:
    """SciPy's negative binomial distribution has lost all digits there."""
    counts = np.array([0.0, 1, 2, 7, 60, 5000])
    for v in (-9.0, 0.0, 2.5, 8.5):
        values, gradient = terms(np.full(6, v), counts, shape)
        poisson, of_poisson = CountTargets().terms_and_gradient(
            np.full((1, 1, 6), v), MODEL.target_rows(counts[:, None]), np.empty((1, 0))
        )
        np.testing.assert_allclose(values, poisson[0, 0], atol=1e-3 * (shape < 1e12) + 2e-5)
        np.testing.assert_allclose(gradient, of_poisson[0, 0], rtol=1e-6, atol=1e-9)
        cdf, _ = distribution_sums(np.full((6, 1), v), np.array(min(shape, 1e12)), counts[:, None])
        np.testing.assert_allclose(cdf, scipy.special.pdtr(counts, math.exp(v)), atol=1e-7)


@pytest.mark.parametrize("shape", [*SHAPES, *POISSON])
def test_the_gradient_is_that_of_the_density(shape: float) -> None:
    counts, v, step = np.array([0.0, 1, 4, 60]), np.linspace(-4, 5, 4), 1e-5
    _, gradient = terms(v, counts, shape)
    above, below = (terms(v + side * step, counts, shape)[0] for side in (1, -1))
    np.testing.assert_allclose(gradient, (above - below) / (2 * step), rtol=1e-5, atol=1e-5)


def test_the_ratio_is_smooth_where_the_series_begins() -> None:
    y = np.array([0.0, 1, 3, 50, 1e6])
    exact = scipy.special.gammaln(y + 100) - scipy.special.gammaln(100) - y * math.log(100)
    for shape in (100 * (1 - 1e-13), 100.0):
        np.testing.assert_allclose(log_gamma_ratio(y, np.full(1, shape)), exact, rtol=1e-9, atol=1e-10)
    np.testing.assert_array_equal(log_gamma_ratio(y[:1], np.array([1e-12, 1.0, 1e3, 1e12])), 0.0)


@pytest.mark.parametrize("shape", [1e-12, 0.02, 1.0, 30.0, 1e6, 1e12])
@pytest.mark.parametrize("mean", [1e-6, 0.3, 40.0, 1e7])
def test_distribution_functions_are_sums_of_probabilities(shape: float, mean: float) -> None:
    counts = np.arange(200.0)
    mass = np.exp(log_mass(np.full((200, 1), math.log(mean)), np.array(shape), counts[:, None]))[:, 0]
    log_means, places = np.full((200, 1), math.log(mean)), counts[:, None]
    cdf, again = distribution_sums(log_means, np.array(shape), places)
    np.testing.assert_allclose(cdf, mass.cumsum(), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(again, mass, rtol=1e-9, atol=1e-300)
    few, of_few = slice(3, 40), mass_sums(log_means[3:40], np.array(shape), places[3:40])
    np.testing.assert_allclose(of_few, mass[few], rtol=1e-9, atol=1e-300)


def test_large_counts_have_their_probabilities() -> None:
    """At a shape of 1e6 and a mean of 1e12 the distribution is nearly Gaussian."""
    shape, mean = 1e6, 1e12
    sd = math.sqrt(mean + mean**2 / shape)
    counts = np.floor(mean + sd * np.array([-1.0, 0.0, 1.0]))
    values = log_mass(np.full((3, 1), math.log(mean)), np.array(shape), counts[:, None])[:, 0]
    np.testing.assert_allclose(values, scipy.stats.norm.logpdf(counts, mean, sd), atol=2e-3)


@pytest.mark.parametrize("shape", [0.5, 4.0])
def test_draws_have_the_mean_and_variance_of_the_moments(shape: float) -> None:
    n, v = 40_000, 1.3
    drawn = MODEL.draw(np.full((n, 1, 1), v), np.full((n, 1), shape), streams("dispersed", n))[:, 0, 0]
    means, variances = MODEL.moments(np.full((1, 1, 1), v), np.full((1, 1, 1), shape**-0.5))
    mean, variance = means.item(), variances.item()
    assert variance == pytest.approx(mean + mean**2 / shape)
    assert abs(drawn.mean() - mean) < 5 * math.sqrt(variance / n)  # 1 in 2 million; seed fixed
    squares = (drawn - mean) ** 2
    assert abs(squares.mean() - variance) < 5 * squares.std() / math.sqrt(n)


@pytest.mark.parametrize(("width", "wider"), [(0.3, "1:0.5"), (1.0, "3:0.5")])
def test_the_remedy_is_not_what_the_model_has(width: float, wider: str) -> None:
    model = data_model_from_spec(ModelSpec("count", dispersion=PriorSpec(width, (0.5, math.inf, math.inf))))
    for misfit in ("too narrow", "outliers", "varying"):
        advice = model.remedies(misfit, "y", is_positive=True)
        assert not any(f'"{width:g}:0.5"' in way or "Poisson distribution allows" in way for way in advice)
        assert any(f'dispersion = "{wider}"' in way for way in advice) == (misfit != "varying")


def test_the_typical_curvature_is_the_mean_of_the_curvatures() -> None:
    shape, v = 2.0, 1.1
    counts, noise = np.arange(3000.0), np.array([[shape]])
    mass = scipy.stats.nbinom.pmf(counts, shape, shape / (shape + math.exp(v)))
    rows = MODEL.target_rows(counts[:, None])
    curvatures = MODEL.output_curvature(np.full((1, 1, 3000), v), rows, noise)[0, 0]
    typical = MODEL.curvature_given(np.array([[math.exp(v)]]), noise).item()
    assert typical == pytest.approx((mass * curvatures).sum(), rel=1e-10)


@pytest.mark.parametrize("largest", [0.0, 400.0, 705.0, 2000.0])
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("name", ["count, dispersion", "count, dispersion of each"])
def test_the_density_of_shapes_is_that_of_the_counts(name: str, missing: bool, largest: float) -> None:
    """Up to a constant, whether chains share their counts or have their own, and if exp(output) overflows."""
    target, n = problem(name, missing=missing, n_cases=23), 3
    state = target.initial_state(streams("shapes", n), sigmas=None)
    outputs = target.training_outputs(state.position).copy()
    outputs[..., ::5] += largest
    shapes = np.array([[0.02, 3.0], [1.0, 250.0], [40.0, 0.7]])
    own = np.broadcast_to(target.targets, (n, *target.targets.shape))
    for rows in (target.targets, own):
        density = target.data_model.density_of_shapes(outputs, rows, target.observed)
        terms, _ = target.data_model.terms_and_gradient(outputs, rows, shapes)
        before, _ = target.data_model.terms_and_gradient(outputs, rows, np.ones((n, 2)))
        weights = 1.0 if target.observed is None else target.observed
        expected = ((terms - before) * weights).sum(axis=2)
        with np.errstate(over="ignore"):
            found = density(shapes) - density(np.ones((n, 2)))
        np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_slices_step_out_to_both_sides() -> None:
    x = np.zeros((4000, 1))
    drawn = sliced(lambda at: np.where(abs(at) < 5, 0.0, -np.inf), x, streams("slices", 4000))[:, 0]
    assert abs(drawn).max() < 5
    # A slice that steps out to one side alone gives no draw beyond 1 on the other.
    assert [(drawn > 1).mean(), (drawn < -1).mean()] == pytest.approx([0.38, 0.38], abs=0.05)
