"""Marginal densities on which the tests compare kernels with array code."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.mcmc import leapfrog
from rayfbnn.mcmc.operation import Operation
from rayfbnn.mcmc.operations import Heatbath, HybridMarginal, SampleSigmas
from rayfbnn.model.architecture import LayerSpec
from rayfbnn.state import Advance, ChainState, Trajectory
from rayfbnn.streams import Purpose
from tests.support.joint import PROBLEMS
from tests.support.kernels.networks import assert_end_is_a_start, chains_of, end_of
from tests.support.model.marginals import (
    BOTH,
    OUTPUTS,
    PRECISIONS,
    coordinates,
)
from tests.support.problems import streams

NOT_COVERED = {
    "product": "layers with products",
    "softmax and normalization": "softmax layers",
    "configured": "configured connections",
    "inputs left out": "connections that leave out inputs",
}


def largest_error(a: Array, b: Array) -> float:
    """Largest difference over the chains, relative to each chain's largest value."""
    a, b = a.reshape(len(a), -1).astype(float), b.reshape(len(b), -1).astype(float)
    return float((np.abs(a - b).max(axis=1, initial=0) / np.abs(b).max(axis=1, initial=1e-3)).max())


def beginning(density: Any, state: ChainState) -> Trajectory:
    """Start of a trajectory of short steps."""
    position, n = coordinates(state, density), len(state.position)
    momentum = streams("kick", n).normal(Purpose.MOMENTUM, (density.n_parameters,)).astype(position.dtype)
    stepsizes = (0.3 * density.stepsizes(state.precisions)).astype(position.dtype)
    return Trajectory(position, momentum, state.precisions, stepsizes)


def operations(over: tuple[str, ...]) -> tuple[Operation, ...]:
    """An iteration whose trajectories are long enough for a wrong energy to show."""
    stepsize = 1.0 if over == PRECISIONS else 2.0
    return SampleSigmas(), Heatbath(), HybridMarginal(over, steps=4, stepsize=stepsize, window=2)


JOINT = {name: replace(PROBLEMS[name], operations=operations(BOTH)) for name in ("real", "t", "binary")}
JOINT["dual"] = replace(JOINT["t"], hidden=(LayerSpec(8, "tanh"),))  # 11 features, 7 cases


TOLERANCES = {"float64": 1e-11, "float32": 3e-5}

# Several tiles of cases, the last one partly filled. Together the cases have one system and several, noise
# that is the same in all cases or not, missing targets, precisions that move, integrated precisions of hidden
# groups, factors a, offsets of the inputs, no hidden layer, nothing but biases, and improper priors.
CASES = [
    ("primal", "common precisions", "gaussian", BOTH, "float32", False),
    ("primal", "common precisions", "gaussian by target", BOTH, "float64", False),
    ("primal", "common precisions", "gaussian by target", BOTH, "float64", True),
    ("primal", "common precisions", "gaussian", BOTH, "float32", True),
    ("primal", "every level", "gaussian", OUTPUTS, "float64", False),
    ("primal", "common precisions", "t", BOTH, "float64", True),
    ("primal", "every level", "gaussian", BOTH, "float64", False),
    ("primal", "t output weights", "t by target", BOTH, "float32", False),
    ("primal", "one output", "gaussian", OUTPUTS, "float64", True),
    ("primal", "no biases", "t", BOTH, "float64", False),
    ("primal", "no hidden layer", "gaussian by target", BOTH, "float64", False),
    ("primal", "biases alone feed the outputs", "gaussian", BOTH, "float64", True),
    ("primal", "adjustments", "gaussian", BOTH, "float64", False),
    ("primal", "vague", "gaussian", BOTH, "float64", False),
    ("primal", "common precisions", "gaussian", PRECISIONS, "float32", False),
    ("primal", "adjustments", "t by target", PRECISIONS, "float64", True),
    ("primal", "common precisions", "binary", BOTH, "float32", False),
    ("primal", "common precisions", "binary", PRECISIONS, "float64", False),
    ("dual", "common precisions", "gaussian", BOTH, "float32", True),
    ("dual", "common precisions", "gaussian by target", BOTH, "float64", False),
    ("dual", "adjustments", "t by target", OUTPUTS, "float32", True),
    ("dual", "every level", "t", BOTH, "float64", True),
    ("dual", "t output weights", "gaussian", OUTPUTS, "float32", False),
    ("dual", "one output", "binary", BOTH, "float64", False),
]


def worst_error(density: Any, start: Trajectory, advance: Advance, **options: Any) -> float:
    """Largest difference between kernel and array code in the results of a trajectory."""
    actual = end_of(advance, density, start, **options)
    expected = end_of(leapfrog.advance, density, start, **options)
    order = options.get("order")
    assert_end_is_a_start(advance, density, actual, start.precisions, start.stepsizes, order=order)
    for a, b in zip(actual, expected, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
    return max(largest_error(a, b) for a, b in zip(actual, expected, strict=True))


def of_chains(density: Any, start: Trajectory, chains: slice) -> tuple[Any, Trajectory]:
    """Restrict density and trajectory to some of the chains."""
    data = density.regression
    part = replace(data, noise=data.noise[chains], prior=data.prior[chains])
    if len(data.targets) > 1:
        part = replace(part, targets=data.targets[chains])
    return replace(density, regression=part), chains_of(start, chains)


def short_operations(over: tuple[str, ...]) -> tuple[Operation, ...]:
    return SampleSigmas(), Heatbath(), HybridMarginal(over, steps=2, stepsize=4.0 if over == BOTH else 1.5)
