"""Heuristic stepsizes: the posterior's width along each axis, guessed from precisions and inputs alone.

Neal (2022), "Heuristic choice of stepsizes". They may not depend on the current parameters, or the
trajectories would not be reversible.
"""

from __future__ import annotations

import math

from rayfbnn.architecture import ModelSpec
from rayfbnn.arrays import Array, array_namespace
from rayfbnn.model.layout import ParameterLayout, PrecisionLayout
from rayfbnn.model.likelihood import noise_precision
from rayfbnn.model.network import LOG_2
from rayfbnn.model.prior import parameter_precisions
from rayfbnn.model.wiring import Wiring


def stepsizes(
    precisions: Array,
    input_mean_squares: Array,
    n_cases: int,
    *,
    parameters: ParameterLayout,
    layout: PrecisionLayout,
    wiring: Wiring,
    model: ModelSpec,
) -> Array:
    """1 / sqrt(curvature of the prior + curvature of the likelihood), (n_chains, n_parameters) float64.

    precisions         (n_chains, n_precisions)
    input_mean_squares (n_inputs,) mean over the training cases of each input's square
    """
    xp = array_namespace(precisions)
    tau = parameter_precisions(precisions, layout)
    spread = _capped_variances(tau, parameters)
    squares = _typical_squares(spread, input_mean_squares, wiring)
    curvature = tau.copy()
    for group in parameters.groups:
        alpha = group.prior.alphas[2]
        if math.isfinite(alpha):
            curvature[:, parameters.slices[group.name]] *= (alpha + 1) / alpha  # eq. 68
    unit_curvature = _unit_curvatures(tau, precisions, layout, wiring, model)
    for layer, seconds in unit_curvature.items():
        for link in wiring.incoming[layer]:
            source = squares[link.source][:, link.rows]
            link.matrix(curvature)[...] += n_cases * source[:, :, None] * seconds[:, None, :]  # eq. 66
    for layer, offset in enumerate(wiring.offsets):
        if offset is not None:
            curvature[:, offset] += n_cases * _backward(tau, unit_curvature, wiring, layer)
    return 1 / xp.sqrt(curvature)


def _capped_variances(tau: Array, parameters: ParameterLayout) -> Array:
    """Prior variance of each parameter, that of t parameters at most as with three degrees of freedom."""
    variances = 1 / tau
    for group in parameters.groups:
        alpha = group.prior.alphas[2]
        if math.isfinite(alpha):
            variances[:, parameters.slices[group.name]] *= 3 if alpha < 3 else alpha / (alpha - 2)
    return variances


def _typical_squares(spread: Array, input_mean_squares: Array, wiring: Wiring) -> list[Array]:
    """Typical squares of what each layer sends on, then of the one: (n_chains, n_units + 1)."""
    xp = array_namespace(spread)
    inputs = xp.broadcast_to(input_mean_squares, (spread.shape[0], wiring.units[0]))
    squares = [_sent_on(inputs, spread, wiring.offsets[0])]
    for layer, activation in enumerate(wiring.activations, start=1):
        summed = xp.zeros((spread.shape[0], wiring.units[layer]))
        for link in wiring.incoming[layer]:
            summed += (squares[link.source][:, link.rows, None] * link.matrix(spread)).sum(axis=1)
        squares.append(_sent_on(_typical_value_square(summed, activation), spread, wiring.offsets[layer]))
    return squares


def _sent_on(value_squares: Array, spread: Array, offset: slice | None) -> Array:
    xp = array_namespace(spread)
    if offset is not None:
        value_squares = value_squares + spread[:, offset]
    return xp.concatenate([value_squares, xp.ones((spread.shape[0], 1))], axis=1)


def _typical_value_square(summed: Array, activation: str) -> Array:
    """Typical square of a unit's value from that of its summed input."""
    xp = array_namespace(summed)
    if activation == "tanh":
        return xp.minimum(summed, 1.0)
    if activation == "sigmoid":
        return xp.ones_like(summed)  # its largest value squared
    if activation == "softplus":
        return xp.maximum(summed, LOG_2**2)  # its value at zero input
    return summed


def _unit_curvatures(
    tau: Array, precisions: Array, layout: PrecisionLayout, wiring: Wiring, model: ModelSpec
) -> dict[int, Array]:
    """-d2L/du2 of one case for the summed inputs of each layer, last layer first; eqs. 58-64."""
    n_outputs = wiring.units[-1]
    curvatures = {len(wiring.units) - 1: _output_curvature(precisions, layout, n_outputs, model)}
    for layer in range(len(wiring.units) - 2, 0, -1):
        largest_slope_squared = 1 / 16 if wiring.activations[layer - 1] == "sigmoid" else 1.0
        curvatures[layer] = largest_slope_squared * _backward(tau, curvatures, wiring, layer)
    return curvatures


def _output_curvature(precisions: Array, layout: PrecisionLayout, n_outputs: int, model: ModelSpec) -> Array:
    """The largest -d2L/dv2 of one case, (n_chains, n_outputs); eqs. 58, 60-62."""
    xp = array_namespace(precisions)
    if model.kind != "real":
        return xp.full((precisions.shape[0], n_outputs), 0.25)
    assert model.noise is not None
    alpha = model.noise.alphas[2]
    tau = noise_precision(precisions, layout)
    return tau if math.isinf(alpha) else tau * ((alpha + 1) / alpha)


def _backward(tau: Array, curvatures: dict[int, Array], wiring: Wiring, layer: int) -> Array:
    """-d2L/dv2 for a layer's values, weights taken to be as large as their sigmas, eq. 64.

    Their sigmas as they are, t weights too: FBM widens those in the forward pass only.
    """
    xp = array_namespace(tau)
    total = xp.zeros((tau.shape[0], wiring.units[layer]))
    for link in wiring.outgoing[layer]:
        if link.rows.start == 0:  # not the link of biases alone
            weights = link.matrix(tau)[:, : wiring.units[layer]]
            total += (curvatures[link.destination][:, None, :] / weights).sum(axis=2)
    return total
