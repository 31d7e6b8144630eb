"""Count, survival and heteroscedastic targets: densities, gradients, bounds and draws."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from rayfbnn.model.architecture import ModelSpec, PriorSpec
from rayfbnn.model.likelihood import count, heteroscedastic, survival
from rayfbnn.model.likelihood.real import RealTargets
from rayfbnn.model.likelihood.registry import data_model_from_spec
from rayfbnn.model.likelihood.survival import Hazard
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.selftest.pivots import ks_p_value
from tests.support.model.architectures import mutated, worst_error
from tests.support.model.data_models import (
    MODELS,
    PIECES,
    counts_given,
    distribution_functions,
    problem,
    targets_of,
)
from tests.support.problems import covariates_of, streams

NO_NOISE = np.zeros((1, 0))
SURVIVAL = [name for name in MODELS if "hazard" in name]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_labels_are_drawn_with_their_probabilities_however_far_outputs_are_apart(dtype: type) -> None:
    model = data_model_from_spec(ModelSpec("class", classes=3))
    n = 3_000
    far_apart = np.array([[1000.0, 0, -2000], [-2000, 1000, 0], [-2000, 0, 1000]])
    near = np.log([[0.2, 0.3, 0.5]]) + 500
    outputs = np.repeat(np.concatenate([far_apart, near])[:, :, None], n, axis=2).astype(dtype)
    labels = model.draw(outputs, NO_NOISE, streams("labels", 4))[:, 0]
    assert (labels[:3] == np.arange(3)[:, None]).all()
    shares = np.bincount(labels[3].astype(int), minlength=3) / n
    np.testing.assert_allclose(shares, [0.2, 0.3, 0.5], atol=4 * 0.5 / np.sqrt(n))


@pytest.mark.parametrize(("df", "variance"), [(1, np.inf), (2, np.inf), (4, 2.0), (np.inf, 1.0)])
def test_predictions_with_t_noise_have_the_variance_of_t(df: float, variance: float) -> None:
    """It is df / (df - 2), and infinite up to two degrees of freedom."""
    _, variances = RealTargets(float(df)).target_moments(np.zeros((1, 1, 5)), np.ones((1, 1, 5)))
    np.testing.assert_allclose(variances, variance)


@pytest.mark.parametrize("size", [0.1, 1.0, 30.0])
def test_the_typical_square_of_an_output_is_the_mean_square_of_the_targets(size: float) -> None:
    model = data_model_from_spec(ModelSpec("real", PriorSpec.parse("1", key="noise")))
    rows = size * np.array([[1.0, 2.0], [3.0, 0.0]])
    assert model.typical_output_square(rows, None) == pytest.approx(3.5 * size**2)
    observed = np.array([[1.0, 1.0], [1.0, 0.0]])
    assert model.typical_output_square(rows, observed) == pytest.approx(14 / 3 * size**2)
    of_chains = model.typical_output_square(np.stack([rows, 2 * rows]), None)
    assert of_chains == pytest.approx([3.5 * size**2, 14 * size**2])
    assert model.typical_output_square(0 * rows, None) == 1


def log_likelihood_by_loops(
    target: SampledPosterior, data: np.ndarray, position: np.ndarray, precisions: np.ndarray
) -> float:
    """Log likelihood of one chain, with scipy's distributions or the hazard summed along time."""
    total, model = 0.0, target.model

    def outputs(inputs: list[float]) -> np.ndarray:
        return np.asarray(target.outputs(position[None], np.array([inputs]))[0, 0])

    for inputs, y in zip(covariates_of(target).tolist(), data, strict=True):
        if model.kind == "survival":
            if np.isnan(y[0]):
                continue
            time, spent = abs(y[0]), 0.0
            edges = [0.0, *model.times, math.inf] if model.times else [0.0, math.inf]
            for piece, (start, end) in enumerate(zip(edges[:-1], edges[1:], strict=True)):
                clock = [math.log(t) if model.log_time else t for t in (start, end) if 0 < t < math.inf]
                hazard = math.exp(outputs([sum(clock) / len(clock), *inputs] if clock else inputs)[0])
                spent += hazard * max(min(time, end) - start, 0)
                if start < time <= end and y[0] > 0:
                    total += math.log(hazard)
                del piece
            total -= spent
            continue
        v = outputs(inputs)
        for number, value in enumerate(y):
            if np.isnan(value):
                continue
            if model.kind == "count":
                counts = counts_given(target, v[None, None], precisions[None])
                total += counts.logpmf(value)[0, 0, number]
            else:
                sigma = math.sqrt(model.noise_floor**2 + math.exp(-v[len(y) + number]))
                total += scipy.stats.norm.logpdf(value, v[number], sigma)
    return total


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_log_likelihood_is_that_of_the_formulas(name: str, missing: bool) -> None:
    target, data = problem(name, missing=missing), targets_of(name, missing=missing)
    state = target.initial_state(streams("by loops", 5), sigmas=None)
    expected = [
        log_likelihood_by_loops(target, data, position, precisions)
        for position, precisions in zip(state.position, state.precisions, strict=True)
    ]
    values = target.log_likelihood(state.position, state.precisions)
    np.testing.assert_allclose(values, expected, rtol=1e-10)


def test_times_given_to_the_network_are_those_of_fbm() -> None:
    assert Hazard(PIECES).piece_inputs() == pytest.approx([0.4, 0.7, 1.75, 2.5])
    logs = Hazard(PIECES, log_time=True).piece_inputs()
    assert np.exp(logs) == pytest.approx([0.4, math.sqrt(0.4), math.sqrt(2.5), 2.5])


