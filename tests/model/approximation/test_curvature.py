"""Jacobians and curvatures against central differences, for every data model and kind of layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rayfbnn.model import curvature
from rayfbnn.model.approximated_posterior import ApproximatedPosterior
from rayfbnn.model.network import input_rows
from rayfbnn.model.prior import noise_precisions
from rayfbnn.streams import Purpose
from tests.support.model.linear import linear
from tests.support.mutants import mutant
from tests.support.problems import network, streams
from tests.support.ring.parts import MODELS, position_of, target_of

COVERED = [name for name in MODELS if "heteroscedastic" not in name]


@pytest.mark.parametrize("pieces", [1, 100])
@pytest.mark.parametrize("name", ["gaussian", "class", "hazard of pieces"])
def test_the_jacobian_is_that_of_the_outputs(name: str, pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    target = target_of(name)
    position, _ = position_of(target, 2)
    if pieces > 1:
        monkeypatch.setattr(curvature, "_MOST_NUMBERS", 4 * target.n_parameters)
    parts = list(curvature.jacobian_pieces(target, position, target.inputs))
    assert len(parts) > 1 if pieces > 1 else len(parts) == 1
    jacobian = np.concatenate([derivatives for _, _, derivatives in parts], axis=2)
    outputs = np.concatenate([values for _, values, _ in parts], axis=2)
    inputs = target.inputs[:-1].T
    np.testing.assert_allclose(outputs, target.outputs(position, inputs).swapaxes(1, 2), rtol=1e-12)
    for parameter in range(target.n_parameters):
        step = np.zeros(target.n_parameters)
        step[parameter] = 1e-6
        ends = [target.outputs(position + sign * step, inputs) for sign in (1, -1)]
        difference = (ends[0] - ends[1]).swapaxes(1, 2) / 2e-6
        np.testing.assert_allclose(jacobian[..., parameter], difference, atol=1e-7)


@pytest.mark.parametrize("name", [name for name in COVERED if not name.startswith("t")])
def test_the_curvature_by_outputs_is_that_of_the_log_likelihood(name: str) -> None:
    target = target_of(name)
    _, precisions = position_of(target, 1)
    noise, n_outputs = noise_precisions(precisions, target.precision_layout), target.wiring.units[-1]
    outputs = streams("outputs", 1).normal(Purpose.PROPOSAL, (n_outputs, target.inputs.shape[1]))
    ours = target.data_model.output_curvature(outputs, target.targets, noise)
    if ours.ndim == 3:
        ours = np.eye(n_outputs)[:, :, None] * ours[:, :, None]
    for output in range(n_outputs):
        step = np.zeros((n_outputs, 1))
        step[output] = 1e-6
        slopes = [
            target.data_model.terms_and_gradient(outputs + sign * step, target.targets, noise)[1]
            for sign in (1, -1)
        ]
        np.testing.assert_allclose(ours[:, output], (slopes[1] - slopes[0]) / 2e-6, atol=1e-6)


def test_the_information_of_t_noise_is_the_mean_of_the_curvature() -> None:
    target = target_of("t")
    residuals = np.tan(np.linspace(-1.5, 1.5, 20_001))  # (a grid that reaches far out)
    noise, alpha = np.array([[2.0, 2.0]]), target.data_model.alpha
    rows = np.zeros((2, len(residuals)))
    outputs = np.stack([residuals, residuals])[None]
    terms, _ = target.data_model.terms_and_gradient(outputs, rows, noise)
    slopes = [target.data_model.terms_and_gradient(outputs + h, rows, noise)[1] for h in (1e-5, -1e-5)]
    seconds = (slopes[1] - slopes[0])[0, 0] / 2e-5
    density = np.exp(terms[0, 0])
    mean = np.trapezoid(seconds * density, residuals) / np.trapezoid(density, residuals)
    ours = target.data_model.output_curvature(outputs[..., :1], rows[:, :1], noise)[0, 0, 0]
    assert ours == pytest.approx(2.0 * (alpha + 1) / (alpha + 3))
    assert ours == pytest.approx(mean, rel=2e-3)


def error_of_gauss_newton(name: str, missing: bool, *, source: Any = curvature) -> float:
    """Return its largest relative difference from the Hessian of a network without hidden layers."""
    with_layers = target_of(name, missing=missing)
    spec = network({"io": "0.5", "bo": "1"}, inputs=with_layers.network.inputs, units=(), activations=())
    spec = type(spec)(spec.inputs, with_layers.network.outputs, (), spec.priors)
    values = _targets(with_layers)
    target = ApproximatedPosterior.from_spec(spec, with_layers.model, _inputs(with_layers), values).tempered(
        0.7
    )
    position, precisions = position_of(target, 2)
    parts = source.gauss_newton(target, position, precisions)
    assert parts.shape[1] == (2 if name == "gaussian by target" else 1)
    prior = target.prior_precisions(precisions)[:, :, None] * np.eye(target.n_parameters)
    hessian = source.hessian(target, position, precisions)
    return float(np.abs(parts.sum(axis=1) + prior - hessian).max() / np.abs(hessian).max())


@pytest.mark.parametrize("missing", [False, True], ids=["whole", "missing"])
@pytest.mark.parametrize("name", ["gaussian by target", "class", "binary", "hazard of pieces"])
def test_gauss_newton_is_the_hessian_of_a_network_linear_in_its_parameters(name: str, missing: bool) -> None:
    """Without hidden layers both agree; the prior's precisions are what the Hessian has beside them."""
    assert error_of_gauss_newton(name, missing) < 1e-5


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("/ (2 * _DIFFERENCE)", "/ _DIFFERENCE"),
        ("total += xp.matmul", "total -= xp.matmul"),
        ("curvature = curvature * (weights", "curvature = curvature / (weights"),
        ("power if posterior.observed is None else power * posterior.observed[..., part]", "power"),
    ],
)
def test_a_wrong_curvature_is_seen(old: str, new: str) -> None:
    wrong = mutant(curvature, (old, new))
    with np.errstate(all="ignore"):
        assert not all(
            error_of_gauss_newton(name, missing, source=wrong) < 1e-3
            for name in ("class", "gaussian by target")
            for missing in (False, True)
        )


