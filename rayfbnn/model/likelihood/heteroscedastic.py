"""Real targets whose noise depends on the inputs: a second set of outputs is its log precision."""

from __future__ import annotations

import math

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.streams import Purpose, Streams

_LOG_2_PI = math.log(2 * math.pi)


def log_precision(s: Array, floor: float) -> Array:
    """log tau of the noise given the outputs s, 1/tau = floor**2 + exp(-s); s itself without a floor."""
    if floor == 0:
        return s
    return s - array_namespace(s).logaddexp(0.0, s + 2 * math.log(floor))


def terms_and_gradient(outputs: Array, y: Array, floor: float) -> tuple[Array, Array]:
    """Log densities (log tau - tau (y - v)**2 - log 2 pi)/2 and their derivatives by v and s.

    d/dv = tau (y - v);   d/ds = g (1 - tau (y - v)**2)/2,  g = d log tau/ds = 1/(1 + floor**2 exp(s))

    outputs (n_chains, 2 n_targets, n_cases): every v, then every s; y (..., n_targets, n_cases)
    """
    xp = array_namespace(outputs)
    n_targets = y.shape[-2]
    v, s = outputs[:, :n_targets], outputs[:, n_targets:]
    log_tau = log_precision(s, floor)
    residual = y - v
    slope = xp.exp(log_tau) * residual
    z = slope * residual
    gradient = xp.concatenate([slope, 0.5 * xp.exp(log_tau - s) * (1 - z)], axis=1)
    return 0.5 * (log_tau - z - _LOG_2_PI), gradient


def log_bound(y: Array, floor: float) -> Array:
    """The largest that each log density can be, -log floor - log(2 pi)/2; infinite without a floor."""
    value = -math.log(floor) - 0.5 * _LOG_2_PI if floor > 0 else math.inf
    return array_namespace(y).full(y.shape, value)


def typical_curvature(targets: Array) -> Array:
    """-d2/dv2 at a precision of 1/variance of the targets, then -d2/ds2 = 1/2, (..., 2 n_targets).

    The latter is its mean over y. Targets (..., n_cases, n_targets), NaN if missing; where they are all the
    same the precision counts as one.
    """
    xp = array_namespace(targets)
    is_observed = ~xp.isnan(targets)
    n = xp.maximum(is_observed.sum(axis=-2), 1)
    values = xp.nan_to_num(targets)
    mean = values.sum(axis=-2) / n
    variance = (is_observed * (values - mean[..., None, :]) ** 2).sum(axis=-2) / n
    precision = 1 / xp.where(variance > 0, variance, 1.0)
    return xp.concatenate([precision, xp.full_like(precision, 0.5)], axis=-1)


def draw(outputs: Array, floor: float, streams: Streams) -> Array:
    """Targets (n_chains, n_targets, n_cases) given outputs (n_chains, 2 n_targets, n_cases)."""
    xp = array_namespace(outputs)
    n_targets = outputs.shape[1] // 2
    v, s = outputs[:, :n_targets], outputs[:, n_targets:]
    noise = streams.normal(Purpose.TARGET_VALUE, v.shape[1:])
    return v + noise * xp.exp(-0.5 * log_precision(s, floor))
