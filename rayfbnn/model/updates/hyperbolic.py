"""Exact draws of precisions whose conditional distribution is not Gamma, for all chains at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from rayfbnn.arrays import Array, array_namespace, to_host
from rayfbnn.errors import SamplingError
from rayfbnn.streams import RejectingStreams, Streams, Use

_MAX_ATTEMPTS = 64  # of a rejection loop that accepts more than one in two


def hyperbolic_variable(a: float | Array, omega: Array, streams: Streams, *, use: Use) -> Array:
    """Draw y with density proportional to exp(a y - omega cosh y), a >= 0, in the shape of omega.

    omega is (n_chains, k); a is a number or broadcasts to omega.

    Devroye (2014), "Random variate generation for the generalized inverse Gaussian distribution". The tails
    of the proposals touch the density at t and -s. The draw is exact for any t and s. His choice of these
    rejects less than half of the proposals for all parameters. Raises SamplingError if omega is NaN, infinite
    or zero.
    """
    if isinstance(streams, RejectingStreams):
        return streams.hyperbolic(a, omega, use.purpose, index=use.index)
    xp = array_namespace(omega)
    a = xp.asarray(a, dtype=xp.float64)  # CuPy's where does not accept a Python bool as the condition
    mode = xp.arcsinh(a / omega)
    d = omega**2 / (xp.sqrt(omega**2 + a**2) + a)  # sqrt(omega**2 + a**2) - a without cancellation

    t, s = _touching_points(a, d)
    rate_right, rate_left = -_log_density_slope(t, a, d), _log_density_slope(-s, a, d)
    return mode + _log_concave_variable(
        partial(_log_density, a=a, d=d),
        -s - 1 / rate_left * _log_density(-s, a, d),
        t + 1 / rate_right * _log_density(t, a, d),
        rate_left,
        rate_right,
        streams,
        use=use,
        cause="the sum of squares or of precisions that it governs",
    )


def _log_concave_variable(
    log_density: Callable[[Array], Array],
    left: Array,
    right: Array,
    rate_left: Array,
    rate_right: Array,
    streams: Streams,
    *,
    use: Use,
    cause: str,
) -> Array:
    """Draw y from a log-concave density with the maximum 1 at 0.

    Proposals have a flat top from `left` to `right`, and exponential tails beyond with these rates that touch
    the density.
    """
    xp = array_namespace(right)
    width, mass_left, mass_right = right - left, 1 / rate_left, 1 / rate_right
    result = xp.zeros_like(width)
    pending = xp.ones(width.shape, dtype=bool)
    for attempt in range(_MAX_ATTEMPTS):
        u = streams.uniform(use.purpose, (*width.shape[1:], 3), index=use.index, attempt=attempt)
        place, v = u[..., 0] * (mass_left + width + mass_right), u[..., 1]
        in_top, in_right = place < width, place < width + mass_right
        y = xp.where(in_top, left + width * v, right - mass_right * xp.log(v))
        y = xp.where(in_right, y, left + mass_left * xp.log(v))
        cover = xp.where(y > right, -rate_right * (y - right), 0.0)
        cover = xp.where(y < left, rate_left * (y - left), cover)
        accepted = xp.log(u[..., 2]) + cover <= log_density(y)
        result = xp.where(pending & accepted, y, result)
        pending &= ~accepted
        if not bool(pending.any()):
            return result
    raise no_proposal_accepted(pending, streams, what="precision", cause=cause)


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
    sum_squares: Array, n: float | Array, v0: float, streams: Streams, *, use: Use
) -> Array:
    """Draw the log of a precision given the n Gaussian values that it governs, in the shape of sum_squares.

        p(tau | values)  ~  tau^(n/2) exp(-S tau/2 - tau^2/(2 v0)) ,  S the sum of squares

    With x = log tau the density is exp(a x - b exp(x) - d exp(2 x)) with a = n/2 + 1, which is log-concave.
    The tails of the proposals touch the density where its logarithm has fallen by 1 (Devroye 1986, sec.
    VII.2). The draw is exact for any touching points. Raises SamplingError if the sum of squares is not
    finite.
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
    return xp.log(top) + _log_concave_variable(
        log_density,
        left - log_density(left) / rate_left,
        right + log_density(right) / rate_right,
        rate_left,
        rate_right,
        streams,
        use=use,
        cause="the sum of squares that it governs",
    )


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
