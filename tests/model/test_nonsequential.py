"""Connections between hidden layers that skip layers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rayfbnn.model import wiring
from tests.support import problems
from tests.support.model.architectures import assert_batch_independent, assert_right, seen_as_wrong

# Hidden layer 1 is fed by hidden layer 0, and layers 2 and 3 by all before them.
PRIORS = {
    "ti": "0.4",
    "ih0": "0.7:3:4",
    "bh0": "0.7",
    "th0": "0.3",
    "h0h1": "x1:4",
    "h0h2": "x0.8:4:5:6",
    "h1h2": "0.7",
    "bh2": "0.6:3:5",
    "th2": "0.2",
    "ih3": "0.5",
    "h0h3": "0.6::4",
    "h1h3": "0.5:::3",
    "h2h3": "0.4",
    "bh3": "1",
    "ho1": "1",
    "ho3": "x1:3",
    "bo": "1",
}
SPEC = problems.network(PRIORS, units=(4, 3, 2, 3), activations=("tanh", "softplus", "sigmoid", "tanh"))


def test_layers_that_are_skipped_give_the_right_network() -> None:
    assert_right(SPEC, name="skip", models=("gaussian", "t by target", "binary"))
    assert_right(replace(SPEC, outputs=3), name="skip", models=("class",))


def test_layers_that_are_skipped_take_adjustments() -> None:
    spec = replace(SPEC, adjustments={"ah2": 3.0, "ah3": 4.0})
    assert_right(spec, name="skip adjusted", models=("t",))


@pytest.mark.parametrize("absent", ["h0h2", "h1h2", "h0h3", "h1h3", "h2h3", "bh3", "ih3"])
def test_the_network_is_right_without_any_one_group(absent: str) -> None:
    priors = {name: prior for name, prior in SPEC.priors.items() if name != absent}
    assert_right(replace(SPEC, priors=priors), name=f"no {absent}", models=("gaussian",))


def test_skipping_does_not_depend_on_the_batch() -> None:
    assert_batch_independent(SPEC)


def test_a_wrong_source_is_seen() -> None:
    replacement = ('(k + 1, f"h{k}h{layer}")', '(max(k, 1), f"h{k}h{layer}")')
    same = replace(SPEC, hidden=(SPEC.hidden[1],) * 4)  # so that all shapes still fit
    assert seen_as_wrong(same, wiring, replacement)
