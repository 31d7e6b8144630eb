"""Whole trajectories in a single launch, for networks that fit on the chip of a CUDA device."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.kernels.backend import KICK
from rayfbnn.kernels.cuda.build import Build, SourceFunctions
from rayfbnn.kernels.cuda.checks import check_posterior, check_regression, check_trajectory, stride
from rayfbnn.kernels.cuda.generate import regression_constants
from rayfbnn.kernels.cuda.launch_plan import LaunchPlan
from rayfbnn.kernels.network_plan import NetworkPlan
from rayfbnn.kernels.numbers import (
    ChainNumbers,
    MarginalNumbers,
    numbers_of_marginal,
    numbers_of_posterior,
    posterior_behind,
)
from rayfbnn.mcmc import leapfrog
from rayfbnn.mcmc.hybrid import Windows
from rayfbnn.model.integrated import WithoutOutputs
from rayfbnn.state import HMCInfo, Target, Trajectory
from rayfbnn.streams import Purpose, Streams

_WINDOWS = 8  # numbers in Windows of hybrid.cu


@dataclass(frozen=True, eq=False)
class ChipKernels:
    """The kernels for one network: for its posterior, or with outputs or precisions integrated out.

    Forces use the device's fast functions. Potentials are computed with accurate functions, from the position
    alone, in float64.

    functions  the compiled kernels, by what else than network and plan their source depends on
    """

    network: NetworkPlan
    plan: LaunchPlan
    build: Build
    functions: dict[Variant, SourceFunctions] = field(default_factory=dict)

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
        streams: Streams,
        order: Array | None = None,
    ) -> tuple[Trajectory, HMCInfo]:
        """Run whole updates as `mcmc.hybrid.hybrid` does, to rounding, in one launch."""
        xp, n_chains = array_namespace(trajectory.position), len(trajectory.position)
        data = chip_data(target, trajectory, order, self.network)
        position, momentum = xp.empty_like(trajectory.position), xp.empty_like(trajectory.momentum)
        memory = xp.empty((n_chains, 4, self.network.n_parameters), dtype=position.dtype)
        accepted, diverged = xp.empty(n_chains, dtype=bool), xp.empty(n_chains, dtype=bool)
        energy_change = xp.empty(n_chains)
        drawn = (
            streams.uniform(Purpose.WINDOW_OFFSET),
            streams.uniform(Purpose.WINDOW_STATE, (windows.n_states,)),
            streams.uniform(Purpose.ACCEPT),
        )
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

    def _launch(self, name: str, variant: Variant, n_chains: int, arguments: tuple[Any, ...]) -> None:
        """Launch a kernel for all chains."""
        functions = self.functions.get(variant)
        if functions is None:
            constants = regression_constants(
                self.network.regression, n_cases=variant.n_cases, is_uniform=variant.is_uniform
            )
            functions = SourceFunctions(self.network, self.plan, variant.dtype, self.build, constants)
            self.functions[variant] = functions
        n_blocks, is_weighted = self.plan.n_blocks(n_chains), variant.is_weighted
        functions.launch(name, n_blocks, *arguments, is_weighted=is_weighted)


@dataclass(frozen=True)
class Variant:
    """Constants of a kernel's source that depend on the data.

    is_weighted  True if targets have weights, because some are missing
    n_cases      number of cases of a regression
    is_uniform   True if all cases of a regression have the same noise
    """

    dtype: str
    is_weighted: bool = False
    n_cases: int = 0
    is_uniform: bool = False


@dataclass(frozen=True, eq=False)
class ChipData:
    """A target's data in the form that a kernel reads.

    numbers    the numbers of each chain
    constant   (n_chains,): the constant of the potential, as hybrid.cu takes it
    arguments  the kernel's DATA_ARGUMENTS
    """

    numbers: ChainNumbers | MarginalNumbers
    constant: Array
    arguments: tuple[Any, ...]
    variant: Variant


def chip_data(target: Target, trajectory: Trajectory, order: Array | None, network: NetworkPlan) -> ChipData:
    """Check the arrays of target and trajectory, and return the kernel's data.

    Raises TypeError for a target that is not derived from a posterior, and TypeError or ValueError for arrays
    that the kernel would misread.
    """
    if isinstance(target, WithoutOutputs):
        assert order is None  # the determinant is not a sum over cases
        return _of_regression(target, trajectory, network)
    return _of_posterior(target, trajectory, order, network)


def _of_posterior(
    target: Target,
    trajectory: Trajectory,
    order: Array | None,
    network: NetworkPlan,
) -> ChipData:
    n_chains, posterior = len(trajectory.position), posterior_behind(target)
    check_trajectory(trajectory, posterior, network.n_parameters)
    check_posterior(posterior, network, n_chains)
    n_partitions = 1 if order is None else order.shape[1]
    if n_partitions > posterior.n_cases:
        raise ValueError(
            f"order: must have at most {posterior.n_cases} partitions (cases), got {n_partitions}"
        )
    xp, dtype = array_namespace(trajectory.position), np.dtype(posterior.dtype)
    numbers = numbers_of_posterior(target, trajectory.precisions)
    weights = xp.empty(0) if posterior.observed is None else posterior.observed
    arguments = (
        numbers.precisions,
        numbers.noise,
        numbers.inverse_temperature,
        posterior.inputs,
        xp.ascontiguousarray(posterior.targets, dtype=dtype),
        posterior.targets,
        weights,
        xp.zeros(1, dtype=np.int32) if order is None else xp.ascontiguousarray(order, dtype=np.int32),
        np.int64(stride(posterior.targets)),
        np.int64(stride(weights)),
        np.int32(posterior.n_cases),
        np.int32(n_partitions),
    )
    variant = Variant(posterior.dtype, is_weighted=posterior.observed is not None)
    return ChipData(numbers, numbers.normaliser, arguments, variant)


def _of_regression(target: WithoutOutputs, trajectory: Trajectory, network: NetworkPlan) -> ChipData:
    posterior, data = target.marginal.posterior, target.regression
    check_trajectory(trajectory, posterior, network.n_parameters)
    check_regression(target, network, len(trajectory.position))
    numbers = numbers_of_marginal(target, trajectory.precisions)
    arguments = (
        numbers.precisions,
        data.noise,
        data.prior,
        posterior.inputs,
        data.targets,
        np.int64(data.targets[0].size if len(data.targets) > 1 else 0),
        np.int32(posterior.n_cases),
    )
    variant = Variant(posterior.dtype, n_cases=posterior.n_cases, is_uniform=data.is_uniform)
    return ChipData(numbers, numbers.constant, arguments, variant)
