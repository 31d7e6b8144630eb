"""Windows that contain only every few steps of the trajectory."""

from __future__ import annotations

import numpy as np
import pytest

from rayfbnn.mcmc import hybrid as hmc
from rayfbnn.mcmc import leapfrog
from rayfbnn.mcmc.operation import Operation
from rayfbnn.mcmc.operations import Heatbath, Hybrid, Negate
from rayfbnn.state import ChainState
from rayfbnn.streams import Purpose, Streams
from tests.support.invariance import ONE, THREE, ExactTarget, after_iterations, stays_exact
from tests.support.mutants import mutant, schedule_with
from tests.support.problems import chain_streams
from tests.support.targets import banana

BANANA = banana()
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
