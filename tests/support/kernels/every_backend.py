"""Every registered backend, set up so that this machine can run it, and copies of targets for devices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from rayfbnn.arrays import Array, to_host
from rayfbnn.kernels import choose
from rayfbnn.kernels.backend import Backend, Compiled, NotCovered
from rayfbnn.kernels.cpu.compiled_module import instruction_sets
from rayfbnn.kernels.cuda import products, products_marginal
from rayfbnn.kernels.cuda.advance import CudaAdvance, CudaBackend
from rayfbnn.kernels.cuda.graphs import Recordings
from rayfbnn.kernels.cuda.launch_plan import LaunchPlan, block_bytes
from rayfbnn.kernels.network_plan import NetworkPlan
from rayfbnn.kernels.numbers import KernelTarget, posterior_behind
from rayfbnn.model.integrated import WithoutOutputs, WithoutPrecisions, marginal
from rayfbnn.model.regression import Regression
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.state import Advance, Target, Trajectory
from tests.support.kernels.networks import H100_SHARED_BYTES, device_copy, on_device, values_of
from tests.support.shim.compiled import ShimBuild, needs_gxx
from tests.support.standin_cupy.install import installed

EXACT = {"float64": 1e-11, "float32": 3e-5}
COMPILED = {"float64": 1e-11, "float32": 3e-4}
IN_TF32 = {"float64": 1e-11, "float32": 2e-3}  # products on the stand-in, which rounds their factors
FAST_FUNCTIONS = {"float64": 1e-9, "float32": 5e-3}  # a device's own functions, and products in TF32


@dataclass(frozen=True)
class BackendUnderTest:
    """A registered backend, and how the tests run it.

    words       part of the name of the code that it compiles; the tests check it, so that no other code runs
    tolerances  by dtype: largest difference of a trajectory from array code, relative to its largest number
    checks_precisions  whether the kernel reads the precisions themselves, so that it must refuse wrong ones
    is_independent_of_batch  whether a chain has the same bits in every batch
    is_on_device  whether its arrays are CuPy's
    """

    __test__ = False

    name: str
    backend: Backend
    words: str
    tolerances: dict[str, float]
    checks_precisions: bool = True
    is_independent_of_batch: bool = True
    is_on_device: bool = False
    prepared: Any = field(default=nullcontext)

    def __str__(self) -> str:
        return self.name

    def ready(self) -> AbstractContextManager[Any]:
        """A context in which the backend can run."""
        context: AbstractContextManager[Any] = self.prepared()
        return context

    def advance_for(self, target: Any) -> Advance:
        """Advance that the backend compiles for a target that it covers."""
        return self._compiled(target).advance

    def _compiled(self, target: Any) -> Compiled:
        compiled = self.backend.compile(target)
        assert isinstance(compiled, Compiled), compiled.reason
        assert self.words in compiled.name, compiled.name
        return compiled

    def kick(self, target: Any, start: Trajectory, *, share: float) -> Array:
        """Momentum after a kick, on the host."""
        if self.is_on_device:
            target = copy_on_device(target)
            start = Trajectory(*(on_device(array) for array in vars(start).values()))
        momentum: Array = to_host(self._compiled(target).kick(target, start, share=share))
        return momentum

    def run(
        self, target: Any, start: Trajectory, *, n_steps: int = 3, order: Array | None = None
    ) -> tuple[Array, Array, Array]:
        """Position, momentum and potential after some steps, on the host.

        Target and start may be on a device.
        """
        if self.is_on_device:
            target, order = copy_on_device(target), on_device(order)
            start = Trajectory(*(on_device(array) for array in vars(start).values()))
        end, potential = self.advance_for(target)(target, start, n_steps=n_steps, order=order)
        return to_host(end.position), to_host(end.momentum), to_host(potential)


def copy_on_device(target: Any) -> Any:
    """A posterior, or a marginal of one, with its arrays in CuPy."""
    if isinstance(target, WithoutPrecisions):
        return marginal(copy_on_device(target.posterior), ("precisions",))
    if isinstance(target, WithoutOutputs):
        marginal_target = target.marginal
        over = ("outputs", "precisions") if marginal_target.groups or marginal_target.moved else ("outputs",)
        data = target.regression
        arrays = (on_device(values) for values in (data.noise, data.targets, data.prior))
        regression = Regression(*arrays, is_dual=data.is_dual)
        return WithoutOutputs(marginal(copy_on_device(marginal_target.posterior), over), regression)
    assert isinstance(target, SampledPosterior)
    copy = device_copy(target, values_of(target))
    if np.ndim(target.inverse_temperature) == 0:
        return copy.tempered(target.inverse_temperature)
    return replace(copy, inverse_temperature=on_device(target.inverse_temperature))


@dataclass(frozen=True)
class OneKernel(CudaBackend):
    """A backend with an Advance that always runs the same kind of kernel, for networks of any size."""

    advance: type[CudaAdvance] = CudaAdvance

    def compile(self, target: Target) -> Compiled | NotCovered:
        """Compile as CudaBackend does, with this Advance."""
        recordings = Recordings() if self.uses_graphs else None
        advance = self.advance(self.build, H100_SHARED_BYTES, recordings)
        chosen = advance.chosen(target)
        return chosen if isinstance(chosen, NotCovered) else Compiled(advance, chosen.name, advance.kick)


class InBlocks(CudaAdvance):
    """The kernel with a thread block for each chain, also for networks small enough for a warp."""

    def _launch_plan(self, target: KernelTarget, network: NetworkPlan) -> LaunchPlan | NotCovered:
        if isinstance(target, WithoutOutputs):
            return super()._launch_plan(target, network)
        size = posterior_behind(target).inputs.itemsize
        return LaunchPlan("block", 64, 32, block_bytes(network, 32, 64, size))


class InProducts(CudaAdvance):
    """The products over all chains, one or two chains at a time, also for networks that fit on the chip."""

    def _launch_plan(self, target: KernelTarget, network: NetworkPlan) -> NotCovered:
        return NotCovered("the tests ask for products")

    def _in_products(self, target: KernelTarget, *, why_not_on_chip: str) -> Compiled | NotCovered:
        build, tile_bytes = self.build, 4_000
        if isinstance(target, WithoutOutputs):
            advance = products_marginal.compile_for(target.marginal, build=build, tile_bytes=tile_bytes)
            return advance if isinstance(advance, NotCovered) else Compiled(advance, why_not_on_chip)
        advance = products.compile_for(target, recordings=self.recordings, build=build, tile_bytes=tile_bytes)
        return (
            advance if isinstance(advance, NotCovered) else Compiled(advance, why_not_on_chip, advance.kick)
        )


def every_backend() -> Iterator[Any]:
    """Parameters of a test: every registered backend, on all hardware and stand-ins that this machine has."""
    no_sets = pytest.mark.skipif(not instruction_sets(), reason="installed without a C++ compiler")
    for backend in choose.backends("cpu"):
        tested = BackendUnderTest(backend.name, backend, "compiled", COMPILED, checks_precisions=False)
        yield pytest.param(tested, id=backend.name, marks=no_sets)
    for backend in choose.backends("gpu"):
        kernels = {"in products": (InProducts, "the tests ask for products")}
        if not backend.uses_graphs:  # the large kernels run only by products
            kernels["of warps"] = CudaAdvance, "whole trajectories"
            kernels["of blocks"] = InBlocks, "a block a chain"
        for kernel, (advance, words) in kernels.items():
            one_kernel = OneKernel(backend.uses_graphs, advance=advance)
            yield from _on_machines(one_kernel, f"{backend.name}, {kernel}", words)


def _on_machines(backend: OneKernel, name: str, words: str) -> Iterator[Any]:
    """The backend on the shim, on the stand-in for CuPy and on a device."""
    is_in_products = backend.advance is InProducts
    same_bits = {"is_independent_of_batch": not is_in_products}
    if not backend.uses_graphs:  # needs a device, or a stand-in for one
        on_shim = replace(backend, build=ShimBuild())
        tested = BackendUnderTest(f"{name}, shim", on_shim, words, EXACT, **same_bits)
        yield pytest.param(tested, id=tested.name, marks=needs_gxx)
    tolerances = IN_TF32 if is_in_products else EXACT
    tested = BackendUnderTest(
        f"{name}, stand-in", backend, words, tolerances, is_on_device=True, prepared=installed, **same_bits
    )
    yield pytest.param(tested, id=tested.name, marks=[pytest.mark.long, needs_gxx])
    tested = BackendUnderTest(
        f"{name}, device", backend, words, FAST_FUNCTIONS, is_on_device=True, **same_bits
    )
    yield pytest.param(tested, id=tested.name, marks=pytest.mark.gpu)
