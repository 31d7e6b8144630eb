"""Means and variances passed through a network with independent parameters, and their gradients.

This is probabilistic backpropagation: the summed inputs of each layer are taken as Gaussian, and its units as
independent. Each chain has its own case, and arrays are (n_chains, n_units).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rayfbnn.arrays import Array, array_namespace, special_functions
from rayfbnn.model.network import Buffers, activate, multiply_by_slope
from rayfbnn.model.wiring import Link, Wiring

_POINTS = 32  # points of Gauss-Hermite quadrature
_LEAST_VARIANCE = 1e-300
COVERED = ("relu", "tanh", "sigmoid", "softplus", "softplus0", "identity")


@dataclass(frozen=True)
class UnitMoments:
    """Mean and variance of the units a(u), u ~ Normal(m, v), and their derivatives by m and v.

    Each is (n_chains, n_units).
    """

    mean: Array
    variance: Array
    mean_by_m: Array
    mean_by_v: Array
    variance_by_m: Array
    variance_by_v: Array


@dataclass(frozen=True)
class NetworkMoments:
    """The moments of a forward pass.

    sources  for the inputs and each hidden layer, means and variances (n_chains, n_units + 1); the last
             column is for the constant one
    units    the moments of each hidden layer
    mean, variance  moments of the outputs, (n_chains, n_outputs)
    """

    sources: list[tuple[Array, Array]]
    units: list[UnitMoments]
    mean: Array
    variance: Array


def why_not_propagated(wiring: Wiring) -> str | None:
    """Return why moments cannot pass through a network and how to change that, or None if they can."""
    for activation in wiring.activations:
        if activation not in COVERED:
            return f"{activation} layers are not covered; use {', '.join(COVERED)}"
    if any(factor is not None for factor in wiring.factors):
        return "product layers are not covered; leave product out"
    if wiring.added_input is not None:
        return "an exposure is added to the outputs"
    if any(offset is not None for offset in wiring.offsets):
        return "offsets (ti, th) are not covered; leave them out"
    if any(link.configured is not None for links in wiring.incoming for link in links):
        return "configured connections are not covered; leave them out"
    return None


def forward_moments(mean: Array, variance: Array, inputs: Array, wiring: Wiring) -> NetworkMoments:
    """Return the moments of all units and outputs, for parameters with independent Gaussian distributions.

        m_a = sum m_z m_w ,  v_a = sum m_z^2 v_w + v_z m_w^2 + v_z v_w            Olobatuyi, eqs. 69-72

    mean, variance (n_chains, n_parameters); inputs (n_chains, n_inputs + 1), the last column ones
    """
    xp = array_namespace(mean)
    sources = [(inputs, xp.zeros_like(inputs))]
    units: list[UnitMoments] = []
    n_chains = len(mean)
    for layer, links in enumerate(wiring.incoming[1:], start=1):
        m_a = xp.zeros((n_chains, wiring.units[layer]))
        v_a = xp.zeros_like(m_a)
        for link in links:
            m_z, v_z = (values[:, None, link.rows] for values in sources[link.source])
            m_w, v_w = link.matrix(mean), link.matrix(variance)
            m_a += xp.matmul(m_z, m_w)[:, 0]
            v_a += (xp.matmul(m_z**2 + v_z, v_w) + xp.matmul(v_z, m_w**2))[:, 0]
        if layer == len(wiring.units) - 1:
            return NetworkMoments(sources, units, m_a, v_a)
        units.append(_unit_moments(m_a, xp.maximum(v_a, _LEAST_VARIANCE), wiring.activations[layer - 1]))
        one = xp.ones((n_chains, 1))
        sources.append(
            (
                xp.concatenate([units[-1].mean, one], axis=1),
                xp.concatenate([units[-1].variance, 0 * one], axis=1),
            )
        )
    raise AssertionError("a network has outputs")


def backward_moments(
    mean: Array, variance: Array, moments: NetworkMoments, by_mean: Array, by_variance: Array, wiring: Wiring
) -> tuple[Array, Array]:
    """Return derivatives by all means and variances, (n_chains, n_parameters) each.

    by_mean, by_variance  (n_chains, n_outputs): derivatives by the moments of the outputs

    Olobatuyi, eqs. 75-83, with eqs. 64-67 summed over destinations.
    """
    xp = array_namespace(mean)
    to_mean, to_variance = xp.zeros_like(mean), xp.zeros_like(variance)
    last = len(wiring.units) - 1
    summed = {last: (by_mean, by_variance)}
    for layer in range(last, 0, -1):
        if layer < last:
            summed[layer] = _through_units(mean, variance, moments, summed, wiring, layer)
        by_m, by_v = (values[:, None] for values in summed[layer])  # (n_chains, 1, n_units)
        for link in wiring.incoming[layer]:
            m_z, v_z = (values[:, link.rows, None] for values in moments.sources[link.source])
            m_w = link.matrix(mean)
            link.matrix(to_mean)[...] = m_z * by_m + 2 * v_z * m_w * by_v
            link.matrix(to_variance)[...] = (m_z**2 + v_z) * by_v
    return to_mean, to_variance


def _through_units(
    mean: Array,
    variance: Array,
    moments: NetworkMoments,
    summed: dict[int, tuple[Array, Array]],
    wiring: Wiring,
    layer: int,
) -> tuple[Array, Array]:
    """Return derivatives by the moments of a hidden layer's summed inputs."""
    units = moments.units[layer - 1]
    m_z = units.mean
    by_m_z, by_v_z = array_namespace(mean).zeros_like(m_z), array_namespace(mean).zeros_like(m_z)
    for link in wiring.outgoing[layer]:
        by_m, by_v = (values[:, :, None] for values in summed[link.destination])
        m_w, v_w = (_of_units(link, values) for values in (mean, variance))
        by_m_z += (m_w @ by_m)[:, :, 0] + 2 * m_z * (v_w @ by_v)[:, :, 0]
        by_v_z += ((m_w**2 + v_w) @ by_v)[:, :, 0]
    return (
        by_m_z * units.mean_by_m + by_v_z * units.variance_by_m,
        by_m_z * units.mean_by_v + by_v_z * units.variance_by_v,
    )


