"""Random-walk Metropolis: its proposals, decisions and reports.

Langevin Monte Carlo is the hybrid update with one step: the same proposal, the same decision.

Windows that contain only every few steps of the trajectory.
"""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
import scipy.special

from rayfbnn.mcmc import hybrid as hmc
from rayfbnn.mcmc import leapfrog
from rayfbnn.mcmc.energy import Acceptance
from rayfbnn.mcmc.heatbath import heatbath
from rayfbnn.mcmc.operation import Operation
from rayfbnn.mcmc.operations import Heatbath, Hybrid, Metropolis, Negate
from rayfbnn.selftest.pivots import ks_p_value
from rayfbnn.state import ChainState
from rayfbnn.streams import Purpose, Streams
from tests.support.integrators import updating
from tests.support.invariance import ONE, THREE, ExactTarget, after_iterations, stays_exact
from tests.support.mutants import mutant, schedule_with
from tests.support.problems import chain_streams
from tests.support.targets import banana, gaussian, wall

metropolis = updating(Metropolis)


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


LANGEVIN = (Heatbath(), Hybrid(steps=1, stepsize=1.0))
LANGEVIN_IN_THREE = (Heatbath(), Hybrid(steps=1, stepsize=0.5))
PERSISTENT = (Heatbath(decay=0.7), Hybrid(steps=1, stepsize=1.0), Negate())
BANANA = banana()


def test_one_step_is_a_metropolis_hastings_update_with_langevin_proposals() -> None:
    """q' ~ Normal(q - s**2 U'(q) / 2, s**2), accepted by Hastings's ratio computed from the densities."""
    streams = chain_streams(31, 500, iteration=1)
    q = streams.normal(Purpose.INITIAL_PARAMETER, (3,)) / 2
    start = ChainState(q, np.zeros_like(q), np.ones((500, 1)))
    start, _ = heatbath(start, streams)
    after, info = hmc.hybrid(start, streams, target=BANANA, steps=1, stepsize=0.5)

    def log_proposal(there: np.ndarray, here: np.ndarray) -> np.ndarray:
        drift = 0.5**2 / 2 * BANANA.potential_and_gradient(here, start.precisions)[1]
        return -((there - here + drift) ** 2).sum(axis=1) / (2 * 0.5**2)

    proposal = q - 0.5**2 / 2 * BANANA.potential_and_gradient(q, start.precisions)[1] + 0.5 * start.momentum
    log_ratio = BANANA.potential(q, start.precisions) - BANANA.potential(proposal, start.precisions)
    log_ratio += log_proposal(q, proposal) - log_proposal(proposal, q)
    assert 100 < info.accepted.sum() < 490
    assert np.allclose(after.position[info.accepted], proposal[info.accepted], rtol=0, atol=1e-12)
    assert np.allclose(info.energy_change, -log_ratio, rtol=1e-9, atol=1e-9)


def test_langevin_keeps_exact_draws_exact() -> None:
    assert stays_exact(ONE, LANGEVIN, name="langevin")
    assert stays_exact(THREE, LANGEVIN_IN_THREE, name="langevin in three")


def test_persistent_langevin_keeps_exact_draws_exact() -> None:
    assert stays_exact(ONE, PERSISTENT, name="persistent langevin")


def test_decisions_are_not_one_sided() -> None:
    for exact, operations in ((ONE, LANGEVIN), (THREE, LANGEVIN_IN_THREE), (ONE, PERSISTENT)):
        _, info = after_iterations(exact, operations, seed=1, n_chains=2_000)
        assert 0.25 < info.accepted.mean() < 0.9


def test_langevin_without_the_ratio_of_proposals_is_killed() -> None:
    """A decision by the potential alone ignores that the proposal is not symmetric."""
    changed = mutant(
        hmc,
        ("total_energy(start_potential, state.momentum)", "start_potential"),
        ("total_energy(potential, moved.momentum)", "potential"),
    )
    assert not stays_exact(ONE, LANGEVIN, name="langevin", schedule=schedule_with(changed))


CONFIGURATIONS: dict[str, tuple[ExactTarget, tuple[Operation, ...]]] = {
    "plain": (ONE, (Heatbath(), Hybrid(steps=4, stepsize=0.8, jump=2))),
    "windows": (ONE, (Heatbath(decay=0.5), Hybrid(steps=8, stepsize=0.9, window=3, jump=2), Negate())),
    "partitions": (
        THREE,
        (Heatbath(decay=0.5), Hybrid(steps=6, stepsize=0.4, window=2, jump=2, partitions=3), Negate()),
    ),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_exact_draws_stay_exact(name: str) -> None:
    exact, operations = CONFIGURATIONS[name]
    assert stays_exact(exact, operations, name=f"jump, {name}")
    _, info = after_iterations(exact, operations, seed=1, n_chains=2_000)
    assert 0.25 < info.accepted.mean() < 0.95


MUTANTS = {
    # Forward parts jump, and backward ones do not.
    "one_way": (
        "n_steps=n_steps * windows.jump",
        "n_steps=n_steps * (1 if backwards.any() else windows.jump)",
    ),
    "windows_of_all_steps": ("window, Purpose.WINDOW_OFFSET", "1, Purpose.WINDOW_OFFSET"),
    "not_restored": ("current.restored(start, done == offset)", "current"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_killed(name: str) -> None:
    exact, operations = CONFIGURATIONS["windows"]
    changed = schedule_with(mutant(hmc, MUTANTS[name]))
    assert not stays_exact(exact, operations, name="jump, windows", schedule=changed)


def test_a_jump_over_the_whole_trajectory_is_plain_hybrid_bit_for_bit() -> None:
    streams = chain_streams(43, 300, iteration=1)
    position = streams.normal(Purpose.INITIAL_PARAMETER, (3,)) / 2
    state = ChainState(position, streams.normal(Purpose.MOMENTUM, (3,)), np.ones((300, 1)))
    whole, info = hmc.hybrid(state, streams, target=BANANA, steps=6, stepsize=0.4)
    jumping, jumping_info = hmc.hybrid(state, streams, target=BANANA, steps=6, stepsize=0.4, jump=6)
    assert np.array_equal(whole.position, jumping.position)
    assert np.array_equal(info.energy_change, jumping_info.energy_change)


def test_every_piece_of_a_trajectory_is_a_multiple_of_the_jump() -> None:
    pieces: list[int] = []

    def advance(*arguments, n_steps, order=None):
        pieces.append(n_steps)
        return leapfrog.advance(*arguments, n_steps=n_steps, order=order)

    streams = Streams(43, np.arange(5, dtype=np.uint64))
    state = ChainState(np.zeros((5, 3)), np.ones((5, 3)), np.ones((5, 1)))
    hmc.hybrid(state, streams, target=BANANA, steps=15, stepsize=0.1, window=2, jump=3, advance=advance)
    assert pieces == [0, 3, 9, 3]  # none: the potential at the start
