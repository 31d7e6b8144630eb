"""Which kernel advances a posterior whose arrays are on a CUDA device, and what is left of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from weakref import WeakKeyDictionary

from rayfbnn.arrays import Array
from rayfbnn.kernels.cuda import chip as cuda
from rayfbnn.kernels.cuda import chip_marginal as cuda_marginal
from rayfbnn.kernels.cuda import products as wide
from rayfbnn.kernels.cuda import products_marginal as wide_marginal
from rayfbnn.kernels.cuda.graphs import Recordings
from rayfbnn.kernels.plan import Program
from rayfbnn.model.marginal.targets import OutputMarginal, WithoutOutputs, WithoutPrecisions
from rayfbnn.model.posterior import Posterior
from rayfbnn.state import Advance, Target, Trajectory


def advance_for(
    posterior: Posterior,
    *,
    build: cuda.Build = cuda.build_once,
    max_shared_bytes: int | None = None,
    recordings: Recordings | None = None,
) -> tuple[Advance, str] | str:
    """The kernel and its name for people, or in words why only array code covers the posterior.

    Whole trajectories on the chip where the network's state fits there, products over all chains otherwise:
    the first reads nothing but cases from device memory, so where it fits nothing else comes near it. Either
    runs what the posterior was tempered or given other targets to as well: what differs goes in as numbers.

    max_shared_bytes  of a block; what the device has unless given
    recordings        where the full gradients of products are CUDA graphs, if they are to be
    """
    program = Program.of(posterior)
    if isinstance(program, str):
        return program
    limit = cuda.shared_memory_of_device() if max_shared_bytes is None else max_shared_bytes
    plan = cuda.plan_of(program, dtype=posterior.dtype, max_shared_bytes=limit)
    if isinstance(plan, cuda.Plan):
        on_chip = partial(cuda.advance, program=program, plan=plan, build=build)
        return on_chip, _name_on_chip(plan)
    in_products = wide.advance_for(posterior, build=build, recordings=recordings)
    if isinstance(in_products, str):
        return in_products
    return in_products, _name_of_products(posterior, recordings, plan)


@dataclass(frozen=True)
class MarginalAdvance:
    """An `Advance` for what hybrid-marginal leaves of posteriors; the choice is that of `advance_for`.

    build, recordings  as there
    on_chip            whole trajectories, where the state fits
    """

    on_chip: cuda_marginal.MarginalAdvance
    build: cuda.Build = cuda.build_once
    recordings: Recordings | None = None
    _in_products: WeakKeyDictionary[OutputMarginal | WithoutPrecisions, Advance | str] = field(
        default_factory=WeakKeyDictionary
    )

    @staticmethod
    def of(
        *,
        build: cuda.Build = cuda.build_once,
        max_shared_bytes: int | None = None,
        recordings: Recordings | None = None,
    ) -> MarginalAdvance:
        return MarginalAdvance(cuda_marginal.MarginalAdvance(build, max_shared_bytes), build, recordings)

    def covers(self, target: Target) -> bool:
        """Whether it is such a target, and a kernel runs it."""
        if not isinstance(target, WithoutOutputs | WithoutPrecisions):
            return False
        return not isinstance(self.chosen(target), str)

    def chosen(self, target: WithoutOutputs | WithoutPrecisions) -> tuple[Advance, str] | str:
        """What runs it and its name for people, or in words why array code does."""
        found = self.on_chip.chosen(target)
        if not isinstance(found, str):
            return self.on_chip, _name_on_chip(found[1])
        in_products = self._products_for(target)
        if isinstance(in_products, str):
            return in_products
        if isinstance(target, WithoutOutputs):
            return in_products, f"{_PRODUCTS} ({found})"
        return in_products, _name_of_products(target.posterior, self.recordings, found)

    def __call__(
        self,
        target: Target,
        trajectory: Trajectory,
        *,
        n_steps: int,
        order: Array | None = None,
    ) -> tuple[Trajectory, Array]:
        """Take n_steps leapfrog steps of every chain, as `mcmc.leapfrog.advance` does."""
        assert isinstance(target, WithoutOutputs | WithoutPrecisions)
        chosen = self.chosen(target)
        assert not isinstance(chosen, str), chosen
        return chosen[0](target, trajectory, n_steps=n_steps, order=order)

    def _products_for(self, target: WithoutOutputs | WithoutPrecisions) -> Advance | str:
        made = target.marginal if isinstance(target, WithoutOutputs) else target
        if made not in self._in_products:
            if isinstance(made, OutputMarginal):
                found = wide_marginal.advance_for(made, build=self.build)
            else:
                found = wide.advance_for(made, build=self.build, recordings=self.recordings)
            self._in_products[made] = found
        return self._in_products[made]


_PRODUCTS = "CUDA, products over all chains"


def _name_on_chip(plan: cuda.Plan) -> str:
    """A block a chain runs what is left of posteriors too."""
    return f"CUDA, whole trajectories, a {'warp' if plan.kernel == 'warp' else 'block'} a chain"


def _name_of_products(posterior: Posterior, recordings: Recordings | None, why_not_on_chip: str) -> str:
    gradients = ", gradients in TF32" if posterior.dtype == "float32" else ""
    gradients += "" if recordings is None else ", full gradients as CUDA graphs"
    return f"{_PRODUCTS}{gradients} ({why_not_on_chip})"
