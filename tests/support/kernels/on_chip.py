"""CUDA kernels of posteriors by name, run on the CPU by the shim."""

from __future__ import annotations

import numpy as np

from rayfbnn.kernels.backend import NotCovered
from rayfbnn.kernels.cuda import products as wide
from rayfbnn.kernels.cuda.chip import ChipKernels
from rayfbnn.kernels.cuda.launch_plan import LaunchPlan, block_bytes
from rayfbnn.kernels.network_plan import NetworkPlan
from rayfbnn.kernels.planning import plan_of
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.state import Advance
from tests.support.kernels.backends import WithKernels
from tests.support.shim.compiled import ShimBuild


def advance_of(
    target: SampledPosterior, kernel: str, build: ShimBuild | None = None, *, is_whole: bool = True
) -> Advance:
    """The kernel of this name, even if the network's size would choose another."""
    build = ShimBuild() if build is None else build
    network = plan_of(target)
    assert isinstance(network, NetworkPlan)
    if kernel == "wide":
        advance = wide.compile_for(target, build=build, tile_bytes=4_000)
        assert not isinstance(advance, NotCovered), advance
        return advance
    plan = LaunchPlan("warp", threads=64, tile=1, shared_bytes=0)
    if kernel == "block":
        size = np.dtype(target.dtype).itemsize
        plan = LaunchPlan("block", 64, 32, block_bytes(network, 32, 64, size))
    return WithKernels(ChipKernels(network, plan, build), is_whole=is_whole)
