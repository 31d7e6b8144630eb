"""Configurations are read as intended, and their differences are named.

Configurations of survival, count and heteroscedastic models, right and wrong.
"""

from __future__ import annotations

import copy
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from rayfbnn.describe.configuration import describe
from rayfbnn.errors import ConfigError
from rayfbnn.mcmc.operations import OPERATIONS, Heatbath, Hybrid, Repeat, SampleSigmas
from rayfbnn.model.architecture import PriorSpec
from rayfbnn.model.likelihood.survival import SurvivalTargets
from rayfbnn.spec import RunSpec, differences
from rayfbnn.spec.written import SECTIONS
from tests.support.small import BASE, CLASS, HYBRID, base, small

ROBOT_ARM = Path(__file__).parents[2] / "examples" / "robot_arm" / "hybrid.toml"


# Right configurations are read as intended.


def test_robot_arm_reads_as_neal_gives_it() -> None:
    spec = RunSpec.from_toml(ROBOT_ARM)
    network = spec.network
    assert [(group.name, group.shape) for group in network.groups()] == [
        ("ih0", (2, 16)),
        ("bh0", (16,)),
        ("ho0", (16, 2)),
        ("bo", (2,)),
    ]
    assert network.n_parameters == 82
    assert network.priors["ho0"].mean_precision(16) == 16
    assert spec.train_path == ROBOT_ARM.parent / "train.csv"
    assert spec.train_path.exists()


def test_operations_are_the_records_of_the_sampler() -> None:
    assert base().phase[1].operations == (
        SampleSigmas(),
        Heatbath(),
        Repeat(3, (Hybrid(steps=10, stepsize=0.3),)),
    )


def test_overrides_are_read_as_toml_or_else_as_text() -> None:
    spec = base(
        "seed=9",
        "network.priors.bo=2",  # a number is a width
        "network.priors.ih0=10:20:30",  # a time of day in TOML
        "network.priors.bh0='3'",
        "data.train=other.csv",
        "data.inputs=['a', 'b', 'c']",
        "phase[-1].iterations=3",
        "phase.0.iterations = 4",
        "initial={from_prior=true}",
    )
    assert spec.seed == 9
    assert spec.network_keys.priors == {"ih0": "10:20:30", "bh0": "3", "ho0": "x1:0.2", "bo": "2"}
    assert (spec.data.train, spec.data.inputs) == ("other.csv", ("a", "b", "c"))
    assert [phase.iterations for phase in spec.phase] == [4, 3]
    assert spec.initial.from_prior and spec.initial.sigmas is None


def test_an_override_leaves_the_callers_dictionary_alone() -> None:
    before = copy.deepcopy(BASE)
    base("seed=9", "phase[0].iterations=1")
    assert before == BASE


def test_one_hidden_layer_may_leave_out_its_number() -> None:
    short = {"ih": "1:0.2", "bh": "1:0.2", "ho": "x1:0.2", "bo": "1"}
    assert RunSpec.from_dict({**BASE, "network": {**BASE["network"], "priors": short}}) == base()


def test_a_dash_is_the_same_as_leaving_the_group_out() -> None:
    spec = base("network.priors.bh0=-")
    assert list(spec.network_keys.priors) == list(spec.network.priors) == ["ih0", "ho0", "bo"]


def test_a_class_model_has_an_output_for_each_class() -> None:
    assert base(*CLASS).network.outputs == 3
    assert base("data.targets=['y','z']").network.outputs == 2


def test_counts_of_draws_follow_the_phases() -> None:
    spec = base("phase[0].keep=warmup")
    assert (spec.warmup_draws, spec.kept_draws, spec.total_iterations) == (5, 20, 25)
    longer = spec.with_iterations(50)
    assert (longer.warmup_draws, longer.kept_draws, longer.total_iterations) == (5, 50, 55)
    assert longer.train_path == spec.train_path


def test_more_partitions_than_cases_are_refused() -> None:
    spec = base(f"{HYBRID}.partitions=4")
    spec.check_data(4)
    with pytest.raises(ConfigError, match=r"operations\[0\].partitions: must be at most 3, .* got 4"):
        spec.check_data(3)


def test_batches_larger_than_the_data_are_refused() -> None:
    spec = base(f"{HYBRID}={{op='sghmc',steps=1,stepsize=1,batch=4}}")
    spec.check_data(4)
    with pytest.raises(ConfigError, match=r"operations\[0\].batch: must be at most 3, .* got 4"):
        spec.check_data(3)


# Each changed leaf shows in `differences`, and nothing else does.


@pytest.mark.parametrize(
    ("override", "difference"),
    [
        ("seed=8", "seed: was 7, now 8"),
        ("dtype=float64", 'dtype: was "float32", now "float64"'),
        ("device=gpu", 'device: was "cpu", now "gpu"'),
        ("data.train=b.csv", 'data.train: was "train.csv", now "b.csv"'),
        ("data.inputs=['x1']", 'data.inputs: was ["x1", "x2"], now ["x1"]'),
        ("network.priors.ih0=2", 'network.priors.ih0: was "1:0.2", now "2"'),
        ("network.priors.th0=2", 'network.priors.th0: was absent, now "2"'),
        ("network.hidden[0].units=9", "network.hidden[0].units: was 8, now 9"),
        ("initial.sigmas=0.6", "initial.sigmas: was 0.5, now 0.6"),
        ("phase[1].iterations=21", "phase[1].iterations: was 20, now 21"),
        (f"{HYBRID}.stepsize=0.2", f"{HYBRID}.stepsize: was 0.3, now 0.2"),
        ("model.noise=0.1:0.3", 'model.noise: was "0.1:0.2", now "0.1:0.3"'),
    ],
)
def test_a_difference_is_named_with_both_values(override: str, difference: str) -> None:
    assert differences(base(), base(override)) == [difference]


def test_equal_specs_have_no_differences() -> None:
    assert differences(base(), base()) == []


def test_every_key_has_words_for_what_would_be_right() -> None:
    assert all(right.words for keys in SECTIONS.values() for right in keys.values())
    assert {field.name for kind in OPERATIONS for field in fields(kind)} <= set(SECTIONS["operations",])


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
