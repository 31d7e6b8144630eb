"""Precisions of units that maximise the evidence, and the common one above them, by quadrature."""

from __future__ import annotations

import math

import numpy as np
import scipy.stats

from rayfbnn.arrays import Array
from rayfbnn.model.approximated_posterior import ApproximatedPosterior
from rayfbnn.model.architecture import ModelSpec, PriorSpec
from rayfbnn.state import Reestimated
from tests.support import problems

ALPHA, ALPHA_UNIT, WIDTH = 5.0, 4.0, 0.5


def two_levels() -> tuple[ApproximatedPosterior, Array, Array, Reestimated]:
    """Return a network whose ih0 has precisions of units, a state, and what one update makes of it."""
    network = problems.network(
        {"ih0": f"{WIDTH}:{ALPHA}:{ALPHA_UNIT}", "ho0": "1"}, inputs=3, units=(2,), activations=("tanh",)
    )
    fixed_noise = ModelSpec("real", PriorSpec.parse("1", key="noise"))
    target = ApproximatedPosterior.from_spec(
        network, fixed_noise, np.ones((4, 3)), np.zeros((4, network.outputs))
    )
    random = problems.streams("two levels", 2)
    state = target.initial_state(random, sigmas=None)
    traces = np.full(state.position.shape, 0.01)
    new = target.reestimated(state.position, state.precisions, traces, np.zeros((2, 1)), is_integrated=False)
    return target, state.position, state.precisions, new


def log_joint(common: Array, units: Array) -> Array:
    """Log density of the logs of a common precision and of those of units, (n_points,)."""
    gamma = scipy.stats.gamma
    upper = gamma(ALPHA / 2, scale=2 * WIDTH**-2 / ALPHA).logpdf(common) + np.log(common)
    lower = gamma(ALPHA_UNIT / 2, scale=2 * common[:, None] / ALPHA_UNIT).logpdf(units) + np.log(units)
    return np.asarray(upper + lower.sum(axis=1))


def test_precisions_of_units_take_the_step_of_the_fixed_point() -> None:
    target, position, before, new = two_levels()
    group = next(group for group in target.precision_layout.groups if group.name == "ih0")
    weights = target.parameter_layout.views(position)["ih0"].reshape(2, 3, 2)
    determined = 2 - before[:, group.units] * 2 * 0.01
    expected = (determined + ALPHA_UNIT) / (
        (weights**2).sum(axis=2) + ALPHA_UNIT / before[:, group.common, None]
    )
    np.testing.assert_allclose(new.precisions[:, group.units], expected)


def test_a_common_precision_above_units_is_its_mean_given_them() -> None:
    target, _, _, new = two_levels()
    group = next(group for group in target.precision_layout.groups if group.name == "ih0")
    common = np.exp(np.linspace(-12, 12, 4001))
    for chain in range(2):
        log_density = log_joint(common, new.precisions[chain, group.units])
        weights = np.exp(log_density - log_density.max())
        mean = (weights * common).sum() / weights.sum()
        assert math.isclose(new.precisions[chain, group.common], mean, rel_tol=1e-6)


def test_the_log_width_integrates_the_common_precision_out() -> None:
    target, _, before, new = two_levels()
    group = next(group for group in target.precision_layout.groups if group.name == "ih0")
    log_common = np.linspace(-12, 12, 4001)
    peaks = 0.5 * np.log(4 * math.pi / (2 - before[:, group.units] * 2 * 0.01 + ALPHA_UNIT)).sum(axis=1)
    for chain in range(2):
        log_density = log_joint(np.exp(log_common), before[chain, group.units])
        integral = np.log(np.trapezoid(np.exp(log_density), log_common))
        assert math.isclose(new.log_width[chain], integral + peaks[chain], rel_tol=1e-6)
