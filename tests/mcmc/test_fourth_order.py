"""The fourth-order integrator: its order, its reversal, its volume, and exact draws under it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rayfbnn.mcmc import fourth_order, leapfrog, trajectories
from rayfbnn.mcmc import hybrid as hmc
from rayfbnn.mcmc.energy import total_energy
from rayfbnn.mcmc.operation import Operation
from rayfbnn.mcmc.operations import Dynamic, Heatbath, Hybrid, HybridMax, Negate
from rayfbnn.state import Trajectory
from rayfbnn.streams import Purpose
from tests.support.invariance import ONE, THREE, ExactTarget, after_iterations, stays_exact
from tests.support.kernels.trajectories import end_of
from tests.support.model.chain_streams import chain_streams
from tests.support.mutants import importing, mutant
from tests.support.schedules import schedule_with
from tests.support.targets import banana

BANANA = banana()
FOURTH = "fourth-order"
CONFIGURATIONS: dict[str, tuple[ExactTarget, tuple[Operation, ...]]] = {
    "plain": (ONE, (Heatbath(), Hybrid(steps=2, stepsize=2.4, integrator=FOURTH))),
    "windows": (
        ONE,
        (Heatbath(decay=0.5), Hybrid(steps=4, stepsize=2.4, window=2, integrator=FOURTH), Negate()),
    ),
    "three": (THREE, (Heatbath(), Hybrid(steps=2, stepsize=1.8, integrator=FOURTH))),
    "max": (ONE, (Heatbath(), HybridMax(max_steps=3, max_ok=2, stepsize=2.4, integrator=FOURTH))),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_exact_draws_stay_exact(name: str) -> None:
    exact, operations = CONFIGURATIONS[name]
    assert stays_exact(exact, operations, name=f"fourth order, {name}")
    _, info = after_iterations(exact, operations, seed=1, n_chains=2_000)
    assert 0.25 < info.accepted.mean() < 0.95


MUTANTS = {
    "not_symmetric": ("(*_KICKS, *_KICKS[::-1])", "(*_KICKS, *_KICKS)"),
    "drifts_not_symmetric": ("*_DRIFTS[-2::-1]", "*_DRIFTS[:-1]"),
    "no_joint_kick": ("(KICKS[-1] if stage == 0 and 0 < number < last else 0.0)", "0.0"),
    "no_last_kick": ("stage == 0 and 0 < number < last", "stage == 0 and 0 < number <= last"),
}
EQUAL_STEPS = {
    # These mutants are still symmetric and symplectic, hence exact: only the order shows them.
    "wrong_coefficient": ("0.7563200005156682911", "0.7563200005156682911 + 0.1"),
    "middle_drift_not_doubled": ("2 * _DRIFTS[-1]", "_DRIFTS[-1]"),
}


@pytest.mark.parametrize("name", ["not_symmetric", "drifts_not_symmetric", "no_last_kick"])
def test_mutant_is_killed(name: str) -> None:
    exact, operations = CONFIGURATIONS["plain"]
    steps: Any = mutant(trajectories)
    steps.fourth_order = mutant(fourth_order, MUTANTS[name])
    changed = schedule_with(importing(hmc, steps))
    assert not stays_exact(exact, operations, name="fourth order, plain", schedule=changed)


def start(n_chains: int) -> Trajectory:
    """A trajectory before its first step."""
    streams = chain_streams(53, n_chains)
    position = streams.normal(Purpose.INITIAL_PARAMETER, (3,)) / 2
    stepsizes = 0.2 * (1 + streams.uniform(Purpose.STEPSIZE, (3,)))
    momentum = streams.normal(Purpose.MOMENTUM, (3,))
    return Trajectory(position, momentum, np.ones((n_chains, 1)), stepsizes)


def reversal_error(advance) -> float:
    here = start(20)
    there, _ = advance(BANANA, here, n_steps=5)
    back, _ = advance(BANANA, replace(there, stepsizes=-here.stepsizes), n_steps=5)
    return float(max(abs(back.position - here.position).max(), abs(back.momentum - here.momentum).max()))


def slope(advance) -> float:
    """Slope of log |change of H| in log stepsize, at a fixed length of trajectory."""
    here = start(50)
    before = total_energy(BANANA.potential(here.position, here.precisions), here.momentum)
    sizes, errors = 2.0 ** -np.arange(4), []
    for size in sizes:
        shorter = replace(here, stepsizes=size * here.stepsizes / 2)
        end, potential = advance(BANANA, shorter, n_steps=round(4 / size))
        errors.append(np.median(abs(total_energy(potential, end.momentum) - before)))
    return float(np.polyfit(np.log(sizes), np.log(errors), 1)[0])


def test_energy_error_is_of_fourth_order() -> None:
    assert 3.8 < slope(fourth_order.advance) < 4.3
    assert 1.8 < slope(leapfrog.advance) < 2.2


def test_coefficients_add_up_to_a_step() -> None:
    assert sum(fourth_order.KICKS) == pytest.approx(1, abs=1e-15)
    assert sum(fourth_order.DRIFTS) == pytest.approx(1, abs=1e-15)
    assert fourth_order.GRADIENTS_PER_STEP == 7


@pytest.mark.parametrize("name", [*MUTANTS, *EQUAL_STEPS])
def test_mutant_is_of_lower_order(name: str) -> None:
    changed = mutant(fourth_order, (MUTANTS | EQUAL_STEPS)[name])
    assert slope(changed.advance) < 3.5


def test_steps_reverse() -> None:
    assert reversal_error(fourth_order.advance) < 1e-11
    assert reversal_error(mutant(fourth_order, MUTANTS["not_symmetric"]).advance) > 1e-3


def test_steps_keep_volume_and_are_symplectic() -> None:
    here = start(1)
    state, width = np.concatenate([here.position, here.momentum], axis=1), 1e-5
    moved = state + width * np.concatenate([np.eye(6), -np.eye(6)])
    q, p = moved[:, :3].copy(), moved[:, 3:].copy()
    sizes = np.repeat(here.stepsizes, 12, axis=0)
    q, p, _ = end_of(fourth_order.advance, BANANA, Trajectory(q, p, np.ones((12, 1)), sizes), n_steps=2)
    scale = np.concatenate([here.stepsizes[0], np.ones(3)])
    after = np.concatenate([q, p], axis=1)
    jacobian = ((after[:6] - after[6:]) / (2 * width)).T * scale / scale[:, None]
    omega = np.block([[np.zeros((3, 3)), np.eye(3)], [-np.eye(3), np.zeros((3, 3))]])
    assert abs(jacobian.T @ omega @ jacobian - omega).max() < 1e-7


def test_one_call_of_many_steps_is_many_calls_of_one() -> None:
    here = start(20)
    at_once = end_of(fourth_order.advance, BANANA, here, n_steps=4)
    for _ in range(4):
        here, potential = fourth_order.advance(BANANA, here, n_steps=1)
    for a, b in zip(at_once, (here.position, here.momentum, potential), strict=True):
        assert abs(a - b).max() < 1e-12


def test_at_equal_cost_its_energy_error_is_smaller_where_steps_are_small() -> None:
    here = start(50)
    before = total_energy(BANANA.potential(here.position, here.precisions), here.momentum)
    errors = []
    for advance, n in ((fourth_order.advance, 1), (leapfrog.advance, 7)):
        shorter = replace(here, stepsizes=here.stepsizes / n)
        end, potential = advance(BANANA, shorter, n_steps=5 * n)
        errors.append(np.median(abs(total_energy(potential, end.momentum) - before)))
    assert errors[0] < errors[1] / 10


def test_uncorrected_dynamics_take_it_too() -> None:
    """Large steps whose bias shows with the leapfrog are unbiased in steps of fourth order."""
    operations = (Heatbath(decay=0.5), Dynamic(steps=3, stepsize=0.8, integrator=FOURTH))
    assert stays_exact(ONE, operations, name="fourth order, dynamic")
