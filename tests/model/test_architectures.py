"""Outputs, gradients and stepsizes of networks of every activation, and without any one group."""

from __future__ import annotations

import pytest

from rayfbnn.model.architecture import ACTIVATIONS
from tests.support import problems
from tests.support.model.architectures import assert_right
from tests.support.problems import MODELS, PRIORS

GAUSSIAN = {name: text.split(":")[0] for name, text in PRIORS.items()}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("priors", ["gaussian", "t"])
def test_networks_of_one_activation_are_right(model: str, activation: str, priors: str) -> None:
    spec = problems.network(
        PRIORS if priors == "t" else GAUSSIAN,
        outputs=3 if model == "class" else 2,
        activations=(activation, activation),
    )
    assert_right(spec, name=f"{activation} {priors}", models=(model,))


@pytest.mark.parametrize("absent", PRIORS)
def test_networks_are_right_without_any_one_group(absent: str) -> None:
    spec = problems.network({name: text for name, text in PRIORS.items() if name != absent})
    assert_right(spec, name=absent, models=("gaussian",))


ODD_NETWORKS = {
    "biases alone": problems.network({"bo": "1"}, units=(), activations=()),
    "no hidden layer": problems.network({"io": "1", "bo": "1"}, units=(), activations=()),
    "offsets of inputs, no hidden layer": problems.network({"ti": "1", "io": "1"}, units=(), activations=()),
    "one output": problems.network(outputs=1),
    "one input, one hidden unit": problems.network(
        {"ih0": "1", "ho0": "1"}, inputs=1, outputs=1, units=(1,), activations=("tanh",)
    ),
    "a hidden layer of biases alone": problems.network(
        {"ti": "1", "bh0": "1", "ho0": "1", "io": "1"}, units=(4,), activations=("tanh",)
    ),
    "a hidden layer that leads nowhere": problems.network(
        {"ih0": "1", "bh0": "1", "th0": "1", "io": "1"}, units=(4,), activations=("tanh",)
    ),
    "a hidden layer that nothing enters": problems.network(
        {"th0": "1", "ho0": "1"}, units=(4,), activations=("tanh",)
    ),
    "three hidden layers, inputs to each": problems.network(
        {"ti": "1", "ih0": "1", "h0h1": "1", "ih1": "1", "h1h2": "1", "ih2": "1", "ho2": "1", "bh1": "1"},
        units=(4, 3, 2),
        activations=("sigmoid", "softplus", "tanh"),
    ),
}


@pytest.mark.parametrize("name", ODD_NETWORKS)
def test_odd_networks_are_right(name: str) -> None:
    assert_right(ODD_NETWORKS[name], name=name, models=("gaussian",))
