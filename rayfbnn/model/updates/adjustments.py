"""Gibbs updates of the adjustments, the precisions of destination units."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.model.layout import AdjustmentGroup, PrecisionLayout
from rayfbnn.model.prior import MAX_LOG_PRECISION
from rayfbnn.streams import Purpose, Streams


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
