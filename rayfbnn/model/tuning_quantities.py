"""The functions of a network that tuning uses to choose the length of trajectories: sigmas and outputs."""

from __future__ import annotations

import math

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.model.layout import ParameterLayout, PrecisionLayout

_N_CASES = 8  # number of cases for the outputs
_N_OUTPUTS = 4  # largest number of outputs per case
_N_UNITS = 16  # groups with more source units are only used as a whole
_FLOOR = 1e-6  # added to a mean square, relative to the prior's, because weights begin at zero


def sigmas(position: Array, parameters: ParameterLayout, layout: PrecisionLayout) -> Array:
    """Return the log of the mean square of each group with a free sigma, (n_chains, n) float64.

    The sigma itself does not move in a trajectory, but follows this value later. If source units have
    separate sigmas, the result also has the log mean square of each unit, for groups of up to 16 units.
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


def some_columns(n_columns: int) -> Array:
    """Return the numbers of some columns of the inputs, evenly spaced."""
    return np.unique(np.linspace(0, n_columns - 1, _N_CASES).round().astype(int))


def scaled_outputs(outputs: Array, scale: float) -> Array:
    """Return some outputs (n_chains, n_outputs, n_cases) divided by `scale`, (n_chains, n) float64."""
    values = outputs[:, :_N_OUTPUTS].astype(array_namespace(outputs).float64)
    return (values / scale).reshape(len(values), -1)


def scale_of_targets(targets: Array, observed: Array | None) -> float:
    """Return the standard deviation of all observed real targets together, or 1 if they are all equal."""
    xp = array_namespace(targets)
    scale = float(xp.std(targets if observed is None else targets[observed > 0]))
    return scale if scale > 0 else 1.0
