"""Heuristic stepsizes, and the functions of a network by which tuning chooses the length of trajectories.

Stepsizes are the posterior's width along each axis, estimated only from precisions and inputs, as in Neal
(2022), "Heuristic choice of stepsizes". They must not depend on the current parameters, because trajectories
would then not be reversible.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.model.architecture import Subgroups
from rayfbnn.model.layout import ParameterLayout, PrecisionLayout
from rayfbnn.model.network import LOG_2, largest_squared_slopes
from rayfbnn.model.wiring import Wiring


def stepsizes(
    tau: Array,
    output_curvature: Array,
    input_mean_squares: Array,
    n_cases: int,
    *,
    parameters: ParameterLayout,
    wiring: Wiring,
) -> Array:
    """Return 1 / sqrt(curvature of prior + curvature of likelihood), (n_chains, n_parameters) float64.

    tau                 (n_chains, n_parameters) the precision of each parameter
    output_curvature    (n_chains, n_outputs) -d2/dv2 of one case's log likelihood
    input_mean_squares  (n_inputs,) mean square of each input over the training cases
    """
    xp = array_namespace(tau)
    spread = _capped_variances(tau, parameters)
    forward = _simulate_forward(spread, input_mean_squares, wiring)
    curvature = tau.copy()
    for part, alpha in parameters.parts_of_t:
        curvature[:, part] *= (alpha + 1) / alpha  # eq. 68
    unit_curvature, value_curvature = _unit_curvatures(tau, output_curvature, forward, wiring)
    for layer, seconds in unit_curvature.items():
        for link in wiring.incoming[layer]:
            if link.configured is not None:
                squares = forward.squares[link.source][:, :, None]
                over_weights = link.configured.weight_gradient(squares, seconds[:, :, None])
                curvature[:, link.parameters] += n_cases * over_weights
                continue
            source = forward.squares[link.source][:, link.rows]
            link.matrix(curvature)[...] += n_cases * source[:, :, None] * seconds[:, None, :]  # eq. 66
    for layer, offset in enumerate(wiring.offsets):
        if offset is not None:
            curvature[:, offset] += n_cases * value_curvature[layer]
    return 1 / xp.sqrt(curvature)


def _capped_variances(tau: Array, parameters: ParameterLayout) -> Array:
    """Return each parameter's prior variance; t priors below 3 degrees of freedom count as having 3."""
    variances = 1 / tau
    for part, alpha in parameters.parts_of_t:
        variances[:, part] *= 3 if alpha < 3 else alpha / (alpha - 2)
    return variances


@dataclass(frozen=True)
class _Forward:
    """A simulated forward pass.

    squares  for each layer, typical squares of its values after factor and offset, then of the constant one:
             (n_chains, n_units + 1)
    own      for each hidden layer, typical squares of its values before any factor and offset,
             (n_chains, n_units)
    slopes   for each hidden layer, the largest squared slopes, a number or (n_chains, n_units)
    """

    squares: list[Array]
    own: list[Array]
    slopes: list[Array | float]


def _simulate_forward(spread: Array, input_mean_squares: Array, wiring: Wiring) -> _Forward:
    """Simulate a forward pass with all parameters as large as their sigmas."""
    xp = array_namespace(spread)
    squares = [_sent_on(input_mean_squares, spread, wiring.offsets[0], n_units=wiring.units[0])]
    unit_squares, slopes = [], []
    for layer, activation in enumerate(wiring.activations, start=1):
        groups = wiring.subgroups[layer - 1]
        summed = xp.zeros((spread.shape[0], wiring.units[layer]))
        for link in wiring.incoming[layer]:
            if link.configured is not None:
                sent = squares[link.source][:, :, None]
                summed += link.configured.forward(spread[:, link.parameters], sent)[:, :, 0]
                continue
            products = squares[link.source][:, link.rows, None] * link.matrix(spread)
            summed += products.sum(axis=1)
        slopes.append(largest_squared_slopes(summed, activation, groups))
        unit_squares.append(_typical_value_square(summed, activation, groups))
        factor = wiring.factors[layer - 1]
        value_squares = unit_squares[-1] if factor is None else unit_squares[-1] * squares[factor][:, :-1]
        squares.append(_sent_on(value_squares, spread, wiring.offsets[layer], n_units=wiring.units[layer]))
    return _Forward(squares, unit_squares, slopes)


def _sent_on(value_squares: Array, spread: Array, offset: slice | None, *, n_units: int) -> Array:
    if offset is not None:
        value_squares = value_squares + spread[:, offset]
    squares = array_namespace(spread).ones((len(spread), n_units + 1))
    squares[:, :-1] = value_squares
    return squares


def _typical_value_square(summed: Array, activation: str, groups: Subgroups) -> Array:
    """Return the typical square of a unit's value, given the typical square of its summed input."""
    xp = array_namespace(summed)
    if activation == "tanh":
        return xp.minimum(summed, 1.0)
    if activation in ("sigmoid", "softmax"):
        return xp.ones_like(summed)  # its largest value squared
    if activation == "normalize":
        return xp.full_like(summed, groups.size)  # its largest value squared
    if activation == "sin":
        return -xp.expm1(-4 * summed)  # the mean of 2 sin(sqrt(2) u)**2, u normal
    if activation == "softplus":
        return xp.maximum(summed, LOG_2**2)  # its value at zero input
    return summed


def _unit_curvatures(
    tau: Array, output_curvature: Array, forward: _Forward, wiring: Wiring
) -> tuple[dict[int, Array], dict[int, Array]]:
    """Return -d2L/du2 of one case for each layer's summed inputs, last layer first, and -d2L/dv2; eqs. 58-64.

    A factor of a product is taken to be the root of its typical square.
    """
    summed = {len(wiring.units) - 1: output_curvature}
    values: dict[int, Array] = {}
    from_products: dict[int, Array] = {}
    for layer in range(len(wiring.units) - 2, -1, -1):
        if layer == 0 and wiring.offsets[0] is None:
            break
        values[layer] = _backward(tau, summed, wiring, layer)
        if layer in from_products:
            values[layer] += from_products[layer]
        if layer == 0:
            break
        curvature = values[layer]
        factor = wiring.factors[layer - 1]
        if factor is not None:
            part = curvature * forward.own[layer - 1]
            if wiring.units[factor] == 1:
                part = part.sum(axis=1, keepdims=True)
            from_products[factor] = from_products.get(factor, 0.0) + part
            curvature = curvature * forward.squares[factor][:, :-1]
        summed[layer] = forward.slopes[layer - 1] * curvature
    return summed, values


def _backward(tau: Array, curvatures: dict[int, Array], wiring: Wiring, layer: int) -> Array:
    """Return -d2L/dv2 for a layer's values, with weights as large as their sigmas, eq. 64.

    The sigmas of t weights are not widened: FBM widens them in the forward pass only.
    """
    xp = array_namespace(tau)
    total = xp.zeros((tau.shape[0], wiring.units[layer]))
    for link in wiring.outgoing[layer]:
        seconds = curvatures[link.destination]
        if link.configured is not None:
            variances = 1 / tau[:, link.parameters]
            total += link.configured.source_gradient(variances, seconds[:, :, None])[:, :, 0]
        else:
            weights = link.matrix(tau)[:, : link.n_units]
            total[:, link.units] += (seconds[:, None, :] / weights).sum(axis=2)
    return total


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
