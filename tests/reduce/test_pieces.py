"""Monte Carlo errors of means from sums over pieces of chains.

R-hat, effective sample sizes and errors are those of arviz-stats, in little memory.
"""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
import scipy.signal
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
from rayfbnn.reduce.pieces import Pieces
from rayfbnn.reduce.tile import Unit
from tests.support.store.standin_store import normal


class Run:
    def __init__(self, n_chains: int, n_draws: int) -> None:
        self.n_chains, self.n_draws = n_chains, n_draws


def error(chains: Array) -> tuple[Pieces, float]:
    """The pieces of chains (n_chains, n_draws), and the error of the mean over all draws."""
    pieces = Pieces.of_runs([Run(*chains.shape)])  # type: ignore[list-item]
    numbers = pieces.numbers_of(Unit(0, (0, chains.shape[0]), (0, chains.shape[1])))
    sums = np.bincount(numbers, weights=chains.reshape(-1), minlength=pieces.n_pieces)
    return pieces, float(pieces.mcse_of_mean(sums[:, None])[0])


@pytest.mark.parametrize("n_chains", [16, 300])
@pytest.mark.parametrize("correlation", [0.0, 0.9, 0.98])
def test_errors_of_chains_with_known_autocorrelation(correlation: float, n_chains: int) -> None:
    """The variance of the mean of an AR(1) chain is (1 + c) / (1 - c) / n for large n."""
    rng = np.random.default_rng(4)
    n_draws = 4000
    noise = rng.normal(size=(n_chains, n_draws + 1000)) * math.sqrt(1 - correlation**2)
    chains = scipy.signal.lfilter([1.0], [1.0, -correlation], noise, axis=1)[:, 1000:]
    expected = math.sqrt((1 + correlation) / (1 - correlation) / (n_chains * n_draws))
    _, by_pieces = error(chains)
    assert by_pieces == pytest.approx(expected, rel=0.15)
    if n_chains < 64:  # for more, the spread of the chains' means is closer to the truth
        assert by_pieces == pytest.approx(float(mcse_mean(chains)), rel=0.15)


def test_chains_that_disagree_have_a_large_error() -> None:
    rng = np.random.default_rng(5)
    chains = rng.normal(size=(4, 2000)) * 0.01 + np.array([[0.0], [1.0], [2.0], [3.0]])
    assert error(chains)[1] > 0.3


@pytest.mark.parametrize("n_draws", [1, 8, 100])
def test_many_chains_are_grouped_and_still_disagree(n_draws: int) -> None:
    """The chains stand still, so that their means are what is known: the error is sd / sqrt(n_chains)."""
    rng = np.random.default_rng(8)
    chains = rng.normal(size=(1000, 1)) + 0.01 * rng.normal(size=(1000, n_draws))
    pieces, by_pieces = error(chains)
    assert pieces.n_pieces <= 128
    assert by_pieces == pytest.approx(1 / math.sqrt(1000), rel=0.2)


def test_runs_of_different_lengths_count_by_their_draws() -> None:
    """Half of 80 independent chains have nine times as many draws, and a tenth of the variance."""
    rng = np.random.default_rng(9)
    short, long = rng.normal(size=(40, 10)), rng.normal(size=(40, 90))
    pieces = Pieces.of_runs([Run(40, 10), Run(40, 90)])  # type: ignore[list-item]
    sums = np.concatenate([short.sum(axis=1), long.sum(axis=1)])
    assert float(pieces.mcse_of_mean(sums)) == pytest.approx(1 / math.sqrt(4000), rel=0.25)


def test_groups_of_chains_have_nearly_the_same_size() -> None:
    pieces = Pieces.of_runs([Run(1000, 20), Run(7, 20)])  # type: ignore[list-item]
    numbers = pieces.numbers_of(Unit(0, (0, 1000), (19, 20)))
    sizes = np.bincount(numbers)
    assert sizes.min() >= sizes.max() - 1 and sizes.sum() == 1000
    np.testing.assert_array_equal(pieces.numbers_of(Unit(0, (500, 600), (19, 20))), numbers[500:600])


def test_pieces_of_short_chains_are_single_draws() -> None:
    chains = np.random.default_rng(6).normal(size=(3, 12))
    pieces, by_pieces = error(chains)
    assert pieces.length == 1
    assert by_pieces == pytest.approx(float(mcse_mean(chains)), rel=1e-12)


def test_fewer_than_four_draws_have_no_error() -> None:
    assert math.isnan(error(np.zeros((3, 3)))[1])


def test_pieces_end_with_the_last_draw_and_units_share_them() -> None:
    pieces = Pieces.of_runs([Run(2, 1001), Run(1, 500)])  # type: ignore[list-item]
    first = pieces.numbers_of(Unit(0, (0, 2), (0, 1001))).reshape(2, -1)
    length = pieces.length
    assert (np.bincount(first[0])[1:] == length).all()
    assert first[1, 0] == first[0, -1] + 1
    split = [pieces.numbers_of(Unit(0, (1, 2), draws)) for draws in ((0, 300), (300, 1001))]
    np.testing.assert_array_equal(np.concatenate(split), first[1])
    last = pieces.numbers_of(Unit(1, (0, 1), (0, 500)))
    assert last[0] == first.max() + 1 and last[-1] == pieces.n_pieces - 1


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
