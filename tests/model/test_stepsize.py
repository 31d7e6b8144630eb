"""The stepsize heuristic agrees with its rules written out unit by unit."""

from __future__ import annotations

import numpy as np
import pytest

from rayfbnn.model import stepsize
from rayfbnn.model.prior import noise_precisions
from rayfbnn.model.sampled import SampledPosterior
from tests.support import problems
from tests.support.model.architectures import mutated
from tests.support.model.reference import stepsizes_by_loops
from tests.support.problems import problem, streams


def test_stepsizes_come_in_the_positions_dtype() -> None:
    for dtype in ("float32", "float64"):
        target = problem(dtype=dtype)
        state = target.initial_state(streams("dtype", 2), sigmas=0.5)
        assert target.stepsizes(state.precisions).dtype == state.position.dtype


def test_the_curvature_of_a_target_is_that_of_its_observed_cases() -> None:
    spec = problems.network({"io": "1", "bo": "1"}, outputs=2, units=(), activations=())
    target = problem("gaussian by target", spec=spec)
    data = target.targets.T.copy()
    data[:3, 1] = np.nan
    some = SampledPosterior.from_spec(target.network, target.model, target.inputs[:-1].T, data)
    precisions = target.initial_state(streams("curvature", 3), sigmas=None).precisions
    noise = noise_precisions(precisions, target.precision_layout)
    bias = precisions[:, [target.precision_layout.common["bo"]]]
    expected = 1 / np.sqrt(bias + np.array([7, 4]) * noise)
    np.testing.assert_allclose(some.stepsizes(precisions)[:, -2:], expected, rtol=1e-12)


STEPSIZE_MUTANTS = {
    "t weights not widened": ("*= 3 if alpha < 3 else alpha / (alpha - 2)", "*= 1"),
    "tanh not bounded": ("return xp.minimum(summed, 1.0)", "return summed"),
    "t prior's curvature": ("*= (alpha + 1) / alpha  # eq. 68", "*= 1"),
    "offsets left out": ("value_squares = value_squares + spread[:, offset]", "pass"),
}


@pytest.mark.parametrize("name", STEPSIZE_MUTANTS)
def test_a_wrong_rule_is_seen(name: str) -> None:
    target = problem("t", posterior=mutated(stepsize, STEPSIZE_MUTANTS[name]))
    precisions = target.initial_state(streams("rules", 3), sigmas=None).precisions
    expected = [stepsizes_by_loops(target, chain) for chain in precisions]
    assert not np.allclose(target.stepsizes(precisions), expected, rtol=1e-6)
