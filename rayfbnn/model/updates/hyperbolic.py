"""Exact draws of precisions whose conditional distribution is not Gamma, for all chains at once."""

from __future__ import annotations

import math
from collections.abc import Callable

from rayfbnn.arrays import Array, array_namespace, to_host
from rayfbnn.errors import SamplingError
from rayfbnn.streams import Purpose, RejectingStreams, Streams

_MAX_ATTEMPTS = 64  # of a rejection loop that accepts more than one in two


def hyperbolic_variable(
    a: float | Array, omega: Array, streams: Streams, *, index: int, purpose: Purpose
) -> Array:
    """Draw y with density proportional to exp(a y - omega cosh y), a >= 0, in the shape of omega.

    omega is (n_chains, k); a is a number or broadcasts to omega.

    Devroye (2014), "Random variate generation for the generalized inverse Gaussian distribution". Proposals
    have a flat top about the mode, between two exponential tails that touch the log-concave density at t and
    -s. The draw is exact for any t and s. His choice of these rejects less than half of the proposals for
    all parameters. Raises SamplingError if omega is NaN, infinite or zero.
    """
    if isinstance(streams, RejectingStreams):
        return streams.hyperbolic(a, omega, purpose, index=index)
    xp = array_namespace(omega)
    a = xp.asarray(a, dtype=xp.float64)  # CuPy's where does not accept a Python bool as the condition
    mode = xp.arcsinh(a / omega)
    d = omega**2 / (xp.sqrt(omega**2 + a**2) + a)  # sqrt(omega**2 + a**2) - a without cancellation

    t, s = _touching_points(a, d)
    eta, zeta = -_log_density(t, a, d), -_log_density_slope(t, a, d)
    theta, xi = -_log_density(-s, a, d), _log_density_slope(-s, a, d)
    right, left = 1 / zeta, 1 / xi
    top_right, top_left = t - right * eta, s - left * theta
    top = top_right + top_left
    result = xp.zeros_like(omega)
    pending = xp.ones(omega.shape, dtype=bool)
    for attempt in range(_MAX_ATTEMPTS):
        u = streams.uniform(purpose, (*omega.shape[1:], 3), index=index, attempt=attempt)
        place, v = u[..., 0] * (left + top + right), u[..., 1]
        in_top, in_right = place < top, place < top + right
        z = xp.where(in_top, -top_left + top * v, top_right - right * xp.log(v))
        z = xp.where(in_right, z, -top_left + left * xp.log(v))
        cover = xp.where(z > top_right, -eta - zeta * (z - t), 0.0)
        cover = xp.where(z < -top_left, -theta + xi * (z + s), cover)
        accepted = xp.log(u[..., 2]) + cover <= _log_density(z, a, d)
        result = xp.where(pending & accepted, z, result)
        pending &= ~accepted
        if not bool(pending.any()):
            return mode + result
    raise no_proposal_accepted(
        pending, streams, what="precision", cause="the sum of squares or of precisions that it governs"
    )


def no_proposal_accepted(pending: Array, streams: Streams, *, what: str, cause: str) -> SamplingError:
    """Return the error for chains where a rejection loop accepted no value.

    A loop that accepts one proposal in two rejects 64 in a row once in 1e19 draws, unless its parameters are
    NaN or infinite. This happens in states such as a draw from a vague prior, if its outputs overflow.

    pending  (n_chains, ...) bool, true where no proposal was accepted
    """
    chains = to_host(streams.chains)[to_host(pending).reshape(len(pending), -1).any(axis=1)]
    names = ", ".join(str(chain) for chain in chains[:8]) + (", ..." if len(chains) > 8 else "")
    return SamplingError(
        f"iteration {streams.iteration}, operation {streams.operation}: no {what} can be drawn for chain"
        f" {names}, because {cause} is not finite; use less vague priors, start from fixed sigmas"
        " (initial.sigmas), use dtype float64, or look for extreme values in the data"
    )


def _log_density(z: Array, a: Array, d: Array) -> Array:
    """Return the log density at mode + z, zero at the mode; d = sqrt(omega**2 + a**2) - a."""
    xp = array_namespace(z)
    return -d * (xp.cosh(z) - 1) - a * (xp.expm1(z) - z)


def _log_density_slope(z: Array, a: Array, d: Array) -> Array:
    xp = array_namespace(z)
    return -d * xp.sinh(z) - a * xp.expm1(z)


