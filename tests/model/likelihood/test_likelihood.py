"""Data models: densities that sum to one, and targets drawn from them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats

from rayfbnn.model.architecture import ModelSpec, PriorSpec
from rayfbnn.model.likelihood.data_model import Misfit
from rayfbnn.model.likelihood.registry import data_model_from_spec
from rayfbnn.model.prior import noise_precisions
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.selftest.pivots import ks_p_value
from tests.support.problems import log_density, problem, streams


def density(
    target: SampledPosterior, outputs: list[float], targets: list[float], precisions: np.ndarray
) -> float:
    """Density of one case's targets, for one chain."""
    value = log_density(target, np.array([[outputs]]), np.array([targets]), precisions)
    assert value.shape == (1, 1)
    return math.exp(value[0, 0])


@pytest.mark.parametrize("model", ["gaussian by target", "t by target"])
def test_real_densities_integrate_to_one(model: str) -> None:
    target = problem(model)
    precisions = target.initial_state(streams("integral", 1), sigmas=None).precisions
    grid = np.linspace(-20, 20, 801)
    targets = np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2)
    outputs = np.broadcast_to([0.3, -1.0], (1, *targets.shape))
    total = np.exp(log_density(target, outputs, targets, precisions)).sum() * (grid[1] - grid[0]) ** 2
    assert abs(total - 1) < 2e-3  # the tails of t beyond 20


def test_probabilities_of_binary_targets_sum_to_one() -> None:
    target = problem("binary")
    precisions = target.initial_state(streams("sum", 1), sigmas=None).precisions
    total = sum(density(target, [0.3, -4.0], [a, b], precisions) for a in (0, 1) for b in (0, 1))
    assert abs(total - 1) < 1e-14
    assert density(target, [0.3, -4.0], [1, 0], precisions) == pytest.approx(
        1 / ((1 + math.exp(-0.3)) * (1 + math.exp(-4.0))), rel=1e-14
    )


def test_probabilities_of_classes_sum_to_one() -> None:
    target = problem("class")
    precisions = target.initial_state(streams("sum", 1), sigmas=None).precisions
    outputs = [0.3, -4.0, 2.0]
    probabilities = [density(target, outputs, [label], precisions) for label in range(3)]
    expected = np.exp(outputs) / np.exp(outputs).sum()
    assert np.allclose(probabilities, expected, rtol=1e-14)


def test_certain_outputs_give_exact_logarithms() -> None:
    binary, classes = problem("binary"), problem("class")
    precisions = np.zeros((1, 0))
    outputs = np.array([[[1000.0, -1000.0]]])
    for targets, expected in (([1, 0], 0), ([0, 0], -1000), ([0, 1], -2000)):
        got = log_density(binary, outputs, np.array([targets]), precisions)
        assert got[0, 0] == expected
    for label, expected in ((0, 0), (1, -1000), (2, -3000)):
        got = log_density(classes, np.array([[[1000.0, 0.0, -2000.0]]]), np.array([[label]]), precisions)
        assert got[0, 0] == expected


@pytest.mark.parametrize("model", ["gaussian by target", "t by target"])
def test_real_targets_are_drawn_from_their_density(model: str) -> None:
    target, n = problem(model), 3000
    state = target.initial_state(streams("draws", n), sigmas=None)
    drawn = target.sample_targets(state.position, state.precisions, streams("draws", n, iteration=1))
    assert drawn.shape == (n, 7, 2)
    residuals = drawn - target.outputs(state.position, target.inputs[:-1].T)
    noise = noise_precisions(state.precisions, target.precision_layout)
    assert target.model.noise is not None
    alpha = target.model.noise.alphas[2]
    law = scipy.stats.norm() if math.isinf(alpha) else scipy.stats.t(alpha)
    assert ks_p_value(law.cdf(residuals * np.sqrt(noise)[:, None, :])) > 1e-5  # seed fixed


@pytest.mark.parametrize("model", ["binary", "class"])
def test_labels_are_drawn_with_their_probabilities(model: str) -> None:
    target, n = problem(model), 20_000
    one = target.initial_state(streams("labels", 1), sigmas=None)
    position, precisions = np.repeat(one.position, n, axis=0), np.repeat(one.precisions, n, axis=0)
    drawn = target.sample_targets(position, precisions, streams("labels", n, iteration=1))
    outputs = target.outputs(one.position, target.inputs[:-1].T)[0]
    if model == "class":
        probability = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
        counts = np.stack([(drawn[:, :, 0] == label).sum(axis=0) for label in range(3)], axis=1)
    else:
        probability = 1 / (1 + np.exp(-outputs))
        counts = drawn.sum(axis=0)
    z = (counts - n * probability) / np.sqrt(n * probability * (1 - probability))
    assert np.all(np.abs(z) < 5)  # 21 of 1 in 1.7 million each; seed fixed


_REAL = ModelSpec("real", noise=PriorSpec(0.2, (0.5, math.inf, math.inf)))
_T = ModelSpec("real", noise=PriorSpec(0.2, (0.5, math.inf, 4.0)))
_HETEROSCEDASTIC, _COUNT, _BINARY = ModelSpec("heteroscedastic"), ModelSpec("count"), ModelSpec("binary")


@pytest.mark.parametrize(
    ("model", "misfit", "words"),
    [
        *((one, "too narrow", "look for cases that are repeated") for one in (_REAL, _HETEROSCEDASTIC)),
        *((one, "shifted", "look where predictions of y fail") for one in (_REAL, _COUNT, _BINARY)),
        (_REAL, "too wide", "t noise, by a last alpha"),
        (_T, "outliers", "fewer degrees of freedom, the last alpha of model.noise (now 4)"),
        (_REAL, "varying", 'kind = "heteroscedastic"'),
        (_REAL, "skewed", 'data.transform = { y = "log" }'),
        *((_COUNT, misfit, 'dispersion = "0.3:0.5"') for misfit in ("too narrow", "outliers", "varying")),
        (_COUNT, "too wide", "counts vary less than a Poisson distribution allows"),
        (_COUNT, "skewed", "look where predictions of y fail"),
        (_BINARY, "too wide", "priors with larger widths"),
    ],
)
def test_each_misfit_has_a_remedy(model: ModelSpec, misfit: Misfit, words: str) -> None:
    assert words in data_model_from_spec(model).remedies(misfit, "y", is_positive=True)[0]
