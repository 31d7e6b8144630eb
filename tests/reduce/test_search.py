"""The search for quantiles and modes from sums over draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.optimize
import scipy.stats

from rayfbnn.arrays import Array
from rayfbnn.model.likelihood.real import component_sums
from rayfbnn.model.likelihood.survival import Hazard
from rayfbnn.reduce.search import Guesses, QuantileSearch

POISSON, NORMAL = scipy.stats.poisson, scipy.stats.norm
P = (0.01, 0.1, 0.5, 0.9, 0.99)


def found(search: QuantileSearch, sums_at, n_draws: int) -> tuple[Array, int]:  # type: ignore[no-untyped-def]
    """The quantiles, (n_probabilities, n_cases), and how many rounds they took."""
    n_rounds = 0
    for guesses in search.rounds():
        n_rounds += 1
        for some in guesses:
            assert isinstance(some, Guesses)
            search.improve(some, sums_at(some), n_draws)
    return search.values[:, :, 0], n_rounds


def gaussian_quantiles(
    means: Array, sigmas: Array, df: float = math.inf, *, start: Array | None = None
) -> tuple[Array, int]:
    factor = np.inf if df <= 2 else df / (df - 2) if math.isfinite(df) else 1.0
    with np.errstate(over="ignore"):
        mean, sd = means.mean(axis=1), np.sqrt(means.var(axis=1) + factor * np.square(sigmas).mean(axis=1))
    search = QuantileSearch(P, mean[:, None], sd[:, None], scale="linear", start=start)

    def sums_at(some: Guesses) -> Array:
        values = some.values[:, :, 0, None]
        return component_sums(values, means[some.cases], sigmas[some.cases], df)[..., None]

    return found(search, sums_at, means.shape[1])


def by_root_finder(means: Array, sigmas: Array, df: float = math.inf) -> Array:
    """The quantiles of each mixture, (n_probabilities, n_mixtures), by a plain root finder and SciPy's t."""

    def excess(x: float, mixture: int, p: float) -> float:
        z = (x - means[mixture]) / sigmas[mixture]
        return float((NORMAL.cdf(z) if math.isinf(df) else scipy.stats.t.cdf(z, df)).mean() - p)

    return np.array(
        [
            [
                scipy.optimize.brentq(excess, -1e6, 1e6, (mixture, p), xtol=1e-12)
                for mixture in range(len(means))
            ]
            for p in P
        ]
    )


MIXTURES = {
    "one": (np.zeros((1, 50)), np.ones((1, 50))),
    "spread": (np.linspace(-1, 2, 50)[None], np.full((1, 50), 0.3)),
    "two far modes": (np.repeat([-1.0, 1e3], [98, 2])[None], np.full((1, 100), 0.01)),
    "a plateau at a quantile": (np.repeat([-5.0, 5.0], 50)[None], np.full((1, 100), 1e-3)),
    "scales of all sizes": (np.zeros((1, 60)), np.logspace(-3, 6, 60)[None]),
    "outliers": (np.linspace(-1, 1, 60)[None] + 30 * (np.arange(60) % 30 == 7), np.full((1, 60), 0.1)),
    "vague": (np.logspace(0, 60, 40)[None] * np.where(np.arange(40) % 2, 1, -1), np.ones((1, 40))),
}


@pytest.mark.parametrize("df", [math.inf, 4.0, 2.5, 1.0, 0.5])
@pytest.mark.parametrize("name", MIXTURES)
def test_quantiles_are_those_of_all_components(name: str, df: float) -> None:
    means, sigmas = MIXTURES[name]
    quantiles, _ = gaussian_quantiles(means, sigmas, df)
    cdf = component_sums(quantiles[:, :, None], means[0], sigmas[0], df)[0][:, 0] / means.shape[1]
    if name == "a plateau at a quantile":
        assert abs(quantiles[2, 0]) < 5
        cdf[2] = 0.5
    # At 1e60 neighbouring numbers are further apart than a component is wide.
    np.testing.assert_allclose(cdf, P, atol=1 / 40 if name == "vague" else 1e-5)
    if name in ("one", "spread"):
        np.testing.assert_allclose(quantiles, by_root_finder(means, sigmas, df), rtol=1e-5, atol=1e-5)


def test_many_cases_take_few_rounds() -> None:
    rng = np.random.default_rng(1)
    means, sigmas = rng.normal(size=(200, 300)), rng.gamma(5.0, size=(200, 300)) / 5
    quantiles, n_rounds = gaussian_quantiles(means, sigmas)
    np.testing.assert_allclose(quantiles[:, :9], by_root_finder(means[:9], sigmas[:9]), atol=1e-5)
    assert n_rounds <= 4


@pytest.mark.parametrize("df", [math.inf, 1.0])
@pytest.mark.parametrize("far", [1e100, 1e200, 1e300])
def test_components_may_be_any_number_of_decades_apart(far: float, df: float) -> None:
    """A third about 0, a third about -far / 2, a third about far, as draws from a vague prior may be."""
    near = np.linspace(-1, 1, 10)
    means = np.concatenate([near, near - far / 2, near + far])[None]
    quantiles, _ = gaussian_quantiles(means, np.ones((1, 30)), df)
    np.testing.assert_allclose(quantiles[[0, 4], 0], [-0.5 * far, far], rtol=1e-6)
    cdf = component_sums(quantiles[2, 0], near, np.ones(10), df)[0] / 10
    assert cdf == pytest.approx(0.5, abs=1e-5)


