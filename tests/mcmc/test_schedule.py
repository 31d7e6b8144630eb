"""Operations as an iteration: their order, their random numbers, and what is reported."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from rayfbnn.mcmc import leapfrog, schedule
from rayfbnn.mcmc.operation import Operation, gradient_evaluations
from rayfbnn.mcmc.operations import (
    Dynamic,
    Heatbath,
    Hybrid,
    HybridMax,
    Metropolis,
    Negate,
    Repeat,
    SampleNoise,
    SampleSigmas,
)
from rayfbnn.state import ChainState
from rayfbnn.streams import Purpose, Streams
from tests.support.problems import chain_streams
from tests.support.targets import banana, wall

BANANA = banana()
EVERYTHING: tuple[Operation, ...] = (
    SampleNoise(),
    Repeat(2, (SampleSigmas(), Heatbath(decay=0.5), Hybrid(steps=5, stepsize=0.3, window=2, partitions=3))),
    Negate(),
    Metropolis(stepsize=0.2),
)


def start(n_chains: int = 6) -> tuple[ChainState, Streams]:
    streams = chain_streams(17, n_chains)
    position = streams.normal(Purpose.INITIAL_PARAMETER, (3,)) / 2
    return ChainState(position, streams.normal(Purpose.MOMENTUM, (3,)), np.ones((n_chains, 1))), streams


def noted(state: ChainState, streams: Streams, *, name: str, calls: list[tuple[str, int, int]]):
    """A Gibbs update that records its name and streams and changes nothing."""
    calls.append((name, streams.iteration, streams.operation))
    return state, None


def updates(calls: list[tuple[str, int, int]]):
    return {name: partial(noted, name=name, calls=calls) for name in ("sample-sigmas", "sample-noise")}


def test_operations_run_in_order_each_with_its_own_number() -> None:
    calls: list[tuple[str, int, int]] = []
    iteration = schedule.build_iteration(EVERYTHING, target=BANANA, updates=updates(calls))
    state, streams = start()
    iteration(state, streams.at(iteration=4))
    assert len(iteration.updates) == 9
    assert calls == [("sample-noise", 4, 0), ("sample-sigmas", 4, 1), ("sample-sigmas", 4, 4)]


def test_repeated_operations_draw_different_numbers() -> None:
    state, streams = start()
    once = schedule.build_iteration((Heatbath(),), target=BANANA, updates={})
    twice = schedule.build_iteration((Repeat(2, (Heatbath(),)),), target=BANANA, updates={})
    a, _ = once(state, streams.at(iteration=1))
    b, _ = twice(state, streams.at(iteration=1))
    assert (a.momentum != b.momentum).all()


def test_info_counts_the_updates_that_may_be_rejected() -> None:
    state, streams = start(400)
    operations = (Repeat(3, (Heatbath(), Hybrid(steps=3, stepsize=1.0))), Metropolis(stepsize=2.0))
    iteration = schedule.build_iteration(operations, target=wall(3), updates={})
    _, info = iteration(state, streams.at(iteration=1))
    assert set(np.unique(info.accepted)) <= {0, 0.25, 0.5, 0.75, 1}
    assert set(np.unique(info.diverged)) <= {0, 1, 2, 3, 4}
    assert 0 < info.accepted.mean() < 1
    assert info.diverged.max() > 1


def test_info_tells_operations_apart() -> None:
    state, streams = start(400)
    hybrid, metropolis = Hybrid(steps=3, stepsize=1.0), Metropolis(stepsize=2.0)
    operations = (Repeat(3, (Heatbath(), hybrid)), metropolis)
    iteration = schedule.build_iteration(operations, target=wall(3), updates={})
    _, info = iteration(state, streams.at(iteration=1))
    assert list(info.accepted_by) == [hybrid, metropolis]
    together = (3 * info.accepted_by[hybrid] + info.accepted_by[metropolis]) / 4
    assert np.allclose(together, info.accepted, rtol=1e-12)
    assert set(np.unique(info.accepted_by[metropolis])) == {0, 1}


def test_info_without_such_updates_is_nan_and_no_divergence() -> None:
    state, streams = start()
    iteration = schedule.build_iteration((Heatbath(), Negate()), target=BANANA, updates={})
    _, info = iteration(state, streams.at(iteration=1))
    assert np.isnan(info.accepted).all() and np.isnan(info.energy_change).all()
    assert (info.diverged == 0).all()


def test_a_run_may_stop_after_any_iteration_and_go_on() -> None:
    iteration = schedule.build_iteration(EVERYTHING, target=BANANA, updates=updates([]))
    state, streams = start()
    whole = list(schedule.run(state, streams, iteration=iteration, first=1, count=6))
    assert [number for number, _, _ in whole] == [1, 2, 3, 4, 5, 6]
    _, halfway, _ = whole[2]
    rest = list(schedule.run(halfway, streams, iteration=iteration, first=4, count=3))
    for (_, a, _), (_, b, _) in zip(whole[3:], rest, strict=True):
        assert np.array_equal(a.position, b.position)
        assert np.array_equal(a.momentum, b.momentum)


def test_chains_do_not_depend_on_their_batch() -> None:
    iteration = schedule.build_iteration(EVERYTHING, target=BANANA, updates=updates([]))
    state, streams = start()
    *_, (_, together, _) = schedule.run(state, streams, iteration=iteration, first=1, count=3)
    for chain in range(6):
        one_chain = slice(chain, chain + 1)
        part = ChainState(state.position[one_chain], state.momentum[one_chain], state.precisions[one_chain])
        own_streams = replace(streams, chains=streams.chains[one_chain])
        *_, (_, alone, _) = schedule.run(part, own_streams, iteration=iteration, first=1, count=3)
        assert np.array_equal(alone.position, together.position[one_chain])
        assert np.array_equal(alone.momentum, together.momentum[one_chain])


def test_another_advance_takes_the_place_of_the_plain_one() -> None:
    steps: list[int] = []

    def advance(target, trajectory, *, n_steps, order=None):
        steps.append(n_steps)
        return leapfrog.advance(target, trajectory, n_steps=n_steps, order=order)

    operations = (Hybrid(steps=10, stepsize=0.1, window=2),)
    iteration = schedule.build_iteration(operations, target=BANANA, updates={}, advance=advance)
    state, streams = start()
    iteration(state, streams.at(iteration=1))
    assert steps == [0, 1, 8, 1]  # none: the potential at the start


def test_gradient_evaluations_are_the_leapfrog_steps_of_an_iteration() -> None:
    assert gradient_evaluations(EVERYTHING) == 10
    assert gradient_evaluations((Heatbath(), Metropolis(stepsize=1.0))) == 0
    assert gradient_evaluations((HybridMax(max_steps=6, max_ok=2, stepsize=1.0),)) == 6
    assert gradient_evaluations((Dynamic(steps=3, stepsize=1.0, integrator="two-stage"),)) == 6
    assert gradient_evaluations((Dynamic(steps=3, stepsize=1.0, integrator="fourth-order"),)) == 21
