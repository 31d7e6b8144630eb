"""Updates of noise precisions from sums over the cases, for runs that divide their cases into parts.

Residuals stay with their cases. Each part contributes one number for each target, summed over its cases. The
updates are those of gibbs.py and random_grid.py. Only the rounding of the sums depends on the division.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.model.layout import PrecisionGroup
from rayfbnn.model.prior import MAX_LOG_PRECISION
from rayfbnn.model.updates import gibbs, random_grid
from rayfbnn.streams import Purpose, Streams


class NoiseSums(Protocol):
    """Weighted sums over all cases, (n_chains, n_targets) float64 each."""

    @property
    def counts(self) -> Array:
        """The sum of the weights, (n_chains or 1, n_targets)."""
        ...

    def squares(self) -> Array:
        """Return the sums of squared residuals."""
        ...

    def t_precisions(self, current: Array, alpha: float, streams: Streams) -> Array:
        """Return the sums of drawn precisions of single cases, given the current precisions of targets.

        current  (n_chains, n_targets)

        alpha  degrees of freedom of the noise
        """
        ...

    def t_densities(self, x: Array, alpha: float) -> Array:
        """Return the sums of log densities given the log precisions x, up to a constant."""
        ...


@dataclass(frozen=True, eq=False)
class Residuals:
    """The residuals of some cases, and the place of these cases among all cases of a run.

    squares  (n_chains, n_targets, n_cases) float64
    weights  weight of each residual, a number or an array that broadcasts to `squares`
    first    number of the first of these cases
    n_all    number of all cases
    """

    squares: Array
    weights: Array | float
    first: int
    n_all: int

    def sum_of_squares(self) -> Array:
        """Return the weighted sum of squares of each target, (n_chains, n_targets)."""
        if isinstance(self.weights, float):
            return self.weights * self.squares.sum(axis=2)
        return (self.weights * self.squares).sum(axis=2)

    def sum_of_t_precisions(self, current: Array, alpha: float, streams: Streams) -> Array:
        """Draw the precision of each case of each target, and return the sums, (n_chains, n_targets).

        Each draw has the same bits as in a joint draw for all cases.
        """
        xp = array_namespace(self.squares)
        weights = xp.broadcast_to(xp.asarray(self.weights), self.squares.shape)
        sums = xp.empty(self.squares.shape[:2])
        for target in range(sums.shape[1]):
            of_target = slice(target, target + 1)
            drawn = gibbs.draw_value_precisions(
                self.squares[:, of_target],
                current[:, of_target, None],
                alpha,
                weights[:, of_target],
                streams,
                index=0,
                purpose=Purpose.NOISE_CASE,
                first=target * self.n_all + self.first,
            )
            sums[:, target] = drawn.sum(axis=2)[:, 0]
        return sums

    def sum_of_t_densities(self, x: Array, alpha: float) -> Array:
        """Return the sum of log densities of each target, (n_chains, n_targets)."""
        xp = array_namespace(self.squares)
        weights = xp.broadcast_to(xp.asarray(self.weights), self.squares.shape)
        return random_grid.log_density_of_t_values(x, self.squares, weights, alpha)


def update_noise(
    sums: NoiseSums,
    group: PrecisionGroup,
    precisions: Array,
    streams: Streams,
    *,
    is_reversed: bool = False,
    level: gibbs.Level | None = None,
) -> Array:
    """Draw new noise precisions, or one level of them, as `gibbs.update_groups` does; (n_chains, n)."""
    precisions = precisions.copy()
    has_values = math.isfinite(group.prior.alphas[2])
    levels = [
        (_draw_units, group.units is not None, has_values),
        (_draw_common, math.isfinite(group.prior.alphas[0]), group.units is not None or has_values),
    ]
    for draw, is_free, is_upper in reversed(levels) if is_reversed else levels:
        if is_free and (level is None or (level == "upper") == is_upper):
            draw(sums, group, precisions, streams)
    return precisions


def _draw_units(sums: NoiseSums, group: PrecisionGroup, precisions: Array, streams: Streams) -> None:
    """Draw the precision of each target, in place."""
    _, alpha, alpha_value = group.prior.alphas
    mean = precisions[:, group.common : group.common + 1]
    counts, purpose = sums.counts, Purpose.NOISE_TARGET
    if math.isinf(alpha_value):
        drawn = gibbs.log_precision_over_values(
            sums.squares(), counts, alpha, mean, streams, index=0, purpose=purpose
        )
    else:
        below = sums.t_precisions(precisions[:, group.units], alpha_value, streams)
        drawn = gibbs.log_precision_over_precisions(
            below[:, :, None], alpha, mean, alpha_value, streams, index=0, purpose=purpose, n=counts
        )
    precisions[:, group.units] = _clipped_exp(drawn)


def _draw_common(sums: NoiseSums, group: PrecisionGroup, precisions: Array, streams: Streams) -> None:
    """Draw the common precision, in place, given those of the targets or, without these, of the cases."""
    xp = array_namespace(precisions)
    alpha, alpha_unit, alpha_value = group.prior.alphas
    mean = xp.full((len(precisions), 1), group.mean)
    common, purpose = slice(group.common, group.common + 1), Purpose.NOISE_COMMON
    if group.units is not None:
        drawn = gibbs.log_precision_over_precisions(
            precisions[:, None, group.units], alpha, mean, alpha_unit, streams, index=0, purpose=purpose
        )
    elif math.isinf(alpha_value):
        total, counts = sums.squares().sum(axis=1, keepdims=True), sums.counts.sum(axis=1, keepdims=True)
        drawn = gibbs.log_precision_over_values(total, counts, alpha, mean, streams, index=0, purpose=purpose)
    else:
        current = xp.repeat(precisions[:, common], group.n_units, axis=1)
        below = sums.t_precisions(current, alpha_value, streams)
        counts = sums.counts.sum(axis=1, keepdims=True)
        drawn = gibbs.log_precision_over_precisions(
            below[:, None], alpha, mean, alpha_value, streams, index=0, purpose=purpose, n=counts
        )
    precisions[:, common] = _clipped_exp(drawn)


def _clipped_exp(log_precision: Array) -> Array:
    xp = array_namespace(log_precision)
    return xp.exp(xp.clip(log_precision, -MAX_LOG_PRECISION, MAX_LOG_PRECISION))
