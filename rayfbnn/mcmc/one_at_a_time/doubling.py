"""Intervals for slice sampling found by doubling, and which of their points may be taken."""

from __future__ import annotations

from collections.abc import Callable

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.mcmc.one_at_a_time.coordinates import Line


def doubled(
    line: Line, level: Array, left: Array, width: Array, sides: Array
) -> tuple[Array, Array, Callable[[Array, Array], Array]]:
    """The ends (n_chains,) of an interval doubled until both are outside the slice, and a test of its points.

    Each doubling is to the left or to the right by chance, whichever end it is that lies in the slice.
    Neal (2003), "Slice sampling", fig. 4.

    sides  (n_chains, most doublings) uniform
    The test takes points (n_chains,) and says whether the same interval could have been found from them.
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

    def accepts(point: Array, asked: Array) -> Array:
        """Fig. 6: halving the interval towards the point, no half that the value is not in ends outside."""
        low, high, is_apart, ok = left, right, xp.zeros(len(left), dtype=bool), asked.copy()
        value = line.value.astype(xp.float64)
        for _ in sides.T:  # as many halvings as there can have been doublings
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
