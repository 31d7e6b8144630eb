"""Count targets: Poisson, with the network's output as the logarithm of the rate."""

from __future__ import annotations

import math

from rayfbnn.arrays import Array, array_namespace, special_functions
from rayfbnn.streams import Purpose, Streams

_MAX_LOG_RATE = math.log(1e15)  # of a draw: whole numbers much above are not exact in float64


def rows(counts: Array) -> Array:
    """Counts (..., n_targets, n_cases), then below them -log y! of each."""
    xp = array_namespace(counts)
    return xp.concatenate([counts, -special_functions(counts).gammaln(counts + 1.0)], axis=-2)


def terms_and_gradient(v: Array, rows: Array) -> tuple[Array, Array]:
    """log P(y | v) = y v - exp(v) - log y!, and its derivative y - exp(v); of v's shape."""
    xp = array_namespace(v)
    n_targets = rows.shape[-2] // 2
    y, rate = rows[..., :n_targets, :], xp.exp(v)
    # where: no rate at all and no count (v = -inf, y = 0) is certain, not undefined
    return xp.where(y > 0, y * v, 0.0) - rate + rows[..., n_targets:, :], y - rate


def log_bound(rows: Array) -> Array:
    """The largest that each term can be, at v = log y: y log y - y - log y!, the shape of y."""
    xp = array_namespace(rows)
    n_targets = rows.shape[-2] // 2
    y = rows[..., :n_targets, :]
    return y * xp.log(xp.maximum(y, 1.0)) - y + rows[..., n_targets:, :]


def typical_curvature(targets: Array) -> Array:
    """-d2/dv2 log P = exp(v) at a rate as large as the counts are, (..., n_targets); targets NaN if missing.

    (sum of counts + 1) / cases, the one so that it is positive where every count is zero.
    """
    xp = array_namespace(targets)
    n_observed = xp.maximum((~xp.isnan(targets)).sum(axis=-2), 1)
    return (xp.nan_to_num(targets).sum(axis=-2) + 1) / n_observed


def draw(v: Array, streams: Streams) -> Array:
    """Counts of rates exp(v) (at most 1e15), by inversion of the distribution function; the shape of v."""
    xp = array_namespace(v)
    rate = xp.exp(xp.minimum(v, _MAX_LOG_RATE))
    return quantile(streams.uniform(Purpose.TARGET_VALUE, v.shape[1:]), rate)


def quantile(probability: Array, rate: Array) -> Array:
    """The smallest k with P(Y <= k) >= probability, Y Poisson; by bisection from 40 standard deviations."""
    xp = array_namespace(rate)
    above_rate = special_functions(rate).gammaincc
    reach = 40 * xp.sqrt(rate) + 40
    low, high = xp.maximum(xp.floor(rate - reach), -1.0), xp.ceil(rate + reach)
    while bool((high - low > 1).any()):
        middle = xp.floor((low + high) / 2)
        # P(Y <= k) = Q(k + 1, rate), the regularised upper incomplete gamma function
        is_enough = above_rate(xp.maximum(middle, 0.0) + 1, rate) >= probability
        is_enough &= middle >= 0
        high = xp.where(is_enough, middle, high)
        low = xp.where(is_enough, low, middle)
    return high
