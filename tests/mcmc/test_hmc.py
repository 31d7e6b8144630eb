"""Momentum updates, and what a hybrid update does with windows, orders, stepsizes and blow-ups."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.special

from rayfbnn.arrays import Array
from rayfbnn.mcmc import hybrid as hmc
from rayfbnn.mcmc import leapfrog
from rayfbnn.mcmc.dynamic import Dynamic
from rayfbnn.mcmc.heatbath import Negate, heatbath
from rayfbnn.mcmc.hybrid_max import HybridMax
from rayfbnn.mcmc.leapfrog import reversed_order
from rayfbnn.selftest.pivots import chi2_p_value, ks_p_value
from rayfbnn.state import ChainState, Trajectory
from rayfbnn.streams import Purpose, Streams
from tests.support.integrators import updating
from tests.support.kernels.networks import end_of
from tests.support.mutants import mutant
from tests.support.problems import chain_streams
from tests.support.targets import ANHARMONIC, SumOfTerms, banana, gaussian, wall

BANANA = banana()


def start(n_chains: int, n_parameters: int = 3, *, seed: int = 11) -> tuple[ChainState, Streams]:
    streams = chain_streams(seed, n_chains)
    position = streams.normal(Purpose.INITIAL_PARAMETER, (n_parameters,)) / 2
    momentum = streams.normal(Purpose.MOMENTUM, (n_parameters,))
    return ChainState(position, momentum, np.ones((n_chains, 1))), streams.at(iteration=1)


class Recorder:
    """`leapfrog.advance`, recording each chain's backward steps and its order of partial gradients."""

    def __init__(self) -> None:
        self.backward_steps: Array = 0
        self.order: Array | None = None

    def __call__(self, target, trajectory, *, n_steps, order=None):
        is_back = trajectory.stepsizes[:, 0] < 0
        self.backward_steps = self.backward_steps + n_steps * is_back
        if order is not None:
            forward = np.where(is_back[:, None], reversed_order(order), order)
            assert self.order is None or np.array_equal(forward, self.order)  # once per trajectory
            self.order = forward
        return leapfrog.advance(target, trajectory, n_steps=n_steps, order=order)


# Heatbath and negate


def test_heatbath_without_decay_forgets_the_momentum() -> None:
    state, streams = start(50)
    a, _ = heatbath(state, streams, decay=0.0)
    b, _ = heatbath(replace(state, momentum=17 * state.momentum), streams, decay=0.0)
    assert np.array_equal(a.momentum, b.momentum)


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.9, 0.99])
def test_heatbath_adds_noise_of_variance_one_less_decay_squared(decay: float) -> None:
    state, streams = start(20_000)
    after, _ = heatbath(state, streams, decay=decay)
    noise = (after.momentum - decay * state.momentum) / math.sqrt(1 - decay**2)
    assert ks_p_value(scipy.special.ndtr(noise)) > 1e-5
    assert np.array_equal(after.position, state.position)


def test_negate_reverses_momentum_and_nothing_else() -> None:
    state, streams = start(5)
    after, _ = updating(Negate)(state, streams, target=BANANA)
    assert np.array_equal(after.momentum, -state.momentum)
    assert np.array_equal(after.position, state.position)


# One trajectory


def plain_hybrid(state: ChainState, streams: Streams, *, target, steps: int, stepsize: float):
    """Hybrid Monte Carlo as in a textbook, Neal (1996) sec. 3.1.3."""
    stepsizes = stepsize * target.stepsizes(state.precisions)
    q, p = state.position, state.momentum
    energy = target.potential(q, state.precisions) + (p * p).sum(axis=1) / 2
    q, p, potential = end_of(
        leapfrog.advance, target, Trajectory(q, p, state.precisions, stepsizes), n_steps=steps
    )
    change = potential + (p * p).sum(axis=1) / 2 - energy
    accepted = np.log(streams.uniform(Purpose.ACCEPT)) < -change
    return (
        np.where(accepted[:, None], q, state.position),
        np.where(accepted[:, None], -p, state.momentum),
        accepted,
        change,
    )


def test_a_window_of_one_is_plain_hybrid_bit_for_bit() -> None:
    state, streams = start(500)
    after, info = hmc.hybrid(state, streams, target=BANANA, steps=5, stepsize=0.4, window=1)
    position, momentum, accepted, change = plain_hybrid(state, streams, target=BANANA, steps=5, stepsize=0.4)
    assert 100 < accepted.sum() < 400
    assert np.array_equal(after.position, position)
    assert np.array_equal(after.momentum, momentum)
    assert np.array_equal(info.accepted, accepted)
    assert np.array_equal(info.energy_change, change)


