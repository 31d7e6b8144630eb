"""Gibbs updates: exact draws of each free precision from its conditional distribution.

Every update consists of three kinds of steps (Neal 2022, "Conditional distributions for hyperparameters").
A precision over Gaussian values is drawn from a Gamma distribution. For a precision over Gamma precisions,
the logarithm of a generalised inverse Gaussian variable is drawn. For t values, the precisions of single
values are drawn and then discarded.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.model.architecture import NOISE
from rayfbnn.model.layout import AdjustmentGroup, PrecisionGroup, PrecisionLayout
from rayfbnn.model.prior import MAX_LOG_PRECISION
from rayfbnn.model.updates import hyperbolic
from rayfbnn.model.updates.hyperbolic import hyperbolic_variable
from rayfbnn.streams import Purpose, Streams, Use

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


@dataclass(slots=True, eq=False)
class _Governed:
    """The values that a group's precisions govern, and where the random numbers of the group are.

    squares (n_chains, n_units, n) of the values; each has a weight: a number or (n_chains, n_units, n)
    """

    group: PrecisionGroup
    squares: Array
    weights: float | Array
    index: int
    purposes: _Purposes


@dataclass(slots=True, eq=False)
class _GammaDraw:
    """Precisions in some columns that are to be drawn from Gamma(shape, rate).

    shape is a number or (n_chains, n_units), and rate is (n_chains, n_units)
    """

    columns: slice
    shape: float | Array
    rate: Array
    use: Use


def update_groups(
    values: Mapping[str, Array],
    precisions: Array,
    streams: Streams,
    *,
    layout: PrecisionLayout,
    weights: float | Array = 1.0,
    is_reversed: bool = False,
    level: Level | None = None,
    groups: Collection[str] | None = None,
) -> Array:
    """Draw new precisions of the groups that have values; return all precisions (n_chains, n_precisions).

    Adjustments come last. A group's precisions depend on its parameters times the square roots of the
    adjustments, Neal (2022) eq. 29. Groups are independent given their values, so the Gamma draws of all
    groups are made together: for a few chains most of their time is that of the calls.

    values       group name -> parameters (n_chains, *shape of the group); the noise has residuals,
                 (n_chains, n_targets, n_cases)
    weights      power of the density of each residual, a number or an array that broadcasts to residuals: 0
                 for missing targets, the inverse temperature for a tempered likelihood
    is_reversed  whether to take the levels in the opposite order; groups, and layers of adjustments, are
                 independent
    level        restricts the update to one level; adjustments are lower, because they govern parameters
    groups       names of the groups and adjustments to update; None updates all
    """
    precisions = precisions.copy()
    adjusts = level != "upper"
    if is_reversed and adjusts:
        update_adjustments(values, precisions, streams, layout=layout, names=groups)
    governed = [
        _governed(rows, group, number, weights)
        for number, group, rows in ruled_values(values, precisions, layout)
        if not group.is_fixed and (groups is None or group.name in groups)
    ]
    updates = [_update_units, _update_common]
    for update in reversed(updates) if is_reversed else updates:
        draws = [update(part, precisions, streams, level=level) for part in governed]
        _draw_together([draw for draw in draws if draw is not None], precisions, streams)
    if not is_reversed and adjusts:
        update_adjustments(values, precisions, streams, layout=layout, names=groups)
    return precisions


def ruled_values(
    values: Mapping[str, Array], precisions: Array, layout: PrecisionLayout
) -> Iterator[tuple[int, PrecisionGroup, Array]]:
    """Yield each group that has values: its number, the group, and its values (n_chains, n_units, n)."""
    xp = array_namespace(precisions)
    for number, group in enumerate(layout.groups):
        if group.name in values:
            rows = values[group.name].reshape(precisions.shape[0], group.n_units, -1)
            if group.name in layout.adjusted:
                _, columns = layout.adjusted[group.name]
                rows = rows * xp.sqrt(precisions[:, None, columns])
            yield number, group, rows


def _governed(values: Array, group: PrecisionGroup, number: int, weights: float | Array) -> _Governed:
    xp = array_namespace(values)
    squares = values.astype(xp.float64) ** 2
    if group.name != NOISE:
        return _Governed(group, squares, 1.0, number, _OF_PARAMETERS)
    if not isinstance(weights, float):
        weights = xp.broadcast_to(weights, squares.shape)
    return _Governed(group, squares, weights, 0, _OF_NOISE)


def _draw_together(draws: Sequence[_GammaDraw], precisions: Array, streams: Streams) -> None:
    """Make the draws, and write them to their columns of `precisions`."""
    if not draws:
        return
    xp = array_namespace(precisions)
    rates = draws[0].rate if len(draws) == 1 else xp.concatenate([draw.rate for draw in draws], axis=1)
    shapes, end = xp.empty_like(rates), 0
    for draw in draws:
        shapes[:, end : end + draw.use.n] = draw.shape
        end += draw.use.n
    drawn = _clipped_exp(streams.log_gammas(shapes, [draw.use for draw in draws]) - xp.log(rates))
    end = 0
    for draw in draws:
        precisions[:, draw.columns] = drawn[:, end : end + draw.use.n]
        end += draw.use.n


def _is_of(level: Level | None, *, is_upper: bool) -> bool:
    return level is None or (level == "upper") == is_upper


def _update_units(
    governed: _Governed, precisions: Array, streams: Streams, *, level: Level | None
) -> _GammaDraw | None:
    """Draw the precisions of the source units (or targets), if they have separate precisions.

    A draw from a Gamma distribution is returned, to be made together with others.
    """
    group, purposes = governed.group, governed.purposes
    _, alpha_unit, alpha_value = group.prior.alphas
    is_upper = math.isfinite(alpha_value)
    if group.units is None or not _is_of(level, is_upper=is_upper):
        return None
    return _draw_over_values(
        governed.squares,
        governed.weights,
        alpha_unit,
        precisions[:, group.common : group.common + 1],
        alpha_value,
        group.units,
        precisions,
        streams,
        use=Use(purposes.unit, governed.index, group.n_units),
        value_purpose=purposes.value,
    )


def _update_common(
    governed: _Governed, precisions: Array, streams: Streams, *, level: Level | None
) -> _GammaDraw | None:
    """Draw the common precision, unless it is fixed; see `_update_units`."""
    group, squares, weights = governed.group, governed.squares, governed.weights
    n_chains, index, purposes = len(squares), governed.index, governed.purposes
    alpha_common, alpha_unit, alpha_value = group.prior.alphas
    common = slice(group.common, group.common + 1)
    is_upper = group.units is not None or math.isfinite(alpha_value)
    if group.prior.rectified is not None and _is_of(level, is_upper=False):
        drawn = hyperbolic.log_rectified_precision(
            squares.sum(axis=(1, 2)),
            squares.shape[1] * squares.shape[2],
            group.prior.rectified,
            streams,
            index=index,
            purpose=purposes.common,
        )
        precisions[:, group.common] = _clipped_exp(drawn)
    if math.isinf(alpha_common) or not _is_of(level, is_upper=is_upper):
        return None
    if group.units is not None:
        log_common = log_precision_over_precisions(
            precisions[:, None, group.units],
            alpha_common,
            array_namespace(precisions).full((n_chains, 1), group.mean),
            alpha_unit,
            streams,
            index=index,
            purpose=purposes.common,
        )
        precisions[:, common] = _clipped_exp(log_common)
        return None
    return _draw_over_values(
        squares.reshape(n_chains, 1, -1),
        weights if isinstance(weights, float) else weights.reshape(n_chains, 1, -1),
        alpha_common,
        group.mean,
        alpha_value,
        common,
        precisions,
        streams,
        use=Use(purposes.common, index, 1),
        value_purpose=purposes.value,
    )


def _draw_over_values(
    squares: Array,
    weights: float | Array,
    alpha: float,
    mean: float | Array,
    alpha_value: float,
    columns: slice,
    precisions: Array,
    streams: Streams,
    *,
    use: Use,
    value_purpose: Purpose,
) -> _GammaDraw | None:
    """Draw the precisions in some columns, which govern Gaussian or t values with the given squares.

    squares (n_chains, n_units, n); mean is a number or broadcasts to (n_chains, n_units). Each value has a
    weight: `weights` is a number or (n_chains, n_units, n). For Gaussian values the draw is returned instead.
    """
    n = weights * squares.shape[2] if isinstance(weights, float) else weights.sum(axis=2)
    if math.isinf(alpha_value):
        if isinstance(weights, float):
            sums = weights * squares.sum(axis=2)
        else:
            sums = (weights * squares).sum(axis=2)
        return _GammaDraw(columns, *given_values(sums, n, alpha, mean), use)
    current = precisions[:, columns, None]
    if isinstance(mean, float):
        mean = array_namespace(precisions).full((len(precisions), 1), mean)
    below = draw_value_precisions(
        squares, current, alpha_value, weights, streams, index=use.index, purpose=value_purpose
    )
    log_precision = log_precision_over_precisions(
        below, alpha, mean, alpha_value, streams, index=use.index, purpose=use.purpose, n=n
    )
    precisions[:, columns] = _clipped_exp(log_precision)
    return None


def given_values(
    sum_squares: Array, n: float | Array, alpha: float, mean: float | Array
) -> tuple[float | Array, Array]:
    """Return shape and rate of a precision given the n Gaussian values it governs.

    tau | values  ~  Gamma(shape (alpha + n)/2, rate (alpha/mean + sum of squares)/2)     Neal (2022) eq. 28

    sum_squares, the mean unless it is a number, and the rate are (n_chains, n_units); a value of weight b
    counts as b
    """
    return (alpha + n) / 2, (alpha / mean + sum_squares) / 2


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
    """Draw the log of a precision given the n Gaussian values it governs, see `given_values`.

    sum_squares, mean and the result (n_chains, n_units)
    """
    shape, rate = given_values(sum_squares, n, alpha, mean)
    log_gamma = streams.log_gamma(shape, purpose, sum_squares.shape[1:], index=index)
    return log_gamma - array_namespace(rate).log(rate)


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
    # A third of the time of `clip` for few numbers.
    return xp.exp(xp.minimum(xp.maximum(log_precision, -MAX_LOG_PRECISION), MAX_LOG_PRECISION))


def update_adjustments(
    values: Mapping[str, Array],
    precisions: Array,
    streams: Streams,
    *,
    layout: PrecisionLayout,
    names: Collection[str] | None = None,
) -> None:
    """Draw every layer's adjustments given parameters and precisions, and write them to `precisions`.

    values  group name -> parameters (n_chains, *shape of the group)
    names   names of the adjustments to draw (ah0, ao); None draws all
    """
    for number, adjustments in enumerate(layout.adjustments, start=1):
        if names is not None and adjustments.name not in names:
            continue
        _update(values, adjustments, precisions, streams, layout=layout, number=number)


def _update(
    values: Mapping[str, Array],
    adjustments: AdjustmentGroup,
    precisions: Array,
    streams: Streams,
    *,
    layout: PrecisionLayout,
    number: int,
) -> None:
    """Draw one layer's adjustments given the n weights and biases into each of its units.

    tau_a | w  ~  Gamma(shape (alpha + n)/2, rate (alpha + sum of tau_i w**2)/2)

    This is eq. 28 of Neal (2022) with mean one. A t weight is a Gaussian weight with its precision
    tau_i tau_a multiplied by a Gamma variable of mean one. This variable is drawn by the same equation and
    then discarded.
    """
    xp = array_namespace(precisions)
    columns = adjustments.columns
    sums = xp.zeros((len(precisions), adjustments.n_units))
    n = 0
    for place, group in enumerate(layout.groups):
        if group.name not in layout.adjusted or layout.adjusted[group.name][1] != columns:
            continue
        rows = values[group.name].reshape(len(precisions), group.n_units, -1).astype(xp.float64)
        governing = slice(group.common, group.common + 1) if group.units is None else group.units
        squares = rows**2 * precisions[:, governing, None]
        alpha = group.prior.alphas[2]
        if math.isfinite(alpha):
            index = number * len(layout.groups) + place
            log_gamma = streams.log_gamma(
                (alpha + 1) / 2, Purpose.PRECISION_PARAMETER, squares.shape[1:], index=index
            )
            squares *= xp.exp(log_gamma - xp.log((alpha + precisions[:, None, columns] * squares) / 2))
        sums += squares.sum(axis=1)
        n += rows.shape[1]
    log_gamma = streams.log_gamma(
        (adjustments.alpha + n) / 2,
        Purpose.PRECISION_UNIT,
        (adjustments.n_units,),
        index=number * len(layout.groups),
    )
    log_adjustments = log_gamma - xp.log((adjustments.alpha + sums) / 2)
    precisions[:, columns] = xp.exp(xp.clip(log_adjustments, -MAX_LOG_PRECISION, MAX_LOG_PRECISION))
