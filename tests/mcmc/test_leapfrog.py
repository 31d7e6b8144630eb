"""The integrator: reversible, volume-preserving, of second order, and unharmed by chains that blow up.

Orders of partial gradients: what they are, and that chains which draw their own stay independent.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
import scipy.special

from rayfbnn.arrays import Array
from rayfbnn.mcmc import hybrid as hmc
from rayfbnn.mcmc import leapfrog
from rayfbnn.mcmc.hybrid import Hybrid
from rayfbnn.mcmc.hybrid_marginal import HybridMarginal
from rayfbnn.mcmc.hybrid_max import HybridMax
from rayfbnn.mcmc.leapfrog import drawn_order, reversed_order
from rayfbnn.selftest.pivots import is_exact
from rayfbnn.state import ChainState, Trajectory
from rayfbnn.streams import Purpose
from tests.support.integrators import energy_error_slope, jacobian, reversal_error, symplectic_error
from tests.support.kernels.networks import chains_of, end_of
from tests.support.mutants import mutant
from tests.support.problems import chain_streams
from tests.support.targets import (
    ANHARMONIC,
    BANANA,
    anharmonic_cdf,
    anharmonic_draws,
    equal_terms,
    start,
    wall,
)

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


N_CHAINS = 200_000


@pytest.mark.parametrize("n_partitions", [2, 3, 4, 7])
def test_cyclic_orders_go_round_from_partition_zero(n_partitions: int) -> None:
    order = drawn_order(chain_streams(3, 400), n_partitions, "cyclic")
    assert order is not None and order.dtype == np.int64
    forwards = np.arange(n_partitions)
    is_forwards = (order == forwards).all(axis=1)
    is_backwards = (order == -forwards % n_partitions).all(axis=1)
    assert (is_forwards | is_backwards).all()
    if n_partitions > 2:
        assert 150 < is_forwards.sum() < 250


def test_the_reversal_of_a_cyclic_order_is_the_other_direction() -> None:
    order = drawn_order(chain_streams(3, 50), 5, "cyclic")
    assert np.array_equal(reversed_order(order), -order % 5)


def test_a_direction_depends_on_the_chain_and_the_iteration_alone() -> None:
    streams = chain_streams(3, 60)
    first, second = (drawn_order(streams.at(iteration=number), 3, "cyclic") for number in (1, 2))
    assert first is not None and second is not None
    assert not np.array_equal(first, second)
    assert np.array_equal(drawn_order(chain_streams(3, 6).at(iteration=1), 3, "cyclic"), first[:6])


def test_there_is_no_order_of_one_partition() -> None:
    assert drawn_order(chain_streams(3, 5), 1, None) is None


@pytest.mark.parametrize(
    "operation",
    [
        Hybrid(steps=2, stepsize=0.1, partitions=3, order="cyclic"),
        HybridMarginal(("precisions",), steps=2, stepsize=0.1, partitions=3, order="cyclic"),
        HybridMax(max_steps=2, max_ok=1, stepsize=0.1, partitions=3, order="cyclic"),
    ],
    ids=lambda operation: operation.op,
)
def test_the_description_names_the_order(operation: Hybrid | HybridMarginal | HybridMax) -> None:
    assert operation.description().endswith("3 partial gradients per step in cyclic order")


def are_independent(changed: ModuleType) -> bool:
    """Compare the correlation between the chains 2 i and 2 i + 1 after one update from exact draws with 0."""

    def p_values(seed: int, n_chains: int) -> list[float]:
        streams = chain_streams(seed, n_chains)
        momentum = streams.normal(Purpose.MOMENTUM, (1,))
        state = ChainState(anharmonic_draws(streams), momentum, np.ones((n_chains, 1)))
        after, _ = changed.hybrid(
            state,
            streams.at(iteration=1),
            target=ANHARMONIC,
            steps=1,
            stepsize=1.15,
            partitions=3,
            partition_order="cyclic",
        )
        values = anharmonic_cdf(after.position[:, 0]) - 0.5
        z = np.corrcoef(values[::2], values[1::2])[0, 1] * np.sqrt(n_chains // 2)
        return [float(2 * scipy.special.ndtr(-abs(z)))]

    return is_exact(p_values, name="independence of chains", n_chains=N_CHAINS)


def test_chains_that_draw_their_own_directions_stay_independent() -> None:
    assert are_independent(hmc)


def test_a_direction_that_two_chains_share_is_killed() -> None:
    """Each chain's own distribution is still right, so that only the correlation shows it."""
    drawn = "order = drawn_order(streams, partitions, partition_order)"
    shared = f"{drawn}[xp.arange(streams.n_chains) // 2 * 2]"
    assert not are_independent(mutant(hmc, (drawn, shared)))
