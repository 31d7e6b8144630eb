"""Whole trajectories in a single launch, for networks that fit on the chip of a CUDA device."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.kernels.backend import KICK
from rayfbnn.kernels.cuda.build import Build, CudaFunction
from rayfbnn.kernels.cuda.chip_data import Variant, chip_data
from rayfbnn.kernels.cuda.generate import Launched, regression_constants, source_of
from rayfbnn.kernels.cuda.launch_plan import LaunchPlan
from rayfbnn.kernels.network_plan import NetworkPlan
from rayfbnn.mcmc import leapfrog
from rayfbnn.mcmc.hybrid import Uniforms, Windows
from rayfbnn.state import HMCInfo, Target, Trajectory

_WINDOWS = 8  # numbers in Windows of hybrid.cu


@dataclass(frozen=True, eq=False)
class ChipKernels:
    """The kernels for one network: for its posterior, or with outputs or precisions integrated out.

    Forces use the device's fast functions. Potentials are computed with accurate functions, from the position
    alone, in float64.

    functions  the compiled kernels
    """

    network: NetworkPlan
    plan: LaunchPlan
    build: Build
    functions: dict[tuple[Launched, Variant], CudaFunction] = field(default_factory=dict)

    def advance(
        self, target: Target, trajectory: Trajectory, *, n_steps: int, order: Array | None = None
    ) -> tuple[Trajectory, Array]:
        """Take n_steps leapfrog steps as `mcmc.leapfrog.advance` does, to rounding, in one launch."""
        xp, n_chains = array_namespace(trajectory.position), len(trajectory.position)
        data = chip_data(target, trajectory, order, self.network)
        position, momentum = trajectory.position.copy(), trajectory.momentum.copy()
        prior_energy, terms = xp.empty(n_chains), xp.empty(n_chains)
        sizes = np.int32(n_chains), np.int32(n_steps)
        arguments = (position, momentum, trajectory.stepsizes, prior_energy, terms, *sizes, *data.arguments)
        self._launch("advance", data.variant, n_chains, arguments)
        potential = data.numbers.potential(prior_energy, terms)
        # With no steps, the kernel still gives its copy of the momentum half a kick.
        end = trajectory if n_steps == 0 else trajectory.moved(position, momentum)
        return end, xp.where(xp.isfinite(potential), potential, xp.inf)

    def kick(self, target: Target, trajectory: Trajectory, *, share: float) -> Array:
        """Return the momentum after a kick, as `mcmc.leapfrog.kick` does, to rounding."""
        if self.network.regression is not None:  # no run needs it, and these kernels do not implement it
            return leapfrog.kick(target, trajectory, share=share)
        # The kernel kicks by half the stepsizes.
        doubled = replace(trajectory, stepsizes=2 * share * trajectory.stepsizes)
        return self.advance(target, doubled, n_steps=KICK)[0].momentum

    def hybrid(
        self,
        target: Target,
        trajectory: Trajectory,
        *,
        windows: Windows,
        uniforms: Uniforms,
        order: Array | None = None,
    ) -> tuple[Trajectory, HMCInfo]:
        """Run whole updates as `mcmc.hybrid.hybrid` does, to rounding, in one launch."""
        xp, n_chains = array_namespace(trajectory.position), len(trajectory.position)
        data = chip_data(target, trajectory, order, self.network)
        position, momentum = xp.empty_like(trajectory.position), xp.empty_like(trajectory.momentum)
        memory = xp.empty((n_chains, 4, self.network.n_parameters), dtype=position.dtype)
        accepted, diverged = xp.empty(n_chains, dtype=bool), xp.empty(n_chains, dtype=bool)
        energy_change = xp.empty(n_chains)
        drawn = (uniforms.of_offset, uniforms.of_states, uniforms.of_decision)
        sizes = (n_chains, windows.n_states, windows.steps, windows.window, windows.jump)
        arguments = (
            *(trajectory.position, trajectory.momentum, trajectory.stepsizes),
            *(position, momentum, memory, xp.empty((n_chains, _WINDOWS))),
            *(accepted, energy_change, diverged, data.constant),
            *(xp.ascontiguousarray(numbers) for numbers in drawn),
            *(np.int32(size) for size in sizes),
            *data.arguments,
        )
        self._launch("hybrid", data.variant, n_chains, arguments)
        return trajectory.moved(position, momentum), HMCInfo(accepted, energy_change, diverged)

    def _launch(self, name: Launched, variant: Variant, n_chains: int, arguments: tuple[Any, ...]) -> None:
        """Launch a kernel for all chains."""
        plan = self.plan
        # Looking up a function by its source takes longer than launching it.
        function = self.functions.get((name, variant))
        if function is None:
            function = self.build(self._source(name, variant), name, plan.shared_bytes)
            self.functions[name, variant] = function
        function((plan.n_blocks(n_chains),), (plan.threads,), arguments, shared_mem=plan.shared_bytes)

    def _source(self, name: Launched, variant: Variant) -> str:
        regression = self.network.regression
        constants: tuple[str, ...] = ()
        if regression is not None:
            constants = regression_constants(
                regression, n_cases=variant.n_cases, is_uniform=variant.is_uniform
            )
        return source_of(
            self.network,
            self.plan,
            dtype=variant.dtype,
            is_weighted=variant.is_weighted,
            more_constants=constants,
            launched=name,
        )
