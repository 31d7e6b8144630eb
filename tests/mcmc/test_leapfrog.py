"""The integrator: reversible, volume-preserving, of second order, and unharmed by chains that blow up."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from rayfbnn.arrays import Array
from rayfbnn.mcmc import hybrid as hmc
from rayfbnn.mcmc import leapfrog
from rayfbnn.mcmc.energy import total_energy
from tests.support.mutants import mutant
from tests.support.targets import BANANA, equal_terms, start, wall

NO_HALF = mutant(leapfrog, ("half if number in (0, last) else full", "full * (number < last)"))
STATE_DEP_STEP = mutant(
    leapfrog, ("full = stepsizes /", "full = stepsizes * (1 + 0.3 * xp.tanh(position)) /")
)


def reversal_error(advance, *, partial: bool, back_order=hmc.reversed_order) -> float:
    """How far steps there and back end from where they began."""
    position, momentum, precisions, stepsizes, order = start(20)
    there = advance(
        BANANA, position, momentum, precisions, stepsizes, n_steps=10, order=order if partial else None
    )
    back = advance(
        BANANA,
        *there[:2],
        precisions,
        -stepsizes,
        n_steps=10,
        order=back_order(order) if partial else None,
    )
    return float(max(abs(back[0] - position).max(), abs(back[1] - momentum).max()))


@pytest.mark.parametrize("partial", [False, True])
def test_steps_reverse(partial: bool) -> None:
    assert reversal_error(leapfrog.advance, partial=partial) < 1e-12


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("changed", [NO_HALF, STATE_DEP_STEP])
def test_mutant_does_not_reverse(changed, partial: bool) -> None:
    assert reversal_error(changed.advance, partial=partial) > 1e-3


def test_the_same_order_does_not_reverse() -> None:
    assert reversal_error(leapfrog.advance, partial=True, back_order=lambda order: order) > 1e-4


def test_reversal_by_negated_momentum_is_reversal_by_negated_stepsizes() -> None:
    position, momentum, precisions, stepsizes, order = start(20)
    options = {"n_steps": 5, "order": order}
    a = leapfrog.advance(BANANA, position, -momentum, precisions, stepsizes, **options)
    b = leapfrog.advance(BANANA, position, momentum, precisions, -stepsizes, **options)
    assert abs(a[0] - b[0]).max() < 1e-14
    assert abs(a[1] + b[1]).max() < 1e-14


def jacobian(advance, *, partial: bool) -> Array:
    """Derivatives of the state after three steps by the state before, by central differences.

    In position / stepsize and momentum, the coordinates in which the masses are one.
    """
    position, momentum, _, stepsizes, order = start(1)
    state, width, d = np.concatenate([position, momentum], axis=1), 1e-5, position.shape[1]
    moved = state + width * np.concatenate([np.eye(2 * d), -np.eye(2 * d)])
    after = advance(
        BANANA,
        moved[:, :d].copy(),
        moved[:, d:].copy(),
        np.ones((4 * d, 1)),
        np.repeat(3 * stepsizes, 4 * d, axis=0),
        n_steps=3,
        order=np.repeat(order, 4 * d, axis=0) if partial else None,
    )
    states = np.concatenate(after[:2], axis=1)
    scale = np.concatenate([stepsizes[0], np.ones(d)])
    return ((states[: 2 * d] - states[2 * d :]) / (2 * width)).T * scale / scale[:, None]


def symplectic_error(changed: Array) -> float:
    d = len(changed) // 2
    omega = np.block([[np.zeros((d, d)), np.eye(d)], [-np.eye(d), np.zeros((d, d))]])
    return float(abs(changed.T @ omega @ changed - omega).max())


@pytest.mark.parametrize("partial", [False, True])
def test_steps_are_symplectic(partial: bool) -> None:
    derivatives = jacobian(leapfrog.advance, partial=partial)
    assert symplectic_error(derivatives) < 1e-8
    assert abs(np.linalg.det(derivatives) - 1) < 1e-8


@pytest.mark.parametrize("partial", [False, True])
def test_stepsizes_that_depend_on_the_state_change_volume(partial: bool) -> None:
    """A step without its half kicks keeps volume: only reversal and invariance can see that mutant."""
    derivatives = jacobian(STATE_DEP_STEP.advance, partial=partial)
    assert symplectic_error(derivatives) > 1e-3
    assert abs(np.linalg.det(derivatives) - 1) > 1e-3
    assert symplectic_error(jacobian(NO_HALF.advance, partial=partial)) < 1e-8


def energy_error_slope(advance) -> float:
    """Slope of log |change of H| in log stepsize at a fixed length of trajectory."""
    position, momentum, precisions, stepsizes, _ = start(50)
    errors = []
    before = total_energy(BANANA.potential(position, precisions), momentum)
    sizes = 2.0 ** -np.arange(4)
    for size in sizes:
        _, moved, potential = advance(
            BANANA,
            position,
            momentum,
            precisions,
            size * stepsizes / 4,
            n_steps=round(20 / size),
        )
        errors.append(np.median(abs(total_energy(potential, moved) - before)))
    return float(np.polyfit(np.log(sizes), np.log(errors), 1)[0])


def test_energy_error_is_of_second_order() -> None:
    assert 1.9 < energy_error_slope(leapfrog.advance) < 2.1


def test_energy_error_without_half_kicks_is_of_first_order() -> None:
    assert energy_error_slope(NO_HALF.advance) < 1.2


def test_energy_error_of_a_stale_gradient_is_of_first_order() -> None:
    """A gradient kept from before the drift, as one cached across a Gibbs update would be."""
    last: list[Array] = []

    class Stale:
        potential = BANANA.potential

        def potential_and_gradient(self, position: Array, precisions: Array, **_: object):
            potential, gradient = BANANA.potential_and_gradient(position, precisions)
            last.append(gradient)
            return potential, last[max(len(last) - 2, 0)]

    def advance(target: object, *arguments: Array, **options: object):
        last.clear()
        return leapfrog.advance(Stale(), *arguments, **options)

    assert energy_error_slope(advance) < 1.3


def test_partial_steps_of_equal_terms_are_shorter_full_steps() -> None:
    target = equal_terms(3)
    position, momentum, precisions, stepsizes, order = start(20, target)
    partial = leapfrog.advance(target, position, momentum, precisions, stepsizes, n_steps=4, order=order)
    full = leapfrog.advance(target, position, momentum, precisions, stepsizes / 3, n_steps=12)
    for a, b in zip(partial, full, strict=True):
        assert abs(a - b).max() < 1e-13


def test_one_call_of_many_steps_is_many_calls_of_one() -> None:
    position, momentum, precisions, stepsizes, order = start(20)
    at_once = leapfrog.advance(BANANA, position, momentum, precisions, stepsizes, n_steps=6, order=order)
    for _ in range(6):
        position, momentum, potential = leapfrog.advance(
            BANANA, position, momentum, precisions, stepsizes, n_steps=1, order=order
        )
    for a, b in zip(at_once, (position, momentum, potential), strict=True):
        assert abs(a - b).max() < 1e-13


def test_negative_stepsizes_turn_single_chains_back() -> None:
    """Chains of one batch may differ in direction and order."""
    position, momentum, precisions, stepsizes, order = start(6)
    is_back = np.arange(6) % 2 == 1
    mixed = np.where(is_back[:, None], -stepsizes, stepsizes)
    together = leapfrog.advance(BANANA, position, momentum, precisions, mixed, n_steps=3, order=order)
    for chain in range(6):
        own = slice(chain, chain + 1)
        alone = leapfrog.advance(
            BANANA, position[own], momentum[own], precisions[own], mixed[own], n_steps=3, order=order[own]
        )
        for a, b in zip(together, alone, strict=True):
            assert np.array_equal(a[own], b)


def test_arguments_are_left_alone() -> None:
    arguments = start(5)
    copies = [argument.copy() for argument in arguments]
    leapfrog.advance(BANANA, *arguments[:4], n_steps=3, order=arguments[4])
    for argument, copy in zip(arguments, copies, strict=True):
        assert np.array_equal(argument, copy)


def test_float32_stays_float32_with_its_energy_in_float64() -> None:
    position, momentum, precisions, stepsizes, _ = start(5)
    single = [array.astype(np.float32) for array in (position, momentum)]
    result = leapfrog.advance(BANANA, *single, precisions, stepsizes.astype(np.float32), n_steps=3)
    assert [array.dtype for array in result] == [np.float32, np.float32, np.float64]


def test_a_chain_that_blows_up_ends_at_infinity_and_harms_no_other() -> None:
    target = wall(2)
    position = np.array([[0.1, 0.2], [2.9, 0.0], [0.3, -0.4]])
    momentum = np.array([[0.5, 0.5], [9.0, 0.0], [-0.5, 0.1]])
    precisions, stepsizes = np.ones((3, 1)), np.full((3, 2), 0.2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        together = leapfrog.advance(target, position, momentum, precisions, stepsizes, n_steps=5)
    assert together[2][1] == np.inf
    others = [0, 2]
    alone = leapfrog.advance(
        target, position[others], momentum[others], precisions[others], stepsizes[others], n_steps=5
    )
    for a, b in zip(together, alone, strict=True):
        assert np.array_equal(a[others], b)