def one_higher(*arguments, **options):
    """`leapfrog.advance` with a constant added to potentials, as another code may have."""
    end, potential = leapfrog.advance(*arguments, **options)
    return end, potential + 1


@pytest.mark.parametrize(
    "update",
    [
        partial(hmc.hybrid, steps=5, stepsize=0.4),
        partial(hmc.hybrid, steps=6, stepsize=0.4, window=3, partitions=3),
        partial(updating(HybridMax), max_steps=6, max_ok=3, stepsize=0.3),
        partial(updating(Dynamic), steps=5, stepsize=0.4),
    ],
)
def test_decisions_compare_energies_of_one_code(update: Callable[..., Any]) -> None:
    state, streams = start(500)
    after, info = update(state, streams, target=BANANA)
    same, same_info = update(state, streams, target=BANANA, advance=one_higher)
    assert np.array_equal(same.position, after.position)
    assert np.allclose(same_info.energy_change, info.energy_change)


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_window_of_the_whole_trajectory_always_accepts(partitions: int) -> None:
    state, streams = start(2_000)
    _, info = hmc.hybrid(
        state, streams, target=BANANA, steps=6, stepsize=0.5, window=7, partitions=partitions
    )
    assert info.accepted.all()
    assert np.array_equal(info.energy_change[~info.diverged], np.zeros((~info.diverged).sum()))


def test_offset_is_uniform_over_the_window() -> None:
    state, streams = start(20_000)
    recorder = Recorder()
    hmc.hybrid(state, streams, target=gaussian(3), steps=8, stepsize=0.1, window=4, advance=recorder)
    assert chi2_p_value(np.bincount(recorder.backward_steps, minlength=4)) > 1e-5  # false alarms 1e-5


@pytest.mark.parametrize("window", [1, 3])
def test_order_is_uniform_over_all_permutations(window: int) -> None:
    state, streams = start(20_000)
    recorder = Recorder()
    hmc.hybrid(
        state, streams, target=BANANA, steps=4, stepsize=0.1, window=window, partitions=3, advance=recorder
    )
    codes = recorder.order @ np.array([9, 3, 1])
    expected = [9 * a + 3 * b + c for a, b, c in itertools.permutations(range(3))]
    counts = np.array([(codes == code).sum() for code in expected])
    assert counts.sum() == 20_000
    assert chi2_p_value(counts) > 1e-5  # false alarms 1e-5


def trajectory(
    state: ChainState, *, offset: int, steps: int, stepsize: float, order: Array | None
) -> Iterator[tuple[Array, Array, float]]:
    """States 0 .. steps of one chain's trajectory with their energies, one leapfrog step at a time."""
    sizes = stepsize * BANANA.stepsizes(state.precisions)
    for number in range(steps + 1):
        q, p = state.position, state.momentum
        for _ in range(abs(number - offset)):
            back = number < offset
            q, p, _ = end_of(
                leapfrog.advance,
                BANANA,
                Trajectory(q, p, state.precisions, -sizes if back else sizes),
                n_steps=1,
                order=reversed_order(order) if back and order is not None else order,
            )
        yield q[0], p[0], float(BANANA.potential(q, state.precisions)[0] + (p * p).sum() / 2)


def brute_force(state: ChainState, recorder: Recorder, chain: int, *, steps: int, stepsize: float):
    """One chain's trajectory as three arrays: positions, momenta, energies of states 0 .. steps."""
    one_chain = slice(chain, chain + 1)
    one = ChainState(state.position[one_chain], state.momentum[one_chain], state.precisions[one_chain])
    order = None if recorder.order is None else recorder.order[one_chain]
    offset = int(recorder.backward_steps[chain])
    states = trajectory(one, offset=offset, steps=steps, stepsize=stepsize, order=order)
    return tuple(np.array(column) for column in zip(*states, strict=True))


WINDOWS = [(5, 1, 1), (8, 3, 1), (8, 3, 3), (3, 2, 1), (4, 4, 3), (5, 4, 1), (3, 4, 1)]


