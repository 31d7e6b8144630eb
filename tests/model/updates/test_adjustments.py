"""Adjustments: a precision for each destination unit, in the prior, gradients, Gibbs updates, stepsizes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rayfbnn.model import sampled
from rayfbnn.model.architecture import NetworkSpec
from rayfbnn.model.layout import PrecisionLayout
from rayfbnn.model.updates import gibbs
from rayfbnn.selftest.pivots import is_exact, ks_p_value
from tests.support import problems
from tests.support.model.architectures import assert_batch_independent, assert_right
from tests.support.model.hierarchy import HIERARCHIES, grid_of_joint, log_gamma_conditional, uniforms_of
from tests.support.mutants import mutant, sampled_with
from tests.support.problems import MODELS, chain_streams, problem, streams


def network(priors: dict[str, str] = problems.PRIORS, *, outputs: int = 2, **alphas: float) -> NetworkSpec:
    spec = problems.network(priors, outputs=outputs, units=(4, 3))
    return replace(spec, adjustments=alphas or {"ah0": 3.0, "ah1": 4.0, "ao": 5.0})


@pytest.mark.parametrize("outputs", [2, 3])
def test_a_network_with_adjustments_is_right(outputs: int) -> None:
    assert_right(network(outputs=outputs), name="adjustments")


@pytest.mark.parametrize("alphas", [{"ah0": 2.0}, {"ah1": 2.0}, {"ao": 0.5}])
def test_a_network_is_right_with_adjustments_of_one_layer(alphas: dict[str, float]) -> None:
    assert_right(network(**alphas), name=str(alphas), models=("t",))


def test_adjustments_do_not_depend_on_the_batch() -> None:
    assert_batch_independent(network())


def test_adjustments_lie_between_the_groups_and_the_noise() -> None:
    layout = PrecisionLayout.from_specs(network(ah1=2.0, ao=3.0), MODELS["gaussian"], 2)
    plain = PrecisionLayout.from_specs(problems.network(), MODELS["gaussian"], 2)
    first = plain.common["noise"]
    assert [group.name for group in layout.adjustments] == ["ah1", "ao"]
    assert [group.columns for group in layout.adjustments] == [
        slice(first, first + 3),
        slice(first + 3, first + 5),
    ]
    assert layout.common["noise"] == first + 5 and layout.n_precisions == plain.n_precisions + 5
    assert set(layout.adjusted) == {"ih1", "h0h1", "bh1", "ho0", "ho1", "io", "bo"}


def test_adjustments_start_at_one() -> None:
    target = problem(spec=network())
    state = target.initial_state(streams("one", 2), sigmas=0.5)
    for group in target.precision_layout.adjustments:
        assert np.all(state.precisions[:, group.columns] == 1)


def test_the_conditional_is_the_joint_density_up_to_a_constant() -> None:
    priors = {"ih0": "0.7:3:4", "bh0": "0.7:3", "th0": "0.3", "ho0": "x1:5:4", "bo": "1"}
    spec = problems.network(priors, units=(4,), activations=("tanh",))
    target = problem(spec=replace(spec, adjustments={"ah0": 3.0, "ao": 4.0}))
    state = target.initial_state(streams("joint of adjustments", 1), sigmas=None)
    values = target.parameter_layout.views(state.position)
    layout = target.precision_layout
    for group, into in zip(layout.adjustments, (("ih0", "bh0"), ("ho0", "bo")), strict=True):
        for unit in range(group.n_units):
            tau, log_joint = grid_of_joint(target, state, group.columns.start + unit)
            squares = [
                values[into[0]][0, :, unit] ** 2 * state.precisions[0, layout.units[into[0]]],
                values[into[1]][0, unit : unit + 1] ** 2 * state.precisions[0, layout.common[into[1]]],
            ]
            expected = log_gamma_conditional(tau, group.alpha, 1.0, np.concatenate(squares))
            assert np.ptp(log_joint - expected) < 1e-9 * np.abs(log_joint).max()


def stays_exact(name: str, *, module: Any = sampled) -> bool:
    """Return True if exact draws of everything stay exact under one update of all precisions."""
    spec = replace(
        problems.network(HIERARCHIES, units=(2, 3)), adjustments={"ah0": 3.0, "ah1": 4.0, "ao": 5.0}
    )
    target = problem("t by target", spec=spec, posterior=module.SampledPosterior)

    def p_values(seed: int, n_chains: int) -> list[float]:
        random = chain_streams(seed, n_chains)
        state = target.initial_state(random, sigmas=None)
        targets = target.sample_targets(state.position, state.precisions, random)
        informed = target.with_targets(targets)
        after, _ = informed.sample_sigmas(state, random.at(iteration=1))
        return [ks_p_value(values) for values in uniforms_of(informed, after, targets)]

    return is_exact(p_values, name=name, n_chains=4_000)


def test_exact_draws_stay_exact() -> None:
    assert stays_exact("adjustments")


MUTANTS: dict[str, tuple[Any, tuple[str, str]]] = {
    "alpha as shape": (
        gibbs,
        ("(sums, n, adjustments.alpha, 1.0", "(sums, n + adjustments.alpha, adjustments.alpha, 1.0"),
    ),
    "biases not counted": (
        gibbs,
        ("n += rows.shape[1]", "n += rows.shape[1] if group.n_units > 1 else 0"),
    ),
    "precisions of the units forgotten": (
        gibbs,
        ("squares = rows**2 * precisions[:, group.lowest_columns, None]", "squares = rows**2"),
    ),
    "t values as Gaussian": (gibbs, ("if math.isfinite(alpha):", "if False:")),
    "t values' precisions without the adjustment": (
        gibbs,
        ("precisions[:, None, columns] * squares", "squares"),
    ),
    "groups not adjusted": (gibbs, ("rows = rows * xp.sqrt(precisions[:, None, columns])", "pass")),
    "adjusted by the square": (
        gibbs,
        ("xp.sqrt(precisions[:, None, columns])", "precisions[:, None, columns]"),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_update_is_seen(name: str) -> None:
    module, replacement = MUTANTS[name]
    assert not stays_exact(f"adjustments, {name}", module=sampled_with(mutant(module, replacement)))


def test_the_prior_density_is_the_gamma_density() -> None:
    target = problem(spec=network(ao=5.0))
    plain = problem(spec=problems.network())
    state = target.initial_state(streams("prior of adjustments", 2), sigmas=None)
    (group,) = target.precision_layout.adjustments
    drawn = state.precisions[:, group.columns]
    without = np.delete(state.precisions, np.arange(group.columns.start, group.columns.stop), axis=1)
    at_one = state.precisions.copy()
    at_one[:, group.columns] = 1.0
    difference = target.log_prior(state.position, at_one) - plain.log_prior(state.position, without)
    shape = 2.5
    log_gamma = shape * math.log(shape) - math.lgamma(shape) - shape
    assert np.allclose(difference, 2 * log_gamma, rtol=1e-9)
    assert drawn.shape == (2, 2) and np.all(drawn != 1)
