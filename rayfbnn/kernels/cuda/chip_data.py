"""The arguments of the kernels of whole trajectories, other than the trajectory itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.kernels.cuda.checks import check_posterior, check_regression, check_trajectory, stride
from rayfbnn.kernels.network_plan import NetworkPlan
from rayfbnn.kernels.numbers import (
    ChainNumbers,
    MarginalNumbers,
    numbers_of_marginal,
    numbers_of_posterior,
)
from rayfbnn.kernels.target_cache import posterior_behind
from rayfbnn.model.integrated import WithoutOutputs, WithoutPrecisions
from rayfbnn.model.output_layer import with_columns
from rayfbnn.state import Target, Trajectory


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
    n_chains, precisions = len(trajectory.position), trajectory.precisions
    posterior = posterior_behind(target)
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
