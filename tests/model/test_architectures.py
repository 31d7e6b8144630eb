"""Outputs, gradients and stepsizes of networks of every architecture agree with the formulas."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rayfbnn.model import network, stepsize, wiring
from rayfbnn.model.architecture import ACTIVATIONS, LayerSpec, NetworkSpec, Subgroups
from tests.support import problems
from tests.support.model.architectures import assert_batch_independent, assert_right, seen_as_wrong
from tests.support.problems import MODELS, PRIORS, parse, problem, streams

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


def layers(*hidden: LayerSpec, outputs: int = 2) -> NetworkSpec:
    return replace(problems.network(outputs=outputs), hidden=hidden)


def omitting(omitted: dict[str, tuple[int, ...]], *, outputs: int = 2) -> NetworkSpec:
    return replace(problems.network(outputs=outputs), omitted=omitted)


# Hidden layer 1 is fed by hidden layer 0, and layers 2 and 3 by all before them.
SKIPPING = {
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
SKIPS = problems.network(SKIPPING, units=(4, 3, 2, 3), activations=("tanh", "softplus", "sigmoid", "tanh"))
SIN, SOFTMAX = LayerSpec(4, "sin"), LayerSpec(4, "softmax", "i % 2")
NORMALIZE, GATE = LayerSpec(4, "normalize", "i // 2"), LayerSpec(4, "tanh", product=0)
TANH = LayerSpec(4, "tanh")
GROUPED: list[Any] = [
    (activation, groups)
    for activation in ("softmax", "normalize")
    for groups in (None, "i // 3", "i % 3", "i % 2")
]
PRODUCTS = NetworkSpec(
    3,
    2,
    (LayerSpec(3, "tanh"), LayerSpec(3, "sigmoid", product=0), LayerSpec(3, "identity", product=0)),
    parse(
        {
            "ti": "1",
            "ih0": "1",
            "th0": "0.5",
            "h0h1": "1",
            "ih1": "1",
            "th1": "0.3",
            "ih2": "1",
            "ho2": "1",
            "ho0": "1",
        }
    ),
)
PRODUCT_OF_PRODUCT = replace(PRODUCTS, hidden=(*PRODUCTS.hidden[:2], LayerSpec(3, "identity", product=1)))
OMITTED: list[dict[str, tuple[int, ...]]] = [
    {"ih0": (1,)},
    {"ih0": (0, 2), "io": (1,)},
    {"ih1": (0,), "io": (0, 1)},
]
LINEAR = problems.network({"ti": "1", "io": "x1:3:4", "bo": "1"}, units=(), activations=())
ARCHITECTURES: dict[str, tuple[NetworkSpec, tuple[str, ...]]] = {
    **{name: (spec, ("gaussian",)) for name, spec in ODD_NETWORKS.items()},
    "sin": (layers(SIN, SIN), ("gaussian", "t by target")),
    **{
        f"product {activation} {units}": (
            layers(LayerSpec(units, "tanh"), LayerSpec(4, activation, product=0)),
            ("gaussian", "t by target"),
        )
        for activation in ("tanh", "sin", "normalize", "softmax", "softplus")
        for units in (4, 1)
    },
    "two products of one layer": (PRODUCTS, ("gaussian",)),
    "a product of a product": (PRODUCT_OF_PRODUCT, ("gaussian",)),
    "a layer that is a factor alone": (
        NetworkSpec(3, 2, (TANH, GATE), parse({"ih0": "1", "ih1": "1", "ho1": "1"})),
        ("gaussian",),
    ),
    **{f"omitted {omitted}": (omitting(omitted), ("gaussian", "t by target")) for omitted in OMITTED},
    **{f"omitted {omitted}, class": (omitting(omitted, outputs=3), ("class",)) for omitted in OMITTED},
    "omitted, linear": (replace(LINEAR, omitted={"io": (1,)}), ("gaussian",)),
    "omitted, adjusted": (replace(omitting({"ih0": (0,)}), adjustments={"ah0": 3.0}), ("gaussian",)),
    "skip": (SKIPS, ("gaussian", "t by target", "binary")),
    "skip, class": (replace(SKIPS, outputs=3), ("class",)),
    "skip adjusted": (replace(SKIPS, adjustments={"ah2": 3.0, "ah3": 4.0}), ("t",)),
    **{
        f"skip without {absent}": (
            replace(SKIPS, priors={name: prior for name, prior in SKIPS.priors.items() if name != absent}),
            ("gaussian",),
        )
        for absent in ("h0h2", "h1h2", "h0h3", "h1h3", "h2h3", "bh3", "ih3")
    },
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_network_is_right(name: str) -> None:
    spec, models = ARCHITECTURES[name]
    assert_right(spec, name=name, models=models)


@pytest.mark.parametrize(("activation", "groups"), GROUPED)
def test_layers_in_groups_are_right(activation: Any, groups: str | None) -> None:
    layer, name = LayerSpec(6, activation, groups), f"{activation} {groups}"
    assert_right(layers(layer, LayerSpec(3, "tanh")), name=f"first {name}", models=("t by target",))
    assert_right(layers(TANH, layer), name=f"last {name}", models=("binary",))
    assert_right(layers(layer, layer, outputs=3), name=f"both {name}", models=("class",))


BATCHED = {
    "products": PRODUCT_OF_PRODUCT,
    "omitted": omitting(OMITTED[1]),
    "skip": SKIPS,
    **{
        f"{kind} {groups}": layers(LayerSpec(6, kind, groups), LayerSpec(17, "sin"))
        for kind, groups in GROUPED
    },
}


@pytest.mark.parametrize("name", BATCHED)
def test_chains_do_not_depend_on_their_batch(name: str) -> None:
    assert_batch_independent(BATCHED[name])


def test_softmax_values_sum_to_one_in_each_group_and_do_not_overflow() -> None:
    u = 1e4 * streams("softmax", 2).normal(1, (6, 5))  # type: ignore[arg-type]
    for text, groups in (("i // 2", ([0, 1], [2, 3], [4, 5])), ("i % 2", ([0, 2, 4], [1, 3, 5]))):
        values = u.copy()
        network.activate_softmax(values, Subgroups.parse(text, 6))
        for group in groups:
            assert np.allclose(values[:, group].sum(axis=1), 1, rtol=1e-12)


def test_normalized_values_have_mean_square_one_when_inputs_are_large() -> None:
    u = 1e4 * streams("normalize", 2).normal(1, (6, 5))  # type: ignore[arg-type]
    network.activate_normalize(u, Subgroups.parse("i % 2", 6))
    for group in ([0, 2, 4], [1, 3, 5]):
        assert np.allclose((u[:, group] ** 2).mean(axis=1), 1, rtol=1e-6)


@pytest.mark.parametrize("text", ["i // 4", "i % 5", "i / 2", "j % 2", "i % 0", "i//", "3", ""])
def test_groups_that_do_not_divide_the_units_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="divisor of the 6 units"):
        Subgroups.parse(text, 6)


def test_outputs_with_products_are_the_callers_to_keep() -> None:
    target = problem(spec=layers(TANH, GATE))
    position = target.initial_state(streams("products", 2), sigmas=None).position
    first = target.potential_and_gradient(position, np.ones((2, target.n_precisions)))
    again = target.potential_and_gradient(position, np.ones((2, target.n_precisions)))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))


def test_scaling_is_by_the_inputs_that_are_left() -> None:
    spec = replace(problems.network({"io": "x2"}, units=(), activations=()), omitted={"io": (1,)})
    (group,) = spec.groups()
    assert group.shape == (2, 2) and group.mean_precision == 2 / 4


LAYER_MUTANTS: dict[str, tuple[LayerSpec, Any, tuple[str, str]]] = {
    "slope of sin": (SIN, network, ("    slope *= 2\n", "")),
    "softmax without its sum": (
        SOFTMAX,
        network,
        ("derivative -= (derivative * v).sum", "0 * (derivative * v).sum"),
    ),
    "rows for columns": (SOFTMAX, network, ("2 if groups.by_row else 1", "1 if groups.by_row else 2")),
    "0.01 in the mean": (
        NORMALIZE,
        network,
        (
            "    scale /= groups.size\n    scale += _FLOOR",
            "    scale += _FLOOR\n    scale /= groups.size",
        ),
    ),
    "sum for mean in the derivative": (
        NORMALIZE,
        network,
        (
            "((derivative * v).sum(axis=axis, keepdims=True) / groups.size)",
            "(derivative * v).sum(axis=axis, keepdims=True)",
        ),
    ),
    "slope of normalization": (NORMALIZE, network, ("    derivative /= scale\n", "")),
    "factor's own derivative": (GATE, network, ("derivative += part", "pass")),
    "factor left out going back": (GATE, network, ("derivative *= activity.sources[factor][:, :-1]", "pass")),
    "factor without its offset": (
        GATE,
        network,
        ("values[-1] *= sources[factor][:, :-1]", "values[-1] *= values[factor - 1]"),
    ),
    "value after the product": (GATE, network, ("            values[-1] = copy\n", "")),
    "typical square of sin": (SIN, stepsize, ("-xp.expm1(-4 * summed)", "2 * summed")),
    "typical square of normalization": (NORMALIZE, stepsize, ("xp.full_like(summed, groups.size)", "summed")),
    "typical square of a product": (
        GATE,
        stepsize,
        ("unit_squares[-1] * squares[factor][:, :-1]", "unit_squares[-1]"),
    ),
    "curvature through a factor": (GATE, stepsize, ("values[layer] += from_products[layer]", "pass")),
}


@pytest.mark.parametrize("name", LAYER_MUTANTS)
def test_a_wrong_layer_is_seen(name: str) -> None:
    layer, module, replacement = LAYER_MUTANTS[name]
    assert seen_as_wrong(layers(TANH, layer), module, replacement)


SHAPE_MUTANTS: dict[str, tuple[NetworkSpec, Any, tuple[str, str]]] = {
    "first inputs for those left": (
        omitting({"ih0": (0,)}),
        network,
        ("total[:, link.units] +=", "total[:, : link.n_units] +="),
    ),
    "first inputs' curvature": (
        omitting({"ih0": (0,)}),
        stepsize,
        ("total[:, link.units] +=", "total[:, : link.n_units] +="),
    ),
    "a wrong source": (
        replace(SKIPS, hidden=(SKIPS.hidden[1],) * 4),  # so that all shapes still fit
        wiring,
        ('(k + 1, f"h{k}h{layer}")', '(max(k, 1), f"h{k}h{layer}")'),
    ),
}


@pytest.mark.parametrize("name", SHAPE_MUTANTS)
def test_a_wrong_shape_is_seen(name: str) -> None:
    spec, module, replacement = SHAPE_MUTANTS[name]
    assert seen_as_wrong(spec, module, replacement)
