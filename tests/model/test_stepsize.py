"""The stepsize heuristic agrees with its rules written out unit by unit."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest

from rayfbnn.model import stepsize
from rayfbnn.model.architecture import ACTIVATIONS
from rayfbnn.model.sampled import SampledPosterior
from tests.support import problems
from tests.support.model.architectures import mutated
from tests.support.problems import MODELS, problem, streams


def stepsizes_by_loops(target: SampledPosterior, precisions: np.ndarray) -> np.ndarray:
    """Stepsizes of one chain by Neal (2022), "Heuristic choice of stepsizes", for two hidden layers."""
    layout = target.precision_layout
    specs = {group.name: group for group in layout.groups}
    inputs = target.inputs[:-1].T
    n, n_in, n_out = len(inputs), target.network.inputs, target.network.outputs
    units = [layer.units for layer in target.network.hidden]
    activations = [layer.activation for layer in target.network.hidden]

    def tau(name: str, i: int) -> float:
        column = specs[name].common if specs[name].units is None else layout.units[name].start + i
        return float(precisions[column])

    def spread(name: str, i: int) -> float:
        if name not in specs:
            return 0.0
        alpha = specs[name].prior.alphas[2]
        factor = 1.0 if math.isinf(alpha) else 3.0 if alpha < 3 else alpha / (alpha - 2)
        return factor / tau(name, i)

    def sent(layer: int, i: int) -> float:
        """Typical square of a unit's output; layer -1 is the inputs."""
        if layer == -1:
            return float(np.mean(inputs[:, i] ** 2)) + spread("ti", 0)
        total = spread(f"bh{layer}", 0)
        total += sum(spread(f"ih{layer}", k) * sent(-1, k) for k in range(n_in))
        if layer > 0:
            total += sum(
                spread(f"h{layer - 1}h{layer}", k) * sent(layer - 1, k) for k in range(units[layer - 1])
            )
        activation = activations[layer]
        if activation == "tanh":
            total = min(total, 1)
        elif activation == "softplus":
            total = max(total, math.log(2) ** 2)
        elif activation == "sigmoid":
            total = 1
        elif activation == "sin":
            total = 1 - math.exp(-4 * total)
        return total + spread(f"th{layer}", 0)

    def output_curvature(j: int) -> float:
        if target.model.kind != "real":
            return 0.25
        alpha = specs["noise"].prior.alphas[2]
        return tau("noise", j) * (1 if math.isinf(alpha) else (alpha + 1) / alpha)

    def value_curvature(layer: int, i: int) -> float:
        ways: list[tuple[str, Any, int]]
        if layer == -1:
            ways = [(f"ih{k}", partial(sum_curvature, k), units[k]) for k in range(len(units))]
            ways.append(("io", output_curvature, n_out))
        else:
            ways = [(f"ho{layer}", output_curvature, n_out)]
            if layer + 1 < len(units):
                ways.append((f"h{layer}h{layer + 1}", partial(sum_curvature, layer + 1), units[layer + 1]))
        return sum(
            curvature(j) / tau(name, i)
            for name, curvature, count in ways
            if name in specs
            for j in range(count)
        )

    def sum_curvature(layer: int, j: int) -> float:
        return value_curvature(layer, j) * {"sigmoid": 1 / 16, "sin": 4}.get(activations[layer], 1)

    result = []
    for group in target.parameter_layout.groups:
        name, alpha = group.name, group.prior.alphas[2]
        factor = 1 if math.isinf(alpha) else (alpha + 1) / alpha
        for places in np.ndindex(*group.shape):
            i = places[0]
            if name == "ti":
                curvature = value_curvature(-1, i)
            elif name.startswith("th"):
                curvature = value_curvature(int(name[2:]), i)
            elif name == "bo":
                curvature = output_curvature(i)
            elif name.startswith("bh"):
                curvature = sum_curvature(int(name[2:]), i)
            elif name == "io":
                curvature = output_curvature(places[1]) * sent(-1, i)
            elif name.startswith("ho"):
                curvature = output_curvature(places[1]) * sent(int(name[2:]), i)
            elif name.startswith("ih"):
                curvature = sum_curvature(int(name[2:]), places[1]) * sent(-1, i)
            else:
                curvature = sum_curvature(1, places[1]) * sent(0, i)
            result.append((factor * tau(name, i) + n * curvature) ** -0.5)
    return np.array(result)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("model", MODELS)
def test_stepsizes_are_those_of_the_rules(model: str, activation: str) -> None:
    spec = problems.network(outputs=3 if model == "class" else 2, activations=(activation, activation))
    target = problem(model, spec=spec)
    precisions = target.initial_state(streams("rules", 3), sigmas=None).precisions
    expected = [stepsizes_by_loops(target, chain) for chain in precisions]
    assert np.allclose(target.stepsizes(precisions), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("absent", problems.PRIORS)
def test_stepsizes_are_right_without_any_one_group(absent: str) -> None:
    priors = {name: text for name, text in problems.PRIORS.items() if name != absent}
    target = problem(spec=problems.network(priors))
    precisions = target.initial_state(streams("absent", 1), sigmas=None).precisions
    assert np.allclose(target.stepsizes(precisions)[0], stepsizes_by_loops(target, precisions[0]), rtol=1e-12)


def test_stepsizes_come_in_the_positions_dtype() -> None:
    for dtype in ("float32", "float64"):
        target = problem(dtype=dtype)
        state = target.initial_state(streams("dtype", 2), sigmas=0.5)
        assert target.stepsizes(state.precisions).dtype == state.position.dtype


STEPSIZE_MUTANTS = {
    "t weights not widened": ("*= 3 if alpha < 3 else alpha / (alpha - 2)", "*= 1"),
    "tanh not bounded": ("return xp.minimum(summed, 1.0)", "return summed"),
    "t prior's curvature": ("*= (alpha + 1) / alpha  # eq. 68", "*= 1"),
    "offsets left out": ("value_squares = value_squares + spread[:, offset]", "pass"),
}


@pytest.mark.parametrize("name", STEPSIZE_MUTANTS)
def test_a_wrong_rule_is_seen(name: str) -> None:
    target = problem("t", posterior=mutated(stepsize, STEPSIZE_MUTANTS[name]))
    precisions = target.initial_state(streams("rules", 3), sigmas=None).precisions
    expected = [stepsizes_by_loops(target, chain) for chain in precisions]
    assert not np.allclose(target.stepsizes(precisions), expected, rtol=1e-6)
