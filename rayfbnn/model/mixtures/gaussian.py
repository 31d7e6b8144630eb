"""Quantiles of equally weighted mixtures of Gaussian or t distributions, for many mixtures at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import scipy.special

from rayfbnn.arrays import Array

_BLOCK = 1 << 16  # values in one temporary array: several arrays of this size (0.5 MB each) stay in cache
_CLOSE = 1e-4  # error in standard deviations of the mixture, before a Halley step that cubes it
_PATIENCE = (
    8  # rounds of Halley steps only; then every second round bisects, because far modes slow Halley down
)
_FAR = 1e3  # brackets wider than this are halved by order of magnitude
_MAX_ROUNDS = 300  # a float64 bracket shrinks to neighbouring numbers in fewer rounds
_TABLE_STEPS = 1 << 16
_TAIL_CELLS = 4096
_NORMAL_REACH = 9.0  # the tail beyond has a probability of 1e-19


@np.errstate(over="ignore", invalid="ignore")  # squares may overflow under vague priors
def mixture_quantiles(means: Array, scales: Array, probabilities: Array, *, df: float = math.inf) -> Array:
    """Return the x with  (1/n) sum_d F((x - means_d) / scales_d) = p,  F standard normal, or t with df.

    Halley's method solves for the probit of the mixture's distribution function. This is a straight line for
    a single Gaussian and nearly one for a predictive distribution; two evaluations are usual. Every quantile
    of a mixture lies between the smallest and the largest quantile of its components. This is the initial
    bracket. A step that leaves the current bracket is replaced by a bisection.

    Parameters
    ----------
    means : (n_mixtures, n_components)
    scales : (n_mixtures, n_components)   or broadcasts to it; positive
    probabilities : (n_probabilities,)    strictly between 0 and 1

    Returns (n_mixtures, n_probabilities) float64.
    """
    means = np.asarray(means)
    n_mixtures, n_components = means.shape
    scales = np.broadcast_to(scales, means.shape)
    component_quantiles = _quantile(np.asarray(probabilities, dtype=np.float64), df)
    probits = np.broadcast_to(scipy.special.ndtri(probabilities), (n_mixtures, len(probabilities)))
    lower, upper, x = _start(means, scales, component_quantiles)
    pending = np.arange(x.size)
    rows_at_once = max(1, _BLOCK // n_components)
    for round_number in range(_MAX_ROUNDS):
        if pending.size == 0:
            return x
        still = []
        for first in range(0, pending.size, rows_at_once):
            some = pending[first : first + rows_at_once]
            mixture, column = np.divmod(some, x.shape[1])
            components = (means[mixture], scales[mixture])
            goal = probits[mixture, column]
            bisect = round_number >= _PATIENCE and round_number % 2 == 0
            done = _improve(x, lower, upper, (mixture, column), components, goal, df=df, bisect=bisect)
            still.append(some[~done])
        pending = np.concatenate(still)
    raise AssertionError(f"{pending.size} quantiles not found in {_MAX_ROUNDS} rounds of bisection")


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


def _start(means: Array, scales: Array, component_quantiles: Array) -> tuple[Array, Array, Array]:
    """Return the bracket and a first guess, (n_mixtures, n_probabilities) each.

    The guess is the quantile of one component with the mixture's mean and, for Gaussians, its variance.
    """
    shape = (means.shape[0], component_quantiles.size)
    lower, upper, guess = np.empty(shape), np.empty(shape), np.empty(shape)
    probits = component_quantiles
    rows_at_once = max(1, _BLOCK // means.shape[1])
    for first in range(0, means.shape[0], rows_at_once):
        rows = slice(first, first + rows_at_once)
        mean = means[rows].mean(axis=1, dtype=np.float64)
        variance = means[rows].var(axis=1, dtype=np.float64) + np.square(scales[rows]).mean(
            axis=1, dtype=np.float64
        )
        for column, quantile in enumerate(probits):
            ends = means[rows] + scales[rows] * quantile
            lower[rows, column] = ends.min(axis=1)
            upper[rows, column] = ends.max(axis=1)
            guess[rows, column] = mean + np.sqrt(variance) * quantile
    guess = np.where(np.isfinite(guess), guess, _middle(lower, upper))
    return lower, upper, np.clip(guess, lower, upper)


def _improve(
    x: Array,
    lower: Array,
    upper: Array,
    place: tuple[Array, Array],
    components: tuple[Array, Array],
    goal: Array,
    *,
    df: float,
    bisect: bool,
) -> Array:
    """Take one safeguarded step for some quantiles, update x and the bracket, and return which are done.

    With G(x) = probit(F(x)), G' = f / phi(G), G'' = f' / phi(G) + G G'^2, Halley's step towards G = probit(p)
    is -2 r G' / (2 G'^2 - r G''), r = G - probit(p). `goal` is probit(p), and `components` are the means and
    scales (n_some, n_components) of the mixtures at `place`.
    """
    means, scales = components
    current = x[place]
    inverse = 1.0 / np.asarray(scales, dtype=np.float64)
    z = (current[:, None] - means) * inverse
    cdf, density = _cdf_and_density(z, df)
    density *= inverse
    f = density.mean(axis=1)
    z *= density
    z *= inverse
    if math.isfinite(df):
        z *= (df + 1) / (df + np.square((current[:, None] - means) * inverse))
    f_slope = -z.mean(axis=1)
    with np.errstate(all="ignore"):
        g = scipy.special.ndtri(cdf.mean(axis=1))
        residual = g - goal
        phi = np.exp(-0.5 * g * g) / math.sqrt(2 * math.pi)
        slope = f / phi
        curvature = f_slope / phi + g * slope**2
        step = -2 * residual * slope / (2 * slope**2 - residual * curvature)
        proposal = current + step
    is_above = residual > 0
    upper[place] = np.where(is_above, current, upper[place])
    lower[place] = np.where(is_above, lower[place], current)
    low, high = lower[place], upper[place]
    is_taken = (proposal >= low) & (proposal <= high) & (not bisect)  # False if the step is NaN
    x[place] = np.where(is_taken, proposal, _middle(low, high))
    with np.errstate(invalid="ignore"):
        is_close = is_taken & (np.abs(residual) < _CLOSE) & (np.abs(step) * slope < _CLOSE)
    is_narrow = high - low <= 4 * np.spacing(np.maximum(np.abs(low), np.abs(high)))
    return is_close | is_narrow


def _middle(low: Array, high: Array) -> Array:
    """Return the midpoint of brackets; wide brackets are halved on the arsinh scale, by orders of magnitude.

    Plain halving would take a thousand rounds from 1e200 to a quantile near one.
    """
    by_magnitude = np.sinh((np.arcsinh(low) + np.arcsinh(high)) / 2)
    is_far = high / 2 - low / 2 > _FAR * np.maximum(np.maximum(low, -high), 1.0)
    return np.asarray(np.where(is_far, by_magnitude, low / 2 + high / 2))


def _quantile(probabilities: Array, df: float) -> Array:
    if math.isinf(df):
        return scipy.special.ndtri(probabilities)
    return scipy.special.stdtrit(df, probabilities)


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


@lru_cache(maxsize=1)
def normal_tail_cubics() -> tuple[Array, float]:
    """Return cubics of the upper tail 1 - F of the standard normal, as `t_tail_cubics` in u = z.

    The error is below 1e-13.
    """
    step = _NORMAL_REACH / _TAIL_CELLS
    z = np.linspace(0, _NORMAL_REACH, _TAIL_CELLS + 1)
    density = np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    return _cubics(scipy.special.ndtr(-z), -step * density), 1 / step


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
