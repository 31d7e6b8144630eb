"""The backend of compiled code on a CPU, one for each instruction set."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from rayfbnn.approximate.variational import CompiledSteps
from rayfbnn.arrays import Array
from rayfbnn.kernels.backend import KICK, Compiled, NotCovered
from rayfbnn.kernels.cpu import compiled_module
from rayfbnn.kernels.cpu.compiled_module import BLAS_FROM, LARGE_FROM, ROWS_FROM, Kernel
from rayfbnn.kernels.cpu.stochastic import arguments_of, friction_steps, variational_steps
from rayfbnn.kernels.network_plan import plan_of
from rayfbnn.kernels.numbers import (
    ChainNumbers,
    KernelTarget,
    MarginalNumbers,
    TargetCache,
    numbers_of_marginal,
    numbers_of_posterior,
    posterior_behind,
)
from rayfbnn.mcmc import leapfrog
from rayfbnn.mcmc.sghmc import FrictionSteps
from rayfbnn.model.integrated import WithoutOutputs
from rayfbnn.model.posterior import Posterior
from rayfbnn.state import Target, Trajectory


@dataclass(frozen=True)
class CompiledBackend:
    """Compiled code for one instruction set. If this is "", there is none, and `check` gives the reason."""

    instruction_set: str

    @property
    def name(self) -> str:
        return f"compiled, {self.instruction_set}"

    @property
    def keyword(self) -> str:
        return self.instruction_set

    def check(self, target: Target) -> NotCovered | None:
        """Return the reason why this target, or every target, has no compiled code, or None."""
        plan = plan_of(target)
        if isinstance(plan, NotCovered):
            return plan
        if not self.instruction_set:
            return NotCovered(f"no compiled kernels: {compiled_module.why_none}")
        return None

    def compile(self, target: Target) -> Compiled | NotCovered:
        """Return an Advance, which lays out the target's inputs at its first call."""
        advance = CompiledAdvance(self.instruction_set)
        return self.check(target) or Compiled(advance, self.name, advance.kick)


def backends() -> tuple[CompiledBackend, ...]:
    """Return this processor's backends, best first, or a single one that only gives the reason for none."""
    return tuple(CompiledBackend(name) for name in compiled_module.instruction_sets()) or (
        CompiledBackend(""),
    )


