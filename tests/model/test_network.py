"""Outputs of networks against the formulas written out unit by unit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from rayfbnn.model.architecture import ACTIVATIONS
from rayfbnn.model.sampled import SampledPosterior
from tests.support import problems
from tests.support.problems import problem, streams

FUNCTIONS: dict[str, Any] = {
    "tanh": math.tanh,
    "softplus": lambda u: math.log1p(math.exp(u)),
    "softplus0": lambda u: math.log1p(math.exp(u)) - math.log(2),
    "identity": lambda u: u,
    "sigmoid": lambda u: 1 / (1 + math.exp(-u)),
    "relu": lambda u: max(u, 0.0),
    "sin": lambda u: math.sqrt(2) * math.sin(math.sqrt(2) * u),
}


def outputs_by_loops(target: SampledPosterior, position: np.ndarray, case: np.ndarray) -> list[float]:
    """Outputs of one network at one case by Neal (2022) eqs. 1-3, unit by unit."""
    groups = target.parameter_layout.views(position)

    def weight(name: str, *places: int) -> float:
        return float(groups[name][places]) if name in groups else 0.0

    inputs = [x + weight("ti", i) for i, x in enumerate(case)]
    layers: list[list[float]] = []
    for number, layer in enumerate(target.network.hidden):
        values = []
        for j in range(layer.units):
            u = weight(f"bh{number}", j) + sum(weight(f"ih{number}", i, j) * x for i, x in enumerate(inputs))
            if number > 0:
                name = f"h{number - 1}h{number}"
                u += sum(weight(name, i, j) * v for i, v in enumerate(layers[-1]))
            values.append(FUNCTIONS[layer.activation](u) + weight(f"th{number}", j))
        layers.append(values)
    result = []
    for j in range(target.network.outputs):
        total = weight("bo", j) + sum(weight("io", i, j) * x for i, x in enumerate(inputs))
        for number, values in enumerate(layers):
            total += sum(weight(f"ho{number}", i, j) * v for i, v in enumerate(values))
        result.append(total)
    return result


def assert_outputs(target: SampledPosterior) -> None:
    position = target.initial_state(streams("outputs", 4), sigmas=None).position
    inputs = target.inputs[:-1].T
    expected = [[outputs_by_loops(target, chain, case) for case in inputs] for chain in position]
    outputs = target.outputs(position, inputs)
    assert outputs.shape == (4, len(inputs), target.network.outputs)
    assert np.allclose(outputs, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_outputs_are_those_of_the_formulas(activation: str) -> None:
    assert_outputs(problem(spec=problems.network(activations=(activation, activation))))


@pytest.mark.parametrize("absent", problems.PRIORS)
def test_outputs_are_right_without_any_one_group(absent: str) -> None:
    priors = {name: text for name, text in problems.PRIORS.items() if name != absent}
    assert_outputs(problem(spec=problems.network(priors)))


def test_outputs_are_right_without_hidden_layers() -> None:
    assert_outputs(problem(spec=problems.network({"ti": "1", "io": "1"}, units=(), activations=())))


def test_outputs_are_right_with_biases_alone() -> None:
    assert_outputs(problem(spec=problems.network({"bo": "1"}, units=(), activations=())))


@pytest.mark.parametrize("activation", [name for name in ACTIVATIONS if name != "sin"])
def test_large_summed_inputs_do_not_overflow(activation: str) -> None:
    spec = problems.network(
        {"ih0": "1", "ho0": "1"}, inputs=1, outputs=1, units=(1,), activations=(activation,)
    )
    for dtype in ("float32", "float64"):
        target = problem(spec=spec, dtype=dtype)
        outputs = target.outputs(np.ones((1, 2), dtype=dtype), np.array([[-1e4], [1e4]]))[0, :, 0]
        limits = {
            "tanh": [-1, 1],
            "sigmoid": [0, 1],
            "softplus": [0, 1e4],
            "softplus0": [-math.log(2), 1e4 - math.log(2)],
            "identity": [-1e4, 1e4],
            "relu": [0, 1e4],
        }
        assert np.allclose(outputs, limits[activation], rtol=1e-6)


def test_outputs_are_the_callers_to_keep() -> None:
    target = problem()
    state = target.initial_state(streams("keep", 4), sigmas=None)
    inputs = target.inputs[:-1].T
    outputs = target.outputs(state.position, inputs)
    energy, gradient = target.potential_and_gradient(state.position, state.precisions)
    kept = outputs.copy(), energy.copy(), gradient.copy()
    target.outputs(-state.position, inputs)
    target.potential_and_gradient(-state.position, state.precisions)
    assert all(np.array_equal(a, b) for a, b in zip((outputs, energy, gradient), kept, strict=True))