@pytest.mark.parametrize("name", MODELS)
def test_targets_are_drawn_from_their_density(name: str) -> None:
    target, n = problem(name), 3000
    state = target.initial_state(streams("draws", n), sigmas=None)
    drawn = target.sample_targets(state.position, state.precisions, streams("draws", n, iteration=1))
    uniform = distribution_functions(
        target, state.position, state.precisions, drawn, streams("between steps", n)
    )
    assert ks_p_value(uniform) > 1e-5  # seed fixed


def test_counts_of_any_rate_are_drawn() -> None:
    rates = np.array([1e-8, 0.3, 7.0, 1e3, 1e8, 1e14])
    model, n = count.CountTargets(), 20_000
    drawn = model.draw(np.tile(np.log(rates), (n, 1))[:, None], NO_NOISE, streams("rates", n))[:, 0]
    assert np.array_equal(drawn, np.floor(drawn)) and drawn.min() >= 0
    z = (drawn.mean(axis=0) - rates) / np.sqrt(rates / n)
    assert np.all(np.abs(z) < 5)
    for k in range(4):
        assert np.array_equal(
            count.quantile(np.array(0.73), rates[k]), scipy.stats.poisson.ppf(0.73, rates[k])
        )
    assert model.draw(np.full((1, 1, 1), 800.0), NO_NOISE, streams("huge", 1))[0, 0, 0] < 1.1e15


@pytest.mark.parametrize("name", ["count", *SURVIVAL, "heteroscedastic, floor"])
def test_the_bound_is_reached_and_never_passed(name: str) -> None:
    """The terms are functions of outputs with any value, and each case is taken at its best."""
    model, data = data_model_from_spec(MODELS[name]), targets_of(name)
    rows = model.target_rows(data)
    bound: Any = model.log_bound(rows, None)
    grid = np.linspace(-12, 6, 4001)  # censored times reach their bound of zero when there is no hazard
    if model.kind == "heteroscedastic":
        # at v = y the density is largest for any precision, which then grows to its ceiling
        best = 0.0
        for s in (0.0, 5.0, 40.0):
            outputs = np.concatenate([rows, np.full_like(rows, s)])[None]
            terms, _ = model.terms_and_gradient(outputs, rows, NO_NOISE)
            assert terms.sum() <= bound[0]
            best = terms.sum()
        assert best == pytest.approx(bound[0], abs=1e-9)
        return
    n_rows = rows.shape[-2] // 2 if model.kind == "count" else 1
    outputs = np.tile(grid[:, None, None], (1, n_rows, rows.shape[-1]))
    terms, _ = model.terms_and_gradient(outputs, rows, np.zeros((len(grid), 0)))
    assert terms.max(axis=0).sum() == pytest.approx(bound[0], abs=1e-3)
    assert terms.max(axis=0).sum() <= bound[0] + 1e-12


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("name", ["count", "count, dispersion", *SURVIVAL, "heteroscedastic, floor"])
def test_proposals_of_rejection_sampling_have_probabilities(name: str, missing: bool) -> None:
    target = problem(name, missing=missing)
    log_acceptance = target.rejection_proposal(streams("proposals", 20_000))[2]
    assert log_acceptance.max() <= 0 and log_acceptance.max() > -30


def test_without_a_floor_no_proposal_is_accepted() -> None:
    assert np.all(problem("heteroscedastic").rejection_proposal(streams("none", 50))[2] == -np.inf)


@pytest.mark.parametrize("name", MODELS)
def test_curvature_of_output_biases_is_the_typical_one(name: str) -> None:
    target, data = problem(name, missing=True), targets_of(name, missing=True)
    precisions = target.initial_state(streams("curvature", 3), sigmas=None).precisions
    bias = precisions[:, [target.precision_layout.common["bo"]]]
    n_observed = (~np.isnan(data)).sum(axis=0)
    if target.model.kind == "count":
        typical = (np.nansum(data, axis=0) + 1) / n_observed * n_observed
        if target.model.dispersion is not None:
            shape = precisions[:, target.precision_layout.noise_columns]
            typical = n_observed / (n_observed / typical + 1 / shape)
    elif target.model.kind == "survival":
        typical = np.array([7.0])  # one per case, as in FBM
    else:
        typical = np.append(1 / np.nanvar(data, axis=0), [0.5, 0.5]) * np.tile(n_observed, 2)
    n = target.network.outputs
    np.testing.assert_allclose(target.stepsizes(precisions)[:, -n:], (bias + typical) ** -0.5, rtol=1e-12)


# Bugs in the file of a data model, and the model that must show each in its gradient.
MUTANTS = {
    "count: the derivative's sign": (count, ("y - rate\n", "rate - y\n"), "count"),
    "survival: censored times die": (survival, ("event - cumulative", "1 - cumulative"), "constant hazard"),
    "survival: hazards of all pieces at the event": (
        survival,
        ("xp.where(event > 0, v, 0.0) - cumulative,", "event.max(axis=-1, keepdims=True) * v - cumulative,"),
        "hazard of pieces",
    ),
    "heteroscedastic: the floor's slope": (
        heteroscedastic,
        ("0.5 * xp.exp(log_tau - s) * (1 - z)", "0.5 * (1 - z)"),
        "heteroscedastic, floor",
    ),
    "heteroscedastic: no normaliser": (
        heteroscedastic,
        ("0.5 * xp.exp(log_tau - s) * (1 - z)", "-0.5 * xp.exp(log_tau - s) * z"),
        "heteroscedastic",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_gradient_is_seen(name: str) -> None:
    module, bug, model = MUTANTS[name]
    assert worst_error(problem(model, posterior=mutated(module, bug)), n_draws=5, name="mutant") > 1e-3
