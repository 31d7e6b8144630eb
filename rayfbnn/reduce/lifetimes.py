"""Predictive distributions of survival times: equally weighted mixtures over hazards constant in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.model.likelihood.survival import piece_starts, time_at

if TYPE_CHECKING:
    from rayfbnn.model.architecture import ModelSpec

_MAX_ROUNDS = 400
_CLOSE = 1e-12  # relative
_MAX_LOG_HAZARD = 340.0  # and less its least: squares of times are then below 1e300


def mean_times(log_hazard: Array, model: ModelSpec) -> Array:
    """Mean time of each draw, the integral of its survival function; log_hazard (..., n_pieces).

    A piece that begins at a and ends at b adds S(a) (1 - exp(-h (b - a))) / h.
    """
    v = _clipped(log_hazard)
    starts = np.array(piece_starts(model))
    spent = (np.exp(v[..., :-1]) * np.diff(starts)).cumsum(axis=-1)
    survival = np.exp(-np.concatenate([np.zeros((*v.shape[:-1], 1)), spent], axis=-1))
    # -expm1 keeps the digits where hardly anyone dies in a piece
    share = np.concatenate([-np.expm1(-np.diff(spent, prepend=0.0)), np.ones((*v.shape[:-1], 1))], axis=-1)
    with np.errstate(over="ignore"):
        return np.asarray((survival * share * np.exp(-v)).sum(axis=-1))


def second_moments(log_hazard: Array, model: ModelSpec) -> Array:
    """Mean square of the time of each draw, log_hazard (..., n_pieces).

    The integral of 2 t S(t): with x = t - a in the piece from a to b of length l, d = h l,
    2 S(a) ( a (1 - e^-d)/h + (1 - e^-d (1 + d))/h**2 ).
    """
    v = _clipped(log_hazard)
    starts = np.array(piece_starts(model))
    lengths = np.append(np.diff(starts), np.inf)
    with np.errstate(over="ignore", invalid="ignore"):
        d = np.exp(v) * lengths
        before = np.concatenate([np.zeros((*v.shape[:-1], 1)), d[..., :-1].cumsum(axis=-1)], axis=-1)
        gone = -np.expm1(-d)
        late = np.where(np.isinf(d), 0.0, d * np.exp(-d))
        each = starts * gone * np.exp(-v) + (gone - late) * np.exp(-2 * v)
        return np.asarray((2 * np.exp(-before) * each).sum(axis=-1))


def survival_curve(log_hazard: Array, times: Array, model: ModelSpec) -> Array:
    """P(T > t) averaged over draws, (n_cases, n_times); log_hazard (n_cases, n_draws, n_pieces)."""
    v = _clipped(log_hazard)
    starts = np.array(piece_starts(model))
    ends = np.append(starts[1:], np.inf)
    curve = np.empty((len(v), len(times)))
    for column, time in enumerate(times):
        lived = np.maximum(np.minimum(time, ends) - starts, 0.0)
        curve[:, column] = np.exp(-(np.exp(v) * lived).sum(axis=2)).mean(axis=1)
    return curve


def kaplan_meier(targets: Array) -> tuple[Array, Array]:
    """Times of events, and after each of them the share that lived on; negative targets are censored.

    S(t) = product over events at t_i <= t of (1 - d_i / r_i), d_i events and r_i cases at risk at t_i.
    Kaplan and Meier (1958), "Nonparametric estimation from incomplete observations".
    """
    times, is_event = np.abs(targets), targets > 0
    events, n_events = np.unique(times[is_event], return_counts=True)
    at_risk = (times[:, None] >= events).sum(axis=0)
    return events, np.asarray(np.cumprod(1 - n_events / at_risk))


def time_quantiles(log_hazard: Array, probabilities: Sequence[float], model: ModelSpec) -> Array:
    """The times t with P(T <= t) = p, (n_cases, n_probabilities); log_hazard (n_cases, n_draws, n_pieces).

    In a piece -log P(T > t) is concave in t, so Newton's steps from the left end of the piece never pass the
    solution; the quantiles of single draws are bounds.
    """
    v = _clipped(log_hazard)
    starts = np.array(piece_starts(model))
    lengths = np.diff(starts)
    spent = np.exp(v[..., :-1] + np.log(lengths)).cumsum(axis=2)
    spent = np.concatenate([np.zeros((*v.shape[:2], 1)), spent], axis=2)  # until each piece begins
    at_starts = np.exp(-spent).mean(axis=1)  # (n_cases, n_pieces)
    found = np.empty((len(v), len(probabilities)))
    cases = np.arange(len(v))
    for column, p in enumerate(probabilities):
        goal = -np.log1p(-p)
        piece = (at_starts[:, 1:] >= 1 - p).sum(axis=1)
        begin, before = starts[piece], spent[cases, :, piece]
        hazard_log = v[cases, :, piece]
        lowest = time_at(np.full(v.shape[:2], goal), v, model).min(axis=1)
        x = np.maximum(lowest - begin, 0.0)
        for _ in range(_MAX_ROUNDS):
            exponent = before + np.exp(hazard_log + np.log(np.maximum(x, 1e-300))[:, None])
            smallest = exponent.min(axis=1, keepdims=True)
            weight = np.exp(smallest - exponent)
            height = smallest[:, 0] - np.log(weight.mean(axis=1))  # -log P(T > begin + x)
            slope = (weight * np.exp(hazard_log)).sum(axis=1) / weight.sum(axis=1)
            step = np.maximum((goal - height) / slope, 0.0)
            x = x + step
            if np.all(step <= _CLOSE * x):
                break
        else:
            raise AssertionError(f"quantiles of times not found in {_MAX_ROUNDS} steps")
        found[:, column] = begin + x
    return found


def _clipped(log_hazard: Array) -> Array:
    """Log hazards in float64, kept where times and their squares are numbers that float64 has; of its shape.

    Vague priors reach further: an event at once, or never, as far as any time that is looked at can tell.
    """
    return np.clip(np.asarray(log_hazard, dtype=np.float64), -_MAX_LOG_HAZARD, _MAX_LOG_HAZARD)
