"""Settings of ladders follow from whole numbers, and lead to what they are meant to."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import reduce
from types import ModuleType

import numpy as np
import pytest

from rayfbnn.mcmc import leapfrog
from rayfbnn.mcmc.ladder import starts
from rayfbnn.mcmc.ladder.adaptation import MeasuredLadders, Plan, adapted, first_settings, moved
from rayfbnn.mcmc.ladder.records import LadderInfo, LadderSettings, started
from rayfbnn.mcmc.operation import Settings
from rayfbnn.mcmc.operations import Heatbath, Hybrid, SampleSigmas
from rayfbnn.model.ladder_path import path_of
from rayfbnn.state import ChainState, LadderEnds
from rayfbnn.streams import Purpose, Streams
from tests.support.ladder.posteriors import posterior_of
from tests.support.mutants import mutant

_NOISE, _ONE = LadderEnds("noise", math.inf), 1 << 40


def _info(n_ladders: int, n_levels: int, seed: int) -> LadderInfo:
    draws = Streams(seed, np.arange(n_ladders, dtype=np.uint64)).normal(Purpose.PROPOSAL, (5, n_levels))
    pairs = draws[:, :, 1:]
    return LadderInfo(
        accepted=draws[:, 0] > 0,
        diverged=draws[:, 0] > 9,
        energy_change=draws[:, 0],
        measure=draws[:, 1],
        forward=pairs[:, 2],
        reverse=pairs[:, 3],
        rejection=abs(pairs[:, 4]),
        exchanged=pairs[:, 4] > 0,
        top=draws[:, 1, :1],
    )


def _of_ladders(info: LadderInfo, part: slice) -> LadderInfo:
    return LadderInfo(**{name: value[part] for name, value in vars(info).items()})


def test_measurements_do_not_depend_on_batches() -> None:
    infos = [_info(6, 4, seed) for seed in range(10)]

    def sums(part: slice) -> MeasuredLadders:
        return reduce(lambda a, b: a + b, [MeasuredLadders.of(_of_ladders(info, part)) for info in infos])

    whole = sums(slice(None))
    assert MeasuredLadders.joined([sums(slice(0, 1)), sums(slice(1, 4)), sums(slice(4, 6))]) == whole


def test_r_hat_shows_a_ladder_that_disagrees() -> None:
    infos = [_info(4, 3, seed) for seed in range(200)]
    shifted = [
        replace(info, measure=info.measure + np.array([[0, 0, 0]] * 3 + [[0, 0, 3]])) for info in infos
    ]
    r_hat = reduce(lambda a, b: a + b, map(MeasuredLadders.of, shifted)).r_hat()
    assert r_hat[0] < 1.05 and r_hat[1] < 1.05 and r_hat[2] > 1.5


def _measured(
    rejection: list[float], *, means: list[list[float]], top: float = 6.0, diverged: float = 0.0
) -> MeasuredLadders:
    """Measurements of a round of 100 iterations, with a standard deviation of one within each ladder."""
    n, n_ladders = 100, len(means)

    def whole(value: float, count: int) -> int:
        return round(value * _ONE) * count

    return MeasuredLadders(
        n,
        n_ladders,
        tuple(whole(value, n * n_ladders) for value in rejection),
        tuple(whole(0.8, n * n_ladders) for _ in means[0]),
        (whole(top, n * n_ladders),),
        tuple(tuple(whole(value, n) for value in row) for row in means),
        tuple(tuple(whole(value**2 + 1, n) for value in row) for row in means),
        tuple(whole(diverged, n * n_ladders) for _ in means[0]),
    )


def test_levels_go_where_rejection_was_and_end_at_the_noise_of_the_top() -> None:
    settings = LadderSettings((0.0, 2.0, 4.0, 5.0), (0.5,) * 5, (16, 16, 32, 64, 128), multipliers=(1.0,))
    measured = _measured([0.2, 0.2, 0.8, 0.3], means=[[0.0] * 5] * 3)
    after = adapted(settings, measured, ends=_NOISE, plan=Plan(levels=5, hot=0.0), number=0)
    assert after.levels[0] == 0 and after.levels[-1] == pytest.approx(6.0)
    gaps = np.diff(after.levels)
    assert gaps[0] > 2 * gaps[-1]  # most of the barrier is between the coldest held levels
    assert after.steps == tuple(sorted(after.steps)) and after.steps[-1] == 128


def test_divergences_shorten_the_steps() -> None:
    """With the wanted acceptance, stepsizes stay; a share of divergences of 1 % shortens them by a third."""
    settings = LadderSettings((0.0, 2.0, 4.0, 5.0), (0.5,) * 5, (16,) * 5)
    stepsizes = [
        adapted(
            settings,
            _measured([0.5] * 4, means=[[0.0] * 5] * 3, diverged=share),
            ends=_NOISE,
            plan=Plan(hot=0.0),
            number=0,
        ).stepsizes[-1]
        for share in (0.0, 0.01, 0.5)
    ]
    assert stepsizes == pytest.approx([0.5, 0.5 * math.exp(-2 * 0.2), 0.5 * math.exp(-2)])


def test_new_levels_take_the_stepsizes_between_old_ones_and_the_posterior_keeps_its_own() -> None:
    stepsizes = (0.5, 0.4, 0.3, 0.2, 0.1)
    settings = LadderSettings((0.0, 2.0, 4.0, 5.0), stepsizes, (16,) * 5)
    measured = _measured([0.2, 0.9, 0.5, 0.5], means=[[0.0] * 5] * 3)
    after = adapted(settings, measured, ends=_NOISE, plan=Plan(hot=0.0), number=0)
    expected = np.exp(np.interp(after.levels, [0, 2, 4, 5, 6], np.log(stepsizes)))
    assert after.stepsizes[:-1] == pytest.approx(expected, rel=1e-12)
    assert after.stepsizes[-1] == pytest.approx(0.1)


def test_number_of_levels_follows_the_barrier() -> None:
    settings = LadderSettings((0.0, 2.0, 4.0, 5.0), (0.5,) * 5, (16,) * 5)
    high, low = ([value] * 4 for value in (0.95, 0.1))
    counts = [
        adapted(
            settings, _measured(rejection, means=[[0.0] * 5] * 3), ends=_NOISE, plan=Plan(hot=0.0), number=0
        ).n_levels
        for rejection in (high, low)
    ]
    assert counts == [7, 4]
    capped = Plan(hot=0.0, most_levels=6)
    measured = _measured(high, means=[[0.0] * 5] * 3)
    assert adapted(settings, measured, ends=_NOISE, plan=capped, number=0).n_levels == 6


@pytest.mark.parametrize("rounds", [(12,), (16, 32)])
def test_an_adaptation_of_one_or_two_rounds_chooses_levels(rounds: tuple[int, ...]) -> None:
    settings = LadderSettings((0.0, 2.0, 4.0, 5.0), (0.5,) * 5, (16,) * 5)
    measured = _measured([0.9] * 4, means=[[0.0] * 5] * 3)
    for number in range(len(rounds)):
        assert adapted(settings, measured, ends=_NOISE, plan=Plan(rounds), number=number).n_levels == 7


def test_hot_end_is_the_coldest_level_at_which_ladders_agree() -> None:
    settings = LadderSettings((0.0, 1.0, 2.0, 3.0, 4.0), (0.5,) * 6, (16,) * 6)
    split = [[0.0] * 6, [0.0] * 6, [0.0, 0.0, 0.0, 3.0, 5.0, 5.0]]
    after = adapted(settings, _measured([0.5] * 5, means=split), ends=_NOISE, plan=Plan(), number=3)
    assert after.levels[0] == 2.0
    nowhere = [[0.0] * 6, [0.0] * 6, [5.0] * 6]
    after = adapted(settings, _measured([0.5] * 5, means=nowhere), ends=_NOISE, plan=Plan(), number=3)
    assert after.levels[0] == pytest.approx(-0.7)
    # Rejections between the new hot end and level 0 are taken to be as between the next two.
    assert after.n_levels == 7 and np.diff(after.levels)[0] == pytest.approx(np.diff(after.levels)[-1])


def test_lengths_are_those_of_the_warm_up() -> None:
    tuned = Settings(1.0, 32, 64, scales=(1.0, 3.0))
    settings = first_settings(_NOISE, Plan(levels=5), top=(6 * _ONE,), n_chains=1, tuned=tuned)
    assert settings.steps == (16, 16, 16, 32, 32) and settings.scales == (1.0, 3.0)
    after = adapted(
        settings, _measured([0.3] * 4, means=[[0.0] * 5] * 3), ends=_NOISE, plan=Plan(levels=5), number=0
    )
    assert after.steps[-1] == 32 and after.scales == (1.0, 3.0)
    # A ladder has shorter trajectories than chains of the same posterior, if these are long.
    longer = replace(tuned, steps=256)
    assert first_settings(_NOISE, Plan(), top=(0,), n_chains=1, tuned=longer).steps[-1] == 128


def _start_from_their_own_chains(module: ModuleType) -> bool:
    path = path_of(posterior_of("tiny3.csv"))
    drawn = path.prior_draw(Streams(1, np.arange(4, dtype=np.uint64)))
    settings = first_settings(path.ends, Plan(), top=(4 * _ONE,), n_chains=4)
    state = module.filled(drawn, settings, path)
    by_level = state.chain.position.reshape(4, settings.n_levels, -1)
    return bool((by_level == drawn.position[:, None]).all())


def test_each_ladder_starts_from_a_chain_of_its_own() -> None:
    assert _start_from_their_own_chains(starts)


def test_mutant_with_one_chain_for_all_ladders_is_killed() -> None:
    changed = mutant(
        starts, ("xp.repeat(xp.arange(n_ladders), n_levels)", "xp.zeros(n_ladders * n_levels, int)")
    )
    assert not _start_from_their_own_chains(changed)


def test_annealed_rows_do_not_depend_on_their_ladder() -> None:
    """Nothing is exchanged while settings are not frozen: a row does the same if all other rows differ."""
    posterior = posterior_of("tiny3.csv")
    path, settings = path_of(posterior), LadderSettings((-3.0, 0.0), (0.5,) * 3, (4,) * 3)
    operations = (SampleSigmas(), Heatbath(), Hybrid(steps=4, stepsize="auto"))
    anneal = starts.annealing(
        path, operations, settings, n_ladders=2, n_iterations=5, advance=leapfrog.advance
    )
    streams = Streams(1, np.arange(6, dtype=np.uint64))
    first = path.prior_draw(streams)
    other = ChainState(first.position.copy(), first.momentum, first.precisions)
    other.position[1:] *= 0.5
    ends = []
    for chain in (first, other):
        for number in range(1, 6):
            chain = anneal(chain, streams.at(iteration=number))
        ends.append(chain.position)
    assert (ends[0][0] == ends[1][0]).all() and (ends[0][1:] != ends[1][1:]).any()


def test_levels_take_the_nearest_state_and_the_top_keeps_its_own() -> None:
    path = path_of(posterior_of("tiny3.csv"))
    before = LadderSettings((-3.0, -2.0, 0.0), (0.5,) * 4, (16,) * 4, multipliers=(1.0,))
    after = LadderSettings((-2.9, -2.2, -1.9, 0.1), (0.5,) * 5, (16,) * 5, multipliers=(1.0,))
    drawn = path.prior_draw(Streams(1, np.arange(8, dtype=np.uint64)))
    x = np.array([*before.levels, math.inf] * 2)
    state = started(ChainState(drawn.position, drawn.momentum, path.placed(drawn, x).precisions), 4)
    new = moved(state, before, after, path)
    rows = [0, 1, 1, 2, 3, 4, 5, 5, 6, 7]
    assert (new.chain.position == drawn.position[rows]).all()
    noise = path.log_precisions(new.chain.precisions)[:, 0].reshape(2, 5)
    assert noise[:, :-1] == pytest.approx(np.array([after.levels] * 2))
    assert noise[:, -1] == pytest.approx(path.log_precisions(drawn.precisions)[[3, 7], 0])


def test_annealing_goes_evenly_from_much_noise_to_the_level_of_each_row() -> None:
    path, settings = path_of(posterior_of("tiny3.csv")), LadderSettings((-3.0, 0.0), (0.5,) * 3, (4,) * 3)
    operations = (SampleSigmas(), Heatbath(), Hybrid(steps=4, stepsize="auto"))
    anneal = starts.annealing(
        path, operations, settings, n_ladders=1, n_iterations=7, first=3, advance=leapfrog.advance
    )
    streams = Streams(1, np.arange(3, dtype=np.uint64))
    chain = path.prior_draw(streams)
    for number in range(1, 8):
        chain = anneal(chain, streams.at(iteration=number + 2))
        noise = path.log_precisions(chain.precisions)[:, 0]
        assert noise == pytest.approx([min(-3, number - 7), number - 7, number - 7])
