"""Configurations of survival, count and heteroscedastic models, right and wrong."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rayfbnn.describe.configuration import describe
from rayfbnn.errors import ConfigError
from rayfbnn.model.architecture import PriorSpec
from rayfbnn.model.likelihood.survival import SurvivalTargets
from rayfbnn.spec import RunSpec
from tests.support.small import small

SURVIVAL = {"kind": "survival", "hazard": "piecewise", "time_points": [0.5, 1, 2.5]}


def spec(model: dict[str, Any], *overrides: str) -> RunSpec:
    return RunSpec.from_dict(small(model=model), overrides)


RIGHT: dict[str, tuple[dict[str, Any], int, int]] = {
    "count": ({"kind": "count"}, 2, 1),
    "dispersion": ({"kind": "count", "dispersion": "0.3:0.5"}, 2, 1),
    "constant hazard": ({"kind": "survival", "hazard": "constant"}, 2, 1),
    "hazard of pieces": (SURVIVAL, 3, 1),
    "log time": ({**SURVIVAL, "log_time": True}, 3, 1),
    "heteroscedastic": ({"kind": "heteroscedastic"}, 2, 2),
    "noise floor": ({"kind": "heteroscedastic", "noise_floor": 0.01}, 2, 2),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_model_has_the_network_it_needs_and_is_read_back(name: str) -> None:
    model, n_inputs, n_outputs = RIGHT[name]
    parsed = spec(model)
    network = parsed.network
    assert (network.inputs, network.outputs) == (n_inputs, n_outputs)
    assert len(parsed.network_inputs) == n_inputs
    assert RunSpec.from_json(parsed.to_json()) == parsed
    assert model["kind"] in describe(parsed)


def test_the_model_is_what_the_keys_say() -> None:
    model = spec({**SURVIVAL, "log_time": True}).data_model
    assert isinstance(model, SurvivalTargets)
    assert (model.hazard.times, model.hazard.log_time, model.n_cells) == ((0.5, 1.0, 2.5), True, 4)
    assert spec({"kind": "heteroscedastic", "noise_floor": 0.02}).model.noise_floor == 0.02
    assert "0.5, 1, 2.5" in describe(spec(SURVIVAL))
    dispersed = spec({"kind": "count", "dispersion": "0.3:0.5:2"})
    assert dispersed.model.dispersion == PriorSpec(0.3, (0.5, 2.0, math.inf))
    text = describe(dispersed)
    assert 'dispersion "0.3:0.5:2": width 0.3, mean precision 11.1111' in text
    assert "The dispersion has an unknown sigma" in text and "Each target also has its own sigma" in text
    assert "The dispersion" not in describe(spec({"kind": "count"}))


WRONG: list[tuple[dict[str, Any], tuple[str, ...], str, str]] = [
    ({"kind": "survival"}, (), "model.hazard", '"constant" or "piecewise"'),
    ({"kind": "survival", "hazard": "pieces"}, (), "model.hazard", '"constant" or "piecewise"'),
    ({"kind": "survival", "hazard": "piecewise"}, (), "model.time_points", "such as [0.5, 1, 2]"),
    ({**SURVIVAL, "time_points": []}, (), "model.time_points", "increasing"),
    ({**SURVIVAL, "time_points": [1, 1]}, (), "model.time_points", "must increase, got 1 after 1"),
    ({**SURVIVAL, "time_points": [0, 1]}, (), "model.time_points[0]", "a positive number"),
    ({**SURVIVAL, "time_points": ["soon"]}, (), "model.time_points[0]", "a positive number"),
    ({**SURVIVAL, "time_points": [1e300]}, (), "model.time_points", "out of range"),
    ({**SURVIVAL, "log_time": 1}, (), "model.log_time", "true or false"),
    ({**SURVIVAL, "hazard": "constant"}, (), "model.time_points", "does not depend on time"),
    ({"kind": "survival", "hazard": "constant", "log_time": True}, (), "model.log_time", "leave it out"),
    ({**SURVIVAL, "noise": "0.1"}, (), "model.noise", "leave it out"),
    (SURVIVAL, ("data.targets=['y', 'z']",), "data.targets", "exactly one target"),
    (SURVIVAL, ("data.inputs=['time', 'x1']",), "data.inputs", "rename the column"),
    (SURVIVAL, ("data.standardize=['targets']",), "data.standardize", "leave"),
    ({"kind": "count", "noise": "0.1"}, (), "model.noise", "leave it out"),
    (
        {"kind": "real", "noise": "0.1", "dispersion": "0.3"},
        (),
        "model.dispersion",
        "only count targets have",
    ),
    ({"kind": "count", "dispersion": "x0.3"}, (), "model.dispersion", 'width[:group[:target]], such as "0.3'),
    ({"kind": "count", "dispersion": "rect(2)"}, (), "model.dispersion", "width[:group[:target]]"),
    ({"kind": "count", "dispersion": "0:1"}, (), "model.dispersion", "width must be a positive number"),
    ({"kind": "count", "dispersion": "1e-20:1"}, (), "model.dispersion", "width out of range"),
    ({"kind": "count", "dispersion": "0.3:1e-9"}, (), "model.dispersion", "alpha out of range"),
    ({"kind": "count", "dispersion": True}, (), "model.dispersion", "prior of the dispersion"),
    ({"kind": "binary", "time_points": [1]}, (), "model.time_points", "leave it out"),
    ({"kind": "heteroscedastic", "noise_floor": 0}, (), "model.noise_floor", "a positive number"),
    ({"kind": "heteroscedastic", "noise_floor": 1e-30}, (), "model.noise_floor", "out of range"),
    ({"kind": "heteroscedatic"}, (), "model.kind", "did you mean heteroscedastic?"),
]


@pytest.mark.parametrize(("model", "overrides", "key", "right"), WRONG)
def test_a_wrong_model_is_refused_by_name(
    model: dict[str, Any], overrides: tuple[str, ...], key: str, right: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        spec(model, *overrides)
    message = str(caught.value)
    assert any(line.startswith(f"{key}:") and right in line for line in message.splitlines()), message
