"""Whole trajectories in a single launch, for networks whose state fits on the chip of a CUDA device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.kernels.backend import KICK
from rayfbnn.kernels.cuda.build import Build
from rayfbnn.kernels.cuda.checks import check_posterior, check_regression, check_trajectory, stride
from rayfbnn.kernels.cuda.generate import regression_constants, source_of
from rayfbnn.kernels.cuda.launch_plan import LaunchPlan
from rayfbnn.kernels.numbers import (
    ChainNumbers,
    MarginalNumbers,
    numbers_of_marginal,
    numbers_of_posterior,
)
from rayfbnn.kernels.plan import NetworkPlan
from rayfbnn.model.marginal.precisions import with_columns
from rayfbnn.model.marginal.targets import WithoutOutputs, WithoutPrecisions
from rayfbnn.model.posterior import Posterior
from rayfbnn.state import Trajectory


def advance(
    target: Posterior | WithoutPrecisions,
    trajectory: Trajectory,
    *,
    n_steps: int,
    order: Array | None = None,
    network: NetworkPlan,
    plan: LaunchPlan,
    build: Build,
) -> tuple[Trajectory, Array]:
    """Take n_steps leapfrog steps as `mcmc.leapfrog.advance` does, to rounding, in one launch.

    Forces use the device's fast functions. The potential at the end is computed with accurate functions, from
    the position alone, in float64.
    """
    n_chains, precisions = len(trajectory.position), trajectory.precisions
    posterior = target
    if isinstance(target, WithoutPrecisions):
        posterior = target.posterior
    assert isinstance(posterior, Posterior)
    check_trajectory(trajectory, posterior, network.n_parameters)
    check_posterior(posterior, network, n_chains)
    n_partitions = 1 if order is None else order.shape[1]
    if n_partitions > posterior.n_cases:
        raise ValueError(
            f"order: must have at most {posterior.n_cases} partitions (cases), got {n_partitions}"
        )
    if isinstance(target, WithoutPrecisions):
        precisions = with_columns(precisions, target.groups, value=1.0)
    xp, dtype = array_namespace(trajectory.position), np.dtype(posterior.dtype)
    numbers = numbers_of_posterior(posterior, precisions)
    weights = xp.empty(0) if posterior.observed is None else posterior.observed
    inputs = (
        numbers.precisions,
        numbers.noise,
        numbers.inverse_temperature,
        posterior.inputs,
        xp.ascontiguousarray(posterior.targets, dtype=dtype),
        posterior.targets,
        weights,
        xp.zeros(1, dtype=np.int32) if order is None else xp.ascontiguousarray(order, dtype=np.int32),
    )
    sizes = (
        np.int64(stride(posterior.targets)),
        np.int64(stride(weights)),
        np.int32(n_chains),
        np.int32(posterior.n_cases),
        np.int32(n_partitions),
        np.int32(n_steps),
    )
    is_weighted = posterior.observed is not None
    source = source_of(network, plan, dtype=posterior.dtype, is_weighted=is_weighted)
    return _launch(source, plan, build, trajectory, numbers, inputs, sizes)


def kick(
    target: Posterior | WithoutPrecisions,
    trajectory: Trajectory,
    *,
    share: float,
    network: NetworkPlan,
    plan: LaunchPlan,
    build: Build,
) -> Array:
    """Return the momentum after a kick, as `mcmc.leapfrog.kick` does, to rounding, in one launch."""
    # The kernel kicks by half the stepsizes.
    doubled = replace(trajectory, stepsizes=2 * share * trajectory.stepsizes)
    return advance(target, doubled, n_steps=KICK, network=network, plan=plan, build=build)[0].momentum


def advance_without_outputs(
    target: WithoutOutputs,
    trajectory: Trajectory,
    *,
    n_steps: int,
    order: Array | None = None,
    network: NetworkPlan,
    plan: LaunchPlan,
    build: Build,
) -> tuple[Trajectory, Array]:
    """Do what `advance` does for a posterior whose outputs are integrated out."""
    assert order is None  # the determinant is not a sum over cases
    posterior, data = target.marginal.posterior, target.regression
    check_trajectory(trajectory, posterior, network.n_parameters)
    check_regression(target, network, len(trajectory.position))
    assert network.regression is not None
    numbers = numbers_of_marginal(target, trajectory.precisions)
    inputs = numbers.precisions, data.noise, data.prior, posterior.inputs, data.targets
    sizes = (
        np.int64(data.targets[0].size if len(data.targets) > 1 else 0),
        np.int32(posterior.n_cases),
        np.int32(n_steps),
    )
    constants = regression_constants(
        network.regression, n_cases=posterior.n_cases, is_uniform=data.is_uniform
    )
    source = source_of(network, plan, dtype=posterior.dtype, is_weighted=False, more_constants=constants)
    return _launch(source, plan, build, trajectory, numbers, inputs, sizes)


def _launch(
    source: str,
    plan: LaunchPlan,
    build: Build,
    trajectory: Trajectory,
    numbers: ChainNumbers | MarginalNumbers,
    inputs: tuple[Array, ...],
    sizes: tuple[Any, ...],
) -> tuple[Trajectory, Array]:
    """Run the kernel `advance` on copies of position and momentum.

    inputs  arrays between the trajectory's and those for the energies
    sizes   numbers behind these, the last of them the number of steps
    """
    xp, n_chains = array_namespace(trajectory.position), len(trajectory.position)
    position, momentum = trajectory.position.copy(), trajectory.momentum.copy()
    prior_energy, terms = xp.empty(n_chains), xp.empty(n_chains)
    kernel = build(source, "advance", plan.shared_bytes)
    arguments = (position, momentum, trajectory.stepsizes, *inputs, prior_energy, terms, *sizes)
    kernel((plan.n_blocks(n_chains),), (plan.threads,), arguments, shared_mem=plan.shared_bytes)
    potential = numbers.potential(prior_energy, terms)
    # Without a step the kernel has given its copy of the momentum half a kick.
    end = trajectory if sizes[-1] == 0 else trajectory.moved(position, momentum)
    return end, xp.where(xp.isfinite(potential), potential, xp.inf)
