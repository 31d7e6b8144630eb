"""Moments through a network against draws, and gradients of log Z against central differences."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from rayfbnn.arrays import Array
from rayfbnn.model import approximated_posterior as module
from rayfbnn.model.approximated_posterior import ApproximatedPosterior
from rayfbnn.model.architecture import ModelSpec, PriorSpec
from rayfbnn.streams import Purpose
from tests.support.mutants import importing, mutant
from tests.support.problems import network, streams

ONE = {"ih0": "1", "bh0": "1", "ho0": "1", "bo": "1"}
TWO = {"ih0": "1", "bh0": "1", "h0h1": "1", "bh1": "1", "ho0": "1", "ho1": "1", "io": "1", "bo": "1"}


def target_of(activation: str, *, kind: str = "binary", deep: bool = False, n_outputs: int = 2) -> Any:
    spec = network(
        TWO if deep else ONE,
        inputs=2,
        outputs=n_outputs,
        units=(3, 2) if deep else (3,),
        activations=(activation,) * (2 if deep else 1),
    )
    random = streams("moments", 1)
    inputs = random.normal(Purpose.PROPOSAL, (4, 2))[0]
    targets = random.normal(Purpose.TARGET_VALUE, (4, n_outputs))[0]
    noise = PriorSpec.parse("0.5:2", key="noise") if kind == "real" else None
    values = targets if kind == "real" else (targets > 0).astype(float)
    return ApproximatedPosterior.from_spec(spec, ModelSpec(kind, noise), inputs, values)


def gaussians(target: Any, n_chains: int = 2) -> tuple[Array, Array]:
    random = streams("gaussians", n_chains)
    mean = random.normal(Purpose.PROPOSAL, (target.n_parameters,))
    return mean, 0.1 + 0.5 * random.uniform(Purpose.COORDINATE, (target.n_parameters,))


@pytest.mark.parametrize("activation", ["relu", "tanh", "softplus"])
def test_the_moments_of_an_output_are_those_of_draws(activation: str) -> None:
    """With one hidden layer only what units have in common, the inputs, is exact already."""
    target = target_of(activation)
    mean, variance = gaussians(target, 1)
    n, at_once = 1_000_000, 100_000
    case = target.rows_by_case[:1]
    random, shape = streams("moments", 1), (at_once, mean.shape[1])
    draws = (random.normal(Purpose.PROPOSAL, shape, index=index)[0] for index in range(n // at_once))
    outputs = np.concatenate(
        [target.outputs(mean + np.sqrt(variance) * each, case[:, :-1])[:, 0] for each in draws]
    )
    ours = module.forward_moments(mean, variance, case, target.wiring)
    error = outputs.std(axis=0) / np.sqrt(n)
    assert (np.abs(outputs.mean(axis=0) - ours.mean[0]) < 4 * error).all()  # false alarms 1e-4
    fourth = ((outputs - outputs.mean(axis=0)) ** 2).std(axis=0) / np.sqrt(n)
    assert (np.abs(outputs.var(axis=0) - ours.variance[0]) < 4 * fourth).all()


def worst_gradient(
    activation: str, *, kind: str = "binary", deep: bool = False, source: ModuleType = module
) -> float:
    target: Any = target_of(activation, kind=kind, deep=deep)
    if source is not module:
        target = _with(target, source)
    mean, variance = gaussians(target)
    _, precisions = target.start(streams("start", 2))
    cases = np.array([1, 3])
    _, by_mean, by_variance = target.case_update(mean, variance, precisions, cases)
    worst = 0.0
    for which, ours in ((0, by_mean), (1, by_variance)):
        for parameter in range(target.n_parameters):
            step = np.zeros(target.n_parameters)
            step[parameter] = 1e-5
            ends = []
            for sign in (1, -1):
                there = [mean, variance]
                there[which] = there[which] + sign * step
                ends.append(target.case_update(*there, precisions, cases)[0])
            worst = max(worst, float(np.abs((ends[0] - ends[1]) / 2e-5 - ours[:, parameter]).max()))
    return worst


def _with(target: Any, source: ModuleType) -> Any:
    """Return the target with the passes of a changed module."""
    from rayfbnn.model import approximated_posterior

    is_whole = source.__name__ == approximated_posterior.__name__
    changed = source if is_whole else importing(approximated_posterior, source)
    kind: Any = changed.ApproximatedPosterior  # type: ignore[attr-defined]
    return kind(**{name: getattr(target, name) for name in target.__dataclass_fields__})


@pytest.mark.parametrize("deep", [False, True], ids=["one layer", "two layers"])
@pytest.mark.parametrize("kind", ["binary", "real"])
@pytest.mark.parametrize(("activation", "limit"), [("relu", 1e-7), ("tanh", 1e-7), ("identity", 1e-7)])
def test_gradients_of_log_z_are_those_of_differences(
    activation: str, limit: float, kind: str, deep: bool
) -> None:
    assert worst_gradient(activation, kind=kind, deep=deep) < limit


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("density / (2 * s)", "density / s"),
        ("2 * mean * above", "mean * above"),
        ("+ 2 * m_z * (v_w @ by_v)[:, :, 0]", ""),
        ("m_z * by_m + 2 * v_z * m_w * by_v", "m_z * by_m"),
        ("((m_w**2 + v_w) @ by_v)", "((m_w**2) @ by_v)"),
    ],
)
def test_a_wrong_gradient_is_seen(old: str, new: str) -> None:
    assert worst_gradient("relu", source=mutant(module, (old, new))) > 1e-4


def test_what_moments_do_not_go_through_is_named() -> None:
    assert target_of("relu").why_not_propagated is None
    assert target_of("relu", deep=True, kind="real").why_not_propagated is None
    assert "sin layers are not covered" in target_of("sin").why_not_propagated
    assert "temperature" in target_of("relu").tempered(0.5).why_not_propagated
    spec = network({**ONE, "th0": "1"}, inputs=2, outputs=1, units=(3,), activations=("relu",))
    target: Any = ApproximatedPosterior.from_spec(spec, ModelSpec("binary"), np.ones((2, 2)), np.ones((2, 1)))
    assert "offsets" in target.why_not_propagated
    spec = network(ONE, inputs=2, outputs=3, units=(3,), activations=("relu",))
    target = ApproximatedPosterior.from_spec(
        spec, ModelSpec("class", classes=3), np.ones((2, 2)), np.ones((2, 1))
    )
    assert "class" in target.why_not_propagated


def test_residuals_are_those_expected_under_the_moments() -> None:
    target = target_of("identity", kind="real")
    mean, variance = gaussians(target, 1)
    draws = (
        mean
        + np.sqrt(variance) * streams("residuals", 1).normal(Purpose.PROPOSAL, (50_000, mean.shape[1]))[0]
    )
    squares = target.residual_squares(draws)
    error = squares.std(axis=0) / np.sqrt(len(squares))
    ours = target.expected_residual_squares(mean, variance)[0]
    assert (np.abs(squares.mean(axis=0) - ours) < 4 * error).all()  # false alarms 1e-4
