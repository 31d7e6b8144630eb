"""Polya-Gamma draws have the moments, transforms and distribution that are known in closed form."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from rayfbnn.arrays import Array
from rayfbnn.errors import SamplingError
from rayfbnn.model.likelihood import binary
from rayfbnn.selftest.pivots import is_exact, ks_p_value
from rayfbnn.streams import Purpose, Streams
from tests.support.mutants import mutant
from tests.support.problems import chain_streams, streams

# Both kinds of proposal below t occur; they change at |z| = 3.125. Binary outputs are mostly below 10.
PLACES = (0.0, -1.0, 3.1, -3.2, 4.5, 8.0, 30.0)


def draws(random: Streams, z: Array, *, module: ModuleType = binary) -> Array:
    """One draw for each chain and each z, (n_chains, n)."""
    all_z = np.broadcast_to(z, (random.n_chains, len(z)))
    return module.polya_gamma(all_z, random, purpose=Purpose.POLYA_GAMMA)


def mean(z: float) -> float:
    return 0.25 if abs(z) < 1e-4 else np.tanh(z / 2) / (2 * z)


def variance(z: float) -> float:
    if abs(z) < 1e-4:
        return 1 / 24
    return (np.sinh(z) - z) / (4 * z**3 * np.cosh(z / 2) ** 2)


def log_cosh(x: Array) -> Array:
    return np.logaddexp(x, -x) - np.log(2)


def density(x: Array, z: float) -> Array:
    """Polson, Scott and Windle (2013), sec. 4.1, for small x; for large x the same by the Poisson sum."""
    n = np.arange(60)[:, None]
    small = np.minimum(x, 0.5)
    by_small = (
        (-1.0) ** n * (2 * n + 1) / np.sqrt(2 * np.pi * small**3) * np.exp(-((2 * n + 1) ** 2) / 8 / small)
    )
    by_large = (
        4 * (-1.0) ** n * np.pi * (n + 0.5) * np.exp(-2 * (n + 0.5) ** 2 * np.pi**2 * np.maximum(x, 0.02))
    )
    series = np.where(x < 0.1, by_small.sum(axis=0), by_large.sum(axis=0))
    return series * np.exp(log_cosh(z / 2) - z**2 * x / 2)


def distribution(values: Array, z: float) -> Array:
    """The distribution function by the trapezoid rule on a grid of the logarithm, error below 1e-5."""
    grid = np.exp(np.linspace(np.log(1e-4), np.log(30.0), 8_001))
    heights = density(grid, z)
    below = np.concatenate([[0.0], np.cumsum(np.diff(grid) * (heights[1:] + heights[:-1]) / 2)])
    return np.interp(values, grid, below)


def p_values(seed: int, n_chains: int, *, module: ModuleType = binary) -> list[float]:
    random = chain_streams(seed, n_chains)
    drawn = draws(random, np.array(PLACES), module=module)
    return [ks_p_value(distribution(drawn[:, i], z)) for i, z in enumerate(PLACES)]


def test_the_reference_density_integrates_to_one() -> None:
    for z in PLACES:
        assert abs(distribution(np.array([29.9]), z)[0] - 1) < 1e-5


def test_draws_have_the_distribution() -> None:
    assert is_exact(p_values, name="polya-gamma", n_chains=20_000)


def test_moments_are_those_in_closed_form() -> None:
    n_chains = 30_000
    drawn = draws(streams("moments", n_chains), np.array(PLACES))
    for i, z in enumerate(PLACES):
        error = drawn[:, i] - mean(z)
        deviation = np.sqrt(variance(z) / n_chains)
        assert abs(error.mean()) < 4.5 * deviation  # 1 in 150,000 for each of seven places if correct
        squares = error**2
        assert abs(squares.mean() - variance(z)) < 4.5 * squares.std() / np.sqrt(n_chains)


def test_the_laplace_transform_is_that_in_closed_form() -> None:
    n_chains = 30_000
    drawn = draws(streams("transform", n_chains), np.array(PLACES))
    for i, z in enumerate(PLACES):
        for s in (0.5, 3.0, 20.0):
            transform = np.exp(log_cosh(z / 2) - log_cosh(np.sqrt((z**2 / 2 + s) / 2)))
            values = np.exp(-s * drawn[:, i])
            assert abs(values.mean() - transform) < 4.5 * values.std() / np.sqrt(n_chains)


def test_the_mixture_over_draws_is_the_logistic_likelihood() -> None:
    """P(y | v) is the mean over omega ~ PG(1, 0) of exp((y - 1/2) v - omega v**2/2)/2; theorem 1."""
    omega = draws(streams("mixture", 100_000), np.zeros(1))[:, 0]
    for v in (-2.0, 0.3, 3.0):
        for y in (0, 1):
            values = np.exp((y - 0.5) * v - omega * v**2 / 2) / 2
            probability = 1 / (1 + np.exp(-v if y else v))
            assert abs(values.mean() - probability) < 4.5 * values.std() / np.sqrt(len(omega))


def test_large_outputs_give_finite_draws() -> None:
    z = np.array([1e3, -1e8, 1e15, 1e30])
    drawn = draws(streams("large", 2_000), z)
    assert (drawn > 0).all() and np.allclose(drawn.mean(axis=0), 0.5 / abs(z), rtol=0.02)


def test_an_output_that_is_not_finite_is_an_error() -> None:
    with np.errstate(invalid="ignore"), pytest.raises(SamplingError, match="not finite"):
        draws(streams("nan", 3), np.array([np.nan]))


def is_independent_of_the_batch(module: ModuleType) -> bool:
    random = streams("batch", 500, iteration=2)
    z = random.normal(Purpose.PROPOSAL, (4, 7)) * 3
    together = module.polya_gamma(z, random, purpose=Purpose.POLYA_GAMMA)
    for chain in (0, 133, 499):
        alone = Streams(random.seed, random.chains[chain : chain + 1], random.iteration)
        single = module.polya_gamma(z[chain : chain + 1], alone, purpose=Purpose.POLYA_GAMMA)
        if not np.array_equal(single[0], together[chain]):
            return False
    return True


def test_chains_do_not_depend_on_their_batch() -> None:
    assert is_independent_of_the_batch(binary)


def test_keeping_the_last_draw_shows_in_the_batch() -> None:
    """This mutant has the right distribution, but the number of repeats depends on the other chains."""
    keeps_the_last = ("xp.where(pending & accepted, x, result)", "xp.where(accepted, x, result)")
    assert not is_independent_of_the_batch(mutant(binary, keeps_the_last))


MUTANTS = {
    "not_halved": ("abs(z.astype(xp.float64)) / 2", "abs(z.astype(xp.float64))"),
    "not_quartered": ("return result / 4", "return result / 3.9"),
    "no_tilt": ("-(c**2) * x / 2", "0 * x"),
    "half_tilt": ("-(c**2) * x / 2", "-(c**2) * x / 4"),
    "not_cut": ("xp.where(x < _T, 0.0, -xp.inf))", "0.0)"),
    "rate": ("math.pi**2 / 8 + c**2 / 2", "math.pi**2 / 8 + c**2"),
    "share_of_the_cut_mass": ("math.log(2) - c)", "math.log(2) - 1.2 * c)"),
    "tail_by_half": ("/ 2  # of a normal", "/ 1.9  # of a normal"),
    "mean_for_shape": ("ratio = 1 / (1 + w + xp.sqrt(w * (2 + w)))", "ratio = 1 / (1 + w + xp.sqrt(w * w))"),
    "one_root": ("xp.where(v * (1 + ratio) < 1, ratio, 1 / ratio)", "ratio"),
    "one_uniform": ("u[..., 3] < xp", "u[..., 1] < xp"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_killed(name: str) -> None:
    changed = mutant(binary, MUTANTS[name])
    assert not is_exact(
        lambda seed, n: p_values(seed, n, module=changed), name=f"polya-gamma {name}", n_chains=10_000
    )


def test_the_series_is_the_density_over_its_first_term() -> None:
    """A KS test of 50,000 draws would not see an error, because the correction is at most 0.6 %."""
    x = np.linspace(0.05, 3, 60)
    first = np.where(
        x <= binary._T,
        np.pi / 2 * (2 / (np.pi * x)) ** 1.5 * np.exp(-1 / (2 * x)),
        np.pi / 2 * np.exp(-(np.pi**2) * x / 8),
    )
    exact = density(x / 4, 0.0) / 4
    assert np.allclose(first * binary._series(x), exact, rtol=1e-12)
