"""Hidden layers with derivatives that need more than the value of each unit: sin, softmax, normalize."""

from __future__ import annotations

import math

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.model.architecture import Subgroups

_ROOT_2 = math.sqrt(2)
_FLOOR = 0.01  # added to a normalization layer's mean square to keep the slope finite if all inputs are zero


def activate_sin(u: Array) -> Array:
    """Set v = sqrt(2) sin(sqrt(2) u) in place, and return the slope 2 cos(sqrt(2) u).

    The square roots follow FBM. With them, a wide layer of such units is a Gaussian process with covariance
    exp(-distance**2).
    """
    xp = array_namespace(u)
    u *= _ROOT_2
    slope = xp.cos(u)
    slope *= 2
    xp.sin(u, out=u)
    u *= _ROOT_2
    return slope


def activate_softmax(u: Array, groups: Subgroups) -> None:
    """Set v_i = exp(u_i) / sum_j exp(u_j) over each sub-group, in place; Neal (2022) eq. 4."""
    xp = array_namespace(u)
    u, axis = _in_groups(u, groups)
    u -= u.max(axis=axis, keepdims=True)
    xp.exp(u, out=u)
    u /= u.sum(axis=axis, keepdims=True)


def activate_normalize(u: Array, groups: Subgroups) -> Array:
    """Set v_i = u_i / s, s**2 = 0.01 + mean of u_j**2 over the sub-group, in place; Neal (2022) eqs. 5, 6.

    Returns s, (n_chains, n_rows or 1, width or 1, n_cases).
    """
    xp = array_namespace(u)
    u, axis = _in_groups(u, groups)
    scale = (u * u).sum(axis=axis, keepdims=True)
    scale /= groups.size
    scale += _FLOOR
    xp.sqrt(scale, out=scale)
    u /= scale
    return scale


def softmax_backward(derivative: Array, v: Array, groups: Subgroups) -> None:
    """Turn the derivative by v into the derivative by u, in place; Neal (2022) eqs. 46, 47.

    v_i (d_i - t),   t = sum_j d_j v_j

    Eq. 47 as printed has index j for the second i.
    """
    derivative, axis = _in_groups(derivative, groups)
    v, _ = _in_groups(v, groups)
    derivative -= (derivative * v).sum(axis=axis, keepdims=True)
    derivative *= v


def normalize_backward(derivative: Array, v: Array, scale: Array, groups: Subgroups) -> None:
    """Turn the derivative by v into the derivative by u, in place; Neal (2022) eqs. 48, 49.

    (d_i - v_i t)/s,   t = mean of d_j v_j

    Eq. 49 as printed has indices j and k for i.
    """
    derivative, axis = _in_groups(derivative, groups)
    v, _ = _in_groups(v, groups)
    derivative -= v * ((derivative * v).sum(axis=axis, keepdims=True) / groups.size)
    derivative /= scale


def largest_squared_slopes(summed: Array, activation: str, groups: Subgroups) -> Array | float:
    """Return the largest a'(u)**2 of each unit, Neal (2022) eq. 63.

    summed  typical squares of summed inputs, (n_chains, n_units)
    """
    if activation in ("sigmoid", "softmax"):
        return 1 / 16
    if activation == "sin":
        return 4.0
    if activation == "normalize":
        grouped, axis = _in_groups(summed[:, :, None], groups)
        xp = array_namespace(summed)
        squares = 1 / (_FLOOR + grouped.sum(axis=axis, keepdims=True) / groups.size)
        return xp.broadcast_to(squares, grouped.shape).reshape(summed.shape)
    return 1.0


def _in_groups(values: Array, groups: Subgroups) -> tuple[Array, int]:
    """Return values (n_chains, n_units, n_cases) as a 4-dimensional view, and the axis within a group."""
    n_chains, _, n_cases = values.shape
    return values.reshape(n_chains, groups.n_rows, groups.width, n_cases), 2 if groups.by_row else 1
