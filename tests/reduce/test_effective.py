"""R-hat, effective sample sizes and errors are those of arviz-stats, in little memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from arviz_stats.base import array_stats

from rayfbnn.arrays import Array
from rayfbnn.reduce.effective import (
    both_scores,
    convergence,
    ess_bulk,
    ess_mean,
    ess_quantile,
    ess_tail,
    mcse_mean,
    rhat,
)
from tests.support.store.standin_store import normal

CHANGES: dict[str, Callable[[Array], Array]] = {
    "different": lambda values: values,
    "ties": np.round,
    "two values": lambda values: (values > 0.5).astype(float),
    "chains apart": lambda values: values + np.arange(len(values))[:, None],
}
SHAPES = [(4, 50, 0.0), (4, 51, 0.9), (1, 200, 0.5), (3, 4, 0.0), (3, 5, 0.0), (2, 7, -0.9), (40, 20, 0.99)]


def chains(n_chains: int, n_draws: int, coefficient: float) -> Array:
    """Autoregressive processes."""
    values = normal(n_draws, (n_chains, n_draws))
    for draw in range(1, n_draws):
        values[:, draw] += coefficient * values[:, draw - 1]
    return values


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("n_chains", "n_draws", "coefficient"), [*SHAPES, (300, 1200, 0.8)])
def test_statistics_are_those_of_arviz(n_chains: int, n_draws: int, coefficient: float, change: str) -> None:
    values = CHANGES[change](chains(n_chains, n_draws, coefficient))
    with np.errstate(all="ignore"):
        expected = (
            float(array_stats.rhat(values, method="rank")) if n_chains > 1 else np.nan,
            float(array_stats.ess(values, method="bulk")),
            float(array_stats.ess(values, method="tail", prob=(0.05, 0.95))),
            float(array_stats.mcse(values, method="mean")),
        )
        median, mean = (float(array_stats.ess(values, method=one)) for one in ("median", "mean"))
    together = convergence(values)
    np.testing.assert_allclose(together, expected, rtol=1e-12)
    single = rhat(values), ess_bulk(values), ess_tail(values), float(mcse_mean(values))
    np.testing.assert_array_equal(single, together)
    np.testing.assert_allclose((ess_quantile(values, 0.5), ess_mean(values)), (median, mean), rtol=1e-12)


def test_nothing_is_known_from_three_draws_or_from_values_that_are_not_finite() -> None:
    values = chains(4, 50, 0.0)
    assert np.isnan(convergence(values[:, :3])).all()
    values[2, 7] = np.inf
    assert np.isnan(convergence(values)).all() and np.isnan(mcse_mean(values))


def test_errors_of_many_means_are_those_of_each() -> None:
    values = np.stack([chains(4, 30, 0.5), chains(4, 30, 0.5) ** 2])
    assert mcse_mean(values).tolist() == [float(mcse_mean(one)) for one in values]


def test_scores_do_not_change_the_values() -> None:
    values = chains(4, 30, 0.0)
    before = values.copy()
    bulk, tails = both_scores(values)
    convergence(values)
    assert bulk.shape == tails.shape == values.shape and (values == before).all()
    assert (np.argsort(bulk, axis=None) == np.argsort(values, axis=None)).all()
    distances = np.abs(values - np.median(values))
    assert (np.argsort(tails, axis=None) == np.argsort(distances, axis=None)).all()


@pytest.mark.parametrize("shape", [(2000, 100), (4, 50_000)])
def test_memory_is_that_of_a_few_copies_of_the_quantity(shape: tuple[int, int]) -> None:
    values = normal(1, shape)
    tracemalloc.start()
    convergence(values)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 6 * values.nbytes + 12e6  # 12 MB for a few chains that are transformed
