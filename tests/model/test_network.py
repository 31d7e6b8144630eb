"""Outputs of networks against the formulas written out unit by unit, and as sums of contributions."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from rayfbnn.arrays import Array
from rayfbnn.model.architecture import ACTIVATIONS, LayerSpec, NetworkSpec
from rayfbnn.model.connections import ConnectionTable
from rayfbnn.model.layout import ParameterLayout
from rayfbnn.model.network import Buffers, forward, input_rows, output_contributions, outputs_alone
from rayfbnn.model.wiring import Wiring
from rayfbnn.streams import Purpose
from tests.support import problems
from tests.support.problems import problem, streams


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


@pytest.mark.parametrize("n_cases", [1, 2047, 2048, 2049, 5000])
def test_outputs_alone_are_those_of_all_cases_at_once(n_cases: int) -> None:
    wiring = Wiring.from_network(problems.network())
    draws, n_parameters = streams("alone", 3), ParameterLayout.from_network(problems.network()).n_parameters
    position = draws.normal(Purpose.PROPOSAL, (n_parameters,))
    inputs = input_rows(draws.normal(Purpose.PROPOSAL, (n_cases, wiring.units[0]), index=1)[0], "float64")
    at_once = forward(position, inputs, wiring, buffers=Buffers()).outputs
    buffers = Buffers()
    for given in (inputs, np.repeat(inputs[None], 3, axis=0)):
        alone = outputs_alone(position, given, wiring, buffers=buffers)
        np.testing.assert_allclose(alone, at_once, rtol=1e-13, atol=1e-13)


# Small whole numbers throughout, so that sums of products have no rounding in whatever order they are taken.
N_CASES = 5
WHOLE = problems.network(activations=("relu", "identity"))
SOME_WEIGHTS = ConnectionTable(destinations=(0, 1, 1), weights=(0, 0, 1), sources=(0, 2, 1))
GROUPS = {"h0": "ho0", "h1": "ho1", "inputs": "io", "bias": "bo"}


def without(*absent: str) -> NetworkSpec:
    priors = {name: text for name, text in problems.PRIORS.items() if name not in absent}
    return problems.network(priors, activations=("relu", "identity"))


NETWORKS = {
    "every group": WHOLE,
    "no inputs": without("io"),
    "no biases": without("bo"),
    "neither": without("io", "bo"),
    "one layer": without("ho0", "io"),
    "inputs alone": problems.network({"ti": "1", "io": "1", "bo": "1"}, units=(), activations=()),
    "biases alone": problems.network({"bo": "1"}, units=(), activations=()),
    "omitted inputs": replace(WHOLE, omitted={"io": (1,)}),
    "configured layer": replace(WHOLE, connections={"ho1": SOME_WEIGHTS}),
    "configured inputs": replace(WHOLE, connections={"io": SOME_WEIGHTS}),
    "configured biases": replace(WHOLE, connections={"bo": ConnectionTable(destinations=(1,), weights=(0,))}),
    "products": replace(WHOLE, hidden=(WHOLE.hidden[0], LayerSpec(4, "identity", product=0))),
}


def positions(network: NetworkSpec) -> Array:
    n_parameters = ParameterLayout.from_network(network).n_parameters
    return np.round(2 * streams("whole", 3).normal(Purpose.PROPOSAL, (n_parameters,)))


def evaluated(network: NetworkSpec, position: Array) -> tuple[Array, dict[str, Array]]:
    """Outputs and contributions at some cases, (3, n_outputs, N_CASES) each."""
    inputs = np.arange(N_CASES * network.inputs).reshape(N_CASES, -1) % 7 - 3.0
    wiring = Wiring.from_network(network)
    activity = forward(position, input_rows(inputs, "float64"), wiring, buffers=Buffers())
    return activity.outputs, output_contributions(position, activity, wiring)


@pytest.mark.parametrize("name", NETWORKS)
def test_contributions_add_up_to_the_outputs_exactly(name: str) -> None:
    network = NETWORKS[name]
    outputs, contributions = evaluated(network, positions(network))
    np.testing.assert_array_equal(sum(contributions.values()), outputs)
    assert np.abs(outputs).max() > 1


@pytest.mark.parametrize("name", NETWORKS)
def test_a_contribution_is_the_output_where_all_other_weights_into_the_outputs_are_zero(name: str) -> None:
    """FBM finds the predictions of some hidden layers alone in this way."""
    network = NETWORKS[name]
    _, contributions = evaluated(network, positions(network))
    assert list(contributions) == [source for source, group in GROUPS.items() if group in network.priors]
    slices = ParameterLayout.from_network(network).slices
    for source, contribution in contributions.items():
        position = positions(network)
        for other, group in GROUPS.items():
            if group in slices and other != source:
                position[:, slices[group]] = 0
        np.testing.assert_array_equal(contribution, evaluated(network, position)[0])
