"""The integrator: reversible, volume-preserving, of second order, and unharmed by chains that blow up."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest

from rayfbnn.arrays import Array
from rayfbnn.mcmc import leapfrog
from rayfbnn.state import Trajectory
from tests.support.integrators import energy_error_slope, jacobian, reversal_error, symplectic_error
from tests.support.kernels.networks import chains_of, end_of
from tests.support.mutants import mutant
from tests.support.targets import BANANA, equal_terms, start, wall

NO_HALF = mutant(leapfrog, ("composition.kick(number, last)", "float(number < last)"))
STATE_DEP_STEP = mutant(
    leapfrog,
    ("sizes = trajectory.stepsizes /", "sizes = trajectory.stepsizes * (1 + 0.3 * xp.tanh(position)) /"),
)


def error_of_reversal(advance, *, partial: bool, **options) -> float:
    here, order = start(20)
    return reversal_error(advance, here, n_steps=10, order=order if partial else None, **options)


@pytest.mark.parametrize("partial", [False, True])
def test_steps_reverse(partial: bool) -> None:
    assert error_of_reversal(leapfrog.advance, partial=partial) < 1e-12


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("changed", [NO_HALF, STATE_DEP_STEP])
def test_mutant_does_not_reverse(changed, partial: bool) -> None:
    assert error_of_reversal(changed.advance, partial=partial) > 1e-3


def test_the_same_order_does_not_reverse() -> None:
    assert error_of_reversal(leapfrog.advance, partial=True, back_order=lambda order: order) > 1e-4


def test_reversal_by_negated_momentum_is_reversal_by_negated_stepsizes() -> None:
    here, order = start(20)
    options = {"n_steps": 5, "order": order}
    a, _ = leapfrog.advance(BANANA, replace(here, momentum=-here.momentum), **options)
    b, _ = leapfrog.advance(BANANA, replace(here, stepsizes=-here.stepsizes), **options)
    assert abs(a.position - b.position).max() < 1e-14
    assert abs(a.momentum + b.momentum).max() < 1e-14


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_kicks_and_drifts_have_the_bits_of_a_trajectory(dtype: str) -> None:
    here, _ = start(20)
    here = Trajectory(*(array.astype(dtype) for array in vars(here).values()))
    at = here
    for number in range(4):
        if number > 0:
            at = replace(at, position=at.position + at.stepsizes * at.momentum)
        at = replace(at, momentum=leapfrog.kick(BANANA, at, share=0.5 if number in (0, 3) else 1.0))
    end, _ = leapfrog.advance(BANANA, here, n_steps=3)
    assert at.position.dtype == dtype
    assert at.position.tobytes() == end.position.tobytes()
    assert at.momentum.tobytes() == end.momentum.tobytes()


def derivatives_of_steps(advance, *, partial: bool) -> Array:
    here, order = start(1)
    here = replace(here, stepsizes=3 * here.stepsizes)
    return jacobian(advance, here, n_steps=3, order=order if partial else None)


@pytest.mark.parametrize("partial", [False, True])
def test_steps_are_symplectic(partial: bool) -> None:
    derivatives = derivatives_of_steps(leapfrog.advance, partial=partial)
    assert symplectic_error(derivatives) < 1e-8
    assert abs(np.linalg.det(derivatives) - 1) < 1e-8


@pytest.mark.parametrize("partial", [False, True])
def test_stepsizes_that_depend_on_the_state_change_volume(partial: bool) -> None:
    """A step without its half kicks keeps volume, so only reversal and invariance can see that mutant."""
    derivatives = derivatives_of_steps(STATE_DEP_STEP.advance, partial=partial)
    assert symplectic_error(derivatives) > 1e-3
    assert abs(np.linalg.det(derivatives) - 1) > 1e-3
    assert symplectic_error(derivatives_of_steps(NO_HALF.advance, partial=partial)) < 1e-8


def slope(advance) -> float:
    here, _ = start(50)
    return energy_error_slope(advance, replace(here, stepsizes=here.stepsizes / 4), n_steps=20)


def test_energy_error_is_of_second_order() -> None:
    assert 1.9 < slope(leapfrog.advance) < 2.1


def test_energy_error_without_half_kicks_is_of_first_order() -> None:
    assert slope(NO_HALF.advance) < 1.2


def test_energy_error_of_a_stale_gradient_is_of_first_order() -> None:
    """A gradient from before the drift is used, as if one had been cached across a Gibbs update."""
    last: list[Array] = []

    class Stale:
        potential = BANANA.potential

        def potential_and_gradient(self, position: Array, precisions: Array, **_: object):
            potential, gradient = BANANA.potential_and_gradient(position, precisions)
            last.append(gradient)
            return potential, last[max(len(last) - 2, 0)]

    def advance(target: object, trajectory: Trajectory, **options: object):
        last.clear()
        return leapfrog.advance(Stale(), trajectory, **options)

    assert slope(advance) < 1.3


def test_partial_steps_of_equal_terms_are_shorter_full_steps() -> None:
    target = equal_terms(3)
    here, order = start(20, target)
    partial = end_of(leapfrog.advance, target, here, n_steps=4, order=order)
    shorter = replace(here, stepsizes=here.stepsizes / 3)
    full = end_of(leapfrog.advance, target, shorter, n_steps=12)
    for a, b in zip(partial, full, strict=True):
        assert abs(a - b).max() < 1e-13


def test_one_call_of_many_steps_is_many_calls_of_one() -> None:
    here, order = start(20)
    at_once = end_of(leapfrog.advance, BANANA, here, n_steps=6, order=order)
    for _ in range(6):
        here, potential = leapfrog.advance(BANANA, here, n_steps=1, order=order)
    for a, b in zip(at_once, (here.position, here.momentum, potential), strict=True):
        assert abs(a - b).max() < 1e-13


def test_negative_stepsizes_turn_single_chains_back() -> None:
    """Chains of one batch may differ in direction and order."""
    here, order = start(6)
    is_back = np.arange(6) % 2 == 1
    here = replace(here, stepsizes=np.where(is_back[:, None], -here.stepsizes, here.stepsizes))
    together = end_of(leapfrog.advance, BANANA, here, n_steps=3, order=order)
    for chain in range(6):
        one_chain = slice(chain, chain + 1)
        alone = end_of(
            leapfrog.advance, BANANA, chains_of(here, one_chain), n_steps=3, order=order[one_chain]
        )
        for a, b in zip(together, alone, strict=True):
            assert np.array_equal(a[one_chain], b)


def test_arguments_are_left_alone() -> None:
    here, order = start(5)
    arguments = [*vars(here).values(), order]
    copies = [argument.copy() for argument in arguments]
    leapfrog.advance(BANANA, here, n_steps=3, order=order)
    for argument, copy in zip(arguments, copies, strict=True):
        assert np.array_equal(argument, copy)


def test_float32_stays_float32_with_its_energy_in_float64() -> None:
    here, _ = start(5)
    single = {name: getattr(here, name).astype(np.float32) for name in ("position", "momentum", "stepsizes")}
    result = end_of(leapfrog.advance, BANANA, replace(here, **single), n_steps=3)
    assert [array.dtype for array in result] == [np.float32, np.float32, np.float64]


def test_a_chain_that_blows_up_ends_at_infinity_and_harms_no_other() -> None:
    target = wall(2)
    position = np.array([[0.1, 0.2], [2.9, 0.0], [0.3, -0.4]])
    momentum = np.array([[0.5, 0.5], [9.0, 0.0], [-0.5, 0.1]])
    here = Trajectory(position, momentum, np.ones((3, 1)), np.full((3, 2), 0.2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        together = end_of(leapfrog.advance, target, here, n_steps=5)
    assert together[2][1] == np.inf
    others = slice(0, 3, 2)
    alone = end_of(leapfrog.advance, target, chains_of(here, others), n_steps=5)
    for a, b in zip(together, alone, strict=True):
        assert np.array_equal(a[others], b)
