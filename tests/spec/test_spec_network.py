"""Networks in configurations: the meaning of all parts beyond plain layers, and refusals that name keys."""

from __future__ import annotations

import copy
import gzip
import math
import tomllib
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from rayfbnn.describe.configuration import describe
from rayfbnn.errors import ConfigError
from rayfbnn.model.architecture import LayerSpec, PriorSpec
from rayfbnn.model.connections import ConnectionTable, Generated
from rayfbnn.model.layout import PrecisionLayout
from rayfbnn.spec import RunSpec
from rayfbnn.store.catalogue import parameter_dims, sigma_plans
from tests.support.small import BASE, PRIORS

DEEP: dict[str, Any] = {
    "network": {
        "hidden": [{"units": 4, "activation": "tanh"}, {"units": 3, "activation": "tanh"}],
        "priors": {"ih0": "1:0.2", "bh0": "1:0.2", "h0h1": "x1:0.2", "bh1": "1", "ho1": "x1:0.2", "bo": "1"},
    }
}


def deep(*overrides: str) -> RunSpec:
    return RunSpec.from_dict({**BASE, **DEEP}, overrides)


def test_adjustments_are_alphas_among_the_priors() -> None:
    spec = deep("network.priors.ah0=3", "network.priors.ao=0.5", 'network.priors.ah1="-"')
    assert spec.network.adjustments == {"ah0": 3.0, "ao": 0.5}
    assert set(spec.network.priors) == set(DEEP["network"]["priors"])
    text = describe(spec)
    assert "adjustments of hidden layer 0" in text and "adjustments of the outputs" in text
    assert RunSpec.from_json(spec.to_json()) == spec


def test_adjustments_have_an_array_of_their_own_in_the_store() -> None:
    spec = deep("network.priors.ah1=3", "network.priors.ao=2")
    plans = sigma_plans(PrecisionLayout.from_specs(spec.network, spec.model, 1))
    dims = {plan.name: plan.dims for plan in plans if plan.name.startswith("adjustment")}
    assert dims == {"adjustment_ah1": ("hidden1",), "adjustment_ao": ("output",)}


def test_ah_is_ah0_with_one_hidden_layer() -> None:
    assert RunSpec.from_dict(BASE, ("network.priors.ah=3",)).network.adjustments == {"ah0": 3.0}


