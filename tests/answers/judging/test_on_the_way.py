"""Chains that are still on their way from a common start agree, and their predictions are not usable.

The outputs are weighted sums of independent autoregressions of order one, whose stationary distribution is
standard normal.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import scipy.signal
import scipy.stats

from rayfbnn import api
from rayfbnn.answers.diagnostics import diagnose_draws
from rayfbnn.answers.judging.chain_average import (
    PARTS,
    AverageError,
    error_of_moments,
    is_on_its_way,
    move_apart,
)
from rayfbnn.arrays import Array
from rayfbnn.draws.view import committed
from rayfbnn.reduce.effective import ess_bulk, ess_tail, rhat
from rayfbnn.store.store import Store
from tests.support.model.linear import exact_outputs, linear_data, linear_spec

CASES, DRAWS = 20, 400


def outputs(
    generator: np.random.Generator, rho: float, distance: float | None, *, n_chains: int, n_directions: int
) -> Array:
    """Draw outputs (n_chains, n_draws, n_cases) that start a distance off, or None at exact draws."""
    shape = (n_directions, n_chains, DRAWS)
    noise = generator.standard_normal(shape) * math.sqrt(1 - rho**2)
    start = (
        generator.standard_normal((*shape[:2], 1)) if distance is None else np.full((*shape[:2], 1), distance)
    )
    directions = scipy.signal.lfilter([1.0], [1.0, -rho], noise, axis=2, zi=rho * start)[0]
    weights = generator.standard_normal((CASES, n_directions)) / math.sqrt(n_directions)
    return np.asarray(np.einsum("vd,dcn->cnv", weights, directions))


def error_of(values: Array, *, sees_parts: bool = True) -> AverageError:
    """The error of predictions with noise as wide as the outputs are uncertain."""
    n_chains, n_draws, n_cases = values.shape
    parts = values.reshape(n_chains, PARTS, n_draws // PARTS, n_cases).mean(axis=2).swapaxes(0, 1)
    halves = parts.reshape(2, PARTS // 2, n_chains, n_cases).mean(axis=1)
    return error_of_moments(
        halves, values.var(axis=1) + 1.0, n_cases=n_cases, parts=parts if sees_parts else None
    )


def simulated(
    rho: float, distance: float | None, *, n_chains: int, n_directions: int = 6, count: int = 60
) -> list[Array]:
    generator = np.random.default_rng(13)
    return [
        outputs(generator, rho, distance, n_chains=n_chains, n_directions=n_directions) for _ in range(count)
    ]


@pytest.mark.parametrize("n_chains", [4, 8, 20])
@pytest.mark.parametrize(("rho", "distance"), [(0.9999, 3.0), (0.9999, 10.0), (0.99999, 3.0)])
def test_predictions_of_chains_far_from_the_posterior_are_not_usable(
    rho: float, distance: float, n_chains: int
) -> None:
    runs = simulated(rho, distance, n_chains=n_chains)
    assert sum(error_of(run).is_small for run in runs) <= 0.05 * len(runs)


def test_without_parts_chains_that_hardly_move_seem_precise() -> None:
    """The error and the change between halves are within the limits, and the mean is 3 sd off."""
    runs = simulated(0.99999, 3.0, n_chains=8)
    assert all(error_of(run, sees_parts=False).is_small for run in runs)
    assert sum(error_of(run).is_on_its_way for run in runs) >= 0.95 * len(runs)


def test_a_drift_in_one_direction_alone_is_seen_more_often_than_not() -> None:
    runs = simulated(0.9999, 3.0, n_chains=8, n_directions=1)
    assert sum(error_of(run).is_small for run in runs) < 0.3 * len(runs)


@pytest.mark.parametrize("n_chains", [4, 8, 20])
@pytest.mark.parametrize("rho", [0.0, 0.9, 0.95])
def test_stationary_chains_are_seldom_on_their_way(rho: float, n_chains: int) -> None:
    for n_directions in (1, 6):
        runs = simulated(rho, None, n_chains=n_chains, n_directions=n_directions, count=50)
        assert sum(error_of(run).is_on_its_way for run in runs) <= 5  # 1 in 70 if the rate is 4 %


@pytest.mark.parametrize(("n_chains", "share"), [(8, 0.6), (20, 0.5)])
def test_a_drift_below_fast_noise_that_rhat_does_not_see_is_often_seen(n_chains: int, share: float) -> None:
    """A slow part, a fifth as wide as the noise, starts five of its standard deviations off."""
    generator = np.random.default_rng(1)
    n_converged = n_missed = 0
    for _ in range(40):
        slow = outputs(generator, math.exp(-1 / 1000), 5.0, n_chains=n_chains, n_directions=1)[..., :1]
        values = 0.2 * slow / abs(slow).max() * 5 + generator.standard_normal(slow.shape)
        one = values[..., 0]
        if rhat(one) <= 1.01 and min(ess_bulk(one), ess_tail(one)) >= 400:
            n_converged += 1
            n_missed += not error_of(values).is_moving
    assert n_converged >= 20 and n_missed < share * n_converged


def test_three_chains_can_move_apart_and_two_cannot() -> None:
    first, second = np.array([[0.001], [-0.001], [0.0005]]), np.array([[1.0], [-1.0], [0.0]])
    assert move_apart(first, second, 0.01) and not move_apart(second, first, 0.01)
    assert not move_apart(first[:2], second[:2], 0.01)


def test_chains_that_stay_in_different_modes_are_not_on_their_way() -> None:
    generator = np.random.default_rng(3)
    for run in simulated(0.5, None, n_chains=8, count=20):
        assert not error_of(run + 3 * generator.integers(0, 2, (8, 1, 1))).is_on_its_way


def test_the_error_of_a_drift_that_slows_down_is_that_of_a_geometric_series() -> None:
    """Quarters at 1, 1/2, 1/4 and 1/8 from the end, below noise: their mean is 15/32 off."""
    parts = 2 * np.random.default_rng(4).standard_normal((PARTS, 100_000, 1))
    parts += np.repeat([1, 1 / 2, 1 / 4, 1 / 8], 2)[:, None, None]
    assert is_on_its_way(parts, np.ones(1), 0.9 * 15 / 32)
    assert not is_on_its_way(parts, np.ones(1), 1.1 * 15 / 32)


@pytest.mark.parametrize("change", [0.05, -0.05])
def test_a_steady_drift_may_end_anywhere(change: float) -> None:
    parts = np.random.default_rng(4).standard_normal((PARTS, 100_000, 1))
    parts += change * np.arange(PARTS)[:, None, None]
    assert is_on_its_way(parts, np.ones(1), 2.0)  # the whole change is 0.35


@pytest.mark.parametrize("seed", range(3))
def test_chains_move_apart_where_sums_and_differences_of_their_halves_are_correlated(seed: int) -> None:
    first, noise = np.random.default_rng(seed).standard_normal((2, 12, 1))
    second = 1.3 * first + 0.5 * noise
    test = scipy.stats.pearsonr((second + first).ravel(), (second - first).ravel(), alternative="greater")
    assert move_apart(first, second, test.pvalue * 1.01)
    assert not move_apart(first, second, test.pvalue * 0.99)
    assert not move_apart(second, first, 0.4)


@pytest.mark.parametrize("stepsize", [0.008, 0.002, 0.0005])
def test_predictions_of_a_linear_model_that_hardly_leaves_its_start_are_not_usable(
    stepsize: float, tmp_path: Path
) -> None:
    """The chains agree to a few per cent of the predictive standard deviation."""
    spec = linear_spec(chains=8, iterations=200, stepsize=stepsize)
    api.sample(spec, tmp_path / "run.zarr", data=linear_data(), workers=0, progress=False)
    verdict = diagnose_draws(committed(Store.open(tmp_path / "run.zarr")), decisive="predictions").predictions
    mean, sd = exact_outputs()
    off = api.predict(tmp_path / "run.zarr", data=linear_data()).table["y_mean"].to_numpy() - mean
    assert np.sqrt(np.mean((off / sd) ** 2)) > 10
    assert verdict.error is not None and verdict.error.mean_bound < 0.2
    assert verdict.grade == "not usable" and (verdict.error.has_drift or verdict.error.is_on_its_way)
    words = ("the predictions still move", "the chains are still moving away")
    assert any(remark.startswith(words) for remark in verdict.remarks)


@pytest.mark.long
@pytest.mark.parametrize("distance", [3.0, 10.0])
@pytest.mark.parametrize("rho", [0.9, 0.98, 0.99, 0.995, 0.999, 0.9999])
@pytest.mark.parametrize("n_chains", [4, 8, 20])
def test_chains_from_a_common_start_never_pass_as_converged(
    rho: float, distance: float, n_chains: int
) -> None:
    """Chains of 400 draws, whose means are off by 0.07 standard deviations or more."""
    for run in simulated(rho, distance, n_chains=n_chains, n_directions=1, count=100):
        values = run[:, :, 0]
        assert rhat(values) > 1.01 or min(ess_bulk(values), ess_tail(values)) < 400
