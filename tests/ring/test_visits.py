"""Visits to parts: the trajectories of leapfrog.advance to the bit, however the parts are divided."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from rayfbnn.arrays import Array
from rayfbnn.errors import SamplingError
from rayfbnn.mcmc import leapfrog
from rayfbnn.mcmc.heatbath import heatbath
from rayfbnn.mcmc.hybrid import hybrid
from rayfbnn.mcmc.hybrid_marginal import hybrid_marginal
from rayfbnn.mcmc.leapfrog import drawn_order, reversed_order
from rayfbnn.ring.message import Itinerary
from rayfbnn.ring.rounds import Star
from rayfbnn.ring.shared_posterior import RingAdvance
from rayfbnn.run.in_parts import divided
from rayfbnn.state import Advance, ChainState, Trajectory
from rayfbnn.streams import Purpose
from tests.support import problems
from tests.support.ring.parts import DIVISIONS, MODELS, N_PARTS, position_of, target_of

ADVANCE = RingAdvance()
ARRAY_CODE = "plain NumPy"


def trajectory_of(target: Any, n_chains: int = 5) -> Trajectory:
    position, precisions = position_of(target, n_chains)
    momentum = problems.streams("visits", n_chains).normal(Purpose.MOMENTUM, position.shape[1:])
    stepsizes = 0.3 * target.stepsizes(precisions)
    return Trajectory(position, momentum.astype(target.dtype), precisions, stepsizes)


def order_of(n_chains: int = 5) -> Array:
    order = drawn_order(problems.streams("visits", n_chains), N_PARTS, "cyclic")
    assert order is not None and len(set(order[:, 1])) == 2
    return order


@pytest.mark.parametrize("missing", [False, True], ids=["whole", "missing"])
@pytest.mark.parametrize("name", MODELS)
def test_multi_leaps_have_the_bits_of_leapfrog(name: str, missing: bool) -> None:
    whole = target_of(name, missing=missing, dtype="float32" if missing else "float64").tempered(0.8)
    start, order = trajectory_of(whole), order_of()
    back = Trajectory(start.position, start.momentum, start.precisions, -start.stepsizes)
    divisions = [
        divided(whole, N_PARTS, recorded=ARRAY_CODE, owners=owners)[0] for owners in DIVISIONS.values()
    ]
    for begin, its_order in ((start, order), (back, reversed_order(order))):
        expected, potential = leapfrog.advance(whole, begin, n_steps=2, order=its_order)
        energies = []
        for shared in divisions:
            end, energy = ADVANCE(shared, begin, n_steps=2, order=its_order)
            assert np.array_equal(end.position, expected.position)
            assert np.array_equal(end.momentum, expected.momentum)
            energies.append(energy)
        assert all(np.array_equal(energy, energies[0]) for energy in energies)
        np.testing.assert_allclose(energies[0], potential, rtol=1e-6 if missing else 1e-11)


@pytest.mark.parametrize("name", ["t by target", "class", "hazard of pieces"])
def test_full_gradients_go_round_the_same_parts(name: str) -> None:
    whole = target_of(name, missing=True)
    start = trajectory_of(whole)
    expected, potential = leapfrog.advance(whole, start, n_steps=3)
    ends = []
    for owners in DIVISIONS.values():
        shared, _ = divided(whole, N_PARTS, owners=owners)
        end, energy = ADVANCE(shared, start, n_steps=3)
        np.testing.assert_allclose(end.position, expected.position, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(end.momentum, expected.momentum, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(energy, potential, rtol=1e-11)
        ends.append((end, energy))
    for end, energy in ends:
        assert np.array_equal(end.position, ends[0][0].position)
        assert np.array_equal(energy, ends[0][1])


@pytest.mark.parametrize("over", [(), ("precisions",)], ids=["all", "over precisions"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_star_has_the_bits_of_the_ring(dtype: str, over: Any) -> None:
    """Full gradients from all parts at once: by compiled kernels, in whichever order the parts answer."""
    whole = target_of("gaussian", dtype=dtype, n_cases=40)
    start, order = trajectory_of(whole), order_of()
    ring, _ = divided(whole, N_PARTS, owners=DIVISIONS["two owners"])
    for owners in ("one owner", "four owners"):
        other, _ = divided(whole, N_PARTS, owners=DIVISIONS[owners])
        star = replace(other, ring=Star(other.ring.home, N_PARTS))
        targets = (ring, star) if not over else (ring.marginal(over), star.marginal(over))
        for n_steps, its_order in ((0, None), (1, None), (4, None), (2, order)):
            ends = [ADVANCE(target, start, n_steps=n_steps, order=its_order) for target in targets]
            for name in ("position", "momentum"):
                assert np.array_equal(getattr(ends[0][0], name), getattr(ends[1][0], name))
            assert np.array_equal(ends[0][1], ends[1][1])
            assert n_steps == 0 or not np.array_equal(ends[0][0].position, start.position)
        gradients = [target.potential_and_gradient(start.position, start.precisions) for target in targets]
        assert np.array_equal(gradients[0][1], gradients[1][1])


@pytest.mark.parametrize("order", [None, "cyclic"])
def test_common_precisions_can_be_integrated_out(order: str | None) -> None:
    whole = target_of("gaussian")
    start, drawn = trajectory_of(whole), None if order is None else order_of()
    shared, _ = divided(whole, N_PARTS, recorded=ARRAY_CODE, owners=DIVISIONS["three owners"])
    over: Any = ("precisions",)
    expected, potential = leapfrog.advance(whole.marginal(over), start, n_steps=2, order=drawn)
    end, energy = ADVANCE(shared.marginal(over), start, n_steps=2, order=drawn)  # type: ignore[arg-type]
    np.testing.assert_allclose(end.momentum, expected.momentum, rtol=1e-10)
    np.testing.assert_allclose(energy, potential, rtol=1e-11)
    if order is not None:
        assert np.array_equal(end.momentum, expected.momentum)


@pytest.mark.parametrize("marginal", [False, True], ids=["hybrid", "hybrid-marginal"])
def test_windows_have_the_bits_of_leapfrog(marginal: bool) -> None:
    """Chains with different offsets go different ways at a time; every decision is the same one."""
    whole = target_of("gaussian", dtype="float32", n_cases=23)

    def positions(target: Any, advance: Advance, chains: slice) -> tuple[Array, Array]:
        random = problems.streams("windows", 6)
        random = type(random)(random.seed, random.chains[chains])
        state = target.initial_state(random, sigmas=0.3)
        accepted = []
        for iteration in range(1, 4):
            at = random.at(iteration=iteration)
            state, _ = heatbath(state, at.at(iteration=iteration, operation=1), decay=0.0)
            update: Any = partial(
                hybrid, steps=5, window=2, stepsize=0.3, partitions=N_PARTS, partition_order="cyclic",
                advance=advance,
            )  # fmt: skip
            if marginal:
                over = target.marginal(("precisions",))
                state, info = hybrid_marginal(state, at, marginal=over, trajectory=update)
            else:
                state, info = update(state, at, target=target)
            accepted.append(info.accepted)
        return state.position, np.stack(accepted)

    shared = {
        name: divided(whole, N_PARTS, recorded=ARRAY_CODE, owners=DIVISIONS[name])[0]
        for name in ("two owners in turn", "four owners")
    }
    expected, decisions = positions(whole, leapfrog.advance, slice(None))
    assert 0 < decisions.mean() < 1
    for target in shared.values():
        assert np.array_equal(positions(target, ADVANCE, slice(None))[0], expected)
    alone, _ = positions(shared["four owners"], ADVANCE, slice(3, 4))
    assert np.array_equal(alone[0], expected[3])


def test_the_shared_posterior_is_the_target_itself() -> None:
    """Stepsizes, prior and the quantities of tuning come from constants; all else from the parts."""
    for name in ("t by target", "hazard of pieces", "heteroscedastic"):
        whole = target_of(name, missing=True).tempered(0.6)
        shared, _ = divided(whole, N_PARTS, owners=DIVISIONS["two owners"])
        position, precisions = position_of(whole, 3)
        for method in ("stepsizes", "prior_energy", "log_prior", "quantities"):
            arguments = (precisions,) if method == "stepsizes" else (position, precisions)
            assert np.array_equal(getattr(shared, method)(*arguments), getattr(whole, method)(*arguments))
        for method in ("potential", "data_energy", "log_likelihood"):
            np.testing.assert_allclose(
                getattr(shared, method)(position, precisions),
                getattr(whole, method)(position, precisions),
                rtol=1e-11,
            )
        for a, b in zip(
            shared.potential_and_gradient(position, precisions),
            whole.potential_and_gradient(position, precisions),
            strict=True,
        ):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)


def test_whatever_needs_all_cases_is_refused() -> None:
    """The few cases that a shared posterior has would give a wrong answer."""
    whole = target_of("gaussian")
    shared, _ = divided(whole, N_PARTS)
    position, precisions = position_of(whole, 2)
    random = problems.streams("refused", 2)
    for call in (
        lambda: shared.batches(random, 3),
        lambda: shared.of_cases(np.zeros((2, 3), dtype=int), 1.0),
        lambda: shared.residuals(position),
        lambda: shared.rejection_proposal(random),
        lambda: shared.sample_targets(position, precisions, random),
        lambda: shared.with_targets(np.zeros((2, 11, 2))),
        lambda: shared.marginal(("outputs",)),
    ):
        with pytest.raises(SamplingError, match="needs all training cases in one place"):
            call()
    assert shared.marginal(("precisions",)) is not None


@pytest.mark.parametrize("model", ["gaussian", "gaussian by target", "t", "t by target"])
@pytest.mark.parametrize("update", ["sample-noise", "random-grid"])
def test_noise_is_drawn_from_sums(model: str, update: str) -> None:
    whole = target_of(model, missing=True).tempered(0.6)
    position, precisions = position_of(whole, 40)
    state = ChainState(position, np.zeros_like(position), precisions)
    random = problems.streams("noise", 40, iteration=2)
    settings: dict[str, Any] = {"stepsize": 0.7} if update == "random-grid" else {}
    expected, _ = whole.updates[update](state, random, **settings)
    assert update == "random-grid" or not np.array_equal(expected.precisions, precisions)
    first = None
    for owners in DIVISIONS.values():
        shared, _ = divided(whole, N_PARTS, owners=owners)
        after, _ = shared.updates[update](state, random, **settings)
        np.testing.assert_allclose(after.precisions, expected.precisions, rtol=1e-9)
        first = after.precisions if first is None else first
        assert np.array_equal(after.precisions, first)


@pytest.mark.parametrize("level", ["lower", "upper", None])
@pytest.mark.parametrize("is_reversed", [False, True])
def test_levels_of_the_noise_are_updated_alone(level: Any, is_reversed: bool) -> None:
    whole = target_of("t by target")
    shared, _ = divided(whole, N_PARTS)
    position, precisions = position_of(whole, 5)
    state = ChainState(position, np.zeros_like(position), precisions)
    random = problems.streams("levels", 5, iteration=2)
    expected, _ = whole.sample_noise(state, random, level=level, is_reversed=is_reversed)
    after, _ = shared.sample_noise(state, random, level=level, is_reversed=is_reversed)
    np.testing.assert_allclose(after.precisions, expected.precisions, rtol=1e-10)


def test_a_part_draws_t_precisions_with_the_bits_of_all_cases() -> None:
    whole = target_of("t by target", missing=True)
    position, precisions = position_of(whole, 3)
    state = ChainState(position, np.zeros_like(position), precisions)
    random = problems.streams("bits", 3)
    one, _ = divided(whole, 1)
    after, _ = one.sample_noise(state, random)
    expected, _ = whole.sample_noise(state, random)
    assert np.array_equal(after.precisions, expected.precisions)


def test_partial_gradients_need_the_order_of_the_ring() -> None:
    shared, _ = divided(target_of("gaussian"), N_PARTS)
    start = trajectory_of(shared)
    wrong = np.array([[0, 2, 1, 3]] * 5)
    with pytest.raises(ValueError, match='order: must be "cyclic"'):
        ADVANCE(shared, start, n_steps=1, order=wrong)
    with pytest.raises(ValueError, match="order: must have one partition for each of 4 parts, got 3"):
        ADVANCE(shared, start, n_steps=1, order=np.array([[0, 1, 2]] * 5))


@pytest.mark.parametrize("kind", ["partial", "full", "gradient", "question"])
def test_each_part_is_asked_once_where_the_chains_end(kind: Any) -> None:
    itinerary = Itinerary(kind, 4, 3 if kind in ("partial", "full") else 0, -1 if kind == "partial" else 1)
    visits = [itinerary.visit(number) for number in range(len(itinerary))]
    assert sorted(visit.part for visit in visits if visit.is_asked) == [0, 1, 2, 3]
    first_asked = next(number for number, visit in enumerate(visits) if visit.is_asked)
    assert not any(visit.drift for visit in visits[first_asked + 1 :])
    kicks = {"partial": 3 * 4, "full": 3 * 4, "gradient": 4, "question": 0}[kind]
    assert sum(visit.kick for visit in visits) == kicks
    assert sum(visit.drift for visit in visits) == {"partial": 12, "full": 3}.get(kind, 0)