def _touching_points(a: Array, d: Array) -> tuple[Array, Array]:
    """Return Devroye's t and s, where the tails touch the density."""
    xp = array_namespace(d)
    one = xp.ones_like(d)
    right, left = -_log_density(one, a, d), -_log_density(-one, a, d)
    t = xp.where(right > 2, xp.sqrt(2 / (d + a)), xp.where(right < 0.5, xp.log(4 / (d + 2 * a)), 1.0))
    far = xp.log1p((1 + xp.sqrt(1 + 2 * d)) / d)
    far = xp.where(a > 0, xp.minimum(1 / xp.where(a > 0, a, 1.0), far), far)
    s = xp.where(left > 2, xp.sqrt(4 / (d * math.cosh(1) + a)), xp.where(left < 0.5, far, 1.0))
    return t, s


_ROUNDS = 50  # rounds of bisection
_FALL = 1.0  # decrease of the log density from the mode to the points where the proposals' tails touch it


def log_rectified_precision(
    sum_squares: Array, n: int, v0: float, streams: Streams, *, index: int, purpose: Purpose
) -> Array:
    """Draw the log of a precision given the n Gaussian values that it governs, (n_chains,).

        p(tau | values)  ~  tau^(n/2) exp(-S tau/2 - tau^2/(2 v0)) ,  S the sum of squares

    With x = log tau the density is exp(a x - b exp(x) - d exp(2 x)) with a = n/2 + 1, which is log-concave.
    Proposals have a flat top between two exponential tails that touch the density where its logarithm has
    fallen by 1 (Devroye 1986, sec. VII.2). The draw is exact for any touching points.
    Raises SamplingError if the sum of squares is not finite.
    """
    xp = array_namespace(sum_squares)
    a, b, d = n / 2 + 1, sum_squares / 2, 1 / (2 * v0)
    # The mode solves a = b e^x + 2 d e^(2 x). This form of the root in e^x avoids cancellation.
    top = 2 * a / (b + xp.sqrt(b**2 + 8 * a * d))
    at_b, at_d = b * top, d * top**2

    def log_density(y: Array) -> Array:
        """Return the log density at log(top) + y, zero at the mode."""
        return a * y - at_b * xp.expm1(y) - at_d * xp.expm1(2 * y)

    def slope(y: Array) -> Array:
        return a - at_b * xp.exp(y) - 2 * at_d * xp.exp(2 * y)

    right, left = _where_fallen(log_density, xp.ones_like(b)), _where_fallen(log_density, -xp.ones_like(b))
    rate_right, rate_left = -slope(right), slope(left)
    fall_right, fall_left = -log_density(right), -log_density(left)
    end_right, end_left = right - fall_right / rate_right, left + fall_left / rate_left
    width = end_right - end_left
    mass_right, mass_left = 1 / rate_right, 1 / rate_left
    result = xp.zeros_like(b)
    pending = xp.ones(b.shape, dtype=bool)
    for attempt in range(_MAX_ATTEMPTS):
        u = streams.uniform(purpose, (3,), index=index, attempt=attempt)
        place, v = u[:, 0] * (width + mass_right + mass_left), u[:, 1]
        in_top, in_right = place < width, place < width + mass_right
        y = xp.where(in_top, end_left + width * v, end_right - mass_right * xp.log(v))
        y = xp.where(in_right, y, end_left + mass_left * xp.log(v))
        cover = xp.where(y > end_right, -rate_right * (y - end_right), 0.0)
        cover = xp.where(y < end_left, rate_left * (y - end_left), cover)
        accepted = xp.log(u[:, 2]) + cover <= log_density(y)
        result = xp.where(pending & accepted, y, result)
        pending &= ~accepted
        if not bool(pending.any()):
            return xp.log(top) + result
    raise no_proposal_accepted(pending, streams, what="precision", cause="the sum of squares that it governs")


def _where_fallen(log_density: Callable[[Array], Array], direction: Array) -> Array:
    """Return the point on one side of the mode where the log density is -1, by bisection."""
    xp = array_namespace(direction)
    near, far = xp.zeros_like(direction), direction
    for _ in range(_ROUNDS):
        is_short = log_density(far) > -_FALL
        if not bool(is_short.any()):
            break
        far = xp.where(is_short, 2 * far, far)
    for _ in range(_ROUNDS):
        middle = (near + far) / 2
        is_short = log_density(middle) > -_FALL
        near, far = xp.where(is_short, middle, near), xp.where(is_short, far, middle)
    return far
