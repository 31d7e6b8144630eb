"""Networks in configurations: what the parts beyond plain layers mean, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from rayfbnn.architecture import LayerSpec
from rayfbnn.describe import describe
from rayfbnn.errors import ConfigError
from rayfbnn.model.layout import PrecisionLayout
from rayfbnn.run.catalogue import parameter_dims, sigma_plans
from rayfbnn.spec import RunSpec
from tests.test_spec import BASE, PRIORS

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
    assert spec.network_spec().adjustments == {"ah0": 3.0, "ao": 0.5}
    assert set(spec.network_spec().priors) == set(DEEP["network"]["priors"])
    text = describe(spec)
    assert "adjustments of hidden layer 0" in text and "adjustments of the outputs" in text
    assert RunSpec.from_json(spec.to_json()) == spec


def test_adjustments_have_an_array_of_their_own_in_the_store() -> None:
    spec = deep("network.priors.ah1=3", "network.priors.ao=2")
    plans = sigma_plans(PrecisionLayout.of(spec.network_spec(), spec.model_spec(), 1))
    dims = {plan.name: plan.dims for plan in plans if plan.name.startswith("adjustment")}
    assert dims == {"adjustment_ah1": ("hidden1",), "adjustment_ao": ("output",)}


def test_ah_is_ah0_with_one_hidden_layer() -> None:
    assert RunSpec.from_dict(BASE, ("network.priors.ah=3",)).network_spec().adjustments == {"ah0": 3.0}


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
    assert spec.network_spec().hidden == (LayerSpec(6, "softmax", "i % 3"), LayerSpec(6, "sin", product=0))
    assert "6 softmax (groups i % 3) - 6 sin times hidden layer 0" in describe(spec)
    assert RunSpec.from_json(spec.to_json()) == spec


def test_a_factor_is_a_use_of_a_layer() -> None:
    layers = "network.hidden=[{units=3,activation='tanh'},{units=3,activation='tanh',product=0}]"
    priors = "network.priors={ih0='1',ih1='1',ho1='1'}"
    assert deep(layers, priors).network_spec().n_parameters == 6 + 6 + 3


FIRST, SECOND = "network.hidden[0]", "network.hidden[1]"

# Overrides that make the network of two hidden layers wrong, the key named, what the message must say.
WRONG: list[tuple[tuple[str, ...], str, str]] = [
    (("network.priors.ah0=1:2",), f"{PRIORS}.ah0", "an alpha alone"),
    (("network.priors.ah0=0",), f"{PRIORS}.ah0", "an alpha alone"),
    (("network.priors.ah0=-3",), f"{PRIORS}.ah0", "an alpha alone"),
    (("network.priors.ao=inf",), f"{PRIORS}.ao", "an alpha alone"),
    (("network.priors.ao=nan",), f"{PRIORS}.ao", "an alpha alone"),
    (("network.priors.ao=x3",), f"{PRIORS}.ao", "an alpha alone"),
    (("network.priors.ah2=3",), f"{PRIORS}.ah2", "possible groups"),
    (("network.priors.a=3",), f"{PRIORS}.a", "possible groups"),
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
    (("network.hidden[1].product=-1",), f"{SECOND}.product", "earlier"),
    (("network.hidden[1].product=0",), f"{SECOND}.product", "as many, or one"),
    (("network.hidden[1].product=x",), f"{SECOND}.product", "earlier"),
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