@pytest.mark.parametrize(("steps", "window", "partitions"), WINDOWS)
def test_hybrid_agrees_with_brute_force(steps: int, window: int, partitions: int) -> None:
    """Free energies agree, and the final state lies in the chosen window with the right sign of momentum."""
    state, streams = start(60)
    recorder = Recorder()
    after, info = hmc.hybrid(
        state,
        streams,
        target=BANANA,
        steps=steps,
        stepsize=0.25,
        window=window,
        partitions=partitions,
        advance=recorder,
    )
    for chain in range(60):
        positions, momenta, energies = brute_force(state, recorder, chain, steps=steps, stepsize=0.25)
        change = scipy.special.logsumexp(-energies[:window]) - scipy.special.logsumexp(-energies[-window:])
        assert info.energy_change[chain] == pytest.approx(change, rel=1e-8, abs=1e-8)
        inside = slice(steps - window + 1, None) if info.accepted[chain] else slice(0, window)
        sign = -1 if info.accepted[chain] else 1
        distance = abs(positions[inside] - after.position[chain]).max(axis=1)
        assert distance.min() < 1e-10
        assert abs(sign * momenta[inside][distance.argmin()] - after.momentum[chain]).max() < 1e-10


def test_accepted_as_often_as_the_free_energies_say() -> None:
    state, streams = start(20_000)
    _, info = hmc.hybrid(state, streams, target=BANANA, steps=6, stepsize=0.4, window=2)
    expected = np.minimum(1, np.exp(-info.energy_change))
    z = (info.accepted - expected).sum() / math.sqrt((expected * (1 - expected)).sum())
    assert abs(z) < 4.4  # 1e-5 if correct


def window_choice_p_value(hybrid, *, steps: int = 6, window: int = 3) -> float:
    """Compare 20,000 updates from one start with the exact probabilities of their final states."""
    stepsize, n = 0.35, 20_000
    one, _ = start(1, seed=6)
    _, streams = start(n, seed=6)
    state = ChainState(*(np.repeat(array, n, axis=0) for array in vars(one).values()))
    after, _ = hybrid(state, streams, target=BANANA, steps=steps, stepsize=stepsize, window=window)
    recorder = Recorder()
    recorder.backward_steps = np.array([window - 1])
    positions, _, energies = brute_force(one, recorder, 0, steps=steps + window - 1, stepsize=stepsize)
    probabilities = np.zeros(len(energies))  # states from 2 steps back to 6 ahead
    for first in range(window):
        weights = np.exp(-energies)
        reject = np.arange(first, first + window)
        accept = reject + steps - window + 1
        chance = min(1, weights[accept].sum() / weights[reject].sum())
        probabilities[accept] += chance * weights[accept] / weights[accept].sum() / window
        probabilities[reject] += (1 - chance) * weights[reject] / weights[reject].sum() / window
    ends = abs(after.position[:, None] - positions).max(axis=2).argmin(axis=1)
    counts = np.bincount(ends, minlength=len(energies))
    if counts[probabilities == 0].any():
        return 0.0
    counts, expected = counts[probabilities > 0], n * probabilities[probabilities > 0]
    return float(scipy.special.chdtrc(len(counts) - 1, ((counts - expected) ** 2 / expected).sum()))


@pytest.mark.parametrize(("steps", "window"), [(6, 3), (3, 3)], ids=["apart", "overlapping"])
def test_state_is_chosen_in_proportion_to_its_weight(steps: int, window: int) -> None:
    assert window_choice_p_value(hmc.hybrid, steps=steps, window=window) > 1e-5


WINDOW_MUTANTS = {
    "uniform choice": ("score = log_weight + gumbel", "score = xp.where(is_member, gumbel, -xp.inf)"),
    "first state": ("score = log_weight + gumbel", "score = xp.where(is_member, 0.0, -xp.inf)"),
    "offset below the last": ("streams.integers(window, ", "streams.integers(window - 1, "),
    "free energy of the first state": (
        "log_add_exp(self.log_weight, log_weight)",
        "xp.where(self.log_weight == -xp.inf, log_weight, self.log_weight)",
    ),
    "start not restored": ("current.restored(start, done == offset)", "current"),
}


@pytest.mark.parametrize("name", WINDOW_MUTANTS)
def test_mutant_of_the_windows_is_killed(name: str) -> None:
    assert window_choice_p_value(mutant(hmc, WINDOW_MUTANTS[name]).hybrid) < 1e-5


