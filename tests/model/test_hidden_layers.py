"""Hidden layers of sin units, softmax and normalization layers, and products with an earlier layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rayfbnn.model import network, stepsize
from rayfbnn.model.architecture import LayerSpec, NetworkSpec, Subgroups
from tests.support import problems
from tests.support.model.architectures import assert_batch_independent, assert_right, seen_as_wrong
from tests.support.problems import problem, streams

GROUPED: list[Any] = [
    (activation, groups)
    for activation in ("softmax", "normalize")
    for groups in (None, "i // 3", "i % 3", "i % 2")
]


def spec_of(first: LayerSpec, second: LayerSpec, *, outputs: int = 2) -> NetworkSpec:
    return replace(problems.network(outputs=outputs), hidden=(first, second))


def test_sin_layers_are_right() -> None:
    sin = LayerSpec(4, "sin")
    assert_right(spec_of(sin, sin), name="sin", models=("gaussian", "t by target"))


@pytest.mark.parametrize(("activation", "groups"), GROUPED)
def test_layers_in_groups_are_right(activation: Any, groups: str | None) -> None:
    layer = LayerSpec(6, activation, groups)
    assert_right(
        spec_of(layer, LayerSpec(3, "tanh")), name=f"first {activation} {groups}", models=("t by target",)
    )
    assert_right(spec_of(LayerSpec(4, "tanh"), layer), name=f"last {activation} {groups}", models=("binary",))
    assert_right(spec_of(layer, layer, outputs=3), name=f"both {activation} {groups}", models=("class",))


@pytest.mark.parametrize(("activation", "groups"), GROUPED)
def test_layers_in_groups_do_not_depend_on_the_batch(activation: Any, groups: str | None) -> None:
    assert_batch_independent(spec_of(LayerSpec(6, activation, groups), LayerSpec(17, "sin")))


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


@pytest.mark.parametrize("activation", ["tanh", "sin", "normalize", "softmax", "softplus"])
@pytest.mark.parametrize("units", [4, 1])
def test_a_product_with_an_earlier_layer_is_right(activation: Any, units: int) -> None:
    spec = spec_of(LayerSpec(units, "tanh"), LayerSpec(4, activation, product=0))
    assert_right(spec, name=f"product {activation} {units}", models=("gaussian", "t by target"))


def test_products_of_products_are_right() -> None:
    priors = {
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
    spec = NetworkSpec(
        3,
        2,
        (LayerSpec(3, "tanh"), LayerSpec(3, "sigmoid", product=0), LayerSpec(3, "identity", product=0)),
        problems.parse(priors),
    )
    assert_right(spec, name="two products of one layer", models=("gaussian",))
    chain = replace(spec, hidden=(*spec.hidden[:2], LayerSpec(3, "identity", product=1)))
    assert_right(chain, name="a product of a product", models=("gaussian",))
    assert_batch_independent(chain)


def test_a_layer_may_be_used_as_a_factor_alone() -> None:
    spec = NetworkSpec(
        3,
        2,
        (LayerSpec(4, "tanh"), LayerSpec(4, "tanh", product=0)),
        problems.parse({"ih0": "1", "ih1": "1", "ho1": "1"}),
    )
    assert_right(spec, name="a gate", models=("gaussian",))


def test_outputs_with_products_are_the_callers_to_keep() -> None:
    target = problem(spec=spec_of(LayerSpec(4, "tanh"), LayerSpec(4, "tanh", product=0)))
    position = target.initial_state(streams("products", 2), sigmas=None).position
    first = target.potential_and_gradient(position, np.ones((2, target.n_precisions)))
    again = target.potential_and_gradient(position, np.ones((2, target.n_precisions)))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))


SIN, SOFTMAX = LayerSpec(4, "sin"), LayerSpec(4, "softmax", "i % 2")
NORMALIZE, GATE = LayerSpec(4, "normalize", "i // 2"), LayerSpec(4, "tanh", product=0)
MUTANTS: dict[str, tuple[LayerSpec, Any, tuple[str, str]]] = {
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


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_layer_is_seen(name: str) -> None:
    layer, module, replacement = MUTANTS[name]
    spec = replace(spec_of(LayerSpec(4, "tanh"), layer), priors=problems.parse(dict(problems.PRIORS)))
    assert seen_as_wrong(spec, module, replacement)
