"""The backend of CUDA kernels, with or without CUDA graphs for gradients of large networks."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from rayfbnn.arrays import Array
from rayfbnn.kernels.backend import Compiled, NotCovered
from rayfbnn.kernels.cuda import products, products_marginal
from rayfbnn.kernels.cuda.build import Build, build_once, shared_memory_of_device
from rayfbnn.kernels.cuda.chip import ChipKernels
from rayfbnn.kernels.cuda.graphs import Recordings
from rayfbnn.kernels.cuda.launch_plan import LaunchPlan, launch_plan, launch_plan_of_regression
from rayfbnn.kernels.network_plan import NetworkPlan, plan_of
from rayfbnn.kernels.numbers import KernelTarget, TargetCache, posterior_behind
from rayfbnn.mcmc import leapfrog
from rayfbnn.mcmc.hybrid import WholeHybrid
from rayfbnn.model.integrated import WithoutOutputs
from rayfbnn.state import Target, Trajectory

LAUNCHES = "CUDA"
GRAPHS = "CUDA, gradients of large networks as CUDA graphs"
_PRODUCTS = "CUDA, products over all chains"


@dataclass(frozen=True)
class CudaBackend:
    """Kernels of the current CUDA device, or of a device described by its shared memory.

    uses_graphs       whether full gradients of large networks are CUDA graphs
    build             compiles the sources
    max_shared_bytes  shared memory of a block; None for the shared memory of the current device
    """

    uses_graphs: bool
    build: Build = build_once
    max_shared_bytes: int | None = None

    @property
    def name(self) -> str:
        return GRAPHS if self.uses_graphs else LAUNCHES

    @property
    def keyword(self) -> str:
        return "" if self.uses_graphs else "launches"

    def check(self, target: Target) -> NotCovered | None:
        """Return the reason why the target has no kernel on any device, ignoring memory limits, or None."""
        plan = plan_of(target)
        return plan if isinstance(plan, NotCovered) else None

    def compile(self, target: Target) -> Compiled | NotCovered:
        """Return an Advance, which compiles kernels at their first call, and a name that describes them."""
        recordings = Recordings() if self.uses_graphs else None
        advance = CudaAdvance(self.build, self.max_shared_bytes, recordings)
        chosen = advance.chosen(target)
        return chosen if isinstance(chosen, NotCovered) else Compiled(advance, chosen.name, advance.kick)


def backends(max_shared_bytes: int | None = None) -> tuple[CudaBackend, ...]:
    """Return the backends of a CUDA device, best first."""
    return tuple(CudaBackend(uses_graphs, max_shared_bytes=max_shared_bytes) for uses_graphs in (True, False))


@dataclass(frozen=True)
class CudaAdvance:
    """An `Advance` that runs CUDA kernels for posteriors and their marginals, and array code otherwise.

    Trajectories run on the chip if the network's state fits there, and otherwise as products over all chains.
    On the chip only the cases are read from device memory, so nothing else is nearly as fast for a network
    that fits.

    build, max_shared_bytes  as for CudaBackend
    recordings  keeps the CUDA graphs of full gradients; None for no graphs
    """

    build: Build = build_once
    max_shared_bytes: int | None = None
    recordings: Recordings | None = None
    _chosen: TargetCache[Compiled | NotCovered] = field(default_factory=TargetCache)

    def __call__(
        self,
        target: Target,
        trajectory: Trajectory,
        *,
        n_steps: int,
        order: Array | None = None,
    ) -> tuple[Trajectory, Array]:
        """Take n_steps leapfrog steps of every chain, as `mcmc.leapfrog.advance` does."""
        chosen = self.chosen(target)
        advance = leapfrog.advance if isinstance(chosen, NotCovered) else chosen.advance
        return advance(target, trajectory, n_steps=n_steps, order=order)

    def kick(self, target: Target, trajectory: Trajectory, *, share: float) -> Array:
        """Return the momentum after a kick, as `mcmc.leapfrog.kick` does."""
        chosen = self.chosen(target)
        kick = leapfrog.kick if isinstance(chosen, NotCovered) else chosen.kick
        return kick(target, trajectory, share=share)

    def whole_hybrid(self, target: Target) -> WholeHybrid | None:
        """Return the kernel of whole hybrid updates, or None if array code makes their choices."""
        chosen = self.chosen(target)
        return None if isinstance(chosen, NotCovered) else chosen.whole_hybrid

    def chosen(self, target: Target) -> Compiled | NotCovered:
        """Return the kernel for a target and its name for people, or the reason why array code runs it."""
        if not isinstance(target, KernelTarget):
            return NotCovered("a target that is not a posterior")
        # A separate kernel handles noise that is the same in all cases.
        is_uniform = isinstance(target, WithoutOutputs) and target.regression.is_uniform
        return self._chosen.of(target, is_uniform, partial(self._choose, target))

    def _choose(self, target: KernelTarget) -> Compiled | NotCovered:
        network = plan_of(target)
        if isinstance(network, NotCovered):
            return network
        plan = self._launch_plan(target, network)
        if isinstance(plan, NotCovered):
            return self._in_products(target, why_not_on_chip=plan.reason)
        name = f"CUDA, whole trajectories, a {'warp' if plan.kernel == 'warp' else 'block'} a chain"
        kernels = ChipKernels(network, plan, self.build)
        return Compiled(kernels.advance, name, kernels.kick, kernels.hybrid)

    def _launch_plan(self, target: KernelTarget, network: NetworkPlan) -> LaunchPlan | NotCovered:
        limit = shared_memory_of_device() if self.max_shared_bytes is None else self.max_shared_bytes
        dtype = posterior_behind(target).dtype
        if not isinstance(target, WithoutOutputs):
            return launch_plan(network, dtype=dtype, max_shared_bytes=limit)
        return launch_plan_of_regression(
            network,
            dtype=dtype,
            n_cases=posterior_behind(target).n_cases,
            is_uniform=target.regression.is_uniform,
            max_shared_bytes=limit,
        )

    def _in_products(self, target: KernelTarget, *, why_not_on_chip: str) -> Compiled | NotCovered:
        if isinstance(target, WithoutOutputs):
            advance = products_marginal.compile_for(target.marginal, build=self.build)
            name = f"{_PRODUCTS} ({why_not_on_chip})"
            return advance if isinstance(advance, NotCovered) else Compiled(advance, name)
        work = products.compile_for(target, build=self.build, recordings=self.recordings)
        if isinstance(work, NotCovered):
            return work
        gradients = ", gradients in TF32" if posterior_behind(target).dtype == "float32" else ""
        gradients += "" if self.recordings is None else ", full gradients as CUDA graphs"
        return Compiled(work, f"{_PRODUCTS}{gradients} ({why_not_on_chip})", work.kick)
