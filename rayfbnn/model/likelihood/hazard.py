"""Constant and piecewise constant hazards, and the distributions of times under them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rayfbnn.arrays import Array, array_namespace

_MAX_LOG_HAZARD = 340.0  # limit for the absolute value; squares of times are then below 1e300


@dataclass(frozen=True)
class Hazard:
    """A constant or piecewise constant hazard. A network gives its logarithm in each piece.

    times     increasing times of the changes of the hazard; empty for a constant hazard
    log_time  whether the network's input is the logarithm of the time of a piece

    The last axis of every `log_hazard` argument has length n_pieces.
    """

    times: tuple[float, ...] = ()
    log_time: bool = False

    @property
    def n_pieces(self) -> int:
        """Number of pieces; one for a constant hazard."""
        return len(self.times) + 1 if self.times else 1

    @property
    def piece_starts(self) -> tuple[float, ...]:
        """Start times of the pieces of the hazard."""
        return (0.0, *self.times)

    def piece_inputs(self) -> list[float]:
        """Return the network's time input for each piece: its middle; in the outer pieces, their time point.

        As in FBM. With log_time, the logarithms of the time points are used, and the middle of these.
        """
        points = [math.log(time) if self.log_time else time for time in self.times]
        middles = [(a + b) / 2 for a, b in zip(points[:-1], points[1:], strict=True)]
        return [points[0], *middles, points[-1]]

    def time_at(self, cumulative: Array, log_hazard: Array) -> Array:
        """Return the time when the integrated hazard reaches `cumulative` (...).

        log_hazard (..., n_pieces)
        """
        xp = array_namespace(log_hazard)
        starts = xp.asarray(self.piece_starts)
        spent = xp.exp(log_hazard[..., :-1] + xp.log(starts[1:] - starts[:-1])).cumsum(axis=-1)
        spent = xp.concatenate([xp.zeros((*spent.shape[:-1], 1)), spent], axis=-1)  # up to each piece's start
        piece = (cumulative[..., None] > spent[..., 1:]).sum(axis=-1)[..., None]
        left = cumulative - xp.take_along_axis(spent, piece, axis=-1)[..., 0]
        rest = xp.exp(xp.log(left) - xp.take_along_axis(log_hazard, piece, axis=-1)[..., 0])
        return starts[piece[..., 0]] + rest

    def mean_times(self, log_hazard: Array) -> Array:
        """Return the mean time given each draw, which is the integral of its survival function S.

        A piece from a to b with hazard h adds S(a) (1 - exp(-h (b - a))) / h.
        """
        v = _clipped(log_hazard)
        starts = np.array(self.piece_starts)
        spent = (np.exp(v[..., :-1]) * np.diff(starts)).cumsum(axis=-1)
        survival = np.exp(-np.concatenate([np.zeros((*v.shape[:-1], 1)), spent], axis=-1))
        # -expm1 keeps precision if the probability of an event in a piece is small
        share = np.concatenate(
            [-np.expm1(-np.diff(spent, prepend=0.0)), np.ones((*v.shape[:-1], 1))], axis=-1
        )
        with np.errstate(over="ignore"):
            return np.asarray((survival * share * np.exp(-v)).sum(axis=-1))

    def second_moments(self, log_hazard: Array) -> Array:
        """Return the mean square of the time given each draw.

        This is the integral of 2 t S(t). A piece from a to b with hazard h and d = h (b - a) adds
        2 S(a) ( a (1 - e^-d)/h + (1 - e^-d (1 + d))/h**2 ).
        """
        v = _clipped(log_hazard)
        starts = np.array(self.piece_starts)
        lengths = np.append(np.diff(starts), np.inf)
        with np.errstate(over="ignore", invalid="ignore"):
            d = np.exp(v) * lengths
            before = np.concatenate([np.zeros((*v.shape[:-1], 1)), d[..., :-1].cumsum(axis=-1)], axis=-1)
            gone = -np.expm1(-d)
            late = np.where(np.isinf(d), 0.0, d * np.exp(-d))
            of_pieces = starts * gone * np.exp(-v) + (gone - late) * np.exp(-2 * v)
            return np.asarray((2 * np.exp(-before) * of_pieces).sum(axis=-1))

    def survival_curve(self, log_hazard: Array, times: Array) -> Array:
        """Return P(T > t) averaged over draws, (n_cases, n_times), from (n_cases, n_draws, n_pieces)."""
        curve = np.empty((len(log_hazard), len(times)))
        for column, time in enumerate(times):
            curve[:, column] = self.survival_at(log_hazard, np.full(len(log_hazard), time))
        return curve

    def survival_at(self, log_hazard: Array, times: Array) -> Array:
        """Return P(T > t) averaged over draws for a time of each case, (n_cases,)."""
        v = _clipped(log_hazard)
        starts = np.array(self.piece_starts)
        ends = np.append(starts[1:], np.inf)
        lived = np.maximum(np.minimum(times[:, None, None], ends) - starts, 0.0)
        return np.asarray(np.exp(-(np.exp(v) * lived).sum(axis=2)).mean(axis=1))

    def distribution(self, log_hazard: Array, times: Array) -> Array:
        """Return sums over draws of F = P(T <= t) and its derivatives by log t, (3, n_cases).

        With the hazard h at t, they are f = t h S and f' = f (1 - t h) within a piece, where S = 1 - F.

        log_hazard  (n_cases, n_draws, n_pieces)
        times       (n_cases,)
        """
        v = _clipped(log_hazard)
        starts = np.array(self.piece_starts)
        ends = np.append(starts[1:], np.inf)
        lived = np.maximum(np.minimum(times[:, None, None], ends) - starts, 0.0)
        survival = np.exp(-(np.exp(v) * lived).sum(axis=2))
        piece = np.searchsorted(starts, times, side="right") - 1
        rate = np.exp(v[np.arange(len(v)), :, piece]) * times[:, None]
        density = survival * rate
        sums = [1 - survival, density, density * (1 - rate)]
        return np.stack([np.nan_to_num(part).sum(axis=1) for part in sums])


def _clipped(log_hazard: Array) -> Array:
    """Return log hazards in float64, clipped to a range where float64 can hold times and their squares.

    Under vague priors log hazards may be more extreme. The event then happens at once, or later than any time
    of interest.
    """
    return np.clip(np.asarray(log_hazard, dtype=np.float64), -_MAX_LOG_HAZARD, _MAX_LOG_HAZARD)
