"""Obstacles that more kept iterations cannot remove: named where they last, and not where they may pass."""

from __future__ import annotations

import numpy as np

from rayfbnn.answers.judging.ladder_hint import lasting_obstacle
from rayfbnn.arrays import Array
from rayfbnn.draws.ladders import LadderDraws
from rayfbnn.streams import Purpose, Streams

_N, _LEVELS = 500, 4


def levels_of(measure: Array, reverse: Array) -> LadderDraws:
    """Return four ladders with these values of log RSS and of the energy differences from above."""
    n = measure.shape[1]
    return LadderDraws(
        kind="noise",
        held=(0.9, 0.3, 0.1),
        ladders=(0, 1, 2, 3),
        measured="log_rss",
        families=("chains", "prior") * 2,
        measure=measure,
        forward=np.zeros((4, n, _LEVELS - 1)),
        reverse=reverse,
        replica=np.zeros((4, n)),
        trips=np.zeros(4, dtype=int),
    )


def drawn() -> tuple[Array, Array]:
    """Return log RSS of ladders that agree, and energy differences at which neighbours often exchange."""
    normal = Streams(5, np.arange(4, dtype=np.uint64)).normal(Purpose.TARGET_VALUE, (_N, _LEVELS))
    return normal, np.full((4, _N, _LEVELS - 1), 0.7)


def test_ladders_that_agree_and_exchange_have_no_obstacle() -> None:
    assert lasting_obstacle(levels_of(*drawn())) == ""


def test_neighbours_that_never_exchange_are_named_even_in_one_ladder() -> None:
    measure, reverse = drawn()
    reverse[2, :, 1] = 9.0  # exp(-9) times 500 draws is less than one exchange
    said = lasting_obstacle(levels_of(measure, reverse))
    assert said == "noise 0.3 and noise 0.1 exchange less than once in 500 iterations of ladder 2"
    reverse[2, :, 1] = 5.0
    assert lasting_obstacle(levels_of(measure, reverse)) == ""


def test_ladders_that_stay_apart_at_the_hot_end_are_an_obstacle_and_drifting_ones_are_not() -> None:
    measure, reverse = drawn()
    apart = measure + np.arange(4)[:, None, None]
    said = lasting_obstacle(levels_of(apart, reverse))
    assert said.startswith("the ladders are steady but disagree at all levels of the hotter half (R-hat at ")
    drift = np.linspace(0, 9, _N)[:, None] * np.array([1, -1, 1, -1])[:, None, None]
    assert lasting_obstacle(levels_of(measure + drift, reverse)) == ""
    apart_when_cold = measure + np.arange(4)[:, None, None] * (np.arange(_LEVELS) > 0)
    assert lasting_obstacle(levels_of(apart_when_cold, reverse)) == ""


def test_few_draws_do_not_show_an_obstacle() -> None:
    measure, reverse = drawn()
    apart = measure + np.arange(4)[:, None, None]
    assert lasting_obstacle(levels_of(apart[:, :300], np.full_like(reverse, 50.0)[:, :300])) == ""
