"""Automatic scales of groups of coordinates: the measurements, the scales, and the updates that use them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from rayfbnn.arrays import Array
from rayfbnn.errors import SamplingError
from rayfbnn.mcmc import automatic as tuning
from rayfbnn.mcmc import hybrid as hmc
from rayfbnn.mcmc import stepsizes
from rayfbnn.mcmc.automatic import Measured
from rayfbnn.mcmc.operations import Hybrid
from rayfbnn.mcmc.stepsizes import group_sizes, of_coordinates, scales_from
from tests.support.mutants import mutant
from tests.support.problems import problem
from tests.support.problems import streams as problem_streams
from tests.support.tuning import ONE, Scaled, frozen, start, streams, tuned

SCALED = Hybrid(steps="auto", stepsize="auto", scaling="auto")


@dataclass(frozen=True)
class InGroups(Scaled):
    """The target with its coordinates in groups and with its own stepsizes."""

    group_sizes: tuple[int, ...] = ()
    own: tuple[float, ...] = ()

    def stepsizes(self, precisions: Array) -> Array:
        return super().stepsizes(precisions) * np.array(self.own)


TARGET = InGroups((0.1, 0.1, 0.6, 4.0), group_sizes=(2, 1, 1), own=(1.0, 1.0, 2.0, 1.0))
# Relative to the target's stepsizes and to the smallest; the last is 40 and limited to 16.
WIDTHS = (1.0, 3.0, 16.0)


def test_the_scales_found_are_the_widths_beside_the_heuristic_stepsizes() -> None:
    _, settings, state, number = tuned(TARGET, SCALED)
    assert settings.scales == pytest.approx(WIDTHS, rel=0.15)
    assert frozen(TARGET, SCALED, settings, state, number) == pytest.approx(0.8, abs=0.06)
    _, without, _, _ = tuned(TARGET, replace(SCALED, scaling=None))
    assert without.scales == () and settings.steps < without.steps


def measured_scales(module: ModuleType) -> tuple[float, ...]:
    state = start(4000, 4)
    state = replace(state, position=state.position * np.array(TARGET.sigmas))
    mean_squares = module.mean_squares(TARGET, state.position, state.precisions)
    assert mean_squares.shape == (4000, 3)
    return tuple(module.scales_from(mean_squares.mean(axis=0).tolist()))


@pytest.mark.parametrize(
    "bug",
    [
        ("xp.square(target.stepsizes(precisions) * gradient", "xp.square(gradient"),
        ("math.sqrt(min(largest / mean, LARGEST**2))", "min(largest / mean, LARGEST**2)"),
        ("min(largest / mean, LARGEST**2)", "largest / mean"),
        ("largest / mean,", "mean / largest,"),
        (".mean(axis=1)", ".sum(axis=1)"),
    ],
)
def test_a_mutant_of_the_slopes_is_seen(bug: tuple[str, str]) -> None:
    assert measured_scales(stepsizes) == pytest.approx(WIDTHS, rel=0.05)
    assert measured_scales(mutant(stepsizes, bug)) != pytest.approx(WIDTHS, rel=0.05)


def test_groups_without_slopes_are_held() -> None:
    assert scales_from([4.0, 1.0, 0.0, 1e-9]) == (1.0, 2.0, 16.0, 16.0)
    assert scales_from([0.0, 0.0]) == (1.0, 1.0)
    assert scales_from([]) == ()


def test_a_scaled_update_is_that_of_a_target_with_these_stepsizes() -> None:
    scales = (1.0, 2.5, 0.3)
    wider = replace(TARGET, own=tuple(np.array(TARGET.own) * of_coordinates(scales, TARGET)))
    options: dict[str, Any] = {"steps": 6, "stepsize": 0.07, "stepsize_jitter": -0.2, "window": 3}
    ours, info = hmc.hybrid(start(50, 4), streams(50), target=TARGET, scales=scales, **options)
    theirs, expected = hmc.hybrid(start(50, 4), streams(50), target=wider, **options)
    np.testing.assert_allclose(ours.position, theirs.position, rtol=1e-12)
    assert (info.accepted == expected.accepted).all() and 0 < info.accepted.mean() < 1


def of_slopes(*means: float) -> Measured:
    return Measured(10, (16,), (8 * ONE,), slopes=tuple(round(10 * slope * ONE) for slope in means))


def scales_of_rounds(module: ModuleType) -> list[float]:
    """The first group's scale in each of eight rounds, or 0 in rounds without scales."""
    operation = Hybrid(steps=16, stepsize="auto", scaling="auto")
    rounds = [of_slopes(1.0, 4.0 ** (number + 1)) for number in range(8)]
    scales_by_round = [module.settings_after(rounds[:n], operation, n_rounds=8).scales for n in range(8)]
    assert all(scales == () or scales[1] == 1 for scales in scales_by_round)
    return [scales[0] if scales else 0.0 for scales in scales_by_round]


QUARTER, HALF = (4.0**2) ** 0.5, ((4.0**3 + 4.0**4) / 2) ** 0.5
IN_ROUNDS = pytest.approx([0, 0, QUARTER, QUARTER, HALF, HALF, HALF, HALF])


def test_scales_follow_from_the_later_rounds_before_a_quarter_and_half_of_all() -> None:
    assert scales_of_rounds(tuning) == IN_ROUNDS


@pytest.mark.parametrize(
    "bug",
    [
        ("number + 1 in restarts", "number in restarts"),
        ("scales = _scales(rounds[(number + 1) // 2 : number + 1])", "scales = _scales(rounds)"),
    ],
)
def test_a_mutant_of_when_scales_are_set_is_seen(bug: tuple[str, str]) -> None:
    assert scales_of_rounds(mutant(tuning, bug)) != IN_ROUNDS


@pytest.mark.parametrize("over", [None, ("precisions",), ("outputs",), ("outputs", "precisions")])
def test_groups_of_a_posterior_are_its_own(over: Any) -> None:
    posterior, random = problem("t"), problem_streams("groups", 6)
    target: Any = posterior
    state = posterior.initial_state(random, sigmas=0.5)
    if over is not None:
        target = posterior.marginal(over).given(state, random)
        state = target.start(state, random)
    precisions = state.precisions
    assert sum(target.group_sizes) == target.n_parameters
    _, gradient = target.potential_and_gradient(state.position, precisions)
    squares = (target.stepsizes(precisions) * gradient) ** 2
    layout = target.marginal.parameter_layout if over and "outputs" in over else posterior.parameter_layout
    views = layout.views(squares[:, : layout.n_parameters])
    expected = [view.reshape(len(view), -1).mean(axis=1) for view in views.values()]
    expected += list(squares[:, layout.n_parameters :].T)
    measured_squares = stepsizes.mean_squares(target, state.position, precisions)
    np.testing.assert_allclose(measured_squares, np.stack(expected, axis=1), rtol=1e-6)


def test_scales_need_an_automatic_stepsize() -> None:
    with pytest.raises(ValueError, match='scaling: "auto" needs stepsize = "auto", got stepsize 0.3'):
        Hybrid(steps="auto", stepsize=0.3, scaling="auto")


def test_factors_of_another_number_of_groups_are_refused() -> None:
    n_groups = len(group_sizes(TARGET))
    with pytest.raises(SamplingError, match=f"{n_groups + 1} factors for the stepsizes of {n_groups} groups"):
        of_coordinates([1.0] * (n_groups + 1), TARGET)
