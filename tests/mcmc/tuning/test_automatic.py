"""Automatic stepsizes and lengths: what a round measures, and the settings that follow from it."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import reduce
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from rayfbnn.mcmc import automatic as tuning
from rayfbnn.mcmc import hybrid as hmc
from rayfbnn.mcmc import leapfrog
from rayfbnn.mcmc.automatic import Measured, Probe
from rayfbnn.mcmc.operation import Settings, Tuning, automatic
from rayfbnn.mcmc.operations import Heatbath, Hybrid
from rayfbnn.state import Trajectory
from tests.support.kernels.networks import end_of
from tests.support.mutants import mutant
from tests.support.targets import ANHARMONIC, banana, gaussian, wall
from tests.support.tuning import AUTOMATIC, ONE, Scaled, frozen, start, streams, tuned


@pytest.mark.parametrize(
    "target",
    # Not 70 equal scales: five steps may be half their period, after which energies return by themselves.
    [gaussian(10), Scaled(tuple(0.3 + k / 100 for k in range(70))), Scaled((0.01, 1.0, 0.1))],
    ids=["10 normals", "70 scales", "scales of 100 to 1"],
)
@pytest.mark.parametrize("steps", ["auto", 5])
def test_the_settings_found_are_accepted_at_the_target_rate(target: Any, steps: Any) -> None:
    """The tolerance is 0.06; the last average is over 20 rounds of 80 trajectories, with an error of 0.01."""
    operation = Hybrid(steps=steps, stepsize="auto", stepsize_jitter=-0.1)
    _, settings, state, number = tuned(target, operation)
    assert frozen(target, operation, settings, state, number) == pytest.approx(
        tuning.TARGET_ACCEPTANCE, abs=0.06
    )


@pytest.mark.parametrize("target", [ANHARMONIC, banana()], ids=["anharmonic", "banana"])
def test_stepsizes_are_smaller_where_trajectories_diverge(target: Any) -> None:
    """At most two per cent of the 800 trajectories of the last ten rounds diverge."""
    operation = Hybrid(steps="auto", stepsize="auto", stepsize_jitter=-0.1)
    rounds, settings, state, number = tuned(target, operation)
    assert sum(measured.diverged for measured in rounds[-10:]) <= 16
    assert frozen(target, operation, settings, state, number) > tuning.TARGET_ACCEPTANCE - 0.06


def test_a_diverged_trajectory_counts_as_twenty_rejections() -> None:
    """A hundredth that diverges lowers the acceptance by a fifth, and nothing lowers it by more than one."""
    rounds = [Measured(100, (5,), (90 * ONE,), diverged=count) for count in (1, 0, 30)]
    plain = [Measured(100, (5,), (acceptance * ONE,)) for acceptance in (70, 90, -10)]
    operation = Hybrid(steps=5, stepsize="auto")
    for n in (1, 2, 3):
        assert tuning.settings_after(rounds[:n], operation, n_rounds=12) == tuning.settings_after(
            plain[:n], operation, n_rounds=12
        )


def test_windows_are_tuned_by_the_acceptance_of_windows() -> None:
    operation = Hybrid(steps=8, stepsize="auto", window=4)
    _, settings, state, number = tuned(gaussian(100), operation)
    assert frozen(gaussian(100), operation, settings, state, number) == pytest.approx(0.8, abs=0.06)
    _, plain, _, _ = tuned(gaussian(100), replace(operation, window=1))
    assert settings.stepsize > 1.1 * plain.stepsize


def test_long_trajectories_are_found_where_a_scale_is_long_and_short_ones_where_none_is() -> None:
    """The best length is a quarter of the slowest period, pi/2 100 / stepsize, within a factor of 2."""
    _, settings, _, _ = tuned(Scaled((1.0, 100.0)))
    quarter = math.pi / 2 * 100 / settings.stepsize
    assert quarter / 2 <= settings.steps <= 2 * quarter
    _, settings, _, _ = tuned(gaussian(10))
    assert settings.steps == 16


def test_a_stepsize_or_a_length_that_is_given_stays() -> None:
    _, settings, _, _ = tuned(gaussian(10), Hybrid(steps="auto", stepsize=0.1), n_rounds=12)
    assert settings.stepsize == 0.1 and settings.steps in (16, 32)
    _, settings, _, _ = tuned(gaussian(10), Hybrid(steps=7, stepsize="auto"), n_rounds=12)
    assert settings.steps == settings.longest == 7


def test_a_trajectory_measures_what_shorter_ones_would_do() -> None:
    assert difference_from_separate_trajectories(tuning) < 1e-10


def difference_from_separate_trajectories(module: ModuleType) -> float:
    """Difference between the sums of one probe and those of separate trajectories for each length."""
    target, state = ANHARMONIC, start(200, 1)
    stepsizes = 0.4 * target.stepsizes(state.precisions)
    probe = module.Probe(leapfrog.advance, (4, 8, 16))
    end_of(probe, target, Trajectory(state.position, state.momentum, state.precisions, stepsizes), n_steps=16)
    measured = probe.measured
    energy = target.potential(state.position, state.precisions) + (state.momentum**2).sum(axis=1) / 2
    worst = abs(np.array(measured.sums) / ONE - state.position.sum(axis=0)).max()
    worst = max(worst, abs(np.array(measured.squares) / ONE - (state.position**2).sum(axis=0)).max())
    for place, length in enumerate(measured.lengths):
        position, momentum, potential = end_of(
            leapfrog.advance,
            target,
            Trajectory(state.position, state.momentum, state.precisions, stepsizes),
            n_steps=length,
        )
        accepted = np.minimum(1, np.exp(energy - potential - (momentum**2).sum(axis=1) / 2))
        jumps = (accepted[:, None] * (position - state.position) ** 2).sum(axis=0)
        worst = max(worst, abs(measured.acceptance[place] / ONE - accepted.sum()))
        worst = max(worst, abs(np.array(measured.jumps[place]) / ONE - jumps).max() / jumps.max())
    return float(worst)


@pytest.mark.parametrize(
    "bug",
    [
        ("n_steps=length - done", "n_steps=length"),
        ("done = length", "done = 0"),
        ("start_energy - energy", "energy - energy"),
        ("accepted[:, None] * xp.square(change)", "xp.square(change)"),
        ("- start\n", "\n"),
    ],
)
def test_a_mutant_of_the_probe_is_seen(bug: tuple[str, str]) -> None:
    assert difference_from_separate_trajectories(mutant(tuning, bug)) > 1e-3


def test_sums_without_their_fractions_are_seen() -> None:
    wrong = mutant(tuning, ("(int(a) << BITS) + int(b)", "(int(a) << BITS)"))
    assert difference_from_separate_trajectories(wrong) > 1e-3


def test_a_measured_update_is_the_update() -> None:
    """State and decision are those of a trajectory in one piece, up to rounding."""
    target, state, s = banana(), start(300, 3), streams(300)
    update: dict[str, Any] = {"target": target, "partitions": 3, "stepsize_jitter": -0.5}
    whole, info = hmc.hybrid(state, s, steps=32, stepsize=0.3, **update)
    probed, measured = hmc.hybrid(
        state, s, steps=32, stepsize=0.3, advance=Probe(leapfrog.advance, (4, 8, 16, 32)), **update
    )
    assert abs(whole.position - probed.position).max() < 1e-8
    assert (info.accepted == measured.accepted).all()
    assert 0.1 < info.accepted.mean() < 0.95


@pytest.mark.parametrize("sizes", [(1,) * 12, (5, 7), (11, 1), (3, 4, 5)])
def test_sums_do_not_depend_on_which_chains_are_summed_together(sizes: tuple[int, ...]) -> None:
    whole, first, parts = measured_of(12), 0, []
    for size in sizes:
        parts.append(measured_of(size, first=first))
        first += size
    assert reduce(Measured.__add__, parts) == whole
    assert reduce(Measured.__add__, parts[::-1]) == whole


def measured_of(n_chains: int, first: int = 0) -> Measured:
    target, state = banana(), start(n_chains, 3, first=first)
    probe = Probe(leapfrog.advance, (4, 8))
    stepsizes = 0.2 * target.stepsizes(state.precisions)
    end_of(probe, target, Trajectory(state.position, state.momentum, state.precisions, stepsizes), n_steps=8)
    return probe.measured


def test_a_trajectory_that_blows_up_counts_as_rejected_and_as_no_jump() -> None:
    target, state = wall(2), start(40, 2)
    probe = Probe(leapfrog.advance, (4, 8))
    end_of(
        probe,
        target,
        Trajectory(state.position, 30 * state.momentum, state.precisions, np.ones((40, 2))),
        n_steps=8,
    )
    assert probe.measured.acceptance[-1] < 0.1 * 40 * ONE
    assert probe.measured.trajectories == 40
    rounds, settings, _, _ = tuned(wall(2), n_rounds=20)
    assert 0.01 < settings.stepsize < 3 and all(math.isfinite(each.squares[0]) for each in rounds)


def acceptances(*values: float) -> list[Measured]:
    return [Measured(10, (5,), (round(10 * value * ONE),)) for value in values]


def dual_averaging(values: list[float], start: float) -> tuple[float, float]:
    """The next stepsize and the average after these acceptances: Hoffman and Gelman (2014), algorithm 5.

    Their recursions, with the running mean H in place of the sum.
    """
    mu, h, log_average, log_stepsize = math.log(start), 0.0, 0.0, math.log(start)
    for t, value in enumerate(values, start=1):
        h = (1 - 1 / (t + 10)) * h + (0.8 - value) / (t + 10)
        log_stepsize = mu - math.sqrt(t) / 0.1 * h
        log_average = t**-0.75 * log_stepsize + (1 - t**-0.75) * log_average
    return math.exp(log_stepsize), math.exp(log_average)


def test_stepsizes_are_those_of_dual_averaging_begun_anew_twice() -> None:
    assert difference_from_dual_averaging(tuning) < 1e-12


def difference_from_dual_averaging(module: ModuleType) -> float:
    operation, values, worst = (
        Hybrid(steps=5, stepsize="auto"),
        [0.1, 0.3, 0.95, 0.7, 0.85, 0.6, 0.9, 0.75],
        0.0,
    )
    begins = {0: 0.5, 2: dual_averaging(values[:2], 0.5)[1]}
    begins[4] = dual_averaging(values[2:4], begins[2])[1]
    for n in range(1, 9):
        first = max(begin for begin in begins if begin < n)
        stepsize, average = dual_averaging(values[first:n], begins[first])
        stepsize_found = module.settings_after(acceptances(*values[:n]), operation, n_rounds=8).stepsize
        worst = max(worst, abs(stepsize_found / (average if n == 8 else stepsize) - 1))
    return worst


@pytest.mark.parametrize(
    "bug",
    [
        ("self.lacking + TARGET_ACCEPTANCE - acceptance", "self.lacking - TARGET_ACCEPTANCE + acceptance"),
        ("weight = updated.t**-_KAPPA", "weight = 1 / updated.t"),
        ("n_rounds // 4, n_rounds // 2", "n_rounds // 4,"),
        ("if number == n_rounds - 1", "if number == n_rounds"),
        ("updated.stepsize) + (1 - weight)", "self.stepsize) + (1 - weight)"),
    ],
)
def test_a_mutant_of_dual_averaging_is_seen(bug: tuple[str, str]) -> None:
    assert difference_from_dual_averaging(mutant(tuning, bug)) > 1e-3


def curve(**by_quantity: list[float]) -> Measured:
    """Jumps of one trajectory after 4, 8, 16, ... steps, for quantities of variance one."""
    jumps = tuple(zip(*by_quantity.values(), strict=True))
    n = len(by_quantity)
    return Measured(
        100,
        tuple(4 << k for k in range(len(jumps))),
        (80 * ONE,) * len(jumps),
        tuple(tuple(round(100 * share * ONE) for share in row) for row in jumps),
        (0,) * n,
        (100 * ONE,) * n,
    )


@pytest.mark.parametrize(
    ("measured", "best"),
    [
        (curve(a=[0.1, 0.4, 1.6, 1.8]), 16),  # 0.001, 0.004, 0.020, 0.017 effective draws a gradient
        (curve(a=[1.2, 1.6]), 8),  # 0.020, 0.027; without what else an iteration costs 0.086, 0.074
        (curve(a=[0.1, 0.4, 1.6, 1.8], b=[1.9, 1.9, 0.1, 1.9]), 32),  # the slower of both decides
        (curve(a=[1.9, 3.0, 3.9, 2.1]), 4),  # more than an independent draw does not count
        (curve(a=[0.0, 0.0]), 64),  # nothing moves: as before
    ],
)
def test_the_length_is_that_of_the_most_effective_draws_of_the_slowest_quantity(
    measured: Measured, best: int
) -> None:
    assert tuning._best_length([measured], 64) == best


@pytest.mark.parametrize(
    ("bug", "measured", "best"),
    [
        (("min(rates, default=0.0)", "max(rates, default=0.0)"), 1, 32),
        (("/ (length + 1 + _OVERHEAD)", ""), 0, 16),
        ((" + _OVERHEAD", ""), 4, 8),
        (("min(1.0, change / (4 - change))", "change / (4 - change)"), 2, 4),
        ((" / variance", ""), 3, 4),
    ],
)
def test_a_mutant_of_the_choice_of_length_is_seen(bug: tuple[str, str], measured: int, best: int) -> None:
    quiet = curve(a=[1.9, 1.95], b=[0.02, 0.04])
    curves = [
        curve(a=[0.1, 0.4, 1.6, 1.8]),
        curve(a=[0.1, 0.4, 1.6, 1.8], b=[1.9, 1.9, 0.1, 1.9]),
        curve(a=[1.9, 3.0, 3.9, 2.1]),
        replace(quiet, squares=(100 * ONE, ONE)),  # b's variance is a hundredth
        curve(a=[1.2, 1.6]),
    ]
    assert tuning._best_length([curves[measured]], 64) == best
    assert mutant(tuning, bug)._best_length([curves[measured]], 64) != best


def test_rounds_that_went_less_far_do_not_hide_what_others_saw() -> None:
    far, near = curve(a=[0.1, 0.4, 1.6]), curve(a=[0.1, 0.4])
    assert tuning._best_length([near, far, near], 4) == 16


def test_measured_trajectories_are_counted_with_all_their_steps() -> None:
    settings = {AUTOMATIC: Settings(stepsize=0.1, steps=4, longest=32)}
    assert AUTOMATIC.length(Tuning(settings, is_measured=True)) == 32
    assert AUTOMATIC.length(Tuning(settings)) == 4
    assert AUTOMATIC.length(Tuning({})) == AUTOMATIC.length(None) == 0
    assert replace(AUTOMATIC, steps=7).length(Tuning(settings, is_measured=True)) == 7


def test_sums_of_two_measurements_go_as_far_as_the_shorter() -> None:
    far, near = curve(a=[0.1, 0.4, 1.6]), curve(a=[0.1, 0.4])
    for total in (far + near, near + far):
        assert total.lengths == near.lengths
        assert len(total.acceptance) == len(total.jumps) == len(total.lengths)
        assert total.jumps == tuple((2 * jump,) for (jump,) in near.jumps)


def test_automatic_operations_are_found_once_wherever_they_are() -> None:
    from rayfbnn.mcmc.operations import Repeat

    other = replace(AUTOMATIC, partitions=2)
    fixed = Hybrid(steps=3, stepsize=0.1)
    operations = (AUTOMATIC, fixed, Repeat(2, (Heatbath(), Repeat(3, (other, AUTOMATIC)))))
    assert automatic(operations) == (AUTOMATIC, other)
