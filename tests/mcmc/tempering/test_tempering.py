"""Simulated tempering and tempered transitions keep exact draws of a target of two modes, and of networks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import scipy.special

from rayfbnn.arrays import Array
from rayfbnn.errors import SamplingError
from rayfbnn.mcmc import schedule
from rayfbnn.mcmc.operation import Operation, gradient_evaluations
from rayfbnn.mcmc.operations import (
    Heatbath,
    Hybrid,
    Metropolis,
    Negate,
    Repeat,
    SampleSigmas,
    SimulatedTempering,
    TemperedTransition,
)
from rayfbnn.mcmc.tempering import inner, simulated_tempering, tempered_transition
from rayfbnn.mcmc.tempering.simulated_tempering import Direction
from rayfbnn.selftest.pivots import is_exact, ks_p_value, ks_two_sample_p_value, square_p_value
from rayfbnn.state import ChainState
from rayfbnn.streams import Purpose, Streams
from tests.support.exact_draws import exact_draws, quantities, target_of
from tests.support.mutants import mutant, schedule_with
from tests.support.problems import chain_streams

N_CHAINS = 20_000
LADDER = (1.0, 0.5, 0.2, 0.05)
GRID = np.linspace(-6, 6, 24_001)


@dataclass(frozen=True)
class TwoModes:
    """U(q) = q**2/8 + b ((q**2 - 2)**2 + q/2): two modes of unequal weight, at +-1.4."""

    b: Any = 1.0
    updates: Any = None
    reversed_updates: Any = None
    n_parameters: int = 1

    def potential_and_gradient(self, position: Array, precisions: Array, **_: Any) -> tuple[Array, Array]:
        q = position[:, 0]
        slope = q / 4 + self.b * (4 * q * (q * q - 2) + 0.5)
        return q * q / 8 + self.data_energy(position, precisions), slope[:, None]

    def potential(self, position: Array, precisions: Array) -> Array:
        return self.potential_and_gradient(position, precisions)[0]

    def data_energy(self, position: Array, precisions: Array) -> Array:
        q = position[:, 0]
        return self.b * ((q * q - 2) ** 2 + q / 2)

    def stepsizes(self, precisions: Array) -> Array:
        return np.ones((len(precisions), 1))

    def tempered(self, factor: Any) -> TwoModes:
        return replace(self, b=self.b * factor)


def area(b: float) -> Array:
    """Integral of exp(-U) up to each point of the grid."""
    density = np.exp(-TwoModes(b).potential(GRID[:, None], GRID[:, None]))
    step = GRID[1] - GRID[0]
    return np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2 * step)])


CDF = area(1.0) / area(1.0)[-1]
LOG_WEIGHTS = tuple(float(-np.log(area(b)[-1])) for b in LADDER)

INNER = (Heatbath(decay=0.5), Hybrid(steps=3, stepsize=0.35))
CONFIGURATIONS: dict[str, tuple[Operation, ...]] = {
    "simulated tempering": (SimulatedTempering(LADDER, LOG_WEIGHTS, (*INNER, Negate())),),
    "poor weights": (SimulatedTempering(LADDER, (0.0, -0.7, 0.2, -0.5), (Metropolis(stepsize=0.8),)),),
    "persistent": (SimulatedTempering(LADDER, LOG_WEIGHTS, (*INNER, Negate()), "persistent"),),
    "persistent, poor weights": (
        SimulatedTempering(LADDER, (0.0, -0.7, 0.2, -0.5), (Metropolis(stepsize=0.8),), "persistent"),
    ),
    "tempered transitions": (TemperedTransition(LADDER, INNER), Negate()),
    "tempered transitions by metropolis": (TemperedTransition((1.0, 0.3), (Metropolis(stepsize=0.8),)),),
    "all": (
        SimulatedTempering(LADDER[:3], LOG_WEIGHTS[:3], INNER),
        Repeat(2, (TemperedTransition((1.0, 0.6, 0.2), (Repeat(2, INNER), Negate())), Heatbath(decay=0.9))),
    ),
}


def exact_start(streams: Streams) -> ChainState:
    """Exact draws of position and momentum."""
    position = np.interp(streams.uniform(Purpose.INITIAL_PARAMETER), CDF, GRID)[:, None]
    return ChainState(position, streams.normal(Purpose.MOMENTUM, (1,)), np.ones((streams.n_chains, 1)))


def after(
    operations: tuple[Operation, ...], *, seed: int, n_chains: int, schedule: ModuleType = schedule
) -> tuple[ChainState, Any]:
    streams = chain_streams(seed, n_chains)
    state = exact_start(streams)
    target = TwoModes(updates={}, reversed_updates={})
    iteration = schedule.build_iteration(operations, target=target, updates={})
    *_, (_, state, info) = schedule.run(state, streams, iteration=iteration, first=1, count=2)
    return state, info


def stays_exact(name: str, *, schedule: ModuleType = schedule) -> bool:
    """Compare position, momentum and the pair with their exact distributions."""

    def p_values(seed: int, n_chains: int) -> list[float]:
        state, _ = after(CONFIGURATIONS[name], seed=seed, n_chains=n_chains, schedule=schedule)
        u = np.interp(state.position[:, 0], GRID, CDF)
        v = scipy.special.ndtr(state.momentum[:, 0])
        return [ks_p_value(u), ks_p_value(v), square_p_value(u, v)]

    return is_exact(p_values, name=f"tempering {name}", n_chains=N_CHAINS)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_exact_draws_of_two_modes_stay_exact(name: str) -> None:
    assert stays_exact(name)


@pytest.mark.parametrize("name", ["simulated tempering", "persistent", "tempered transitions"])
def test_tempering_goes_from_mode_to_mode_where_plain_trajectories_do_not(name: str) -> None:
    def share_that_crosses(operations: tuple[Operation, ...]) -> float:
        start, _ = after((Negate(),), seed=5, n_chains=2_000)
        state, _ = after(operations, seed=5, n_chains=2_000)
        return float((np.sign(state.position) != np.sign(start.position)).mean())

    assert share_that_crosses(CONFIGURATIONS[name]) > 2 * share_that_crosses((*INNER, Negate()))


def steps_of(target: TwoModes, operation: SimulatedTempering, *, n_chains: int) -> tuple[Array, Array]:
    """Steps of each chain in one excursion from an exact draw, and whether it ended in the other mode."""
    n_steps = np.zeros(n_chains, dtype=int)

    def counted(state: ChainState, streams: Streams) -> tuple[ChainState, None]:
        n_steps[streams.chains.astype(int)] += 1
        return state, None

    updates = {"sample-sigmas": counted}
    streams = chain_streams(11, n_chains)
    start = exact_start(streams)
    counting = replace(operation, operations=(SampleSigmas(), *operation.operations))
    target = replace(target, updates=updates)
    iteration = schedule.build_iteration((counting,), target=target, updates=updates)
    end, _ = iteration(start, streams.at(iteration=1))
    return n_steps, (np.sign(start.position) != np.sign(end.position))[:, 0]


class Flat(TwoModes):
    """A target without data, so that no change of level is rejected if the weights are equal."""

    def data_energy(self, position: Array, precisions: Array) -> Array:
        return np.zeros(len(position))


def test_a_persistent_walk_without_rejections_goes_to_the_top_and_back() -> None:
    walk = SimulatedTempering(LADDER, (0.0,) * 4, (Heatbath(),), "persistent")
    n_steps, _ = steps_of(Flat(), walk, n_chains=10)
    assert (n_steps == 2 * len(LADDER) - 1).all()


@pytest.mark.parametrize("direction", ["random", "persistent"])
def test_excursions_have_the_mean_length_that_gradients_are_counted_for(direction: Direction) -> None:
    walk = SimulatedTempering(LADDER, LOG_WEIGHTS, INNER, direction)
    n_steps, _ = steps_of(TwoModes(), walk, n_chains=10_000)
    expected = walk.gradients() / gradient_evaluations(INNER)
    assert abs(n_steps.mean() - expected) < 4 * n_steps.std() / 100  # 1 in 16,000 if correct; seed fixed


def test_on_a_long_ladder_a_persistent_walk_crosses_more_often_for_its_steps() -> None:
    """Measured: 2.3 times as often."""
    ladder = tuple(np.geomspace(1, 0.05, 12).tolist())
    weights = tuple(float(-np.log(area(b)[-1])) for b in ladder)

    def crossings_per_step(direction: Direction) -> float:
        walk = SimulatedTempering(ladder, weights, (*INNER, Negate()), direction)
        n_steps, has_crossed = steps_of(TwoModes(), walk, n_chains=4_000)
        return float(has_crossed.mean() / n_steps.mean())

    assert crossings_per_step("persistent") > 1.5 * crossings_per_step("random")


def test_some_tempered_transitions_are_accepted_and_some_are_not() -> None:
    _, info = after(CONFIGURATIONS["tempered transitions"], seed=1, n_chains=2_000)
    assert 0.1 < info.accepted.mean() < 0.9


SIMULATED_MUTANTS: dict[str, tuple[str, str]] = {
    "weight of the level it is at": ("c[proposal] - c[level] -", "c[proposal] -"),
    "energy of the wrong sign": ("- (b[proposal] - b[level])", "+ (b[proposal] - b[level])"),
    "energy left out": ("(b[proposal] - b[level]) * energy", "0 * energy"),
    "energy at the new temperature alone": ("(b[proposal] - b[level]) * energy", "b[proposal] * energy"),
    "half the energy": ("(b[proposal] - b[level]) * energy", "(b[proposal] - b[level]) * energy / 2"),
    "accepts all": ("< log_ratio)", "< np.inf)"),
    "stops a level early": ("is_back = level == 0", "is_back = level <= 1"),
    "stops wherever it is": ("is_back = level == 0", "is_back = level > -1"),
    "inner updates of the target": ("target.tempered(b[level])", "target.tempered(1.0)"),
    "inner updates a level up": ("target.tempered(b[level])", "target.tempered(b[xp.minimum(level + 1, 3)])"),
}


@pytest.mark.parametrize("name", SIMULATED_MUTANTS)
def test_mutant_of_simulated_tempering_is_killed(name: str) -> None:
    changed = mutant(simulated_tempering, SIMULATED_MUTANTS[name])
    assert not stays_exact("simulated tempering", schedule=schedule_with(changed))


PERSISTENT_MUTANTS: dict[str, tuple[str, str]] = {
    "turns at the ends of the ladder alone": (
        "xp.where(accepted, direction, -direction)",
        "xp.where(is_on_ladder, direction, -direction)",
    ),
    "ends where it first turns": ("is_back = level == 0", "is_back = direction < 0"),
    "stops a level early": SIMULATED_MUTANTS["stops a level early"],
    "weight of the level it is at": SIMULATED_MUTANTS["weight of the level it is at"],
}


@pytest.mark.parametrize("name", PERSISTENT_MUTANTS)
def test_mutant_of_a_persistent_walk_is_killed(name: str) -> None:
    changed = mutant(simulated_tempering, PERSISTENT_MUTANTS[name])
    assert not stays_exact("persistent", schedule=schedule_with(changed))


# These mutants use other weights, or reject by another route: the distribution at level 0 is the same.
EQUIVALENT: dict[str, tuple[str, str]] = {
    "weights of the other sign": ("c[proposal] - c[level]", "c[level] - c[proposal]"),
    "off the ladder is to stay": ("is_on_ladder & (", "(is_on_ladder | True) & ("),
}


@pytest.mark.parametrize("name", EQUIVALENT)
def test_equivalent_mutant_of_simulated_tempering_stays_exact(name: str) -> None:
    changed = mutant(simulated_tempering, EQUIVALENT[name])
    assert stays_exact("simulated tempering", schedule=schedule_with(changed))


# An excursion may also begin or end at level 0 with another direction: it then has idle steps there.
IDLE: dict[str, tuple[str, str]] = {
    "goes on until it is turned upwards": (
        "is_back = level == 0",
        "is_back = (level == 0) & (direction > 0)",
    ),
    "begins downwards": ("xp.ones(streams.n_chains, dtype=int)", "-xp.ones(streams.n_chains, dtype=int)"),
}


@pytest.mark.parametrize("name", IDLE)
def test_persistent_walk_with_idle_steps_stays_exact(name: str) -> None:
    assert stays_exact("persistent", schedule=schedule_with(mutant(simulated_tempering, IDLE[name])))


TRANSITION_MUTANTS: dict[str, tuple[str, str]] = {
    "up left out": ("log_ratio += (b[level - 1] - b[level])", "log_ratio += 0"),
    "down left out": ("log_ratio -= (b[level - 1] - b[level])", "log_ratio -= 0"),
    "signs turned": ("< log_ratio", "< -log_ratio"),
    "accepts all": ("< log_ratio", "< np.inf"),
    "whole inverse temperatures": (
        "log_ratio -= (b[level - 1] - b[level])",
        "log_ratio -= b[level - 1]",
    ),
    "levels in the same order down": ("2 * n + 1 - stage if is_down else stage", "1 + (stage - 1) % n"),
    "inner updates of the target": ("target.tempered(b[level])", "target.tempered(1.0)"),
    "not reversed": ("unrolled(self.operations)[::-1] if is_down", "self.operations if is_down"),
}


@pytest.mark.parametrize("name", TRANSITION_MUTANTS)
def test_mutant_of_tempered_transitions_is_killed(name: str) -> None:
    changed = mutant(tempered_transition, TRANSITION_MUTANTS[name])
    assert not stays_exact("tempered transitions", schedule=schedule_with(changed))


# On networks, precisions are updated too, on several levels.
LEVELS = (1.0, 0.5, 0.15)
NETWORK_OPERATIONS: dict[str, tuple[Operation, ...]] = {
    "simulated-tempering": (
        SimulatedTempering(LEVELS, (0.0, -1.0, -2.0), (SampleSigmas(), Heatbath(), Hybrid(4, 0.6))),
    ),
    "persistent": (
        SimulatedTempering(
            LEVELS, (0.0, -1.0, -2.0), (SampleSigmas(), Heatbath(), Hybrid(4, 0.6)), "persistent"
        ),
    ),
    "tempered-transition": (
        TemperedTransition(LEVELS, (SampleSigmas(), Heatbath(decay=0.5), Hybrid(3, 0.8))),
    ),
}


def network_stays_exact(op: str, name: str, prepare: Callable[[Any], Any] = lambda target: target) -> bool:
    target = target_of(name)
    sampled = prepare(target)
    iteration = schedule.build_iteration(NETWORK_OPERATIONS[op], target=sampled, updates=sampled.updates)

    def p_values(seed: int, n_chains: int) -> list[float]:
        positions, precisions = exact_draws(target, seed=seed, draws=2 * n_chains)
        streams = chain_streams(seed, n_chains)
        momentum = streams.normal(Purpose.MOMENTUM, (target.n_parameters,))
        state = ChainState(positions[:n_chains], momentum, precisions[:n_chains])
        *_, (_, state, _) = schedule.run(state, streams, iteration=iteration, first=1, count=2)
        ours = quantities(target, state.position, state.precisions)
        others = quantities(target, positions[n_chains:], precisions[n_chains:])
        return [ks_two_sample_p_value(a, b) for a, b in zip(ours, others, strict=True)]

    return is_exact(p_values, name=f"{op} of {name}", n_chains=4_000)


@pytest.mark.parametrize("name", ["t", "class"])
@pytest.mark.parametrize("op", NETWORK_OPERATIONS)
def test_exact_draws_of_networks_stay_exact(op: str, name: str) -> None:
    assert network_stays_exact(op, name)


def test_chains_do_not_depend_on_their_batch() -> None:
    for operations in CONFIGURATIONS.values():
        whole, _ = after(operations, seed=3, n_chains=8)
        some, _ = after(operations, seed=3, n_chains=3)
        assert np.array_equal(whole.position[:3], some.position)
        assert np.array_equal(whole.momentum[:3], some.momentum)


def test_an_excursion_that_never_returns_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated_tempering, "LAST_STAGE", 20)
    operations = (SimulatedTempering((1.0, 0.5), (0.0, 1e6), (Heatbath(),)),)
    with pytest.raises(SamplingError, match=r"iteration 1: chain .* is not back at temperature 1 after 20"):
        after(operations, seed=1, n_chains=5)


def test_chains_are_put_back_where_they_were_taken_from() -> None:
    streams = Streams(1, np.arange(5, dtype=np.uint64))
    state = ChainState(*(streams.normal(Purpose.PROPOSAL, (3,), index=index) for index in range(3)))
    chosen = np.array([True, False, True, True, False])
    part, random = inner.taken(state, streams, chosen)
    assert random.chains.tolist() == [0, 2, 3]
    changed = replace(part, position=part.position + 1)
    whole = state.with_chains(changed, chosen)
    assert np.array_equal(whole.position, state.position + chosen[:, None])
    assert np.array_equal(whole.momentum, state.momentum)


def test_inner_operations_of_two_temperings_share_no_random_numbers() -> None:
    seen: list[tuple[int, int]] = []

    def recorded(state: ChainState, streams: Streams) -> tuple[ChainState, None]:
        seen.append((streams.iteration, streams.operation))
        return state, None

    updates = {"sample-sigmas": recorded}
    ladder = TemperedTransition((1.0, 0.5, 0.2), (SampleSigmas(), SampleSigmas()))
    target = TwoModes(updates=updates, reversed_updates=updates)
    iteration = schedule.build_iteration(
        (SampleSigmas(), ladder, ladder, SampleSigmas()), target=target, updates=updates
    )
    streams = Streams(1, np.arange(2, dtype=np.uint64), iteration=4)
    iteration(ChainState(np.ones((2, 1)), np.ones((2, 1)), np.ones((2, 1))), streams)
    assert len(seen) == len(set(seen)) == 2 + 2 * 2 * 2 * 2
    assert (4, 0) in seen and (4, 3) in seen
    assert max(operation for _, operation in seen) < 2**17 * (inner.LAST_STAGE + 1)
