"""The factor of one target under a Gaussian output: its log normaliser and the derivatives of that."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rayfbnn.arrays import Array, array_namespace

_ROUNDS = 60  # fixed-point iterations for zeta; each at least halves the error


@dataclass(frozen=True)
class TargetFactor:
    """log Z = log E[p(y | f)] for f ~ Normal(m, v), or a bound on it, and its derivatives by m and v."""

    log_z: Array
    by_mean: Array
    by_variance: Array


def logistic_factor(y: Array, m: Array, v: Array) -> TargetFactor:
    """Return the factor of binary targets by the bound of Jaakkola and Jordan (2000), at its best zeta.

        p(y | f) >= sigma(zeta) exp((y - 1/2) f - zeta/2 - lambda(zeta) (f^2 - zeta^2))

    with lambda(zeta) = tanh(zeta/2)/(4 zeta). The best zeta has zeta^2 = m_new^2 + v_new, the moments of f
    given the bound: v_new = v/(1 + 2 lambda v), m_new = (m + v (y - 1/2))/(1 + 2 lambda v). Derivatives are
    taken at fixed zeta; at the best zeta they equal the derivatives of the bound. Olobatuyi, eqs. 13-16, 58,
    73, 74, with their misprints corrected.
    """
    xp = array_namespace(m)
    zeta = xp.sqrt(m**2 + v)
    for _ in range(_ROUNDS):
        spread = 1 + 2 * curvature_of_bound(zeta) * v
        zeta = xp.sqrt(((m + v * (y - 0.5)) / spread) ** 2 + v / spread)
    lam = curvature_of_bound(zeta)
    spread = 1 + 2 * lam * v
    a, b = 2 * lam + 1 / v, y - 0.5 + m / v
    log_sigma = -xp.logaddexp(0, -zeta)
    log_z = log_sigma - 0.5 * xp.log(spread) + b**2 / (2 * a) - m**2 / (2 * v) - zeta / 2 + lam * zeta**2
    by_mean = (y - 0.5 - 2 * lam * m) / spread
    return TargetFactor(log_z, by_mean, 0.5 * (by_mean**2 - 2 * lam / spread))


def curvature_of_bound(zeta: Array) -> Array:
    """Return lambda(zeta) = tanh(zeta/2)/(4 zeta), 1/8 at zero."""
    xp = array_namespace(zeta)
    is_small = zeta < 1e-3
    safe = xp.where(is_small, 1.0, zeta)
    return xp.where(is_small, 0.125 - zeta**2 / 96, xp.tanh(safe / 2) / (4 * safe))


def gaussian_factor(y: Array, m: Array, v: Array, noise: Array) -> TargetFactor:
    """Return the exact factor of real targets with Gaussian noise of precision `noise`."""
    xp = array_namespace(m)
    total = v + 1 / noise
    by_mean = (y - m) / total
    log_z = -0.5 * math.log(2 * math.pi) - 0.5 * xp.log(total) - 0.5 * by_mean**2 * total
    return TargetFactor(log_z, by_mean, 0.5 * (by_mean**2 - 1 / total))
