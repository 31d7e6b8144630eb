"""Slice sampling of one parameter at a time, with the doubling procedure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.errors import SamplingError
from rayfbnn.mcmc.energy import finite_or_infinite, require_finite
from rayfbnn.mcmc.metropolis import ONE_AT_A_TIME, Line, describe_turns, turns
from rayfbnn.mcmc.operation import BuildContext, Operation
from rayfbnn.mcmc.stepsizes import check_stepsize, describe_stepsize, scaled_stepsizes
from rayfbnn.state import ChainState
from rayfbnn.streams import Purpose, Streams

# Points are drawn in 64 rounds of 4. Over all of them an interval shrinks by a factor of about exp(-77).
_ROUNDS = 64
_POINTS = 4


@dataclass(frozen=True)
class Slice1(Operation):
    """Slice sampling of one parameter after another.

    stepsize   initial width of the interval, as a factor on the heuristic stepsizes
    max_steps  limit on the width of the interval, in initial widths; with `doubling` it is rounded down to a
               power of two
    random     whether each chain updates a single parameter chosen at random instead of all in order
    doubling   whether the interval is doubled instead of stepped out, which suits intervals that may have to
               become much wider
    """

    stepsize: float
    max_steps: int = 100
    stepsize_jitter: float | None = None
    random: bool = False
    doubling: bool = False
    op: ClassVar[str] = "slice-1"
    undivided: ClassVar[str] = ONE_AT_A_TIME

    def __post_init__(self) -> None:
        if self.max_steps < 1:
            raise ValueError(f"max_steps: must be at least 1, got {self.max_steps}")
        check_stepsize(self.stepsize, self.stepsize_jitter)

    def description(self) -> str:
        stepsize = describe_stepsize(self.stepsize, self.stepsize_jitter)
        how, n = (
            ("doubled", 1 << _n_doublings(self.max_steps))
            if self.doubling
            else ("stepped out", self.max_steps)
        )
        return (
            f"slice-1: slice sampling of {describe_turns(self.random)}, {stepsize},"
            f" intervals {how} to at most {n} stepsizes"
        )

    def update(
        self, state: ChainState, streams: Streams, *, context: BuildContext
    ) -> tuple[ChainState, None]:
        """Draw one parameter after another from a slice of its conditional; the momentum does not change.

        Let U0 be the current potential. The slice is where U <= U0 + e, with e exponential of mean 1. An
        interval as wide as the parameter's stepsize is placed at random about its value. It is stepped out,
        to at most max_steps such widths, until both ends are outside the slice. Points are then drawn
        uniformly in it. The first one inside the slice is the new value, and each one outside becomes an end
        of the interval. Neal (2003), "Slice sampling", figs. 3 and 5; figs. 4 and 6 for `doubling`.
        """
        xp, target = array_namespace(state.position), context.target
        parameters = turns(streams, target.n_parameters, random=self.random)  # (n_turns, n_chains)
        n_turns = (len(parameters),)
        widths = scaled_stepsizes(target, state, self.stepsize, self.stepsize_jitter, streams)
        widths = widths.astype(xp.float64)
        above = -xp.log(streams.uniform(Purpose.SLICE_LEVEL, n_turns))
        below, share = (streams.uniform(Purpose.SLICE_INTERVAL, n_turns, index=index) for index in (0, 1))
        sides_shape = (*n_turns, _n_doublings(self.max_steps))
        sides = streams.uniform(Purpose.SLICE_INTERVAL, sides_shape, index=2) if self.doubling else None
        rounds: list[Array] = []

        with np.errstate(all="ignore"):
            energy = finite_or_infinite(target.potential(state.position, state.precisions))
            require_finite(energy, streams)
            position = state.position
            for turn, parameter in enumerate(parameters):
                line = Line(target, position, state.precisions, parameter)
                value, level = line.value.astype(xp.float64), energy + above[:, turn]
                width = widths[xp.arange(streams.n_chains), parameter]
                left = value - width * below[:, turn]
                points = _points(rounds, streams, n_turns, turn)
                if sides is not None:
                    start, end, accepts = doubled(line, level, left, width, sides[:, turn])
                else:
                    n_left = xp.floor(self.max_steps * share[:, turn])
                    start = _stepped_out(line, level, left, -width, n_left)
                    end = _stepped_out(line, level, left + width, width, self.max_steps - 1 - n_left)
                    accepts = None
                position, energy = _shrunk(line, level, start, end, points, streams, accepts=accepts)
        return replace(state, position=position), None


def _n_doublings(max_steps: int) -> int:
    """Return the largest n with 2**n <= max_steps."""
    return max_steps.bit_length() - 1


def _stepped_out(line: Line, level: Array, edge: Array, step: Array, n_steps: Array) -> Array:
    """Move the edge by `step` until it is outside the slice, but at most n_steps times; all (n_chains,)."""
    xp = array_namespace(edge)
    moving = n_steps > 0
    while bool(moving.any()):
        moving &= line.at(edge)[1] <= level
        edge = xp.where(moving, edge + step, edge)
        n_steps = n_steps - moving
        moving &= n_steps > 0
    return edge


def _shrunk(
    line: Line,
    level: Array,
    left: Array,
    right: Array,
    points: Iterator[Array],
    streams: Streams,
    *,
    accepts: Callable[[Array, Array], Array] | None = None,
) -> tuple[Array, Array]:
    """Draw the parameter from the part of the slice between the ends.

    Returns the position with the new value, and its potential (n_chains,).

    points   yields uniform numbers (n_chains,), which are scaled to points of the interval
    accepts  takes points (n_chains,) and whether they are in the slice; returns which points are accepted
    """
    xp = array_namespace(left)
    value = line.value.astype(xp.float64)
    position, energy = line.position, xp.zeros(len(left))
    pending = xp.ones(len(left), dtype=bool)
    for uniform in points:
        point = left + uniform * (right - left)
        moved, moved_energy = line.at(point)
        inside = pending & (moved_energy <= level)
        if accepts is not None:
            inside = accepts(point, inside)
        position = xp.where(inside[:, None], moved, position)
        energy = xp.where(inside, moved_energy, energy)
        pending &= ~inside
        if not bool(pending.any()):
            return position, energy
        left = xp.where(pending & (point < value), point, left)
        right = xp.where(pending & (point >= value), point, right)
    raise SamplingError(
        f"iteration {streams.iteration}, operation {streams.operation}: slice-1 found no point in the slice"
        f" in {_ROUNDS * _POINTS} tries; use a smaller stepsize or fewer max_steps"
    )


def _points(rounds: list[Array], streams: Streams, n_turns: tuple[int, ...], turn: int) -> Iterator[Array]:
    """Yield uniform numbers (n_chains,) for the points of one turn.

    Each round of numbers is drawn for all turns at once, and `rounds` keeps it for later turns.
    """
    for number in range(_ROUNDS):
        if number == len(rounds):
            rounds.append(streams.uniform(Purpose.SLICE_POINT, (*n_turns, _POINTS), attempt=number))
        for point in range(_POINTS):
            yield rounds[number][:, turn, point]


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