def test_fbms_short_names_are_those_of_its_documentation() -> None:
    short = {"ih": "1", "bh": "2", "hh": "3", "bh1": "4", "th": "5", "h0o": "6", "ho": "7", "bo": "8"}
    raw = {**BASE, "network": {"hidden": DEEP["network"]["hidden"], "priors": short}}
    spec = RunSpec.from_dict(raw, ("network.omit.ih=['x1']",))
    full = ["ih0", "bh0", "h0h1", "bh1", "th0", "ho0", "ho1", "bo"]
    assert spec.network_keys.priors == dict(zip(full, short.values(), strict=True))
    assert spec.network_keys.omit == {"ih0": ("x1",)}
    assert RunSpec.from_json(spec.to_json()) == spec
    raw["network"] = {**raw["network"], "priors": {**short, "hh1": "3"}}
    with pytest.raises(ConfigError, match=r"network.priors.hh1: names the same group as hh,"):
        RunSpec.from_dict(raw)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ("omit.ih=['x1']", "omit.ih0=['x2']"),
            'omit.ih0: names the same group as ih, got ["x2"]; give only one',
        ),
        (
            ("omit.ih0=['x1']", "omit.ih=['x2']"),
            'omit.ih: names the same group as ih0, got ["x2"]; give only one',
        ),
        (
            ("connections.hh={generator='dense'}", "connections.hh1={generator='dense'}"),
            'connections.hh1: names the same group as hh, got {"generator": "dense"}; give only one',
        ),
    ],
)
def test_a_group_under_two_names_is_refused(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        deep(*(f"network.{key}" for key in overrides))
    assert str(caught.value).startswith(f"network.{message}")


INFINITE = math.inf
# FBM's notation (its prior.doc): a string, and the record for it.
NOTATION = {
    "0.05": (0.05, (INFINITE, INFINITE, INFINITE), False),
    "0.05:0.5": (0.05, (0.5, INFINITE, INFINITE), False),
    "0.05:0.5:0.5": (0.05, (0.5, 0.5, INFINITE), False),
    "0.05:0.5:0.5:3": (0.05, (0.5, 0.5, 3), False),
    "x0.05:0.5::3": (0.05, (0.5, INFINITE, 3), True),
    "x0.3:::4": (0.3, (INFINITE, INFINITE, 4), True),
    "x0.3::4": (0.3, (INFINITE, 4, INFINITE), True),
    "0.3:": (0.3, (INFINITE, INFINITE, INFINITE), False),
    "0.3:2:": (0.3, (2, INFINITE, INFINITE), False),
    "+": (1e10, (INFINITE, INFINITE, INFINITE), False),
    "+:0.5": (1e10, (0.5, INFINITE, INFINITE), False),
    ".1:.2": (0.1, (0.2, INFINITE, INFINITE), False),
    "1e-2:1E1": (0.01, (10, INFINITE, INFINITE), False),
}


@pytest.mark.parametrize("text", NOTATION)
def test_fbms_notation_means_what_it_means_there(text: str) -> None:
    width, alphas, is_scaled = NOTATION[text]
    assert PriorSpec.parse(text, key="ih0") == PriorSpec(width, alphas, is_scaled)
    spec = RunSpec.from_dict(BASE, (f"network.priors.io='{text}'",))
    assert spec.network.priors["io"] == PriorSpec(width, alphas, is_scaled)


def test_biases_have_a_group_and_a_parameter_level() -> None:
    for text, alphas in (("1:2:3", (2, INFINITE, 3)), ("1::3", (INFINITE, INFINITE, 3))):
        assert PriorSpec.parse(text, key="bh0", two_levels=True).alphas == alphas


def test_a_group_may_skip_a_layer() -> None:
    hidden = (
        "network.hidden=[{units=4,activation='tanh'},{units=3,activation='tanh'},{units=2,activation='relu'}]"
    )
    priors = {"ih0": "1", "h0h1": "1", "h1h2": "x1", "h0h2": "x1:2", "ho2": "1"}
    spec = RunSpec.from_dict({**BASE, "network": {"hidden": [], "priors": priors}}, (hidden,))
    assert "weights, hidden layer 0 to hidden layer 2" in describe(spec)
    assert parameter_dims("h0h2") == ("hidden0", "hidden2")


def test_layers_have_groups_and_products() -> None:
    first, second = "{units=6,activation='softmax',groups='i % 3'}", "{units=6,activation='sin',product=0}"
    spec = deep(f"network.hidden=[{first},{second}]")
    assert spec.network.hidden == (LayerSpec(6, "softmax", "i % 3"), LayerSpec(6, "sin", product=0))
    assert "6 softmax (groups i % 3) - 6 sin times hidden layer 0" in describe(spec)
    assert RunSpec.from_json(spec.to_json()) == spec


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"units": 0, "activation": "tanh"}, "units: must be a whole number from 1 to 1000000, got 0"),
        ({"units": 6, "activation": "tanh", "groups": "i // 3"}, "groups: only softmax and normalize layers"),
        (
            {"units": 6, "activation": "softmax", "groups": "i // 4"},
            'n a divisor of the 6 units.*got "i // 4"',
        ),
    ],
)
def test_a_layer_that_is_made_in_python_is_checked_as_well(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LayerSpec(**settings)


def test_units_without_an_activation_are_tanh_units_as_in_fbm() -> None:
    spec = deep("network.hidden=[{units=4},{units=3}]")
    assert [layer.activation for layer in spec.network.hidden] == ["tanh", "tanh"]
    assert spec == deep("network.hidden=[{units=4,activation='tanh'},{units=3,activation='tanh'}]")


def test_the_text_that_a_record_does_not_have_is_kept_as_it_was_written() -> None:
    spec = deep("network.priors.bo='1e0:2'", "network.omit.ih=['x2']", "network.priors.ah1='-'")
    assert spec.network.priors["bo"] == PriorSpec(1.0, (2, INFINITE, INFINITE))
    assert spec.to_dict()["network"]["priors"]["bo"] == "1e0:2"
    assert spec.to_dict()["network"]["omit"] == {"ih0": ["x2"]}
    assert "ah1" not in spec.to_dict()["network"]["priors"]


def test_a_factor_is_a_use_of_a_layer() -> None:
    layers = "network.hidden=[{units=3,activation='tanh'},{units=3,activation='tanh',product=0}]"
    priors = "network.priors={ih0='1',ih1='1',ho1='1'}"
    assert deep(layers, priors).network.n_parameters == 6 + 6 + 3


# hidden layer 0 of 4 units to hidden layer 1 of 3, from 2 inputs
CONV = "network.connections.h0h1={generator='conv1d',size=4,channels=1,filters=1,window=2}"
PLAIN = ("network.priors.h0h1=1:0.2",)


def test_inputs_are_left_out_by_name() -> None:
    spec = deep("network.omit.ih0=['x1']")
    assert spec.network.omitted == {"ih0": (0,)}
    assert spec.network.groups()[0].shape == (1, 4)
    assert "without x1" in describe(spec)
    assert RunSpec.from_json(spec.to_json()) == spec
    assert RunSpec.from_dict(tomllib.loads(spec.to_toml())) == spec


def test_connections_come_from_a_generator() -> None:
    spec = deep(CONV, *PLAIN, "network.connections.bh1={generator='channels',size=3}")
    connections = spec.network.connections
    assert connections["h0h1"] == Generated("convolution", (1, 4), window=(1, 2))
    assert connections["bh1"] == Generated("channels", (1, 3))
    assert spec.network.n_parameters == 8 + 4 + 2 + 1 + 3 + 1
    assert "configured (conv1d)" in describe(spec)
    assert RunSpec.from_json(spec.to_json()) == spec
    assert RunSpec.from_dict(tomllib.loads(spec.to_toml())) == spec


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_connections_come_from_a_file_and_stay_with_the_specification(tmp_path: Path, suffix: str) -> None:
    table = pd.DataFrame({"source": [0, 3, 1], "destination": [0, 1, 2], "weight": [0, 0, 1]})
    path = tmp_path / f"connections.{suffix}"
    table.to_csv(path, index=False) if suffix == "csv" else table.to_parquet(path)
    raw = {**BASE, **copy.deepcopy(DEEP)}
    raw["network"]["connections"] = {"h0h1": {"file": path.name}}
    raw["network"]["priors"]["h0h1"] = "1:0.2"
    spec = RunSpec.from_dict(raw, base_dir=tmp_path)
    assert spec.network.connections["h0h1"] == ConnectionTable((0, 1, 2), (0, 0, 1), (0, 3, 1))
    path.unlink()
    assert RunSpec.from_json(spec.to_json()) == spec
    assert spec.with_iterations(3).network == spec.network


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("from,to,weight\n0,0,0\n", "columns must be"),
        ("source,destination,weight\n0,0\n", "counted from 0"),
        ("source,destination,weight\n0,0,0,0\n", "has 4 cells"),
        ("source,destination,weight\n0,0,x\n", "counted from 0"),
        ("source,destination,weight\n-1,0,0\n", "counted from 0"),
        ("source,destination,weight\n0,0.5,0\n", "counted from 0"),
        ("source,destination,weight\n", "at least one connection"),
        ("", "cannot be read"),
        (None, "no such file"),
    ],
)
def test_a_wrong_file_of_connections_is_named(tmp_path: Path, text: str | None, right: str) -> None:
    if text is not None:
        (tmp_path / "wrong.csv").write_text(text)
    raw = {**BASE, **copy.deepcopy(DEEP)}
    raw["network"]["connections"] = {"h0h1": {"file": "wrong.csv"}}
    raw["network"]["priors"]["h0h1"] = "1:0.2"
    with pytest.raises(ConfigError, match=right) as caught:
        RunSpec.from_dict(raw, base_dir=tmp_path)
    assert str(caught.value).startswith("network.connections.h0h1")


