"""Slice sampling of one parameter at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.errors import SamplingError
from rayfbnn.mcmc.energy import finite_or_infinite, require_finite
from rayfbnn.mcmc.one_at_a_time.coordinates import Line, turns
from rayfbnn.mcmc.one_at_a_time.doubling import doubled
from rayfbnn.mcmc.stepsizes import scaled_stepsizes
from rayfbnn.state import ChainState, Target
from rayfbnn.streams import Purpose, Streams

_ROUNDS = 64  # of points, each of _POINTS: an interval shrinks by exp(-77) or so in 256 of them
_POINTS = 4


def slice_1(
    state: ChainState,
    streams: Streams,
    *,
    target: Target,
    stepsize: float,
    max_steps: int = 100,
    stepsize_jitter: float | None = None,
    random: bool = False,
    doubling: bool = False,
) -> tuple[ChainState, None]:
    """Slice sampling updates of every parameter in order, or of one at random; the momentum stays.

    With U0 the potential now, the slice is where U <= U0 + e, e exponential of mean 1. An interval of the
    parameter's stepsize is placed at random about its value and stepped out, to at most max_steps such
    widths, until both ends are outside the slice. Points are drawn in it, and it is shrunk to each
    one outside the slice, until one is inside: the new value. Neal (2003), "Slice sampling", figs. 3 and 5.

    doubling  the interval is doubled rather than stepped out, to the power of two of
              widths that max_steps reaches; figs. 4 and 6
    """
    xp = array_namespace(state.position)
    parameters = turns(streams, target.n_parameters, random=random)  # (n_turns, n_chains)
    n_turns = (len(parameters),)
    widths = scaled_stepsizes(target, state, stepsize, stepsize_jitter, streams).astype(xp.float64)
    above = -xp.log(streams.uniform(Purpose.SLICE_LEVEL, n_turns))
    below, share = (streams.uniform(Purpose.SLICE_INTERVAL, n_turns, index=index) for index in (0, 1))
    n_doublings = max_steps.bit_length() - 1  # a power of two of widths, max_steps at most
    sides = streams.uniform(Purpose.SLICE_INTERVAL, (*n_turns, n_doublings), index=2) if doubling else None
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
                n_left = xp.floor(max_steps * share[:, turn])
                start = _stepped_out(line, level, left, -width, n_left)
                end = _stepped_out(line, level, left + width, width, max_steps - 1 - n_left)
                accepts = None
            position, energy = _shrunk(line, level, start, end, points, streams, accepts=accepts)
    return replace(state, position=position), None


def _stepped_out(line: Line, level: Array, edge: Array, step: Array, n_steps: Array) -> Array:
    """The edge moved by `step` until it is outside the slice, or n_steps times; all (n_chains,)."""
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
    """Position with the parameter at a point of the slice between the ends, and its potential.

    accepts  of points in the slice, whether they may be taken
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
        f"iteration {streams.iteration}, operation {streams.operation}: slice-1 found no point of the slice"
        f" in {_ROUNDS * _POINTS} tries; use a smaller stepsize or fewer max_steps"
    )


def _points(rounds: list[Array], streams: Streams, n_turns: tuple[int, ...], turn: int) -> Iterator[Array]:
    """Uniform numbers (n_chains,) for the points of one turn, drawn for all turns at once."""
    for number in range(_ROUNDS):
        if number == len(rounds):
            rounds.append(streams.uniform(Purpose.SLICE_POINT, (*n_turns, _POINTS), attempt=number))
        for point in range(_POINTS):
            yield rounds[number][:, turn, point]
