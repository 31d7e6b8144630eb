"""An exchange only moves whole states between levels, and its journeys are counted."""

from __future__ import annotations

import numpy as np

from rayfbnn.mcmc.ladder.exchange import Differences, exchange, tried
from rayfbnn.mcmc.ladder.records import LadderState, rows_of, started
from rayfbnn.state import ChainState
from rayfbnn.streams import Purpose
from tests.support.model.chain_streams import streams_on_array

_LADDERS, _LEVELS = 7, 5


def _state() -> LadderState:
    rows = np.arange(_LADDERS * _LEVELS, dtype=float)
    return started(ChainState(rows[:, None], -rows[:, None], rows[:, None] + 0.5), _LEVELS)


def _all_accepted() -> Differences:
    return Differences(-np.ones((_LADDERS, _LEVELS - 1)), -np.ones((_LADDERS, _LEVELS - 1)))


def test_states_stay_whole_and_in_their_ladder() -> None:
    state = _state()
    for iteration in range(1, 30):
        streams = streams_on_array(1, rows_of(range(_LADDERS), _LEVELS), iteration=iteration)
        log_ratio = streams.normal(Purpose.PROPOSAL).reshape(_LADDERS, _LEVELS)[:, 1:]
        state, _, _ = exchange(state, Differences(log_ratio, log_ratio), streams)
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


def test_accepted_states_go_on_to_the_top_and_are_counted() -> None:
    """If every exchange is accepted, the state of the hot level reaches the top within K iterations."""
    state = _state()
    for iteration in range(2, 2 + 4 * _LEVELS):
        streams = streams_on_array(1, rows_of(range(_LADDERS), _LEVELS), iteration=iteration)
        state, _, _ = exchange(state, _all_accepted(), streams)
    assert (state.trips >= 2).all()


def test_energies_that_are_not_finite_are_never_accepted() -> None:
    state = _state()
    forward = np.full((_LADDERS, _LEVELS - 1), np.inf)
    for reverse in (np.full_like(forward, -np.inf), np.full_like(forward, np.nan), np.zeros_like(forward)):
        streams = streams_on_array(1, rows_of(range(_LADDERS), _LEVELS), iteration=2)
        after, rejection, exchanged = exchange(state, Differences(forward, reverse), streams)
        assert not exchanged.any() and (rejection == 1).all()
        assert (after.replica == state.replica).all()
