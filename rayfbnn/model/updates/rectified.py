"""Exact draws of precisions with a rectified Gaussian prior, given the Gaussian values that they govern."""

from __future__ import annotations

from collections.abc import Callable

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.model.updates.hyperbolic import no_proposal_accepted
from rayfbnn.streams import Purpose, Streams

_MAX_ATTEMPTS = 64  # the loop accepts more than one proposal in two
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