def _of_units(link: Link, values: Array) -> Array:
    return link.matrix(values)[:, : link.n_units]


def _unit_moments(m: Array, v: Array, activation: str) -> UnitMoments:
    """Return the moments of units with summed inputs u ~ Normal(m, v), (n_chains, n_units) each."""
    xp = array_namespace(m)
    if activation == "identity":
        one, none = xp.ones_like(m), xp.zeros_like(m)
        return UnitMoments(m, v, one, none, none, one)
    if activation == "relu":
        return _relu(m, v)
    return _by_quadrature(m, v, activation)


def _relu(m: Array, v: Array) -> UnitMoments:
    """Return the moments of max(u, 0) in closed form; Olobatuyi, eqs. 71, 72, simplified."""
    xp = array_namespace(m)
    s = xp.sqrt(v)
    u = m / s
    below = special_functions(m).ndtr(u)
    density = xp.exp(-0.5 * u**2) / math.sqrt(2 * math.pi)
    mean = m * below + s * density
    square = (m**2 + v) * below + m * s * density
    variance = xp.maximum(square - mean**2, _LEAST_VARIANCE)
    above = special_functions(m).ndtr(-u)
    return UnitMoments(mean, variance, below, density / (2 * s), 2 * mean * above, below - mean * density / s)


def _by_quadrature(m: Array, v: Array, activation: str) -> UnitMoments:
    """Return the moments of units with any smooth activation, by Gauss-Hermite quadrature.

    The derivatives are exact derivatives of the quadrature sums, with u = m + s z, du/dm = 1 and
    du/dv = z/(2 s). They agree with the moments for distributions of any width.
    """
    xp = array_namespace(m)
    points, weights = (xp.asarray(values) for values in np.polynomial.hermite_e.hermegauss(_POINTS))
    weights = weights / weights.sum()
    s = xp.sqrt(v)[..., None]
    values = m[..., None] + s * points
    activate(values, activation, buffers=Buffers())
    slopes = xp.ones_like(values)
    multiply_by_slope(slopes, values, activation, buffers=Buffers())
    by_v = weights * points / (2 * s)
    mean = (values * weights).sum(axis=-1)
    deviations = values - mean[..., None]
    variance = xp.maximum((deviations**2 * weights).sum(axis=-1), _LEAST_VARIANCE)
    return UnitMoments(
        mean,
        variance,
        (slopes * weights).sum(axis=-1),
        (slopes * by_v).sum(axis=-1),
        2 * (deviations * slopes * weights).sum(axis=-1),
        2 * (deviations * slopes * by_v).sum(axis=-1),
    )


def units_are_alike(mean: Array, wiring: Wiring) -> Array:
    """Return whether all units of every hidden layer have the same means, (n_chains,).

    The result is False if no layer has two units.
    """
    xp = array_namespace(mean)
    of_layers = []
    for layer in range(1, len(wiring.units) - 1):
        if wiring.units[layer] < 2:
            continue
        into = [link.matrix(mean).swapaxes(1, 2) for link in wiring.incoming[layer]]
        out = [_of_units(link, mean) for link in wiring.outgoing[layer]]
        rows = xp.concatenate([*into, *out], axis=2)  # (n_chains, n_units, ...)
        of_layers.append((xp.abs(rows - rows[:, :1]) < 1e-9).all(axis=(1, 2)))
    return xp.stack(of_layers).all(axis=0) if of_layers else xp.zeros(len(mean), dtype=bool)


def live_units(mean: Array, sd: Array, wiring: Wiring) -> Array:
    """Return the number of hidden units with an outgoing weight that has |mean| > 2 sd, (n_chains,)."""
    xp = array_namespace(mean)
    total = xp.zeros(len(mean), dtype=xp.int64)
    for layer in range(1, len(wiring.units) - 1):
        is_live = xp.zeros((len(mean), wiring.units[layer]), dtype=bool)
        for link in wiring.outgoing[layer]:
            is_live |= (xp.abs(_of_units(link, mean)) > 2 * _of_units(link, sd)).any(axis=2)
        total = total + is_live.sum(axis=1)
    return total