def _inputs(target: Any) -> Any:
    """Inputs as given, (n_cases, n_inputs)."""
    return target.inputs[:-1].T if target.covariates is None else target.covariates


def _targets(target: Any) -> Any:
    """Targets as given, NaN where missing, of a posterior of `parts.target_of`."""
    rows = target.targets
    if target.model.kind == "class":
        values = rows.argmax(axis=0)[:, None].astype(float)
    elif target.model.kind == "survival":
        values = (
            np.linspace(0.1, 4.0, target.n_cases)[:, None]
            * np.where(np.arange(target.n_cases) % 3, 1, -1)[:, None]
        )
    else:
        values = rows.T.copy()
    if target.observed is not None:
        values[~(target.observed.T > 0)] = np.nan
    return values


def error_of_linear_outputs(source: Any = curvature) -> float:
    """Return their largest difference from the outputs of the draws, for a linear network."""
    problem = linear()
    target = problem.target
    mode = np.array([[0.5, -1.0, 0.2, 0.1]])
    draws = mode[:, None] + streams("draws", 1).normal(Purpose.PROPOSAL, (5, 4))
    inputs = problem.design[:, :3]
    ours = source.linear_outputs(target, mode, draws, input_rows(inputs, "float64"))
    return float(np.abs(ours[0].swapaxes(1, 2) - target.outputs(draws[0], inputs)).max())


def test_linear_outputs_of_a_linear_network_are_those_of_the_draws() -> None:
    assert error_of_linear_outputs() < 1e-12


@pytest.mark.parametrize(
    ("old", "new"),
    [("draws - mode[:, None]", "draws"), ("outputs[:, None] + change", "outputs[:, None] - change")],
)
def test_wrong_linear_outputs_are_seen(old: str, new: str) -> None:
    assert error_of_linear_outputs(mutant(curvature, (old, new))) > 1e-2


def test_linear_outputs_follow_the_network_near_the_mode() -> None:
    base = target_of("gaussian")
    target = ApproximatedPosterior.from_spec(base.network, base.model, _inputs(base), base.targets.T)
    mode, _ = position_of(target, 2)
    draws = mode[:, None] + 1e-5 * streams("draws", 2).normal(Purpose.PROPOSAL, (3, target.n_parameters))
    ours = curvature.linear_outputs(target, mode, draws, input_rows(_inputs(base), "float64"))
    assert ours.shape == (2, 3, 2, 11)
    for chain in range(2):
        expected = target.outputs(draws[chain], _inputs(base)).swapaxes(1, 2)
        np.testing.assert_allclose(ours[chain], expected, atol=1e-8)


def test_what_is_not_covered_is_refused_with_a_reason() -> None:
    def reason(name: str, priors: dict[str, str]) -> Any:
        base = target_of(name)
        spec = network(priors, units=(2,), activations=("tanh",))
        spec = type(spec)(base.network.inputs, base.network.outputs, spec.hidden, spec.priors)
        posterior = ApproximatedPosterior.from_spec(spec, base.model, _inputs(base), _targets(base))
        return posterior.why_not_curved

    assert "bh0 has a t prior" in reason("gaussian", {"ih0": "1", "bh0": "1::4", "ho0": "1"})
    assert "noise has t values" in reason("t", {"ih0": "1", "ho0": "1"})
    assert "heteroscedastic" in reason("heteroscedastic", {"ih0": "1", "ho0": "1"})
    assert reason("class", {"ih0": "1", "ho0": "1"}) is None
