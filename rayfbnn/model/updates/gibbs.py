"""Gibbs updates: exact draws of each free precision from its conditional distribution.

Every update consists of three kinds of steps (Neal 2022, "Conditional distributions for hyperparameters").
A precision over Gaussian values is drawn from a Gamma distribution. For a precision over Gamma precisions,
the logarithm of a generalised inverse Gaussian variable is drawn. For t values, the precisions of single
values are drawn and then discarded.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.model.layout import NOISE, PrecisionGroup, PrecisionLayout
from rayfbnn.model.prior import MAX_LOG_PRECISION
from rayfbnn.model.updates import rectified
from rayfbnn.model.updates.adjustments import update_adjustments
from rayfbnn.model.updates.hyperbolic import hyperbolic_variable
from rayfbnn.streams import Purpose, Streams

Level = Literal["lower", "upper"]
"""Upper precisions govern precisions, of units or of single t values; lower ones govern Gaussian values."""


@dataclass(frozen=True)
class _Purposes:
    """The purposes of the random numbers of each level."""

    value: Purpose
    unit: Purpose
    common: Purpose


_OF_PARAMETERS = _Purposes(Purpose.PRECISION_PARAMETER, Purpose.PRECISION_UNIT, Purpose.PRECISION_COMMON)
_OF_NOISE = _Purposes(Purpose.NOISE_CASE, Purpose.NOISE_TARGET, Purpose.NOISE_COMMON)


def update_groups(
    values: dict[str, Array],
    precisions: Array,
    streams: Streams,
    *,
    layout: PrecisionLayout,
    is_reversed: bool = False,
    level: Level | None = None,
    groups: Collection[str] | None = None,
) -> Array:
    """Draw new precisions of every group of parameters, and return all precisions (n_chains, n_precisions).

    The noise precisions do not change. Adjustments come last. A group's precisions depend on its parameters
    times the square roots of the adjustments, Neal (2022) eq. 29.

    values       group name -> parameters (n_chains, *shape of the group)
    is_reversed  whether to take the levels in the opposite order; groups, and layers of adjustments, are
                 independent
    level        restricts the update to one level; adjustments are lower, because they govern parameters
    groups       names of the groups and adjustments to update; None updates all
    """
    precisions = precisions.copy()
    adjusts = level != "upper"
    if is_reversed and adjusts:
        update_adjustments(values, precisions, streams, layout=layout, names=groups)
    for number, group, rows in ruled_values(values, precisions, layout):
        if groups is not None and group.name not in groups:
            continue
        _update(
            rows,
            group,
            precisions,
            streams,
            index=number,
            purposes=_OF_PARAMETERS,
            is_reversed=is_reversed,
            level=level,
        )
    if not is_reversed and adjusts:
        update_adjustments(values, precisions, streams, layout=layout, names=groups)
    return precisions


def ruled_values(
    values: dict[str, Array], precisions: Array, layout: PrecisionLayout
) -> Iterator[tuple[int, PrecisionGroup, Array]]:
    """Yield each group of parameters: its number, the group, and its values (n_chains, n_units, n)."""
    xp = array_namespace(precisions)
    for number, group in enumerate(layout.groups):
        if group.name != NOISE:
            rows = values[group.name].reshape(precisions.shape[0], group.n_units, -1)
            if group.name in layout.adjusted:
                _, columns = layout.adjusted[group.name]
                rows = rows * xp.sqrt(precisions[:, None, columns])
            yield number, group, rows


def update_noise(
    residuals: Array,
    precisions: Array,
    streams: Streams,
    *,
    layout: PrecisionLayout,
    weights: float | Array = 1.0,
    is_reversed: bool = False,
    level: Level | None = None,
) -> Array:
    """Draw new noise precisions, or one level of them; return all precisions (n_chains, n_precisions).

    residuals  (n_chains, n_targets, n_cases)
    weights    power of the density of each residual, a number or an array that broadcasts to residuals: 0 for
               missing targets, the inverse temperature for a tempered likelihood
    """
    precisions = precisions.copy()
    for group in layout.groups:
        if group.name == NOISE:
            _update(
                residuals,
                group,
                precisions,
                streams,
                index=0,
                purposes=_OF_NOISE,
                weights=weights,
                is_reversed=is_reversed,
                level=level,
            )
    return precisions


def _update(
    values: Array,
    group: PrecisionGroup,
    precisions: Array,
    streams: Streams,
    *,
    index: int,
    purposes: _Purposes,
    weights: float | Array = 1.0,
    is_reversed: bool = False,
    level: Level | None = None,
) -> None:
    """Update one group's columns of `precisions`, units before the common one.

    values  (n_chains, n_units, n)
    """
    xp = array_namespace(precisions)
    squares = values.astype(xp.float64) ** 2
    if not isinstance(weights, float):
        weights = xp.broadcast_to(weights, squares.shape)
    updates = [_update_units, _update_common]
    for update in reversed(updates) if is_reversed else updates:
        update(squares, weights, group, precisions, streams, index=index, purposes=purposes, level=level)


def _is_of(level: Level | None, *, is_upper: bool) -> bool:
    return level is None or (level == "upper") == is_upper


def _update_units(
    squares: Array,
    weights: float | Array,
    group: PrecisionGroup,
    precisions: Array,
    streams: Streams,
    *,
    index: int,
    purposes: _Purposes,
    level: Level | None,
) -> None:
    """Draw the precisions of the source units (or targets), if they have separate precisions."""
    _, alpha_unit, alpha_value = group.prior.alphas
    common = slice(group.common, group.common + 1)
    is_upper = math.isfinite(alpha_value)
    if group.units is not None and _is_of(level, is_upper=is_upper):
        precisions[:, group.units] = _draw_over_values(
            squares,
            alpha_unit,
            precisions[:, common],
            alpha_value,
            precisions[:, group.units],
            streams,
            weights=weights,
            index=index,
            purpose=purposes.unit,
            value_purpose=purposes.value,
        )


def _update_common(
    squares: Array,
    weights: float | Array,
    group: PrecisionGroup,
    precisions: Array,
    streams: Streams,
    *,
    index: int,
    purposes: _Purposes,
    level: Level | None,
) -> None:
    """Draw the common precision, unless it is fixed."""
    xp = array_namespace(precisions)
    n_chains = squares.shape[0]
    alpha_common, alpha_unit, alpha_value = group.prior.alphas
    common = slice(group.common, group.common + 1)
    is_upper = group.units is not None or math.isfinite(alpha_value)
    if group.prior.rectified is not None and _is_of(level, is_upper=False):
        drawn = rectified.log_rectified_precision(
            squares.sum(axis=(1, 2)),
            squares.shape[1] * squares.shape[2],
            group.prior.rectified,
            streams,
            index=index,
            purpose=purposes.common,
        )
        precisions[:, group.common] = _clipped_exp(drawn)
    if math.isinf(alpha_common) or not _is_of(level, is_upper=is_upper):
        return
    if group.units is not None:
        log_common = log_precision_over_precisions(
            precisions[:, None, group.units],
            alpha_common,
            xp.full((n_chains, 1), group.mean),
            alpha_unit,
            streams,
            index=index,
            purpose=purposes.common,
        )
        precisions[:, common] = _clipped_exp(log_common)
    else:
        precisions[:, common] = _draw_over_values(
            squares.reshape(n_chains, 1, -1),
            alpha_common,
            xp.full((n_chains, 1), group.mean),
            alpha_value,
            precisions[:, common],
            streams,
            weights=weights if isinstance(weights, float) else weights.reshape(n_chains, 1, -1),
            index=index,
            purpose=purposes.common,
            value_purpose=purposes.value,
        )


def _draw_over_values(
    squares: Array,
    alpha: float,
    mean: Array,
    alpha_value: float,
    current: Array,
    streams: Streams,
    *,
    weights: float | Array,
    index: int,
    purpose: Purpose,
    value_purpose: Purpose,
) -> Array:
    """Draw precisions (n_chains, n_units) that govern Gaussian or t values with the given squares.

    squares (n_chains, n_units, n); mean and current broadcast to (n_chains, n_units). Each value has a
    weight: `weights` is a number or (n_chains, n_units, n)
    """
    if isinstance(weights, float):
        n = weights * squares.shape[2]
    else:
        n = weights.sum(axis=2)
    if math.isinf(alpha_value):
        if isinstance(weights, float):
            sums = weights * squares.sum(axis=2)
        else:
            sums = (weights * squares).sum(axis=2)
        return _clipped_exp(
            log_precision_over_values(sums, n, alpha, mean, streams, index=index, purpose=purpose)
        )
    below = draw_value_precisions(
        squares, current[:, :, None], alpha_value, weights, streams, index=index, purpose=value_purpose
    )
    return _clipped_exp(
        log_precision_over_precisions(
            below, alpha, mean, alpha_value, streams, index=index, purpose=purpose, n=n
        )
    )


def log_precision_over_values(
    sum_squares: Array,
    n: float | Array,
    alpha: float,
    mean: Array,
    streams: Streams,
    *,
    index: int,
    purpose: Purpose,
) -> Array:
    """Draw the log of a precision given the n Gaussian values it governs (a value of weight b counts as b).

    tau | values  ~  Gamma(shape (alpha + n)/2, rate (alpha/mean + sum of squares)/2)     Neal (2022) eq. 28

    sum_squares, mean and the result (n_chains, n_units)
    """
    xp = array_namespace(sum_squares)
    log_gamma = streams.log_gamma((alpha + n) / 2, purpose, sum_squares.shape[1:], index=index)
    return log_gamma - xp.log((alpha / mean + sum_squares) / 2)


def draw_value_precisions(
    squares: Array,
    mean: Array,
    alpha: float,
    weights: float | Array,
    streams: Streams,
    *,
    index: int,
    purpose: Purpose,
    first: int = 0,
) -> Array:
    """Draw precisions of single t values given the values, in the shape of `squares`; eq. 28 with n = 1.

    The density of a value of weight b is the b-th power of a t density, which is also a mixture:

    tau**(b/2) (1 + tau r**2/alpha)**(-b (alpha+1)/2)  ~  the integral over x = a single value's precision of
        tau**(-b alpha/2) x**(b (alpha+1)/2 - 1) exp(-x alpha/(2 tau) - x r**2/2)

    first  the index of the first value, if these values are part of a larger set that is drawn in pieces
    """
    xp = array_namespace(squares)
    with np.errstate(divide="ignore"):  # a weight of zero gives a precision near zero
        log_gamma = streams.log_gamma(
            weights * (alpha + 1) / 2, purpose, squares.shape[1:], index=index, first=first
        )
    return _clipped_exp(log_gamma - xp.log((alpha / mean + squares) / 2))


def log_precision_over_precisions(
    below: Array,
    alpha: float,
    mean: Array,
    alpha_below: float,
    streams: Streams,
    *,
    index: int,
    purpose: Purpose,
    n: float | Array | None = None,
) -> Array:
    """Draw the log of a precision that is the mean of the n Gamma precisions `below`, given these.

    p(tau | below)  ~  tau**((alpha - n alpha_below)/2 - 1) exp(-tau alpha/(2 mean) - alpha_below sum/(2 tau))

    Neal (2022) eq. 31: a generalised inverse Gaussian distribution. With x = log tau the density is
    exp(a x - b exp(x) - c exp(-x)), and with x = log(c/b)/2 + y it is exp(a y - 2 sqrt(b c) cosh y).

    below (n_chains, n_units, number of precisions); mean and the result (n_chains, n_units). n replaces the
    number of precisions if it differs, as for tempered values
    """
    xp = array_namespace(below)
    if n is None:
        n = below.shape[2]
    a = (alpha - n * alpha_below) / 2
    log_b = math.log(alpha / 2) - xp.log(mean)
    log_c = math.log(alpha_below / 2) + xp.log(below.sum(axis=2))
    omega = 2 * xp.exp((log_b + log_c) / 2)
    y = hyperbolic_variable(abs(a), omega, streams, index=index, purpose=purpose)
    return (log_c - log_b) / 2 + y * xp.copysign(1.0, a)


def _clipped_exp(log_precision: Array) -> Array:
    xp = array_namespace(log_precision)
    return xp.exp(xp.clip(log_precision, -MAX_LOG_PRECISION, MAX_LOG_PRECISION))
