"""Functions that compile trajectories and fail if array code would run in place of a kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.kernels.backend import Compiled, NotCovered
from rayfbnn.kernels.cpu.advance import CompiledAdvance
from rayfbnn.kernels.cpu.compiled_module import instruction_sets
from rayfbnn.kernels.cuda import products as wide
from rayfbnn.kernels.cuda.advance import CudaAdvance, CudaBackend
from rayfbnn.kernels.cuda.chip import ChipKernels
from rayfbnn.kernels.cuda.launch_plan import LaunchPlan, block_bytes
from rayfbnn.kernels.network_plan import NetworkPlan, plan_of
from rayfbnn.kernels.numbers import KernelTarget
from rayfbnn.mcmc.hybrid import WholeHybrid
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.state import Advance, Target, Trajectory
from tests.support.kernels.networks import H100_SHARED_BYTES
from tests.support.shim.compiled import ShimBuild


def on_cpu(target: Target, instruction_set: str | None = None, **options: int) -> CompiledAdvance:
    """Compiled code for a target that it covers; the options are those of CompiledAdvance."""
    advance = CompiledAdvance(instruction_set or instruction_sets()[0], **options)
    assert advance.covers(target)
    return advance


def on_gpu(target: Target) -> Compiled:
    """CUDA kernel of the current device, without graphs, for a target that it covers."""
    compiled = CudaBackend(uses_graphs=False).compile(target)
    assert isinstance(compiled, Compiled), compiled.reason
    return compiled


@dataclass(frozen=True)
class WithKernels:
    """An `Advance` of given kernels; whole updates run in one launch, or piece by piece with array code."""

    kernels: ChipKernels
    is_whole: bool = True

    def __call__(self, target: Any, trajectory: Trajectory, **options: Any) -> tuple[Trajectory, Array]:
        return self.kernels.advance(target, trajectory, **options)

    def whole_hybrid(self, target: Target) -> WholeHybrid | None:
        return self.kernels.hybrid if self.is_whole else None


class OnChip:
    """CUDA kernels of whole trajectories, run on the CPU by the shim. It refuses to run any other code."""

    def __init__(self, build: ShimBuild | None = None, max_shared_bytes: int = H100_SHARED_BYTES) -> None:
        self.advance = CudaAdvance(ShimBuild() if build is None else build, max_shared_bytes)

    def chosen(self, target: Target) -> Compiled | NotCovered:
        """The kernel for a target, or the reason why there is none."""
        return self.advance.chosen(target)

    def launch_plan(self, target: KernelTarget) -> LaunchPlan:
        """Division of work for a target whose state fits on the chip."""
        network = plan_of(target)
        assert isinstance(network, NetworkPlan)
        plan = self.advance._launch_plan(target, network)
        assert isinstance(plan, LaunchPlan)
        return plan

    def covers(self, target: Target) -> bool:
        """Return True if the target's state fits on the chip."""
        chosen = self.chosen(target)
        return isinstance(chosen, Compiled) and "whole trajectories" in chosen.name

    def __call__(self, target: Target, trajectory: Trajectory, **options: Any) -> tuple[Trajectory, Array]:
        assert self.covers(target), self.chosen(target)
        return self.advance(target, trajectory, **options)

    def whole_hybrid(self, target: Target) -> WholeHybrid | None:
        """Run whole updates in one launch, as on a device."""
        assert self.covers(target), self.chosen(target)
        return self.advance.whole_hybrid(target)


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