@dataclass(frozen=True)
class CompiledAdvance:
    """An `Advance` that runs compiled code for posteriors and their marginals, and array code otherwise.

    instruction_set  one of `compiled_module.instruction_sets()`
    large_from, blas_from  see the constants in compiled_module.py
    block_bytes      memory for the values of one block of cases; 0 leaves the choice to the kernel
    rows_from        bytes of inputs above which kernels do not copy them
    """

    instruction_set: str
    large_from: int = LARGE_FROM
    blas_from: int = BLAS_FROM
    block_bytes: int = 0
    rows_from: int = ROWS_FROM
    _kernels: TargetCache[Kernel | None] = field(default_factory=TargetCache)

    def __call__(
        self,
        target: Target,
        trajectory: Trajectory,
        *,
        n_steps: int,
        order: Array | None = None,
    ) -> tuple[Trajectory, Array]:
        """Take n_steps leapfrog steps of every chain, as `mcmc.leapfrog.advance` does."""
        kernel = self._kernel_or_none(target, 1 if order is None else order.shape[1])
        if kernel is None:
            return leapfrog.advance(target, trajectory, n_steps=n_steps, order=order)
        return self._run(kernel, target, trajectory, n_steps=n_steps, order=order)

    def kick(self, target: Target, trajectory: Trajectory, *, share: float) -> Array:
        """Return the momentum after a kick, as `mcmc.leapfrog.kick` does."""
        kernel = self._kernel_or_none(target, 1)
        if kernel is None:
            return leapfrog.kick(target, trajectory, share=share)
        stepsizes = 2 * share * trajectory.stepsizes  # the kernel kicks by half of them
        return self._run(kernel, target, replace(trajectory, stepsizes=stepsizes), n_steps=KICK)[0].momentum

    def _run(
        self,
        kernel: Kernel,
        target: Target,
        trajectory: Trajectory,
        *,
        n_steps: int,
        order: Array | None = None,
    ) -> tuple[Trajectory, Array]:
        """Take n_steps steps, or a single kick; the potential is meaningless after a kick."""
        assert isinstance(target, KernelTarget)
        numbers, data = _numbers_and_data(target, trajectory.precisions)
        position = trajectory.position
        new_position, new_momentum = np.empty_like(position, order="C"), np.empty_like(position, order="C")
        prior_energy, terms = np.zeros(len(position)), np.zeros(len(position))
        kernel.advance(
            position=position,
            momentum=trajectory.momentum,
            stepsizes=trajectory.stepsizes,
            order=order if order is None else np.ascontiguousarray(order, dtype=np.int64),
            n_steps=n_steps,
            new_position=new_position,
            new_momentum=new_momentum,
            prior_energy=prior_energy,
            terms=terms,
            **data,
        )
        with np.errstate(all="ignore"):
            potential = numbers.potential(prior_energy, terms)
        potential = np.where(np.isfinite(potential), potential, np.inf)
        return trajectory.moved(new_position, new_momentum), potential

    def covers(self, target: Target) -> bool:
        """Return True if compiled code runs the target instead of array code."""
        return isinstance(target, KernelTarget) and not isinstance(plan_of(target), NotCovered)

    def _kernel_or_none(self, target: Target, n_partitions: int) -> Kernel | None:
        if not isinstance(target, KernelTarget):
            return None
        return self._kernels.of(target, n_partitions, partial(self._compiled, target, n_partitions))

    def friction_steps(self, target: Target, batch: int | None) -> FrictionSteps | None:
        """Return the code for steps of dynamics with friction, or None if array code takes them."""
        return partial(friction_steps, self._of_batch) if self._covers_batches(target, batch) else None

    def variational_steps(self, target: Target, batch: int | None) -> CompiledSteps | None:
        """Return the code for steps of Bayes by Backprop, or None if array code takes them."""
        return partial(variational_steps, self._of_batch) if self._covers_batches(target, batch) else None

    def _covers_batches(self, target: Target, batch: int | None) -> bool:
        """Return True for posteriors; with batches, each case must also be one column of the inputs."""
        if not isinstance(target, Posterior) or not self.covers(target):
            return False
        return batch is None or target.starts is None

    def _of_batch(self, posterior: Posterior, batch: int) -> Kernel:
        """Return the kernel for batches of `batch` cases, or for all cases if it is 0."""
        variant = ("batch", batch) if batch else 1
        kernel = self._kernels.of(posterior, variant, partial(self._compiled, posterior, 1, batch))
        assert kernel is not None
        return kernel

    def _compiled(self, target: KernelTarget, n_partitions: int, batch: int = 0) -> Kernel | None:
        plan = plan_of(target)
        if isinstance(plan, NotCovered):
            return None
        posterior = posterior_behind(target)
        return compiled_module.kernel_for(
            plan,
            posterior.inputs,
            batch=batch,
            instruction_set=self.instruction_set,
            n_partitions=n_partitions,
            large_from=self.large_from,
            blas_from=self.blas_from,
            block_bytes=self.block_bytes,
            rows_from=self.rows_from,
        )


def _numbers_and_data(
    target: KernelTarget, precisions: Array
) -> tuple[ChainNumbers | MarginalNumbers, dict[str, Any]]:
    """Return each chain's numbers, and the extension's arguments that come from them and from the data."""
    if isinstance(target, WithoutOutputs):
        regression, numbers = target.regression, numbers_of_marginal(target, precisions)
        return numbers, {
            "precisions": numbers.precisions,
            "noise": np.ascontiguousarray(regression.noise),
            "powers": np.ones(len(precisions)),
            "targets": np.ascontiguousarray(regression.targets),
            "weights": None,
            "prior": np.ascontiguousarray(regression.prior),
        }
    of_chains = numbers_of_posterior(target, precisions)
    return of_chains, {**arguments_of(posterior_behind(target), of_chains), "prior": None}
