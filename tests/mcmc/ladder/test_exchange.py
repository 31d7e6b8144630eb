"""An exchange only moves whole states between levels, and its journeys are counted.

Bennett's ratio finds known differences of log Z, and states its error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

from rayfbnn.arrays import Array
from rayfbnn.mcmc.ladder import bennett as module
from rayfbnn.mcmc.ladder.bennett import bennett, standard_error_of_mean
from rayfbnn.mcmc.ladder.iteration import exchange, tried
from rayfbnn.mcmc.ladder.records import LadderState, rows_of, started
from rayfbnn.state import ChainState
from rayfbnn.streams import Purpose, Streams
from tests.support.mutants import mutant
from tests.support.problems import streams_on_array

_LADDERS, _LEVELS = 7, 6
_X = np.tile(np.arange(float(_LEVELS)), (_LADDERS, 1))


@dataclass(frozen=True, eq=False)
class Products:
    """Energies x * measure: a state of a smaller measure belongs to a level of a larger x."""

    measure: Array

    def at(self, x: Array) -> Array:
        return x * self.measure

    def taken(self, rows: Array) -> Products:
        return Products(self.measure[rows])


def _state() -> LadderState:
    rows = np.arange(_LADDERS * _LEVELS, dtype=float)
    return started(ChainState(rows[:, None], -rows[:, None], rows[:, None] + 0.5), _LEVELS)


def _after(state: LadderState, measure: Array, iteration: int) -> LadderState:
    streams = streams_on_array(1, rows_of(range(_LADDERS), _LEVELS), iteration=iteration)
    return exchange(state, Products(measure), _X, streams)[0]


def test_states_stay_whole_and_in_their_ladder() -> None:
    state = _state()
    for iteration in range(1, 40):
        streams = streams_on_array(2, rows_of(range(_LADDERS), _LEVELS), iteration=iteration)
        state = _after(state, streams.normal(Purpose.PROPOSAL), iteration)
        position = state.chain.position[:, 0]
        assert (state.chain.momentum[:, 0] == -position).all()
        assert (state.chain.precisions[:, 0] == position + 0.5).all()
        by_ladder = position.reshape(_LADDERS, _LEVELS)
        assert (by_ladder // _LEVELS == np.arange(_LADDERS)[:, None]).all()
        assert (by_ladder % _LEVELS == state.replica).all()  # a replica carries its state
        assert (np.sort(state.replica, axis=1) == np.arange(_LEVELS)).all()


def test_pairs_alternate_and_share_no_level() -> None:
    even, odd = tried(6, 2), tried(6, 3)
    assert even.tolist() == [True, False, True, False, True] and (even != odd).all()


def test_equal_states_travel_and_are_counted() -> None:
    """If all energies are equal, every exchange is accepted, and states of the hot level reach the top."""
    state = _state()
    for iteration in range(1, 1 + 8 * _LEVELS):
        state = _after(state, np.zeros(_LADDERS * _LEVELS), iteration)
    assert (state.trips >= 2).all()


def test_states_that_fit_best_move_to_the_cold_end() -> None:
    """Large measures sort themselves: the state of the smallest one ends at the top."""
    state, measure = _state(), np.tile(100.0 * np.arange(_LEVELS), _LADDERS)  # the best fit starts hot
    for iteration in range(1, 30):
        state = _after(state, measure[state.chain.position[:, 0].astype(int)], iteration)
    assert (state.replica == np.arange(_LEVELS)[::-1]).all()


def test_top_exchanges_with_every_level_of_the_colder_half() -> None:
    """Only the top's state fits badly, and every level below would be better at the top."""
    reached = set()
    measure = np.tile([0.0] * (_LEVELS - 1) + [100.0], _LADDERS)
    for iteration in range(1, 60, 2):
        assert not tried(_LEVELS, iteration)[-1]
        after = _after(_state(), measure, iteration)
        # Even-odd exchanges move the state of a level by one at most before the top exchanges with it.
        place = np.argmax(after.replica == _LEVELS - 1, axis=1)
        reached |= set(place.tolist())
    assert reached == {2, 3, 4}


def test_energies_that_are_not_finite_are_never_accepted() -> None:
    measure = np.tile([np.inf, 0.0, np.nan, 0.0, np.inf, 0.0], _LADDERS)
    for iteration in (2, 3):
        streams = streams_on_array(1, rows_of(range(_LADDERS), _LEVELS), iteration=iteration)
        with np.errstate(invalid="ignore"):
            _, differences, exchanged = exchange(_state(), Products(measure), _X, streams)
        assert not exchanged.any() and (differences.rejection == 1).all()


def test_a_replica_remembers_the_end_where_it_is_and_a_journey_ends_at_the_top() -> None:
    end, trips = np.full((_LADDERS, _LEVELS), -1), np.arange(_LADDERS)
    end[0, -1], end[1, 2] = 0, 0
    worst = np.zeros(_LADDERS * _LEVELS)  # equal energies: every pair that is tried exchanges its states
    before = replace(_state(), end=end, trips=trips)
    after = _after(before, worst, 1)
    assert (after.end[:, 0] == 0).all() and (after.end[:, -1] == 1).all()
    came_from = after.replica[:, 1:-1]  # replicas are numbered by the level where they started
    assert (after.end[:, 1:-1] == np.take_along_axis(end, came_from, axis=1)).all()
    moved_up = np.take_along_axis(end, after.replica[:, -1:], axis=1)[:, 0] == 0
    assert (after.trips == trips + moved_up).all()


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
