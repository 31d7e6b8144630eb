"""Trajectories that end after a number of acceptable states."""

from __future__ import annotations

import numpy as np
import pytest

from rayfbnn.mcmc import hybrid as hmc
from rayfbnn.mcmc import hybrid_max, leapfrog
from rayfbnn.mcmc.operation import Operation
from rayfbnn.mcmc.operations import Heatbath, HybridMax, Negate
from rayfbnn.state import ChainState, Trajectory
from rayfbnn.streams import Purpose, Streams
from tests.support.integrators import updating
from tests.support.invariance import ONE, THREE, ExactTarget, after_iterations, stays_exact
from tests.support.kernels.networks import end_of
from tests.support.mutants import mutant, schedule_with
from tests.support.problems import chain_streams
from tests.support.targets import banana

BANANA = banana()
CONFIGURATIONS: dict[str, tuple[ExactTarget, tuple[Operation, ...]]] = {
    "one ok": (ONE, (Heatbath(), HybridMax(max_steps=3, max_ok=1, stepsize=1.0))),
    "two ok": (ONE, (Heatbath(decay=0.5), HybridMax(max_steps=6, max_ok=2, stepsize=0.9), Negate())),
    "jump": (
        THREE,
        (
            Heatbath(decay=0.5),
            HybridMax(max_steps=6, max_ok=2, stepsize=0.45, jump=2, partitions=3),
            Negate(),
        ),
    ),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_exact_draws_stay_exact(name: str) -> None:
    exact, operations = CONFIGURATIONS[name]
    assert stays_exact(exact, operations, name=f"hybrid-max, {name}")
    _, info = after_iterations(exact, operations, seed=1, n_chains=2_000)
    assert 0.25 < info.accepted.mean() < 0.98


# Each mutant: source, replacement, and the configuration that must show it.
MUTANTS = {
    "no_negate": ("-current.momentum, state", "current.momentum, state", "two ok"),
    "new_threshold_at_each_state": (
        "moving & (energy_change < threshold)",
        "moving & (energy_change < -xp.log(streams.uniform(Purpose.ACCEPT, index=1 + _)))",
        "two ok",
    ),
    "ok_if_downhill": ("moving & (energy_change < threshold)", "moving & (energy_change < 0)", "two ok"),
    "accepts_all": ("accepted = energy_change < threshold", "accepted = energy_change < 9", "two ok"),
    "counts_others": (
        "n_ok += moving & (energy_change < threshold)", "n_ok += current.position[:, 0] > 0", "two ok"
    ),
    "state_dep_step": (
        "stepsizes = scaled_stepsizes(target, state, self.stepsize, self.stepsize_jitter, streams)",
        "stepsizes = (1 + 0.3 * xp.tanh(state.position)) * "
        "scaled_stepsizes(target, state, self.stepsize, self.stepsize_jitter, streams)",
        "two ok",
    ),
    "potential_alone": ("total_energy(potential, moved.momentum)", "potential", "two ok"),
    "fixed_order": (
        "order = drawn_order(streams, self.partitions, self.order)",
        "order = 0 * drawn_order(streams, self.partitions, self.order) + xp.arange(self.partitions)",
        "jump",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_killed(name: str) -> None:
    old, new, configuration = MUTANTS[name]
    exact, operations = CONFIGURATIONS[configuration]
    changed = schedule_with(mutant(hybrid_max, (old, new)))
    assert not stays_exact(exact, operations, name=f"hybrid-max, {configuration}", schedule=changed)


update = updating(hybrid_max.HybridMax)


def start(n_chains: int) -> tuple[ChainState, Streams]:
    streams = chain_streams(47, n_chains, iteration=1)
    position = streams.normal(Purpose.INITIAL_PARAMETER, (3,)) / 2
    return ChainState(position, streams.normal(Purpose.MOMENTUM, (3,)), np.ones((n_chains, 1))), streams


def test_with_more_ok_than_states_it_is_plain_hybrid() -> None:
    state, streams = start(400)
    plain, info = hmc.hybrid(state, streams, target=BANANA, steps=5, stepsize=0.4)
    after, after_info = update(state, streams, target=BANANA, max_steps=5, max_ok=6, stepsize=0.4)
    assert 50 < info.accepted.sum() < 390
    assert np.array_equal(info.accepted, after_info.accepted)
    assert np.allclose(plain.position, after.position, rtol=0, atol=1e-12)
    assert np.allclose(plain.momentum, after.momentum, rtol=0, atol=1e-12)


def test_it_ends_at_the_first_states_that_would_be_accepted() -> None:
    """Compare with a trajectory of each chain alone, state by state."""
    state, streams = start(60)
    after, info = update(state, streams, target=BANANA, max_steps=8, max_ok=2, stepsize=0.5, jump=2)
    threshold = -np.log(streams.uniform(Purpose.ACCEPT))
    sizes = np.full((1, 3), 0.5)
    for chain in range(60):
        one_chain = slice(chain, chain + 1)
        q, p, one = state.position[one_chain], state.momentum[one_chain], np.ones((1, 1))
        before, n_ok, is_ok = BANANA.potential(q, one)[0] + (p * p).sum() / 2, 0, False
        for _ in range(4):
            q, p, potential = end_of(leapfrog.advance, BANANA, Trajectory(q, p, one, sizes), n_steps=2)
            is_ok = bool(potential[0] + (p * p).sum() / 2 - before < threshold[chain])
            n_ok += is_ok
            if n_ok == 2:
                break
        assert info.accepted[chain] == is_ok
        expected = (q[0], -p[0]) if is_ok else (state.position[chain], state.momentum[chain])
        assert np.allclose(after.position[chain], expected[0], rtol=0, atol=1e-12)
        assert np.allclose(after.momentum[chain], expected[1], rtol=0, atol=1e-12)
