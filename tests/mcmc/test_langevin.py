"""Langevin Monte Carlo is the hybrid update with one step: the same proposal, the same decision."""

from __future__ import annotations

import numpy as np

from rayfbnn.mcmc import hybrid as hmc
from rayfbnn.mcmc.heatbath import heatbath
from rayfbnn.mcmc.operations import Heatbath, Hybrid, Negate
from rayfbnn.state import ChainState
from rayfbnn.streams import Purpose
from tests.support.invariance import ONE, THREE, after_iterations, stays_exact
from tests.support.mutants import mutant, schedule_with
from tests.support.problems import chain_streams
from tests.support.targets import banana

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
