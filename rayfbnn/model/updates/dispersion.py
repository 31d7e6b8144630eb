"""Updates of the dispersion of counts: slice sampling of log shapes given the outputs of the network.

The Gamma variables of the cases are integrated out, so the density of a shape r is that of negative binomial
counts times its prior. It has no standard form, and need not be log-concave.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.errors import SamplingError
from rayfbnn.model.layout import PrecisionGroup
from rayfbnn.model.prior import MAX_LOG_PRECISION
from rayfbnn.model.updates import gibbs
from rayfbnn.model.updates.random_grid import log_prior
from rayfbnn.streams import Purpose, Streams

# The width of the first interval of log r. With some hundred counts a conditional density has a standard
# deviation of 0.1 to 0.3; without information on r it is as wide as the prior, 2 to 5.
_WIDTH = 1.0
_MOST_WIDTHS = 40
# Points are drawn in 64 rounds of 8. Over all of them an interval shrinks by a factor of about exp(-150).
_ROUNDS, _POINTS = 64, 8

Density = Callable[[Array], Array]
"""Returns the log density of each target's counts (n_chains, n_targets) given log shapes of this size."""


def update_dispersion(
    density: Density,
    group: PrecisionGroup,
    precisions: Array,
    streams: Streams,
    *,
    is_reversed: bool = False,
    level: gibbs.Level | None = None,
) -> Array:
    """Update the shapes that govern counts, then the shape above them, if targets have separate ones.

    Returns all precisions (n_chains, n_precisions). The upper shape is drawn from its conditional density, as
    by `gibbs.update_groups`. Each lower one is updated by slice sampling.

    density      the log density of the counts at the current outputs
    is_reversed  whether to take the levels in the opposite order
    level        restricts the update to the shapes of targets ("lower"), or to the one above them ("upper")
    """
    precisions = precisions.copy()
    for name in ("upper", "lower") if is_reversed else ("lower", "upper"):
        if level not in (None, name):
            continue
        if name == "lower":
            _update_lower(density, group, precisions, streams)
        elif group.units is not None:
            gibbs.update_common(0, group, None, precisions, streams, level="upper")
    return precisions


def _update_lower(density: Density, group: PrecisionGroup, precisions: Array, streams: Streams) -> None:
    alpha_common, alpha_unit, _ = group.prior.alphas
    if group.units is not None:
        alpha, mean, columns = alpha_unit, precisions[:, group.common, None], group.units
        of_targets = density
    elif math.isfinite(alpha_common):
        alpha, mean, columns = alpha_common, group.mean, group.common_column
        of_targets = _of_all(density, group.n_units)
    else:
        return
    log_shapes = sliced(
        lambda x: log_prior(x, alpha, mean) + of_targets(x),
        array_namespace(precisions).log(precisions[:, columns]),
        streams,
    )
    precisions[:, columns] = array_namespace(precisions).exp(log_shapes)


def _of_all(density: Density, n_targets: int) -> Density:
    """Return the density of the counts of all targets together, given one shape, (n_chains, 1) each."""

    def together(x: Array) -> Array:
        return density(array_namespace(x).repeat(x, n_targets, axis=1)).sum(axis=1, keepdims=True)

    return together


def sliced(log_density: Callable[[Array], Array], x: Array, streams: Streams) -> Array:
    """Return new values of x (n_chains, n), each from a slice of its own density; see mcmc slice-1.

    The columns are independent, and log_density returns the log density of each. An interval of width 1 is
    placed at random about x and stepped out until both ends are outside the slice, but to at most 40 widths.
    Points are drawn in it until one is inside the slice; others shorten it. Neal (2003), "Slice sampling",
    figs. 3 and 5. Values beyond the limits of log precisions have no density.
    """
    xp = array_namespace(x)
    n = x.shape[1]
    place = streams.uniform(Purpose.SLICE_INTERVAL, (n, 3))  # one call takes longer than an evaluation

    def bounded(x: Array) -> Array:
        with np.errstate(all="ignore"):
            value = log_density(x)
        return xp.where((abs(x) <= MAX_LOG_PRECISION) & ~xp.isnan(value), value, -xp.inf)

    level = bounded(x) + xp.log(place[:, :, 2])
    if not bool(xp.isfinite(level).all()):
        raise _not_finite(streams)
    left = x - _WIDTH * place[:, :, 0]
    n_left = xp.floor(_MOST_WIDTHS * place[:, :, 1])
    low = _stepped_out(bounded, level, left, -_WIDTH, n_left)
    high = _stepped_out(bounded, level, left + _WIDTH, _WIDTH, _MOST_WIDTHS - 1 - n_left)
    pending, result = xp.ones(x.shape, dtype=bool), x
    for attempt in range(_ROUNDS):
        shares = streams.uniform(Purpose.SLICE_POINT, (n, _POINTS), attempt=attempt)
        for number in range(_POINTS):
            point = low + shares[:, :, number] * (high - low)
            inside = bounded(point) >= level
            result = xp.where(pending & inside, point, result)
            pending &= ~inside
            if not bool(pending.any()):
                return result
            low = xp.where(pending & (point < x), point, low)
            high = xp.where(pending & (point >= x), point, high)
    raise _not_finite(streams)


def _stepped_out(
    log_density: Callable[[Array], Array], level: Array, edge: Array, step: float, n_steps: Array
) -> Array:
    """Move the edges by `step` until they are outside the slice, but each at most n_steps times."""
    moving = n_steps > 0
    while bool(moving.any()):
        moving &= log_density(edge) >= level
        edge = edge + step * moving
        n_steps = n_steps - moving
        moving &= n_steps > 0
    return edge


def _not_finite(streams: Streams) -> SamplingError:
    return SamplingError(
        f"iteration {streams.iteration}, operation {streams.operation}: no dispersion can be drawn, because"
        " the density of the counts is not finite; use less vague priors, start from fixed sigmas"
        " (initial.sigmas), use dtype float64, or look for extreme values in the data"
    )
