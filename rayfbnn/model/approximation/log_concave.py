"""Moments of precisions by quadrature, if the logarithm of the precision has a log-concave density."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rayfbnn.arrays import Array, array_namespace

_NEWTON_STEPS = 60
_N_POINTS = 601
_REACH = 6.0  # the grid goes to sinh(6) = 202 widths on each side


@dataclass(frozen=True)
class PrecisionMoments:
    """Expectations under a density of tau, each in the shape of the density's parameters.

    log_normaliser  log of the integral of the unnormalised density over log tau
    """

    mean: Array
    log_mean: Array
    inverse_mean: Array
    log_normaliser: Array
    square_mean: Array


def precision_moments(
    a: Array, *, rate: Array, inverse_rate: Array | float = 0.0, square_rate: Array | float = 0.0
) -> PrecisionMoments:
    """Return moments of the density exp(a x - b exp(x) - c exp(-x) - d exp(2 x)) of x = log tau.

    b is `rate`, c is `inverse_rate` and d is `square_rate`, all at least 0. With c = d = 0, tau has a Gamma
    distribution; with d = 0, a generalised inverse Gaussian distribution. A rectified Gaussian prior has
    d = 1/(2 v0). a must be positive if c is 0, and b + d must be positive. The trapezoidal rule runs over t,
    with x = mode + width sinh(t).
    """
    xp = array_namespace(a)
    a, b, c, d = xp.broadcast_arrays(
        *(xp.asarray(v, dtype=xp.float64) for v in (a, rate, inverse_rate, square_rate))
    )
    with np.errstate(all="ignore"):
        mode = _mode(a, b, c, d)
        curvature = b * xp.exp(mode) + c * xp.exp(-mode) + 4 * d * xp.exp(2 * mode)
        t = xp.linspace(-_REACH, _REACH, _N_POINTS)
        width = (1 / xp.sqrt(curvature))[..., None]
        y = width * xp.sinh(t)  # x - mode, (..., n_points)
        up, down = xp.expm1(y), xp.expm1(-y)
        at_mode = [(v * xp.exp(power * mode))[..., None] for v, power in ((b, 1), (c, -1), (d, 2))]
        log_density = a[..., None] * y - at_mode[0] * up - at_mode[1] * down - at_mode[2] * xp.expm1(2 * y)
        mass = xp.exp(log_density) * width * xp.cosh(t)
        mass = xp.where(xp.isfinite(mass), mass, 0.0)
        total = mass.sum(axis=-1)
        share = mass / total[..., None]
        log_top = a * mode - at_mode[0][..., 0] - at_mode[1][..., 0] - at_mode[2][..., 0]
        return PrecisionMoments(
            mean=xp.exp(mode) * _expected(share, xp.exp(y)),
            log_mean=mode + _expected(share, y),
            inverse_mean=xp.exp(-mode) * _expected(share, xp.exp(-y)),
            log_normaliser=log_top + xp.log(total) + math.log(2 * _REACH / (_N_POINTS - 1)),
            square_mean=xp.exp(2 * mode) * _expected(share, xp.exp(2 * y)),
        )


def _expected(share: Array, values: Array) -> Array:
    xp = array_namespace(share)
    return xp.where(share > 0, share * values, 0.0).sum(axis=-1)


def _mode(a: Array, b: Array, c: Array, d: Array) -> Array:
    """Return the x that solves a - b exp(x) + c exp(-x) - 2 d exp(2 x) = 0, by Newton steps of at most 2."""
    xp = array_namespace(a)
    x = xp.log(xp.maximum((xp.abs(a) + xp.sqrt(b * c) + 1e-3) / (b + xp.sqrt(d) + 1e-300), 1e-300))
    for _ in range(_NEWTON_STEPS):
        slope = a - b * xp.exp(x) + c * xp.exp(-x) - 2 * d * xp.exp(2 * x)
        curvature = b * xp.exp(x) + c * xp.exp(-x) + 4 * d * xp.exp(2 * x)
        step = xp.where(curvature > 0, slope / xp.where(curvature > 0, curvature, 1.0), xp.sign(slope))
        x = x + xp.clip(step, -2.0, 2.0)
    return x
