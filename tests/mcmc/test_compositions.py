"""Integrators by coefficients: their order, their reversal, their volume, and exact draws under them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.linalg

from rayfbnn.arrays import Array
from rayfbnn.mcmc import hybrid as hmc
from rayfbnn.mcmc import leapfrog
from rayfbnn.mcmc.energy import total_energy
from rayfbnn.mcmc.leapfrog import Integrator
from rayfbnn.mcmc.operation import Operation
from rayfbnn.mcmc.operations import Dynamic, Heatbath, Hybrid, HybridMax, Negate
from rayfbnn.state import Advance, Trajectory
from rayfbnn.streams import Purpose
from tests.support.integrators import energy_error_slope, jacobian, reversal_error, symplectic_error
from tests.support.invariance import ONE, THREE, ExactTarget, after_iterations, stays_exact
from tests.support.kernels.networks import end_of
from tests.support.mutants import importing, mutant, schedule_with
from tests.support.problems import chain_streams
from tests.support.targets import banana, gaussian

BANANA = banana()
TWO: Integrator = "two-stage"
FOURTH: Integrator = "fourth-order"
CONFIGURATIONS: dict[str, tuple[ExactTarget, tuple[Operation, ...]]] = {
    "plain": (ONE, (Heatbath(), Hybrid(steps=2, stepsize=2.4, integrator=FOURTH))),
    "windows": (
        ONE,
        (Heatbath(decay=0.5), Hybrid(steps=4, stepsize=2.4, window=2, integrator=FOURTH), Negate()),
    ),
    "three": (THREE, (Heatbath(), Hybrid(steps=2, stepsize=1.8, integrator=FOURTH))),
    "max": (ONE, (Heatbath(), HybridMax(max_steps=3, max_ok=2, stepsize=2.4, integrator=FOURTH))),
    "two stages": (ONE, (Heatbath(), Hybrid(steps=2, stepsize=1.3, integrator=TWO))),
    "two stages, windows": (
        ONE,
        (Heatbath(decay=0.5), Hybrid(steps=4, stepsize=1.3, window=2, integrator=TWO), Negate()),
    ),
    "two stages, three": (THREE, (Heatbath(), Hybrid(steps=2, stepsize=0.6, integrator=TWO))),
    "two stages, max": (ONE, (Heatbath(), HybridMax(max_steps=3, max_ok=2, stepsize=1.3, integrator=TWO))),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_exact_draws_stay_exact(name: str) -> None:
    exact, operations = CONFIGURATIONS[name]
    assert stays_exact(exact, operations, name=f"composed steps, {name}")
    _, info = after_iterations(exact, operations, seed=1, n_chains=2_000)
    assert 0.25 < info.accepted.mean() < 0.95


MUTANTS = {
    "not_symmetric": ("(*_KICKS, *_KICKS[::-1])", "(*_KICKS, *_KICKS)"),
    "drifts_not_symmetric": ("*_DRIFTS[-2::-1]", "*_DRIFTS[:-1]"),
    "no_joint_kick": ("(self.kicks[-1] if stage == 0 and 0 < number < last else 0.0)", "0.0"),
    "no_last_kick": ("stage == 0 and 0 < number < last", "stage == 0 and 0 < number <= last"),
}
EQUAL_STEPS = {
    # These mutants are still symmetric and symplectic, hence exact: only the order shows them.
    "wrong_coefficient": ("0.7563200005156682911", "0.7563200005156682911 + 0.1"),
    "middle_drift_not_doubled": ("2 * _DRIFTS[-1]", "_DRIFTS[-1]"),
}
TWO_STAGE_MUTANTS = {
    "middle_kick_too_large": ("1 - 2 * _LEAST_ERROR", "1 - _LEAST_ERROR"),  # symmetric, as those above
    "drifts_not_halves": ("(0.5, 0.5)),\n", "(0.3, 0.7)),\n"),
}


@pytest.mark.parametrize(
    "name, configuration",
    [
        *((name, "plain") for name in ("not_symmetric", "drifts_not_symmetric", "no_last_kick")),
        ("drifts_not_halves", "two stages"),
    ],
)
def test_mutant_is_killed(name: str, configuration: str) -> None:
    exact, operations = CONFIGURATIONS[configuration]
    changed = mutant(leapfrog, (MUTANTS | TWO_STAGE_MUTANTS)[name])
    schedule = schedule_with(importing(hmc, changed))
    assert not stays_exact(exact, operations, name=f"changed steps, {configuration}", schedule=schedule)


def composed(integrator: Integrator, module: Any = leapfrog) -> Advance:
    return partial(module.advance, composition=module.COMPOSITIONS[integrator])


def start(n_chains: int) -> Trajectory:
    """A trajectory before its first step."""
    streams = chain_streams(53, n_chains)
    position = streams.normal(Purpose.INITIAL_PARAMETER, (3,)) / 2
    stepsizes = 0.2 * (1 + streams.uniform(Purpose.STEPSIZE, (3,)))
    momentum = streams.normal(Purpose.MOMENTUM, (3,))
    return Trajectory(position, momentum, np.ones((n_chains, 1)), stepsizes)


def slope(advance: Advance) -> float:
    here = start(50)
    return energy_error_slope(advance, replace(here, stepsizes=here.stepsizes / 2), n_steps=4)


def test_energy_error_is_of_the_order_that_is_said() -> None:
    assert 3.8 < slope(composed(FOURTH)) < 4.3
    assert 1.8 < slope(composed(TWO)) < 2.2
    assert 1.8 < slope(leapfrog.advance) < 2.2


@pytest.mark.parametrize(("integrator", "n_gradients"), [("leapfrog", 1), (TWO, 2), (FOURTH, 7)])
def test_coefficients_add_up_to_a_step_and_are_symmetric(integrator: Integrator, n_gradients: int) -> None:
    composition = leapfrog.COMPOSITIONS[integrator]
    for coefficients in (composition.kicks, composition.drifts):
        assert sum(coefficients) == pytest.approx(1, abs=1e-15)
        assert coefficients == coefficients[::-1]
    assert composition.gradients_per_step == n_gradients == len(composition.kicks) - 1


def error_constants(kick: float) -> Array:
    """The coefficients of [A,[A,B]] and [B,[B,A]] in the logarithm of a step, for matrices A and B."""
    a, b = chain_streams(5, 2).normal(Purpose.PROPOSAL, (4, 4))
    size, exp = 0.01, scipy.linalg.expm
    outer, middle, drift = exp(size * kick * a), exp(size * (1 - 2 * kick) * a), exp(size / 2 * b)
    logarithm = scipy.linalg.logm(outer @ drift @ middle @ drift @ outer)
    ab = a @ b - b @ a
    commutators = np.stack([a @ ab - ab @ a, ab @ b - b @ ab]).reshape(2, -1)
    return np.linalg.lstsq(commutators.T, (logarithm / size - a - b).ravel() / size**2)[0]


def test_two_stages_have_the_least_error_constants() -> None:
    x = leapfrog.COMPOSITIONS[TWO].kicks[0]
    assert abs(48 * x**3 - 72 * x**2 + 38 * x - 5) < 1e-14
    formula = np.array([(6 * x**2 - 6 * x + 1) / 12, (6 * x - 1) / 24])
    assert abs(error_constants(x) - formula).max() < 1e-5
    least = (error_constants(x) ** 2).sum()
    assert all((error_constants(other) ** 2).sum() > least for other in (x - 0.02, x + 0.02))


def test_two_stages_of_a_normal_target_are_stable_up_to_a_step_of_2_55() -> None:
    """At equal cost that is 1.28 for each gradient, where the leapfrog has 2."""
    here = replace(start(20), stepsizes=np.ones((20, 3)))
    before = total_energy(gaussian(3).potential(here.position, here.precisions), here.momentum)

    def growth(size: float) -> float:
        end, potential = composed(TWO)(
            gaussian(3), replace(here, stepsizes=size * here.stepsizes), n_steps=500
        )
        return float((total_energy(potential, end.momentum) / before).max())

    assert growth(2.54) < 1_000 < 1e9 < growth(2.57)


@pytest.mark.parametrize("name", [*MUTANTS, *EQUAL_STEPS, *TWO_STAGE_MUTANTS])
def test_mutant_is_of_lower_order(name: str) -> None:
    changed = mutant(leapfrog, (MUTANTS | EQUAL_STEPS | TWO_STAGE_MUTANTS)[name])
    integrator, order = (TWO, 1.5) if name in TWO_STAGE_MUTANTS else (FOURTH, 3.5)
    assert slope(composed(integrator, changed)) < order


def test_steps_reverse() -> None:
    changed = mutant(leapfrog, MUTANTS["not_symmetric"])
    for advance in (composed(FOURTH), composed(TWO)):
        assert reversal_error(advance, start(20), n_steps=5) < 1e-11
    assert reversal_error(composed(FOURTH, changed), start(20), n_steps=5) > 1e-3


@pytest.mark.parametrize("integrator", [TWO, FOURTH])
def test_steps_keep_volume_and_are_symplectic(integrator: Integrator) -> None:
    assert symplectic_error(jacobian(composed(integrator), start(1), n_steps=2)) < 1e-7


@pytest.mark.parametrize("integrator", [TWO, FOURTH])
def test_one_call_of_many_steps_is_many_calls_of_one(integrator: Integrator) -> None:
    here, advance = start(20), composed(integrator)
    at_once = end_of(advance, BANANA, here, n_steps=4)
    for _ in range(4):
        here, potential = advance(BANANA, here, n_steps=1)
    for a, b in zip(at_once, (here.position, here.momentum, potential), strict=True):
        assert abs(a - b).max() < 1e-12


@pytest.mark.parametrize(("integrator", "factor"), [(TWO, 2.5), (FOURTH, 10)])
def test_at_equal_cost_energy_errors_are_smaller_where_steps_are_small(
    integrator: Integrator, factor: float
) -> None:
    here, n_gradients = start(50), leapfrog.COMPOSITIONS[integrator].gradients_per_step
    before = total_energy(BANANA.potential(here.position, here.precisions), here.momentum)
    errors = []
    for advance, n in ((composed(integrator), 1), (leapfrog.advance, n_gradients)):
        shorter = replace(here, stepsizes=here.stepsizes / n)
        end, potential = advance(BANANA, shorter, n_steps=5 * n)
        errors.append(np.median(abs(total_energy(potential, end.momentum) - before)))
    assert errors[0] < errors[1] / factor


def test_uncorrected_dynamics_take_them_too() -> None:
    """Large steps whose bias shows with the leapfrog are unbiased in steps of fourth order."""
    operations = (Heatbath(decay=0.5), Dynamic(steps=3, stepsize=0.8, integrator=FOURTH))
    assert stays_exact(ONE, operations, name="fourth order, dynamic")