def test_one_random_number_for_two_states_of_overlapping_windows_is_seen() -> None:
    wrong = mutant(hmc, ("window + 1, gumbel[:, 0])", "window + 1, gumbel[:, 1])"))
    assert window_choice_p_value(wrong.hybrid, steps=3, window=3) < 1e-5


def is_reversed_on_acceptance_only(hybrid) -> bool:
    state, streams = start(500)
    after, info = hybrid(state, streams, target=ANHARMONIC, steps=2, stepsize=0.5)
    _, end, _ = end_of(
        leapfrog.advance,
        ANHARMONIC,
        Trajectory(state.position, state.momentum, state.precisions, np.full_like(state.position, 0.5)),
        n_steps=2,
    )
    expected = np.where(info.accepted[:, None], -end, state.momentum)
    return bool(info.accepted.any() and not info.accepted.all() and np.array_equal(after.momentum, expected))


def test_momentum_is_reversed_on_acceptance_only() -> None:
    """Reversing it on rejection instead leaves the distribution as it is, and only this test sees that."""
    assert is_reversed_on_acceptance_only(hmc.hybrid)
    negated_as_a_whole = mutant(
        hmc, ("-accept.momentum, reject.momentum", "accept.momentum, -reject.momentum")
    )
    assert not is_reversed_on_acceptance_only(negated_as_a_whole.hybrid)


def distance_travelled(*, with_negate: bool) -> float:
    """Mean distance after twenty short trajectories, with little loss of momentum, on a wide Gaussian."""
    state, streams = start(200, 1)
    target = SumOfTerms((lambda q: ((q * q).sum(axis=1) / 2e4, q / 1e4),), 1)
    first = state
    for number in range(20):
        at = streams.at(iteration=number + 1)
        state, _ = heatbath(state, at, decay=0.99)
        state, info = hmc.hybrid(state, at, target=target, steps=1, stepsize=1.0)
        assert info.accepted.all()
        if with_negate:
            state, _ = updating(Negate)(state, at, target=BANANA)
    return float(abs(state.position - first.position).mean())


def test_negate_keeps_the_direction_on_acceptance() -> None:
    """Without negation each trajectory retraces the last, which is invariant but useless.

    The trace shows it.
    """
    assert distance_travelled(with_negate=True) > 8
    assert distance_travelled(with_negate=False) < 2


# Stepsizes


@pytest.mark.parametrize("jitter", [4.0, -1.5])
def test_jittered_stepsizes_have_their_distribution(jitter: float) -> None:
    state, streams = start(20_000)
    seen = []

    def advance(target, trajectory, **options):
        seen.append(trajectory.stepsizes)
        return leapfrog.advance(target, trajectory, **options)

    hmc.hybrid(
        state, streams, target=gaussian(3), steps=1, stepsize=0.2, stepsize_jitter=jitter, advance=advance
    )
    factor = seen[0] / 0.2
    assert (factor == factor[:, :1]).all()  # one factor for all of a chain's parameters
    if jitter > 0:
        uniform = scipy.special.gammainc(jitter / 2, jitter / 2 / factor[:, 0] ** 2)
    else:
        uniform = np.log10(factor[:, 0]) / -jitter + 0.5
    assert ks_p_value(uniform) > 1e-5


def test_stepsizes_come_from_the_precisions_alone() -> None:
    """The target is asked once per trajectory, with the current precisions."""
    asked = []

    class Asked(SumOfTerms):
        def stepsizes(self, precisions: Array) -> Array:
            asked.append(precisions)
            return super().stepsizes(precisions)

    state, streams = start(3)
    hmc.hybrid(state, streams, target=Asked(BANANA.terms, 3), steps=9, stepsize=0.1, window=3)
    assert len(asked) == 1
    assert asked[0] is state.precisions


# Blow-ups


def test_a_blow_up_in_one_window_leaves_finite_states() -> None:
    """A chain that blows up on its backward leg still goes forward from the restored start."""
    state, streams = start(4_000, 2)
    after, info = hmc.hybrid(state, streams, target=wall(2), steps=8, stepsize=0.9, window=4)
    assert info.diverged.any()
    assert (info.accepted & info.diverged).any()
    assert np.isfinite(after.position).all() and np.isfinite(after.momentum).all()
    assert (abs(after.position) <= 3).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["potential", "gradient"])
