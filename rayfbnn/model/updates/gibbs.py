"""Gibbs updates: exact draws of each free precision from its conditional distribution.

Every update consists of three kinds of steps (Neal 2022, "Conditional distributions for hyperparameters").
A precision over Gaussian values is drawn from a Gamma distribution. For a precision over Gamma precisions,
the logarithm of a generalised inverse Gaussian variable is drawn. For t values, the precisions of single
values are drawn and then discarded. Updates need sums over the values alone, which may be at hand (`Values`)
or with the parts of a divided run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.model.architecture import NOISE
from rayfbnn.model.layout import PrecisionGroup, PrecisionLayout
from rayfbnn.model.prior import clipped_exp
from rayfbnn.model.updates import hyperbolic
from rayfbnn.model.updates.hyperbolic import hyperbolic_variable
from rayfbnn.streams import Purpose, Streams, Use

Level = Literal["lower", "upper"]
"""Upper precisions govern precisions, of units or of single t values; lower ones govern Gaussian values."""


class Sums(Protocol):
    """Weighted sums over the Gaussian or t values that the precisions of a group govern.

    The sums are (n_chains, n_units) float64, with targets as the units of the noise.
    """

    @property
    def counts(self) -> Array | float:
        """The sum of the weights, (n_chains or 1, n_units), or a number if all are alike."""

    def sum_of_squares(self) -> Array:
        """Return the sums of squares."""

    def sum_of_t_precisions(self, current: Array, alpha: float, streams: Streams) -> Array:
        """Return the sums of precisions drawn for single t values.

        current  (n_chains, n_units), the precisions that the draws are conditional on
        alpha    degrees of freedom
        """

    def sum_of_t_densities(self, x: Array, alpha: float) -> Array:
        """Return the sums of log densities of t values given log precisions x, up to a constant."""

    def together(self) -> Sums:
        """Return the sums over the values of all units, as those of a single unit."""


@dataclass(frozen=True, eq=False)
class Values:
    """The sums over values at hand.

    squares  (n_chains, n_units, n) float64
    weights  power of the density of each value, a number or in the shape of `squares`
    purpose, index  of the random numbers for precisions of single t values
    first, n_all    number of the first value of a unit, and of all its values, if these are some of them.
             Their precisions have the same bits as in a joint draw
    """

    squares: Array
    weights: float | Array = 1.0
    purpose: Purpose = Purpose.NOISE_CASE
    index: int = 0
    first: int = 0
    n_all: int | None = None

    @property
    def counts(self) -> Array | float:
        if isinstance(self.weights, float):
            return self.weights * float(self.squares.shape[2])
        return self.weights.sum(axis=2)

    def sum_of_squares(self) -> Array:
        if isinstance(self.weights, float):
            return self.weights * self.squares.sum(axis=2)
        return (self.weights * self.squares).sum(axis=2)

    def sum_of_t_precisions(self, current: Array, alpha: float, streams: Streams) -> Array:
        parts = [(slice(None), 0)]
        if self.n_all is not None:
            parts = [(slice(j, j + 1), j * self.n_all + self.first) for j in range(self.squares.shape[1])]
        sums = [
            draw_value_precisions(
                self.squares[:, units],
                current[:, units, None],
                alpha,
                self.weights if isinstance(self.weights, float) else self.weights[:, units],
                streams,
                index=self.index,
                purpose=self.purpose,
                first=first,
            ).sum(axis=2)
            for units, first in parts
        ]
        return sums[0] if len(sums) == 1 else array_namespace(current).concatenate(sums, axis=1)

    def sum_of_t_densities(self, x: Array, alpha: float) -> Array:
        """Return the sums of log densities given log precisions x, up to a constant; eq. 17."""
        xp = array_namespace(x)
        terms = 0.5 * x[:, :, None] - (alpha + 1) / 2 * xp.log1p(xp.exp(x)[:, :, None] * self.squares / alpha)
        return (self.weights * terms).sum(axis=2)

    def together(self) -> Values:
        shape, weights = (len(self.squares), 1, -1), self.weights
        if not isinstance(weights, float):
            weights = weights.reshape(shape)
        return replace(self, squares=self.squares.reshape(shape), weights=weights)


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
    noise: Callable[[], Sums] | None = None,
    is_reversed: bool = False,
    level: Level | None = None,
    groups: Collection[str] | None = None,
) -> Array:
    """Draw new precisions of the groups that have values; return all precisions (n_chains, n_precisions).

    Adjustments come last. A group's precisions depend on its parameters times the square roots of the
    adjustments, Neal (2022) eq. 29. Groups are independent given their values, so the Gamma draws of all
    groups are made together: for a few chains most of their time is that of the calls.

    values       group name -> parameters (n_chains, *shape of the group)
    noise        returns the sums over the residuals
    is_reversed  whether to take the levels in the opposite order; groups, and layers of adjustments, are
                 independent
    level        restricts the update to one level; adjustments are lower, because they govern parameters
    groups       names of the groups and adjustments to update; None updates all
    """
    precisions = precisions.copy()
    adjusts = level != "upper"
    if is_reversed and adjusts:
        update_adjustments(values, precisions, streams, layout=layout, names=groups)
    governed = list(governed_sums(values, precisions, layout, noise=noise, names=groups))
    for is_common in (True, False) if is_reversed else (False, True):
        draws = [
            update_level(*part, precisions, streams, is_common=is_common, level=level) for part in governed
        ]
        _draw_together([draw for draw in draws if draw is not None], precisions, streams)
    if not is_reversed and adjusts:
        update_adjustments(values, precisions, streams, layout=layout, names=groups)
    return precisions


def governed_sums(
    values: Mapping[str, Array],
    precisions: Array,
    layout: PrecisionLayout,
    *,
    noise: Callable[[], Sums] | None,
    names: Collection[str] | None,
) -> Iterator[tuple[int, PrecisionGroup, Sums]]:
    """Yield the number of each named group with a free precision, the group, and the sums over its values."""
    xp = array_namespace(precisions)
    for number, group in enumerate(layout.groups):
        if group.is_fixed or (names is not None and group.name not in names):
            continue
        if group.name == NOISE and noise is not None:
            yield number, group, noise()
        elif group.name in values:
            rows = values[group.name].reshape(precisions.shape[0], group.n_units, -1)
            if group.name in layout.adjusted:
                _, columns = layout.adjusted[group.name]
                rows = rows * xp.sqrt(precisions[:, None, columns])
            squares = rows.astype(xp.float64) ** 2
            yield number, group, Values(squares, purpose=Purpose.PRECISION_PARAMETER, index=number)


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
    drawn = clipped_exp(streams.log_gammas(shapes, [draw.use for draw in draws]) - xp.log(rates))
    end = 0
    for draw in draws:
        precisions[:, draw.columns] = drawn[:, end : end + draw.use.n]
        end += draw.use.n


def update_level(
    number: int,
    group: PrecisionGroup,
    sums: Sums | None,
    precisions: Array,
    streams: Streams,
    *,
    is_common: bool,
    level: Level | None = None,
) -> _GammaDraw | None:
    """Draw the common precision, or those of the source units (or targets), in place, unless they are fixed.

    A draw from a Gamma distribution is returned instead, to be made together with others.

    sums  not needed for a common precision above the precisions of units
    """
    alpha_common, alpha_unit, alpha_value = group.prior.alphas
    alpha, columns = (alpha_common, group.common_column) if is_common else (alpha_unit, group.units)
    rectified = group.prior.rectified if is_common else None
    is_above_units = is_common and group.units is not None
    is_upper = is_above_units or math.isfinite(alpha_value)
    is_free = math.isfinite(alpha) or rectified is not None
    if columns is None or not is_free or level == ("lower" if is_upper else "upper"):
        return None
    if is_common:
        mean = array_namespace(precisions).full((len(precisions), 1), group.mean)
        use = Use(Purpose.PRECISION_COMMON, number, 1)
    else:
        mean, use = precisions[:, group.common, None], Use(Purpose.PRECISION_UNIT, number, group.n_units)
    if group.is_of_targets:
        use = Use(Purpose.NOISE_COMMON if is_common else Purpose.NOISE_TARGET, 0, use.n)
    if is_above_units:
        below = precisions[:, group.units].sum(axis=1, keepdims=True)
        drawn = log_precision_over_precisions(below, group.n_units, alpha, mean, alpha_unit, streams, use=use)
        precisions[:, columns] = clipped_exp(drawn)
        return None
    assert sums is not None
    sums = sums.together() if is_common else sums
    if rectified is not None:
        squares = sums.sum_of_squares()
        drawn = hyperbolic.log_rectified_precision(squares, sums.counts, rectified, streams, use=use)
    elif math.isinf(alpha_value):
        return _GammaDraw(columns, *given_values(sums.sum_of_squares(), sums.counts, alpha, mean), use)
    else:
        below = sums.sum_of_t_precisions(precisions[:, columns], alpha_value, streams)
        drawn = log_precision_over_precisions(below, sums.counts, alpha, mean, alpha_value, streams, use=use)
    precisions[:, columns] = clipped_exp(drawn)
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
    sum_squares: Array, n: float | Array, alpha: float, mean: float | Array, streams: Streams, *, use: Use
) -> Array:
    """Draw the log of a precision given the n Gaussian values it governs; arguments as in `given_values`."""
    shape, rate = given_values(sum_squares, n, alpha, mean)
    log_gamma = streams.log_gamma(shape, use.purpose, sum_squares.shape[1:], index=use.index)
    return log_gamma - array_namespace(rate).log(rate)


def draw_value_precisions(
    squares: Array,
    mean: float | Array,
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
    return clipped_exp(log_gamma - xp.log((alpha / mean + squares) / 2))


def log_precision_over_precisions(
    below: Array,
    n: float | Array,
    alpha: float,
    mean: Array,
    alpha_below: float,
    streams: Streams,
    *,
    use: Use,
) -> Array:
    """Draw the log of a precision that is the mean of n Gamma precisions, given their sum `below`.

    p(tau | below)  ~  tau**((alpha - n alpha_below)/2 - 1) exp(-tau alpha/(2 mean) - alpha_below sum/(2 tau))

    Neal (2022) eq. 31: a generalised inverse Gaussian distribution. With x = log tau the density is
    exp(a x - b exp(x) - c exp(-x)), and with x = log(c/b)/2 + y it is exp(a y - 2 sqrt(b c) cosh y).

    below, mean and the result (n_chains, n_units); n is the sum of weights if values are tempered
    """
    xp = array_namespace(below)
    a = (alpha - n * alpha_below) / 2
    log_b = math.log(alpha / 2) - xp.log(mean)
    log_c = math.log(alpha_below / 2) + xp.log(below)
    omega = 2 * xp.exp((log_b + log_c) / 2)
    y = hyperbolic_variable(abs(a), omega, streams, use=use)
    return (log_c - log_b) / 2 + y * xp.copysign(1.0, a)


def update_adjustments(
    values: Mapping[str, Array],
    precisions: Array,
    streams: Streams,
    *,
    layout: PrecisionLayout,
    names: Collection[str] | None = None,
) -> None:
    """Draw every layer's adjustments, in `precisions`, given the n weights and biases into each of its units.

    tau_a | w  ~  Gamma(shape (alpha + n)/2, rate (alpha + sum of tau_i w**2)/2)

    This is eq. 28 of Neal (2022) with mean one. A t weight is a Gaussian weight with its precision
    tau_i tau_a multiplied by a Gamma variable of mean one. This variable is drawn by the same equation and
    then discarded.

    values  group name -> parameters (n_chains, *shape of the group)
    names   names of the adjustments to draw (ah0, ao); None draws all
    """
    xp = array_namespace(precisions)
    for number, adjustments in enumerate(layout.adjustments, start=1):
        if names is not None and adjustments.name not in names:
            continue
        columns, first = adjustments.columns, number * len(layout.groups)
        sums, n = xp.zeros((len(precisions), adjustments.n_units)), 0
        for place, group in enumerate(layout.groups):
            if group.name not in layout.adjusted or layout.adjusted[group.name][1] != columns:
                continue
            rows = values[group.name].reshape(len(precisions), group.n_units, -1).astype(xp.float64)
            squares = rows**2 * precisions[:, group.lowest_columns, None]
            alpha = group.prior.alphas[2]
            if math.isfinite(alpha):
                squares *= draw_value_precisions(
                    precisions[:, None, columns] * squares,
                    1.0,
                    alpha,
                    1.0,
                    streams,
                    index=first + place,
                    purpose=Purpose.PRECISION_PARAMETER,
                )
            sums += squares.sum(axis=1)
            n += rows.shape[1]
        use = Use(Purpose.PRECISION_UNIT, first, adjustments.n_units)
        drawn = log_precision_over_values(sums, n, adjustments.alpha, 1.0, streams, use=use)
        precisions[:, columns] = clipped_exp(drawn)
