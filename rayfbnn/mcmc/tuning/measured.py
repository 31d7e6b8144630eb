"""Sums over measured trajectories, in whole numbers. The order of summation cannot change a bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rayfbnn.arrays import Array, array_namespace, to_host

BITS = 40  # the unit of the sums is 2**-40
_LARGEST = 2.0**50  # the limit for a single value; the sum of 2**12 values of this size still fits 63 bits


@dataclass(frozen=True)
class Measured:
    """Sums over trajectories. All but the two counts are in units of 2**-40.

    trajectories  the number of trajectories
    lengths       the numbers of steps at the measurements
    acceptance    for each length, the sum of a = min(1, exp(-change in energy))
    jumps         for each length and each quantity, the sum of a times the squared change of the quantity
    sums, squares for each quantity, the sum of its values and of the squares at the start of trajectories
    slopes        for each group, the sum of scaling.mean_squares; empty unless scales are automatic
    diverged      the number of trajectories that met an energy that was not finite
    """

    trajectories: int
    lengths: tuple[int, ...]
    acceptance: tuple[int, ...]
    jumps: tuple[tuple[int, ...], ...] = ()
    sums: tuple[int, ...] = ()
    squares: tuple[int, ...] = ()
    slopes: tuple[int, ...] = ()
    diverged: int = 0

    def __add__(self, other: Measured) -> Measured:
        """Add the sums of two measurements, up to the longest length that both have."""
        n = min(len(self.lengths), len(other.lengths))
        return Measured(
            self.trajectories + other.trajectories,
            self.lengths[:n],
            _added(self.acceptance, other.acceptance),
            tuple(_added(*pair) for pair in zip(self.jumps, other.jumps, strict=False)),
            _added(self.sums, other.sums),
            _added(self.squares, other.squares),
            _added(self.slopes, other.slopes),
            self.diverged + other.diverged,
        )

    def mean_acceptance(self, length: int) -> float:
        """Return the mean acceptance probability of trajectories of this many steps."""
        return ratio(self.acceptance[self.lengths.index(length)], self.trajectories)

    @property
    def diverged_share(self) -> float:
        """The share of trajectories that diverged."""
        return self.diverged / self.trajectories


def _added(ours: Sequence[int], theirs: Sequence[int]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip(ours, theirs, strict=False))


def ratio(numerator: int, denominator: int) -> float:
    """Divide a sum in units of 2**-40 by a whole number, rounding only once."""
    return numerator / (denominator << BITS)


def fixed_point_sums(values: Array) -> tuple[int, ...]:
    """Sum values (n_chains, n) over the chains, as whole numbers in units of 2**-40.

    Each value is rounded first, and then whole numbers are summed. The result therefore does not depend on
    the order. A value that is not finite counts as 0.
    """
    xp = array_namespace(values)
    values = xp.clip(xp.where(xp.isfinite(values), values, 0.0), -_LARGEST, _LARGEST)
    whole = xp.floor(values)
    parts = xp.rint((values - whole) * 2.0**BITS)
    high, low = (to_host(part.astype(xp.int64).sum(axis=0)) for part in (whole, parts))
    return tuple((int(a) << BITS) + int(b) for a, b in zip(high, low, strict=True))
