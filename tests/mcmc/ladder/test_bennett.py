"""Bennett's ratio finds known differences of log Z, and states its error."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rayfbnn.mcmc.ladder import bennett as module
from rayfbnn.mcmc.ladder.bennett import bennett, standard_error_of_mean
from rayfbnn.streams import Purpose, Streams
from tests.support.mutants import mutant

_SIGMAS = (
    2.0,
    1.4,
    1.0,
)  # the levels are normal distributions with energies x**2/(2 s**2): Z is s sqrt(2 pi)
_TRUE = math.log(_SIGMAS[-1] / _SIGMAS[0])


def _differences(n: int, seed: int, *, persistence: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    noise = Streams(seed, np.arange(n, dtype=np.uint64)).normal(Purpose.PROPOSAL, (3,))
    z = np.empty((n, 3))
    z[0] = noise[0]
    for t in range(1, n):
        z[t] = persistence * z[t - 1] + math.sqrt(1 - persistence**2) * noise[t]
    x = z * np.array(_SIGMAS)

    def energy(values: np.ndarray, level: int) -> np.ndarray:
        return values**2 / (2 * _SIGMAS[level] ** 2)

    forward = [energy(x[:, k], k + 1) - energy(x[:, k], k) for k in (0, 1)]
    reverse = [energy(x[:, k + 1], k) - energy(x[:, k + 1], k + 1) for k in (0, 1)]
    return np.stack(forward, axis=1), np.stack(reverse, axis=1)


def _z_values(estimate: object, n: int, *, persistence: float) -> np.ndarray:
    values = []
    for seed in range(60):
        found = estimate(*_differences(n, seed, persistence=persistence))  # type: ignore[operator]
        values.append((found.total - _TRUE) / found.standard_error)
    return np.array(values)


@pytest.mark.parametrize("persistence", [0.0, 0.8])
def test_error_of_bennetts_ratio_is_what_it_says(persistence: float) -> None:
    """The z values of 60 estimates have a mean of 0 +- 4/sqrt(60) and a standard deviation of 1 +- 0.37."""
    z = _z_values(bennett, 1000, persistence=persistence)
    assert abs(z.mean()) < 4 / math.sqrt(60)
    assert 0.63 < z.std() < 1.37


@pytest.mark.parametrize(
    "old, new",
    [
        ("- _sigmoid(-r + c).sum()", "- 2 * _sigmoid(-r + c).sum()"),
        ("2 * float(pairs.sum()) - float(covariance[0])", "float(covariance[0])"),
    ],
)
def test_mutant_of_bennetts_ratio_is_killed(old: str, new: str) -> None:
    z = _z_values(mutant(module, (old, new)).bennett, 1000, persistence=0.8)
    assert not (abs(z.mean()) < 4 / math.sqrt(60) and 0.63 < z.std() < 1.37)


def test_differences_that_overflow_count_as_impossible() -> None:
    forward, reverse = _differences(500, 1)
    spoilt = forward.copy()
    spoilt[0, 0] = np.inf
    changed, whole = bennett(spoilt, reverse).total, bennett(forward, reverse).total
    assert math.isfinite(changed) and abs(changed - whole) < 0.01


def test_differences_of_two_infinite_energies_count_as_impossible() -> None:
    forward, reverse = _differences(500, 1)
    spoilt = forward.copy()
    spoilt[0, 0] = np.nan
    assert abs(bennett(spoilt, reverse).total - bennett(forward, reverse).total) < 0.01


@pytest.mark.filterwarnings("error")
def test_levels_without_any_overlap_have_an_infinite_error() -> None:
    found = bennett(np.full((50, 1), 1e5), np.full((50, 1), 1e5))
    assert math.isinf(found.standard_error)


def test_levels_that_hardly_overlap_have_an_infinite_error() -> None:
    """Two normal distributions of standard deviation one, 12 apart; then 1 apart."""
    z = Streams(1, np.arange(1000, dtype=np.uint64)).normal(Purpose.PROPOSAL, (2,))
    for distance, is_known in ((12.0, False), (1.0, True)):
        change = distance * (distance / 2 - z[:, 0]), distance * (distance / 2 + z[:, 1])
        found = bennett(change[0][:, None], change[1][:, None])
        assert math.isfinite(found.standard_error) == is_known


def test_constant_series_has_no_error() -> None:
    assert standard_error_of_mean(np.ones(100)) == 0
