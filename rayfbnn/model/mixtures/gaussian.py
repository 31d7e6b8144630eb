"""Sums over equally weighted mixtures of Gaussian or t distributions, for many mixtures at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import scipy.special

from rayfbnn.arrays import Array

_TABLE_STEPS = 1 << 16
_TAIL_CELLS = 4096


def component_sums(values: Array, means: Array, scales: Array, df: float = math.inf) -> Array:
    """Return sums over components of F((x - m) / s) and its first two derivatives by x, (3, ...).

    values, means, scales  (..., n_components), or broadcast to that; the scales are positive
    """
    inverse = 1.0 / np.asarray(scales, dtype=np.float64)
    z = (values - means) * inverse
    cdf, density = _cdf_and_density(z, df)
    density = density * inverse
    slope = -density * z * inverse
    if math.isfinite(df):
        slope *= (df + 1) / (df + np.square(z))
    return np.stack([part.sum(axis=-1) for part in (cdf, density, slope)])


def _cdf_and_density(z: Array, df: float) -> tuple[Array, Array]:
    """Return the distribution function and density at z of a standard normal, or t with df."""
    if math.isfinite(df):
        return _t_table(df)(z)
    density = np.square(z)
    density *= -0.5
    np.exp(density, out=density)
    density *= 1 / math.sqrt(2 * math.pi)
    return scipy.special.ndtr(z), density


@lru_cache(maxsize=4)
def t_tail_cubics(df: float) -> tuple[Array, float]:
    """Return cubics of the upper tail 1 - F of the t distribution for compiled code.

    Cell k has the cubic in u * rate - k, where u = asinh(z / sqrt(df)) is not negative. The coefficients are
    (n_cells, 4), and 1 / rate is the width of a cell. The error is below 1e-9 where df is at least 1/2.
    """
    reach = 45.0 / min(df, 1.0)
    step = reach / _TAIL_CELLS
    s = np.linspace(0, reach, _TAIL_CELLS + 1)
    with np.errstate(over="ignore"):
        values = scipy.special.stdtr(df, -math.sqrt(df) * np.sinh(s))
    return _cubics(values, -step * _t_density(s, df)), 1 / step


def _t_density(s: Array, df: float) -> Array:
    """Return the density of s = asinh(z / sqrt(df))."""
    log_constant = scipy.special.gammaln((df + 1) / 2) - scipy.special.gammaln(df / 2) - math.log(math.pi) / 2
    return np.exp(log_constant - df * (np.logaddexp(s, -s) - math.log(2)))


def _cubics(values: Array, slopes: Array) -> Array:
    """Return coefficients of Hermite's cubics between grid points, (n_cells, 4).

    values, slopes  (n_cells + 1,), the slopes per cell
    """
    rise = np.diff(values)
    before, after = slopes[:-1], slopes[1:]
    return np.stack([values[:-1], before, 3 * rise - 2 * before - after, before + after - 2 * rise], axis=1)


@lru_cache(maxsize=4)
def _t_table(df: float) -> Callable[[Array], tuple[Array, Array]]:
    """Return the t distribution by interpolation: `stdtr` takes 150 ns a value, too long for 10**9 values.

    In s = asinh(z / sqrt(df)) the density is C cosh(s)^-df. It is smooth for every df, and its tails are no
    heavier than exponential. Cubic Hermite interpolation of the distribution function on a uniform grid is
    therefore accurate to about step^4 / 384, which is below 1e-10.
    """
    reach = 45.0 / min(df, 1.0)  # the tails beyond have a probability below 1e-19
    step = 2 * reach / _TABLE_STEPS
    s = np.linspace(-reach, reach, _TABLE_STEPS + 1)
    log_constant = scipy.special.gammaln((df + 1) / 2) - scipy.special.gammaln(df / 2) - math.log(math.pi) / 2
    slopes = step * _t_density(s, df)
    with np.errstate(over="ignore"):
        values = scipy.special.stdtr(df, math.sqrt(df) * np.sinh(s))
    coefficients = _cubics(values, slopes)
    root = math.sqrt(df)

    def cdf_and_density(z: Array) -> tuple[Array, Array]:
        scaled = z / root
        place = np.clip((np.arcsinh(scaled) + reach) / step, 0, np.nextafter(_TABLE_STEPS, 0))
        cell = place.astype(np.int32)
        u = place - cell
        c = coefficients[cell]
        cdf = c[..., 0] + u * (c[..., 1] + u * (c[..., 2] + u * c[..., 3]))
        density = math.exp(log_constant) / root * (1 + scaled * scaled) ** (-(df + 1) / 2)
        return cdf, density

    return cdf_and_density
