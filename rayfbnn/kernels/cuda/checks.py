"""Arrays in the form that kernels read: checks for other forms, and tiles of cases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rayfbnn.arrays import Array, array_namespace
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


@dataclass(frozen=True, eq=False)
class CaseTile:
    """A tile of n cases.

    inputs   (n_inputs + 1, n); or (n_chains, n_inputs + 1, n) if each chain has its own
    targets  (..., n_outputs, n_cases); the tile's targets start at case number `begin`
    weights  weights of the targets, (..., n_targets, n_cases), or None
    """

    inputs: Array
    targets: Array
    weights: Array | None
    begin: int

    @property
    def n(self) -> int:
        """Number of cases in the tile."""
        return int(self.inputs.shape[-1])


def output_arguments(position: Array, noise: Array, tile: CaseTile) -> tuple[Any, ...]:
    """Return the arguments that OUTPUT_ARGUMENTS of layers.cuh declares."""
    xp = array_namespace(tile.inputs)
    weights = xp.empty(0) if tile.weights is None else tile.weights
    return (
        position,
        noise,
        xp.ascontiguousarray(tile.targets, dtype=position.dtype),
        tile.targets,
        weights,
        np.int64(stride(tile.targets)),
        np.int64(stride(weights)),
        np.int32(len(position)),
        np.int32(tile.targets.shape[-1]),
        np.int32(tile.begin),
        np.int32(tile.n),
    )