def test_a_compressed_file_of_connections_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    (tmp_path / "c.csv.gz").write_bytes(gzip.compress(b"source,destination,weight\n0,0,0\n"))
    raw = {**BASE, "network": {**BASE["network"], "connections": {"ih0": {"file": "c.csv.gz"}}}}
    with pytest.raises(ConfigError, match="or is compressed; use a generator"):
        RunSpec.from_dict(raw, base_dir=tmp_path)


FIRST, SECOND = "network.hidden[0]", "network.hidden[1]"

# Overrides that make the network of two hidden layers wrong, the key that is named, and what the message must
# say.
JOINED, BIASES = "network.connections.h0h1", "network.connections.bh1"
WRONG: list[tuple[tuple[str, ...], str, str]] = [
    (("network.priors.ah0=1:2",), f"{PRIORS}.ah0", "only an alpha"),
    (("network.priors.ah0=0",), f"{PRIORS}.ah0", "only an alpha"),
    (("network.priors.ao=x3",), f"{PRIORS}.ao", "only an alpha"),
    (("network.priors.ah2=3",), f"{PRIORS}.ah2", "possible groups"),
    (("network.hidden[0].groups='i // 2'",), f"{FIRST}.groups", "only softmax and normalize"),
    (
        ("network.hidden[0].activation=softmax", "network.hidden[0].groups='i // 3'"),
        f"{FIRST}.groups",
        "divisor",
    ),
    (
        ("network.hidden[0].activation=normalize", "network.hidden[0].groups='4'"),
        f"{FIRST}.groups",
        "divisor",
    ),
    (("network.hidden[0].activation=normalize", "network.hidden[0].groups=4"), f"{FIRST}.groups", "divisor"),
    (("network.hidden[0].activation=softmx",), f"{FIRST}.activation", "did you mean softmax"),
    (("network.hidden[0].product=0",), f"{FIRST}.product", "earlier"),
    (("network.hidden[1].product=1",), f"{SECOND}.product", "earlier"),
    (("network.hidden[1].product=0",), f"{SECOND}.product", "the same number, or one"),
    (("network.hidden[1].product=x",), f"{SECOND}.product", "earlier"),
    (("network.omit.ih0=['x3']",), "network.omit.ih0", "the inputs are x1, x2"),
    (("network.omit.ih0=['x1','x1']",), "network.omit.ih0", "twice"),
    (("network.omit.ih0=['x1','x2']",), "network.omit.ih0", "omits every input"),
    (("network.omit.ho1=['x1']",), "network.omit.ho1", "only weights from the inputs"),
    (("network.omit.io=['x1']",), "network.omit.io", "no prior"),
    (("network.omit.ih0=x1",), "network.omit", "inputs left out"),
    ((CONV,), f"{PRIORS}.h0h1", "leave out the x"),
    ((CONV, "network.priors.h0h1=1:2:3"), f"{PRIORS}.h0h1", "no alpha of source units"),
    ((CONV, *PLAIN, "network.priors.ah1=3"), f"{PRIORS}.ah1", "configured connections"),
    ((CONV, *PLAIN, JOINED + ".size=5"), JOINED, "make 5 source units"),
    ((CONV, *PLAIN, JOINED + ".window=3"), JOINED, "leads to 2 units"),
    ((CONV, *PLAIN, JOINED + ".window=7"), JOINED + ".window", "larger"),
    ((CONV, *PLAIN, JOINED + ".padding=2"), JOINED + ".padding", "smaller"),
    ((CONV, *PLAIN, JOINED + ".stride=0"), JOINED + ".stride", "at least 1"),
    ((CONV, *PLAIN, JOINED + ".size=[2,2]"), JOINED + ".size", "whole number"),
    ((CONV, *PLAIN, JOINED + ".kernel=2"), JOINED + ".kernel", "unknown key"),
    ((CONV, *PLAIN, JOINED + ".generator=conv1"), JOINED + ".generator", "conv1d"),
    ((JOINED + "={generator='conv1d',size=4}", *PLAIN), JOINED + ".filters", "missing"),
    ((BIASES + "={generator='conv1d',size=4,filters=1,window=2}",), BIASES, "channels"),
    ((JOINED + "={generator='channels',size=3}", *PLAIN), JOINED, "a table"),
    (
        ("network.connections.th0={source=[0],destination=[0],weight=[0]}",),
        "network.connections.th0",
        "no such group",
    ),
    (
        ("network.connections.io={source=[0],destination=[0],weight=[0]}",),
        "network.connections.io",
        "no prior",
    ),
    ((JOINED + "={source=[4],destination=[0],weight=[0]}", *PLAIN), JOINED + ".source", "4 units"),
    ((JOINED + "={source=[0],destination=[3],weight=[0]}", *PLAIN), JOINED + ".destination", "3 units"),
    ((JOINED + "={source=[0],destination=[0,1],weight=[0,0]}", *PLAIN), JOINED, "one length"),
    ((JOINED + "={destination=[0],weight=[0]}", *PLAIN), JOINED + ".source", "missing"),
    ((BIASES + "={source=[0],destination=[0],weight=[0]}",), BIASES + ".source", "no sources"),
    ((JOINED + "={source=[0],destination=[0],weight=[-1]}", *PLAIN), JOINED + ".weight", "counted from 0"),
    ((JOINED + "={}", *PLAIN), JOINED, "at least one"),
    ((JOINED + "=3", *PLAIN), "network.connections", "configured connections"),
    (("network.priors.h1h0=1",), f"{PRIORS}.h1h0", "possible groups"),
    (("network.priors.h0h0=1",), f"{PRIORS}.h0h0", "possible groups"),
    (("network.priors.h0h2=1",), f"{PRIORS}.h0h2", "possible groups"),
]


@pytest.mark.parametrize(("overrides", "key", "right"), WRONG, ids=lambda value: str(value)[:60])
def test_what_makes_no_sense_is_refused_by_name(overrides: tuple[str, ...], key: str, right: str) -> None:
    with pytest.raises(ConfigError) as caught:
        deep(*overrides)
    assert str(caught.value).startswith(f"{key}"), caught.value
    assert right in str(caught.value)
