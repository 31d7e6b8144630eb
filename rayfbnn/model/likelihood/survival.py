"""Survival targets: times of an event, or of the end of observation, given by a hazard.

The output of the network is the logarithm of the hazard: constant in time, or constant in each of several
pieces, with the time as the network's first input. A piecewise hazard makes each case several cells, one for
each piece that it lived through; in a cell the hazard is constant.
"""

from __future__ import annotations

import math

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.model.architecture import ModelSpec
from rayfbnn.streams import Purpose, Streams


def piece_inputs(model: ModelSpec) -> list[float]:
    """What the network is given as time in each piece: the middle, at the ends the only time point.

    As FBM: with log_time the logarithms of the time points, and the middle of these.
    """
    points = [math.log(time) if model.log_time else time for time in model.times]
    middles = [(a + b) / 2 for a, b in zip(points[:-1], points[1:], strict=True)]
    return [points[0], *middles, points[-1]]


def piece_starts(model: ModelSpec) -> tuple[float, ...]:
    """When each piece of the hazard begins."""
    return (0.0, *model.times)


def expanded_inputs(inputs: Array, model: ModelSpec) -> Array:
    """Inputs of every cell, (n_cases * n_pieces, n_inputs + 1), case by case; the inputs without times."""
    if not model.times:
        return inputs
    xp = array_namespace(inputs)
    cells = xp.empty((len(inputs), model.n_pieces, inputs.shape[1] + 1))
    cells[:, :, 0] = xp.asarray(piece_inputs(model))
    cells[:, :, 1:] = inputs[:, None]
    return cells.reshape(-1, cells.shape[2])


def rows(targets: Array, model: ModelSpec) -> Array:
    """Of every cell whether its event is in it and the log of the time at risk in it.

    targets (..., n_cases, 1), negative where observation ended before the event, NaN where missing; the
    result (..., 2, n_cases * n_pieces). A time equal to a time point belongs to the piece that ends there.
    """
    xp = array_namespace(targets)
    starts = xp.asarray(piece_starts(model))
    ends = xp.concatenate([starts[1:], xp.full(1, xp.inf)])
    time = xp.abs(xp.nan_to_num(targets, nan=0.0))  # (..., n_cases, 1), against the pieces
    at_risk = xp.maximum(xp.minimum(time, ends) - starts, 0.0)
    has_event = (targets > 0) & (starts < time) & (time <= ends)
    with np.errstate(divide="ignore"):
        cells = xp.stack([has_event.astype(xp.float64), xp.log(at_risk)])
    cells = cells.reshape(2, *targets.shape[:-2], -1)
    return xp.ascontiguousarray(xp.moveaxis(cells, 0, -2))


def terms_and_gradient(v: Array, rows: Array) -> tuple[Array, Array]:
    """Of each cell d v - exp(v) t and its derivative d - exp(v) t; v (n_chains, 1, n_cells).

    d is 1 if the event is in the cell, t the time at risk in it: the log density of a time is the log hazard
    when the event happens minus the hazard's integral until then; of a censored time the latter alone.
    """
    xp = array_namespace(v)
    event = rows[..., :1, :]
    cumulative = xp.exp(v + rows[..., 1:, :])  # zero in a cell that is not reached, however large v is
    return xp.where(event > 0, v, 0.0) - cumulative, event - cumulative


def log_bound(rows: Array) -> Array:
    """The largest that each term can be, the shape (..., 1, n_cells).

    With an event at exp(v) = 1/t: -log t - 1; without one zero, as exp(v) goes to zero.
    """
    xp = array_namespace(rows)
    event, log_time = rows[..., :1, :], rows[..., 1:, :]
    return xp.where(event > 0, -log_time - 1, 0.0)


def reached_cells(rows: Array, model: ModelSpec) -> tuple[Array, Array]:
    """Which cells matter, and where each case's begin among them, (n_cases + 1,).

    rows  (2, n_cases * n_pieces), the same for all chains. Every case keeps its first cell.
    """
    xp = array_namespace(rows)
    is_reached = (rows[1] > -xp.inf).reshape(-1, model.n_pieces)
    is_reached[:, 0] = True
    starts = xp.concatenate([xp.zeros(1, dtype=xp.int64), xp.cumsum(is_reached.sum(axis=1))])
    return xp.flatnonzero(is_reached.ravel()), starts


def draw(log_hazard: Array, model: ModelSpec, streams: Streams) -> Array:
    """Times, none censored, given the log hazards of every cell (n_chains, 1, n_cases * n_pieces).

    The integral of the hazard until the event is exponential with mean one. (n_chains, 1, n_cases)
    """
    xp = array_namespace(log_hazard)
    n_chains, n_pieces = log_hazard.shape[0], model.n_pieces
    v = log_hazard.reshape(n_chains, -1, n_pieces).astype(xp.float64)
    exponential = -xp.log(streams.uniform(Purpose.TARGET_VALUE, (v.shape[1],)))
    with np.errstate(over="ignore", invalid="ignore"):
        time = time_at(exponential, v, model)
    return xp.clip(time, 1e-300, 1e300)[:, None, :]


def time_at(cumulative: Array, log_hazard: Array, model: ModelSpec) -> Array:
    """When the integral of the hazard reaches `cumulative` (...); log_hazard (..., n_pieces)."""
    xp = array_namespace(log_hazard)
    starts = xp.asarray(piece_starts(model))
    spent = xp.exp(log_hazard[..., :-1] + xp.log(starts[1:] - starts[:-1])).cumsum(axis=-1)
    spent = xp.concatenate([xp.zeros((*spent.shape[:-1], 1)), spent], axis=-1)  # until each piece begins
    piece = (cumulative[..., None] > spent[..., 1:]).sum(axis=-1)[..., None]
    left = cumulative - xp.take_along_axis(spent, piece, axis=-1)[..., 0]
    rest = xp.exp(xp.log(left) - xp.take_along_axis(log_hazard, piece, axis=-1)[..., 0])
    return starts[piece[..., 0]] + rest
