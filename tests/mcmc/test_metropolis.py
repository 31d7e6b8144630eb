"""Random-walk Metropolis: its proposals, decisions and reports."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
import scipy.special

from rayfbnn.errors import SamplingError
from rayfbnn.mcmc.energy import Acceptance
from rayfbnn.mcmc.metropolis import metropolis
from rayfbnn.selftest.pivots import ks_p_value
from rayfbnn.state import ChainState
from rayfbnn.streams import Purpose, Streams
from tests.support.problems import chain_streams
from tests.support.targets import banana, gaussian, wall


def start(n_chains: int, n_parameters: int = 3) -> tuple[ChainState, Streams]:
    streams = chain_streams(13, n_chains)
    position = streams.normal(Purpose.INITIAL_PARAMETER, (n_parameters,))
    momentum = streams.normal(Purpose.MOMENTUM, (n_parameters,))
    return ChainState(position, momentum, np.ones((n_chains, 1))), streams.at(iteration=1)


def test_steps_are_normal_with_the_stepsize_as_deviation() -> None:
    state, streams = start(20_000)
    state = replace(state, position=np.zeros_like(state.position))
    after, info = metropolis(state, streams, target=gaussian(3), stepsize=1e-6)
    assert info.accepted.mean() > 0.9999  # all steps are downhill by 1e-12 at most
    steps = after.position[info.accepted] / 1e-6
    assert ks_p_value(scipy.special.ndtr(steps)) > 1e-5


def test_energy_change_is_of_the_potential_alone() -> None:
    state, streams = start(500)
    target = banana()
    after, info = metropolis(state, streams, target=target, stepsize=0.4)
    change = target.potential(after.position, state.precisions) - target.potential(
        state.position, state.precisions
    )
    assert 50 < info.accepted.sum() < 450
    assert np.array_equal(info.energy_change[info.accepted], change[info.accepted])
    assert np.array_equal(after.position[~info.accepted], state.position[~info.accepted])
    assert after.momentum is state.momentum


def test_barkers_rule_accepts_with_the_probability_that_it_is_to_have() -> None:
    state, streams = start(20_000)
    _, info = metropolis(state, streams, target=banana(), stepsize=0.5, acceptance="barker")
    probability = scipy.special.expit(-info.energy_change)
    error = np.sqrt((probability * (1 - probability)).sum())
    z = (info.accepted.sum() - probability.sum()) / error
    assert abs(z) < 4  # 1 in 16,000 if correct; seed fixed
    assert error > 40  # at most 71, if every decision were the toss of a coin


def test_barkers_rule_accepts_nothing_that_metropolis_would_reject() -> None:
    state, streams = start(2_000)
    decisions = [
        metropolis(state, streams, target=banana(), stepsize=0.5, acceptance=acceptance)[1].accepted
        for acceptance in ("metropolis", "barker")
    ]
    assert (decisions[0] | ~decisions[1]).all()
    assert decisions[0].sum() > decisions[1].sum() + 200


@pytest.mark.parametrize("acceptance", ["metropolis", "barker"])
def test_a_proposal_beyond_the_finite_is_rejected_and_counted(acceptance: Acceptance) -> None:
    state, streams = start(200, 2)
    state = replace(state, position=state.position / 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        after, info = metropolis(state, streams, target=wall(2), stepsize=3.0, acceptance=acceptance)
    assert info.diverged.any() and not (info.accepted & info.diverged).any()
    assert (abs(after.position) <= 3).all()


def test_an_impossible_starting_energy_stops_and_names_the_chain() -> None:
    state, streams = start(4)
    state.position[1, 0] = np.nan
    with pytest.raises(SamplingError, match="starting energy of chain 1 is not finite"):
        metropolis(state, streams, target=banana(), stepsize=0.1)


def test_float32_states_stay_float32() -> None:
    state, streams = start(5)
    state = replace(state, position=state.position.astype(np.float32))
    after, _ = metropolis(state, streams, target=banana(), stepsize=0.1, stepsize_jitter=4.0)
    assert after.position.dtype == np.float32


def test_chains_do_not_depend_on_their_batch() -> None:
    state, streams = start(8)
    options = {"target": banana(), "stepsize": 0.3, "stepsize_jitter": -1.0}
    together, _ = metropolis(state, streams, **options)
    for chain in range(8):
        one_chain = slice(chain, chain + 1)
        part = ChainState(state.position[one_chain], state.momentum[one_chain], state.precisions[one_chain])
        alone, _ = metropolis(part, replace(streams, chains=streams.chains[one_chain]), **options)
        assert np.array_equal(alone.position, together.position[one_chain])
