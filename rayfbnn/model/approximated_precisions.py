"""Precisions given an approximation: those that maximise its evidence, and their best distributions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from rayfbnn.arrays import Array, array_namespace, special_functions
from rayfbnn.model.architecture import DISPERSION, NOISE
from rayfbnn.model.layout import PrecisionGroup
from rayfbnn.model.network import Buffers, forward
from rayfbnn.model.prior import log_gamma_density
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.state import ExpectedPrecisions, Reestimated

# Memory for the values of units at all cases. With 60,000 cases, a much larger limit took half as long again.
_BYTES_AT_ONCE = 64e6

_TOLERANCE = 1e-10
_MOST_ROUNDS = 200  # rounds of updates, alternating between the two levels of a group


def reestimated(
    posterior: SampledPosterior,
    position: Array,
    precisions: Array,
    traces: Array,
    determined: Array,
    *,
    is_integrated: bool,
) -> Reestimated:
    """Return the precisions after one step of MacKay's fixed-point iteration.

    Let gamma_c = k_c - tau_c tr(A^-1)_c be the number of well-determined values of a group, or of a source
    unit if units have precisions. The noise has n observed targets:

        tau_c <- (gamma_c + a_c)/(|w_c|^2 + a_c/omega_c)
        noise <- (n - sum gamma + a)/(SSE + a/omega)

    The fixed point is the mode of p(data | tau) p(log tau). With is_integrated, k_c replaces gamma_c. The
    mode of w then has the precisions integrated out (Buntine and Weigend), except the noise precision. A
    common precision above the precisions of units is set to its mean given them, because the joint mode of
    two levels can lie at infinity.

    Parameters
    ----------
    traces : (n_chains, n_parameters)   diagonal of A^-1
    determined : (n_chains, n_targets or 1)   tr(A^-1 G_j) of each target with its own noise, or in total
    """
    squares_of_residuals = residual_squares(posterior, position)
    new, log_width = precisions.copy(), array_namespace(position).zeros(len(position))
    for group in posterior.precision_layout.groups:
        if group.name == DISPERSION:
            continue  # it is fixed
        n_rows = 1 if group.units is None else group.n_units
        squares, sizes = _governed(posterior, group, position**2, squares_of_residuals, n_rows)
        gamma = sizes
        if group.name == NOISE:
            gamma = sizes - determined
        elif not is_integrated:
            of_values = traces[:, posterior.parameter_layout.slices[group.name]]
            tau = precisions[:, group.lowest_columns]
            gamma = sizes - tau * of_values.reshape(len(tau), n_rows, -1).sum(axis=2)
        log_width += _update(group, gamma, squares, precisions, new)
    return Reestimated(new, log_width)


def residual_squares(posterior: SampledPosterior, position: Array) -> Array | None:
    """Return sums of squared residuals of observed targets, (n_chains, n_targets); None without noise."""
    if posterior.model.noise is None:
        return None
    return in_pieces(posterior, partial(_residual_squares, posterior), position)


def _residual_squares(posterior: SampledPosterior, position: Array) -> Array:
    outputs = forward(position, posterior.inputs, posterior.wiring, buffers=Buffers()).outputs
    squares = (posterior.targets - outputs) ** 2
    return (squares if posterior.observed is None else squares * posterior.observed).sum(axis=2)


def in_pieces(posterior: SampledPosterior, function: Callable[..., Array], *arrays: Array) -> Array:
    """Return `function` of the arrays, evaluated for a few chains at a time to save memory."""
    units = sum(layer.units for layer in posterior.network.hidden) + posterior.network.outputs
    bytes_of_one = 2 * units * posterior.inputs.shape[-1] * np.dtype(posterior.dtype).itemsize
    at_once = max(1, int(_BYTES_AT_ONCE / bytes_of_one))
    pieces = [slice(first, first + at_once) for first in range(0, len(arrays[0]), at_once)]
    values = [function(*(array[piece] for array in arrays)) for piece in pieces]
    return array_namespace(values[0]).concatenate(values)


def _governed(
    posterior: SampledPosterior,
    group: PrecisionGroup,
    squares: Array,
    residual_squares: Array | None,
    n_rows: int,
) -> tuple[Array, Array]:
    """Return sums of squares of the values of a group and their numbers, in n_rows, (n_chains, n_rows) each.

    squares (n_chains, n_parameters), residual_squares (n_chains, n_targets)
    """
    xp = array_namespace(squares)
    if group.name != NOISE:
        rows = squares[:, posterior.parameter_layout.slices[group.name]].reshape(len(squares), n_rows, -1)
        return rows.sum(axis=2), xp.full((len(squares), n_rows), float(rows.shape[2]))
    assert residual_squares is not None
    b = posterior.inverse_temperatures(n_axes=2)
    sums, sizes = b * residual_squares, xp.zeros_like(residual_squares) + b * posterior.counts
    if n_rows == 1:
        return sums.sum(axis=1, keepdims=True), sizes.sum(axis=1, keepdims=True)
    return sums, sizes


def _update(group: PrecisionGroup, gamma: Array, squares: Array, before: Array, new: Array) -> Array | float:
    """Write the new precisions of one group, and return its part of the log width."""
    alpha_0, alpha_1, _ = group.prior.alphas
    alpha = alpha_0 if group.units is None else alpha_1
    if math.isinf(alpha):
        return 0.0
    xp = array_namespace(gamma)
    columns, tau = group.lowest_columns, before[:, group.lowest_columns]
    mean = group.mean if group.units is None else before[:, group.common, None]
    new[:, columns] = (gamma + alpha) / (squares + alpha / mean)
    widths = 0.5 * xp.log(4 * math.pi / (gamma + alpha)).sum(axis=1)
    if group.units is None or math.isinf(alpha_0):
        return (log_gamma_density(tau, alpha, mean) + xp.log(tau)).sum(axis=1) + widths
    new[:, group.common] = _moments_of_common(group, new[:, columns]).mean
    # The log density of the log precisions of units, with the common precision integrated out.
    half, log_normaliser = alpha_0 / 2, _moments_of_common(group, tau).log_normaliser
    of_common = half * math.log(half / group.mean) - math.lgamma(half) + log_normaliser
    of_units = alpha / 2 * math.log(alpha / 2) - math.lgamma(alpha / 2)
    return of_common + (of_units + alpha / 2 * xp.log(tau)).sum(axis=1) + widths


def _moments_of_common(group: PrecisionGroup, tau: Array) -> PrecisionMoments:
    """Return the moments of the common precision given those of the units, or their means."""
    alpha, alpha_unit, _ = group.prior.alphas
    return precision_moments(
        array_namespace(tau).full(len(tau), (alpha - group.n_units * alpha_unit) / 2),
        rate=alpha / (2 * group.mean),
        inverse_rate=alpha_unit * tau.sum(axis=1) / 2,
    )


def expected_precisions(
    posterior: SampledPosterior, precisions: Array, squares: Array, residual_squares: Array | None
) -> ExpectedPrecisions:
    """Return the best distributions of the precisions given expected squares of parameters and residuals.

    In a group with one level, q(tau) = Gamma(shape (alpha + k)/2, rate (alpha/omega + S)/2), with k values
    and S the expected sum of squares. In a group with units, the prior of a unit's precision has the rate
    a1/(2 tau), and therefore E[1/tau] enters instead of 1/E[tau]:

        q(tau_i) = Gamma((a1 + k_i)/2, rate (a1 E[1/tau] + S_i)/2)
        q(tau)   ~ tau^((a0 - n a1)/2 - 1) exp(-tau a0/(2 omega) - a1 sum E tau_i/(2 tau))

    Parameters
    ----------
    precisions : (n_chains, n_precisions)   fixed precisions are kept
    squares : (n_chains, n_parameters)   expected squares of the parameters
    residual_squares : (n_chains, n_targets)   expected sums of squared residuals; None without noise
    """
    xp = array_namespace(precisions)
    mean = precisions.astype(xp.float64).copy()
    shape, rate = xp.full_like(mean, xp.nan), xp.full_like(mean, xp.nan)
    bound = xp.zeros(len(mean))
    for group in posterior.precision_layout.groups:
        if group.name == DISPERSION:
            continue  # it is fixed
        sums, sizes = _governed(posterior, group, squares, residual_squares, group.n_units)
        update = _one_level if group.units is None else _two_levels
        bound += update(group, sums, sizes, mean, shape, rate)
    return ExpectedPrecisions(mean, shape, rate, bound)


def _one_level(
    group: PrecisionGroup, sums: Array, sizes: Array, mean: Array, shape: Array, rate: Array
) -> Array | float:
    """Fill in the column of a common precision, and return the change of the bound."""
    alpha, column = group.prior.alphas[0], group.common
    if group.prior.rectified is not None:
        return _rectified(group.prior.rectified, sums.sum(axis=1), sizes.sum(axis=1), mean, column)
    if math.isinf(alpha):
        return 0.0
    n = sizes.sum(axis=1)
    a, b = (alpha + n) / 2, (alpha / group.mean + sums.sum(axis=1)) / 2
    shape[:, column], rate[:, column], mean[:, column] = a, b, a / b
    return n / 2 * _log_gap(a) - _divergence(a, b, alpha / 2, alpha / (2 * group.mean))


def _rectified(v0: float, sums: Array, sizes: Array, mean: Array, column: int) -> Array:
    """Fill in the column of a precision with a rectified Gaussian prior, and return the change of the bound.

    q(tau) ~ tau^(k/2) exp(-S tau/2 - tau^2/(2 v0)),   the corrected form of Olobatuyi, eqs. 47-53
    """
    xp = array_namespace(sums)
    moments = precision_moments(sizes / 2 + 1, rate=sums / 2, square_rate=1 / (2 * v0))
    mean[:, column] = moments.mean
    exact = moments.log_normaliser + 0.5 * math.log(2 / (math.pi * v0))
    return exact - sizes / 2 * xp.log(moments.mean) + sums * moments.mean / 2


def _two_levels(
    group: PrecisionGroup, sums: Array, sizes: Array, mean: Array, shape: Array, rate: Array
) -> Array:
    """Fill in the columns of a group with units, and return the change of the bound."""
    xp, special = array_namespace(sums), special_functions(sums)
    alpha_0, a1, _ = group.prior.alphas
    fixed = xp.full(len(sums), group.mean)
    common = PrecisionMoments(fixed, xp.log(fixed), 1 / fixed, xp.zeros_like(fixed))
    for _ in range(_MOST_ROUNDS):
        a, b = (a1 + sizes) / 2, (a1 * common.inverse_mean[:, None] + sums) / 2
        if math.isinf(alpha_0):
            break
        before = common.inverse_mean
        common = _moments_of_common(group, a / b)
        if float(xp.abs(common.inverse_mean / before - 1).max()) < _TOLERANCE:
            break
    shape[:, group.units], rate[:, group.units], mean[:, group.units] = a, b, a / b
    mean[:, group.common] = common.mean
    log_units = special.digamma(a) - xp.log(b)
    prior = (
        a1 / 2 * (math.log(a1 / 2) - common.log_mean[:, None])
        - math.lgamma(a1 / 2)
        + (a1 / 2 - 1) * log_units
        - a1 / 2 * (a / b) * common.inverse_mean[:, None]
    )
    entropy = a - xp.log(b) + special.gammaln(a) + (1 - a) * special.digamma(a)
    bound = (sizes / 2 * _log_gap(a) + prior + entropy).sum(axis=1)
    return bound if math.isinf(alpha_0) else bound + _of_common(group, a, b, common)


def _of_common(group: PrecisionGroup, a: Array, b: Array, common: PrecisionMoments) -> Array:
    """Return E log prior plus entropy of the common precision above the precisions of units."""
    alpha, a1, _ = group.prior.alphas
    exponent = (alpha - group.n_units * a1) / 2
    rate, inverse_rate = alpha / (2 * group.mean), a1 * (a / b).sum(axis=1) / 2
    expected = exponent * common.log_mean - rate * common.mean - inverse_rate * common.inverse_mean
    half = alpha / 2
    log_prior = half * math.log(rate) - math.lgamma(half) + half * common.log_mean - rate * common.mean
    # Both densities are densities of log tau.
    return log_prior + common.log_normaliser - expected


def _log_gap(a: Array) -> Array:
    """Return E log tau - log E tau of Gamma variables of shape a."""
    return special_functions(a).digamma(a) - array_namespace(a).log(a)


def _divergence(a: Array, b: Array, prior_shape: float, prior_rate: float) -> Array:
    """Return the divergence of Gamma(a, rate b) from the prior's Gamma distribution."""
    xp, special = array_namespace(a), special_functions(a)
    return (
        (a - prior_shape) * special.digamma(a)
        - special.gammaln(a)
        + math.lgamma(prior_shape)
        + prior_shape * (xp.log(b) - math.log(prior_rate))
        + a * (prior_rate - b) / b
    )


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
