"""Posteriors with variables integrated out, on made-up data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.model import integrated
from rayfbnn.model.architecture import LayerSpec, NetworkSpec
from rayfbnn.model.connections import ConnectionTable
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.state import ChainState
from tests.support import problems
from tests.support.problems import PRIORS, parse, problem, streams

OUTPUTS, PRECISIONS, BOTH = ("outputs",), ("precisions",), ("outputs", "precisions")
COMMON = {name: text.split(":")[0] + ":3" for name, text in PRIORS.items()}  # free, Gaussian, no units
T_WEIGHTS = COMMON | {"ho0": "x1:4::6", "ho1": "x1.2:4:3:5", "io": "0.5:::4", "bo": "1:4:5"}
ONE_LAYER = {"ti": "0.5", "ih0": "0.7:3", "bh0": "0.7:3", "ho0": "x1:3", "bo": "1"}
NETWORKS: dict[str, NetworkSpec] = {
    "every level": problems.network(),
    "common precisions": problems.network(COMMON),
    "t output weights": problems.network(T_WEIGHTS),
    "one output": problems.network(outputs=1),
    "one hidden layer": problems.network(ONE_LAYER, units=(4,), activations=("tanh",)),
    "no biases": problems.network(
        {"ih0": "0.7:3", "ho0": "1:3"}, units=(4,), activations=("softplus",), outputs=3
    ),
    "no direct connections": problems.network({n: p for n, p in COMMON.items() if n not in ("io", "ho1")}),
    "no hidden layer": problems.network({"ti": "1", "io": "1:3", "bo": "1"}, units=(), activations=()),
    "biases alone feed the outputs": problems.network(
        {"ih0": "1", "bo": "1:3"}, units=(4,), activations=("tanh",)
    ),
    "adjustments": replace(problems.network(COMMON), adjustments={"ah0": 4.0, "ah1": 5.0, "ao": 3.0}),
    "inputs left out": replace(
        problems.network({**COMMON, "ih0": "0.7:3"}), omitted={"io": (1,), "ih0": (0,)}
    ),
    "vague": problems.network({**COMMON, "bo": "+", "ho1": "5:3"}),
    "product": NetworkSpec(
        3,
        2,
        (LayerSpec(3, "tanh"), LayerSpec(3, "identity", product=0)),
        parse({"ih0": "1:3", "ih1": "1:3", "th0": "0.5:3", "ho0": "1:3", "ho1": "1:3", "bo": "1"}),
    ),
    "softmax and normalization": NetworkSpec(
        3,
        2,
        (LayerSpec(4, "softmax"), LayerSpec(4, "normalize", "i // 2")),
        parse({"ih0": "1:3", "h0h1": "1:3", "ho0": "1:3", "ho1": "1:3", "bo": "1"}),
    ),
    "configured": NetworkSpec(
        3,
        2,
        (LayerSpec(3, "tanh"),),
        parse({"ih0": "1:3", "ho0": "1:3", "bo": "1"}),
        connections={"ih0": ConnectionTable((0, 1, 1, 2, 2), (0, 0, 1, 1, 2), (0, 1, 0, 1, 1))},
    ),
}
REAL = ("gaussian", "gaussian by target", "t", "t by target")
N_CASES = {"primal": 19, "dual": 5}  # the features are from 1 to 12


def made(
    name: str, model: str, form: str, *, is_missing: bool = False, n_cases: int = 0, dtype: Any = "float64"
) -> SampledPosterior:
    target = problem(model, spec=NETWORKS[name], n_cases=n_cases or N_CASES[form], dtype=dtype)
    if not is_missing:
        return target
    targets = target.targets.T.copy()
    targets[[0, 3], 0] = np.nan
    targets[[2, 3], -1] = np.nan
    return SampledPosterior.from_spec(
        target.network, target.model, target.inputs[:-1].T, targets, dtype=dtype
    )


def conditional(
    target: SampledPosterior, over: tuple[str, ...], name: str, n_chains: int, *, module: Any = integrated
) -> tuple[ChainState, Any]:
    """Return draws from the prior, and the density of what remains given auxiliary variables at them."""
    random = streams(name, n_chains)
    state = target.initial_state(random, sigmas=None)
    return state, module.marginal(target, over).given(state, random.at(iteration=1))


def coordinates(state: ChainState, density: Any) -> Array:
    """Coordinates of the state in the remaining density, (n_chains, density.n_parameters)."""
    position = density.start(state, streams("momentum", len(state.position))).position
    assert position.shape[1] == density.n_parameters
    return position
