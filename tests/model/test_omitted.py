"""Inputs left out of some groups of weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rayfbnn.model import network, stepsize
from tests.support import problems
from tests.support.model.architectures import assert_batch_independent, assert_right, seen_as_wrong

OMITTED: list[dict[str, tuple[int, ...]]] = [
    {"ih0": (1,)},
    {"ih0": (0, 2), "io": (1,)},
    {"ih1": (0,), "io": (0, 1)},
]


def spec_of(omitted: dict[str, tuple[int, ...]], *, outputs: int = 2) -> Any:
    return replace(problems.network(outputs=outputs), omitted=omitted)


@pytest.mark.parametrize("omitted", OMITTED)
def test_a_network_that_leaves_inputs_out_is_right(omitted: dict[str, tuple[int, ...]]) -> None:
    assert_right(spec_of(omitted), name=f"omitted {omitted}", models=("gaussian", "t by target"))
    assert_right(spec_of(omitted, outputs=3), name=f"omitted {omitted}", models=("class",))


def test_a_network_that_leaves_inputs_out_is_right_without_hidden_layers() -> None:
    plain = problems.network({"ti": "1", "io": "x1:3:4", "bo": "1"}, units=(), activations=())
    assert_right(replace(plain, omitted={"io": (1,)}), name="omitted, linear", models=("gaussian",))


def test_adjustments_apply_to_what_is_left() -> None:
    spec = replace(spec_of({"ih0": (0,)}), adjustments={"ah0": 3.0})
    assert_right(spec, name="omitted, adjusted", models=("gaussian",))


def test_scaling_is_by_the_inputs_that_are_left() -> None:
    spec = replace(problems.network({"io": "x2"}, units=(), activations=()), omitted={"io": (1,)})
    (group,) = spec.groups()
    assert group.shape == (2, 2) and group.mean_precision == 2 / 4


def test_leaving_inputs_out_does_not_depend_on_the_batch() -> None:
    assert_batch_independent(spec_of(OMITTED[1]))


MUTANTS = {
    "first inputs for those left": (network, ("total[:, link.units] +=", "total[:, : link.n_units] +=")),
    "first inputs' curvature": (stepsize, ("total[:, link.units] +=", "total[:, : link.n_units] +=")),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_input_is_seen(name: str) -> None:
    module, replacement = MUTANTS[name]
    assert seen_as_wrong(spec_of({"ih0": (0,)}), module, replacement)
