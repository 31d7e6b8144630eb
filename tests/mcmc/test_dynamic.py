"""Uncorrected dynamics: biased by the stepsize, and unbiased otherwise."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from rayfbnn.arrays import Array
from rayfbnn.mcmc import dynamic as module
from rayfbnn.mcmc import leapfrog
from rayfbnn.mcmc.operations import Dynamic, Heatbath, Hybrid
from rayfbnn.selftest.pivots import chi2_p_value
from rayfbnn.state import ChainState, Trajectory
from rayfbnn.streams import Purpose, Streams
from tests.support.integrators import updating
from tests.support.invariance import ONE, stays_exact
from tests.support.kernels.networks import end_of
from tests.support.mutants import mutant, schedule_with
from tests.support.problems import chain_streams
from tests.support.targets import banana

BANANA = banana()
LARGE = (Heatbath(), Dynamic(steps=3, stepsize=0.8))
# Small enough that 50,000 chains do not show the bias of a second-order integrator.
SMALL = (Heatbath(decay=0.5), Dynamic(steps=8, stepsize=0.05))
PERMUTED = (Heatbath(decay=0.5), Dynamic(steps=8, stepsize=0.05, partitions=3, permuted=True))


def start(n_chains: int) -> tuple[ChainState, Streams]:
    streams = chain_streams(23, n_chains, iteration=1)
    position = streams.normal(Purpose.INITIAL_PARAMETER, (3,)) / 2
    momentum = streams.normal(Purpose.MOMENTUM, (3,))
    return ChainState(position, momentum, np.ones((n_chains, 1))), streams


def test_dynamic_is_biased_where_hybrid_of_the_same_steps_is_exact() -> None:
    assert not stays_exact(ONE, LARGE, name="dynamic")
    assert stays_exact(ONE, (Heatbath(), Hybrid(steps=3, stepsize=0.8)), name="hybrid")


@pytest.mark.parametrize("operations", [SMALL, PERMUTED], ids=["plain", "permuted"])
def test_dynamic_of_small_steps_is_close_to_exact(operations: Any) -> None:
    assert stays_exact(ONE, operations, name="dynamic of small steps")


MUTANTS = {
    "slower": ("Trajectory(state.position, state", "Trajectory(state.position, 0.9 * state"),
    "keeps_momentum": ("state.momentum, end.momentum)", "state.momentum, state.momentum)"),
    "steps_of_position": ("stepsizes = scaled", "stepsizes = (1 + xp.tanh(state.position)) * scaled"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_of_dynamic_is_killed(name: str) -> None:
    changed = mutant(module, MUTANTS[name])
    options = {"schedule": schedule_with(changed)}
    assert not stays_exact(ONE, SMALL, name="dynamic of small steps", **options)


def test_dynamic_ends_where_the_integrator_ends_with_its_momentum() -> None:
    state, streams = start(50)
    after, info = dynamic(state, streams, target=BANANA, steps=7, stepsize=0.1)
    sizes = np.full_like(state.position, 0.1)
    q, p, potential = end_of(
        leapfrog.advance,
        BANANA,
        Trajectory(state.position, state.momentum, state.precisions, sizes),
        n_steps=7,
    )
    assert np.array_equal(after.position, q)
    assert np.array_equal(after.momentum, p)
    before = BANANA.potential(state.position, state.precisions) + (state.momentum**2).sum(axis=1) / 2
    assert np.allclose(info.energy_change, potential + (p * p).sum(axis=1) / 2 - before)


dynamic = updating(module.Dynamic)


def orders(*, permuted: bool) -> Array:
    seen: list[Array] = []

    def advance(*arguments: Any, order: Array, **options: Any):
        seen.append(order)
        return leapfrog.advance(*arguments, order=order, **options)

    state, streams = start(6_000)
    dynamic(
        state, streams, target=BANANA, steps=2, stepsize=0.1, partitions=3, permuted=permuted, advance=advance
    )
    return seen[0]


def test_partial_gradients_follow_one_another_or_are_permuted() -> None:
    assert np.array_equal(orders(permuted=False), np.tile([0, 1, 2], (6_000, 1)))
    codes = orders(permuted=True) @ np.array([9, 3, 1])
    counts = [(codes == 9 * a + 3 * b + c).sum() for a, b, c in itertools.permutations(range(3))]
    assert sum(counts) == 6_000
    assert chi2_p_value(np.array(counts)) > 1e-5  # false alarms 1e-5
