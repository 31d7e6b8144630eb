"""CUDA kernels of marginal densities, run on the CPU by the shim."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rayfbnn.arrays import Array
from rayfbnn.kernels.cuda.chip_marginal import MarginalAdvance
from rayfbnn.mcmc import leapfrog
from rayfbnn.mcmc.operations import Heatbath, HybridMarginal, Operation, SampleSigmas
from rayfbnn.state import Advance
from tests.support.kernels.marginals import largest_error
from tests.support.kernels.networks import H100_SHARED_BYTES, assert_end_is_a_start
from tests.support.model.marginals import BOTH
from tests.support.shim.compiled import ShimBuild

TOLERANCES = {"float64": 1e-11, "float32": 3e-5}


def kernel(build: ShimBuild | None = None, *, max_shared_bytes: int = H100_SHARED_BYTES) -> MarginalAdvance:
    return MarginalAdvance(ShimBuild() if build is None else build, max_shared_bytes)


def worst_error(given: Any, start: tuple[Array, ...], advance: Advance, **options: Any) -> float:
    """Of position, momentum and potential after a trajectory by the kernel and by the plain code."""
    found, expected = advance(given, *start, **options), leapfrog.advance(given, *start, **options)
    assert_end_is_a_start(advance, given, found, *start[2:], order=options.get("order"))
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
    return max(largest_error(a, b) for a, b in zip(found, expected, strict=True))


def of_chains(given: Any, start: tuple[Array, ...], chains: slice) -> tuple[Any, tuple[Array, ...]]:
    """Of some chains alone."""
    data = given.regression
    part = replace(data, noise=data.noise[chains], prior=data.prior[chains])
    if len(data.targets) > 1:
        part = replace(part, targets=data.targets[chains])
    return replace(given, regression=part), tuple(array[chains] for array in start)


def operations(over: tuple[str, ...]) -> tuple[Operation, ...]:
    return SampleSigmas(), Heatbath(), HybridMarginal(over, steps=2, stepsize=4.0 if over == BOTH else 1.5)