def test_no_impossible_value_gets_into_the_state(value: float, where: str) -> None:
    class Broken(SumOfTerms):
        def potential_and_gradient(self, position: Array, precisions: Array, **options: Array):
            potential, gradient = super().potential_and_gradient(position, precisions, **options)
            if where == "potential":
                return np.where(position[:, 0] > 0.5, value, potential), gradient
            return potential, np.where(position > 0.5, value, gradient)

    state, streams = start(200)
    state = replace(state, position=-abs(state.position))
    for number in range(5):
        at = streams.at(iteration=number + 1)
        state, _ = heatbath(state, at)
        state, info = hmc.hybrid(
            state, at, target=Broken(gaussian(3).terms, 3), steps=4, stepsize=0.7, window=2
        )
    assert info.diverged.any()
    assert np.isfinite(state.position).all() and np.isfinite(state.momentum).all()


@pytest.mark.parametrize("size", [1e300, 1e155])
def test_stepsizes_that_overflow_are_rejections(size: float) -> None:
    state, streams = start(10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        after, info = hmc.hybrid(state, streams, target=BANANA, steps=3, stepsize=size)
    assert info.diverged.all() and not info.accepted.any()
    assert np.array_equal(after.position, state.position)


# Batches and types


def test_float32_states_stay_float32() -> None:
    state, streams = start(5)
    state = ChainState(state.position.astype(np.float32), state.momentum.astype(np.float32), state.precisions)
    state, _ = heatbath(state, streams, decay=0.5)
    state, info = hmc.hybrid(state, streams, target=BANANA, steps=3, stepsize=0.1, window=2)
    assert state.position.dtype == state.momentum.dtype == np.float32
    assert info.energy_change.dtype == np.float64


def test_pieces_cover_the_trajectory_and_join_the_middle() -> None:
    assert hmc.pieces(10, 1) == [(0, 10)]
    assert hmc.pieces(10, 3) == [(0, 1), (1, 1), (2, 6), (8, 1), (9, 1)]
    for steps in range(1, 12):
        for window in range(1, steps + 2):
            pieces = hmc.pieces(steps, window)
            assert [done for done, _ in pieces] == list(np.cumsum([0] + [n for _, n in pieces[:-1]]))
            assert sum(n for _, n in pieces) == steps
            seen = {0} | {done + n for done, n in pieces}
            assert set(range(window)) | set(range(steps - window + 1, steps + 1)) == seen


def test_log_add_exp_of_nothing_is_nothing() -> None:
    a = np.array([-np.inf, -np.inf, 1.0, -1e5])
    b = np.array([-np.inf, 2.0, -np.inf, -1e5])
    assert np.array_equal(hmc.log_add_exp(a, b), [-np.inf, 2.0, 1.0, -1e5 + math.log(2)])


@pytest.mark.parametrize("steps", [1, 5])
def test_windows_of_one_state_have_the_bits_of_the_general_update(
    steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = chain_streams(11, 400, iteration=1)
    start = ChainState(*(streams.normal(Purpose.PROPOSAL, (3,), index=i) for i in (0, 1)), np.ones((400, 1)))
    results = []
    for follow in (hmc._follow_to_the_end, hmc._follow_through_windows):
        monkeypatch.setattr(hmc, "_follow_to_the_end", follow)
        state, info = hmc.hybrid(start, streams, target=BANANA, steps=steps, stepsize=0.3)
        results.append([state.position, state.momentum, *vars(info).values()])
    assert 0.1 < results[0][2].mean() < 0.9
    assert all(np.array_equal(*pair) for pair in zip(*results, strict=True))


# A stepsize for each chain


@pytest.mark.parametrize("jitter", [None, 3.0, -0.5])
def test_stepsize_of_each_chain_is_as_good_as_a_number(jitter: float | None) -> None:
    """A chain does what it does in a batch that has its stepsize in common."""
    state, streams = start(6)
    stepsizes = np.array([0.1, 0.5, 0.1, 0.5, 0.1, 0.5])
    update = partial(hmc.hybrid, state, streams, target=BANANA, steps=7, window=2, stepsize_jitter=jitter)
    after, info = update(stepsize=stepsizes)
    for place, stepsize in enumerate((0.1, 0.5)):
        alone, of_alone = update(stepsize=stepsize)
        assert np.array_equal(after.position[place::2], alone.position[place::2])
        assert np.array_equal(info.energy_change[place::2], of_alone.energy_change[place::2])
