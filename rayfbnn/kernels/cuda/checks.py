"""Checks of arrays that a kernel would otherwise misread."""

from __future__ import annotations

from typing import Any

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.kernels.network_plan import NetworkPlan
from rayfbnn.model.integrated import WithoutOutputs
from rayfbnn.model.posterior import Posterior
from rayfbnn.state import Trajectory

_DOUBLE = np.dtype(np.float64)


def check(name: str, array: Array, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Raise TypeError or ValueError unless the array has this dtype and shape and is C-contiguous."""
    if array.dtype != dtype:
        raise TypeError(f"{name}: must be {dtype}, got {array.dtype}")
    if array.shape != shape:
        raise ValueError(f"{name}: must have the shape {shape}, got {array.shape}")
    if not array.flags.c_contiguous:
        raise ValueError(f"{name}: must be C-contiguous")


def check_trajectory(trajectory: Trajectory, posterior: Posterior, n_parameters: int) -> None:
    """Check the arrays of a trajectory of n_parameters coordinates."""
    n_chains, dtype = len(trajectory.position), np.dtype(posterior.dtype)
    check("precisions", trajectory.precisions, _DOUBLE, (n_chains, posterior.n_precisions))
    check("position", trajectory.position, dtype, (n_chains, n_parameters))
    check("momentum", trajectory.momentum, dtype, (n_chains, n_parameters))
    check("stepsizes", trajectory.stepsizes, dtype, (n_chains, n_parameters))


def check_posterior(posterior: Posterior, network: NetworkPlan, n_chains: int) -> None:
    """Check the inputs, targets and weights of a posterior; each chain may have its own targets."""
    n_cases = posterior.n_cases
    check_inputs(posterior, network)
    arrays = (
        ("targets", posterior.targets, network.n_rows),
        ("observed", posterior.observed, network.n_targets),
    )
    for name, array, n_rows in arrays:
        if array is not None:
            check(name, array, _DOUBLE, (*(n_chains,) * (array.ndim == 3), n_rows, n_cases))


def check_regression(target: WithoutOutputs, network: NetworkPlan, n_chains: int) -> None:
    """Check the inputs of the network and the arrays of its final regression."""
    posterior, data, regression = target.marginal.posterior, target.regression, network.regression
    assert regression is not None
    n_cases = posterior.n_cases
    check_inputs(posterior, network)
    systems = (n_chains, regression.n_systems)
    check("noise", data.noise, _DOUBLE, (*systems, 1 if data.is_uniform else n_cases))
    check("prior", data.prior, _DOUBLE, (*systems, len(regression.features)))
    n_sets = n_chains if len(data.targets) == n_chains else 1
    targets_of_one = (regression.n_systems, regression.n_each, n_cases)
    check("targets", data.targets, _DOUBLE, (n_sets, *targets_of_one))


def check_inputs(posterior: Posterior, network: NetworkPlan) -> None:
    """Check the inputs. Their last row consists of ones."""
    shape = (network.units[0] + 1, posterior.n_cases)
    check("inputs", posterior.inputs, np.dtype(posterior.dtype), shape)


def stride(values: Array) -> int:
    """Return the distance from one chain's numbers to the next chain's; 0 if all chains share them."""
    return int(values[0].size) if values.ndim == 3 else 0
