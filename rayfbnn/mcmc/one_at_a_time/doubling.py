"""The doubling procedure of slice sampling, which finds an interval and tests whether points are valid."""

from __future__ import annotations

from collections.abc import Callable

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.mcmc.one_at_a_time.coordinates import Line


def doubled(
    line: Line, level: Array, left: Array, width: Array, sides: Array
) -> tuple[Array, Array, Callable[[Array, Array], Array]]:
    """Double an interval until both ends are outside the slice.

    Each doubling extends the interval to the left or to the right with equal probability, regardless of
    which end lies in the slice. Neal (2003), "Slice sampling", fig. 4.

    left, width  (n_chains,)  the initial interval
    sides        (n_chains, largest number of doublings) uniform numbers, which choose the sides

    Returns the ends (n_chains,) and a function that tests points. The function takes points (n_chains,) and
    whether each is a candidate. It returns whether each point is a candidate and doubling from there could
    have found the same interval.
    """
    xp = array_namespace(left)
    right = left + width
    growing = xp.ones(len(left), dtype=bool)
    for uniform in sides.T:
        growing &= (line.at(left)[1] <= level) | (line.at(right)[1] <= level)
        if not bool(growing.any()):
            break
        size, is_left = right - left, uniform < 0.5
        left = xp.where(growing & is_left, left - size, left)
        right = xp.where(growing & ~is_left, right + size, right)

    def accepts(point: Array, is_candidate: Array) -> Array:
        """Halve the interval towards the point, fig. 6.

        Once a halving has separated the point from the current value, the point is refused if both ends of
        its half are outside the slice.
        """
        low, high, is_apart, ok = left, right, xp.zeros(len(left), dtype=bool), is_candidate.copy()
        value = line.value.astype(xp.float64)
        for _ in sides.T:  # at most one halving for each doubling
            halving = ok & (high - low > 1.1 * width)
            if not bool(halving.any()):
                break
            middle = (low + high) / 2
            is_apart |= halving & ((value < middle) != (point < middle))
            low = xp.where(halving & (point >= middle), middle, low)
            high = xp.where(halving & (point < middle), middle, high)
            both_outside = (line.at(low)[1] > level) & (line.at(high)[1] > level)
            ok &= ~(halving & is_apart & both_outside)
        return ok

    return left, right, accepts
