"""CUDA kernels of marginal densities, run on the CPU by the shim."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rayfbnn.mcmc import leapfrog
from rayfbnn.mcmc.operation import Operation
from rayfbnn.mcmc.operations import Heatbath, HybridMarginal, SampleSigmas
from rayfbnn.state import Advance, Trajectory
from tests.support.kernels.marginals import largest_error
from tests.support.kernels.networks import assert_end_is_a_start
from tests.support.kernels.trajectories import chains_of, end_of
from tests.support.model.marginals import BOTH

TOLERANCES = {"float64": 1e-11, "float32": 3e-5}


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


def operations(over: tuple[str, ...]) -> tuple[Operation, ...]:
    return SampleSigmas(), Heatbath(), HybridMarginal(over, steps=2, stepsize=4.0 if over == BOTH else 1.5)