def test_guesses_near_the_quantiles_take_one_round() -> None:
    rng = np.random.default_rng(1)
    means, sigmas = rng.normal(size=(9, 300)), rng.gamma(5.0, size=(9, 300)) / 5
    expected = by_root_finder(means, sigmas)
    near = expected + 3e-3 * rng.uniform(-1, 1, size=expected.shape)
    quantiles, n_rounds = gaussian_quantiles(means, sigmas, start=near[..., None])
    np.testing.assert_allclose(quantiles, expected, atol=1e-5)
    assert n_rounds == 1


@pytest.mark.parametrize("start", [-1e6, 0.0, 1e6])
def test_guesses_that_are_wrong_do_no_harm(start: float) -> None:
    means, sigmas = MIXTURES["spread"]
    quantiles, _ = gaussian_quantiles(means, sigmas, start=np.full((len(P), 1, 1), start))
    np.testing.assert_allclose(quantiles, by_root_finder(means, sigmas), atol=1e-5)


def test_a_count_next_to_the_quantile_is_known_from_one_round() -> None:
    rate = np.linspace(3.0, 9.0, 40)

    def sums_at(some: Guesses) -> Array:
        k = some.values[..., None]
        cdf, mass = (np.asarray(f(k, rate)).sum(axis=-1) for f in (POISSON.cdf, POISSON.pmf))
        return np.stack([cdf, mass, np.full_like(cdf, np.nan)])

    mean, sd = rate.mean()[None, None], np.sqrt(rate.var() + rate.mean())[None, None]
    first, _ = found(QuantileSearch(P, mean, sd, scale="whole"), sums_at, len(rate))
    again, n_rounds = found(
        QuantileSearch(P, mean, sd, scale="whole", start=first[..., None]), sums_at, len(rate)
    )
    assert n_rounds == 1 and np.array_equal(first, again)


@pytest.mark.parametrize("rates", [[0.01], [0.5, 3.0, 40.0], [1e4, 2e4], [1e12], [0.1, 1e9]])
def test_quantiles_of_counts_are_the_smallest_numbers(rates: list[float]) -> None:
    rate = np.array(rates)
    search = QuantileSearch(
        P, rate.mean()[None, None], np.sqrt(rate.var() + rate.mean())[None, None], scale="whole"
    )

    def sums_at(some: Guesses) -> Array:
        k = some.values[..., None]
        cdf, mass = (np.asarray(f(k, rate)).sum(axis=-1) for f in (POISSON.cdf, POISSON.pmf))
        return np.stack([cdf, mass, np.full_like(cdf, np.nan)])

    quantiles, _ = found(search, sums_at, len(rate))
    for p, k in zip(P, quantiles[:, 0], strict=True):
        at, before = (float(np.mean(POISSON.cdf(one, rate))) for one in (k, k - 1))
        assert at >= p > before


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e15])
def test_quantiles_of_times_of_any_size(scale: float) -> None:
    log_hazard = (np.log([0.5, 1.0, 8.0]) - math.log(scale))[None, :, None]
    hazard = Hazard((), False)
    times = hazard.mean_times(log_hazard)
    mean = times.mean(axis=1)
    sd = np.sqrt(hazard.second_moments(log_hazard).mean(axis=1) - mean**2)
    search = QuantileSearch(P, mean[:, None], sd[:, None], scale="log")

    def sums_at(some: Guesses) -> Array:
        return np.stack([hazard.distribution(log_hazard, t[:, 0]) for t in some.values], axis=1)[..., None]

    quantiles, _ = found(search, sums_at, 3)
    survival = hazard.survival_curve(log_hazard, quantiles[:, 0])[0]
    np.testing.assert_allclose(1 - survival, P, atol=1e-5)


@pytest.mark.parametrize("sigma", [1.0, 0.02], ids=["wide components", "narrow components"])
def test_some_draws_save_rounds_and_change_nothing(sigma: float) -> None:
    """Groups of draws with narrow components disagree about what a step leaves out, and are not followed."""
    rng = np.random.default_rng(3)
    means, sigmas = rng.gamma(2.0, size=(20, 40_000)), np.full((20, 40_000), sigma)
    mean, sd = means.mean(axis=1)[:, None], np.hypot(means.std(axis=1), sigma)[:, None]

    def sums_at(some: Guesses, values: Array, draws: slice) -> Array:
        at = values[:, :, 0, None], means[some.cases, draws], sigmas[some.cases, draws]
        return component_sums(*at)[..., None]

    groups = [slice(group, 4_000, 8) for group in range(8)]

    def by_group(some: Guesses, values: Array) -> Array:
        return np.stack([sums_at(some, values, draws) / 500 for draws in groups])

    few = slice(0, 4_000)
    first = QuantileSearch(P, mean, sd, scale="linear")
    start, _ = found(first, lambda some: sums_at(some, some.values, few), 4_000)
    search = QuantileSearch(P, mean, sd, scale="linear", start=start[..., None])
    n_rounds = 0
    for guesses in search.rounds():
        n_rounds += 1
        for some in guesses:
            search.improve(some, sums_at(some, some.values, slice(None)), 40_000)
            if search.has_short_steps(some):
                there = search.values[some.place]
                search.confirm(some, by_group(some, some.values), by_group(some, there))
    np.testing.assert_allclose(search.values[:, :5, 0], by_root_finder(means[:5], sigmas[:5]), atol=1e-4)
    assert n_rounds <= (3 if sigma == 1 else 12)
