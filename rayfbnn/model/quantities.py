"""The functions of a network whose movement decides how long trajectories are: its sigmas and outputs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.model.layout import ParameterLayout, PrecisionLayout
from rayfbnn.model.network import Buffers, forward

if TYPE_CHECKING:
    from rayfbnn.model.posterior import Posterior

_N_CASES = 8  # at which outputs are looked at
_N_OUTPUTS = 4  # at most
_N_UNITS = 16  # a group with more source units is looked at as a whole
_FLOOR = 1e-6  # of a mean square, in units of the prior's: weights begin at zero


def quantities(posterior: Posterior, position: Array) -> Array:
    """What `sigmas` and `scaled_outputs` say, (n_chains, n_quantities) float64."""
    xp = array_namespace(position)
    inputs = xp.ascontiguousarray(posterior.inputs[:, cases(posterior)])
    outputs = forward(position, inputs, posterior.wiring, buffers=Buffers()).outputs
    return xp.concatenate(
        [
            sigmas(position, posterior.parameter_layout, posterior.precision_layout),
            scaled_outputs(posterior, outputs),
        ],
        axis=1,
    )


def sigmas(position: Array, parameters: ParameterLayout, layout: PrecisionLayout) -> Array:
    """For each group with a free sigma the log of its mean square, (n_chains, n) float64.

    It is what the sigma follows, which itself does not move in a trajectory. Where source units have sigmas
    of their own, the same of each unit.
    """
    xp = array_namespace(position)
    views, columns = parameters.views(position), [xp.empty((len(position), 0))]
    for group in layout.groups:
        if group.name not in views or not any(math.isfinite(alpha) for alpha in group.prior.alphas[:2]):
            continue
        squares = xp.square(views[group.name].astype(xp.float64)) * group.mean
        columns.append(xp.log(squares.mean(axis=tuple(range(1, squares.ndim))) + _FLOOR)[:, None])
        if group.units is not None and squares.ndim == 3 and squares.shape[1] <= _N_UNITS:
            columns.append(xp.log(squares.mean(axis=2) + _FLOOR))
    return xp.concatenate(columns, axis=1)


def cases(posterior: Posterior) -> Array:
    """Some training cases, evenly spaced, as numbers of columns of the inputs."""
    n_columns = posterior.inputs.shape[1]
    return np.unique(np.linspace(0, n_columns - 1, _N_CASES).round().astype(int))


def scaled_outputs(posterior: Posterior, outputs: Array) -> Array:
    """Outputs (n_chains, n_outputs, n_cases) in standard deviations of real targets; (n_chains, n)."""
    values = outputs[:, :_N_OUTPUTS].astype(array_namespace(outputs).float64)
    return (values / posterior.target_scale).reshape(len(values), -1)


def scale_of_targets(posterior: Posterior) -> float:
    """The standard deviation of the targets that are there, all together; 1 where that says nothing."""
    if not posterior.data_model.is_real:
        return 1.0
    xp = array_namespace(posterior.targets)
    there = posterior.targets if posterior.observed is None else posterior.targets[posterior.observed > 0]
    scale = float(xp.std(there))
    return scale if scale > 0 else 1.0
