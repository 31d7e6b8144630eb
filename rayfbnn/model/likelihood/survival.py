"""Survival targets: times of an event, or of the end of observation, under a hazard.

The output of the network is the logarithm of the hazard. The hazard is constant in time, or constant in each
of several pieces; the network's first input is then the time. A piecewise hazard divides each case into
cells, one for each piece that the case reached. In a cell the hazard is constant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.model.architecture import ModelSpec
from rayfbnn.model.likelihood.data_model import DataModel, Misfit, TargetRange
from rayfbnn.streams import Purpose, Streams

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
        return len(self.times) + 1

    @property
    def piece_starts(self) -> tuple[float, ...]:
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
        hazard, everyone = np.exp(_clipped(log_hazard)), np.ones(len(log_hazard))
        return np.stack([self._survival(hazard, time * everyone).mean(axis=1) for time in times], axis=1)

    def distribution(self, log_hazard: Array, times: Array) -> Array:
        """Return sums over draws of F = P(T <= t) and its derivatives by log t, (3, n_cases).

        With the hazard h at t, they are f = t h S and f' = f (1 - t h) within a piece, where S = 1 - F.

        log_hazard  (n_cases, n_draws, n_pieces)
        times       (n_cases,)
        """
        hazard = np.exp(_clipped(log_hazard))
        survival = self._survival(hazard, times)
        piece = np.searchsorted(self.piece_starts, times, side="right") - 1
        rate = hazard[np.arange(len(hazard)), :, piece] * times[:, None]
        density = survival * rate
        sums = [1 - survival, density, density * (1 - rate)]
        return np.stack([np.nan_to_num(part).sum(axis=1) for part in sums])

    def _survival(self, hazard: Array, times: Array) -> Array:
        """Return P(T > t) given each draw, (n_cases, n_draws), for a time of each case, (n_cases,)."""
        starts = np.array(self.piece_starts)
        ends = np.append(starts[1:], np.inf)
        lived = np.maximum(np.minimum(times[:, None, None], ends) - starts, 0.0)
        return np.asarray(np.exp(-(hazard * lived).sum(axis=2)))


def _clipped(log_hazard: Array) -> Array:
    """Return log hazards in float64, clipped to a range where float64 can hold times and their squares.

    Under vague priors log hazards may be more extreme. The event then happens at once, or later than any time
    of interest.
    """
    return np.clip(np.asarray(log_hazard, dtype=np.float64), -_MAX_LOG_HAZARD, _MAX_LOG_HAZARD)


@dataclass(frozen=True)
class SurvivalTargets(DataModel):
    """One time, which is negative if observation ended before the event."""

    kind = "survival"
    settings = {"hazard": "a hazard", "time_points": "a hazard", "log_time": "a hazard"}
    required = {"hazard": '"constant" or "piecewise"'}
    has_single_target = True
    are_times = True
    quantile_scale = "log"
    has_curves = True
    predicted_name = "survival"
    usual_bias = 10.0  # times may be in any unit
    usual_iterations = 10_000

    hazard: Hazard

    @classmethod
    def from_spec(cls, model: ModelSpec) -> SurvivalTargets:
        return cls(Hazard(model.times, model.log_time))

    @property
    def compiled_name(self) -> str | None:
        return None if self.hazard.times else "survival"

    @property
    def in_words(self) -> str:
        return f"survival, {'piecewise' if self.hazard.times else 'constant'} hazard"

    @property
    def remarks(self) -> list[str]:
        if not self.hazard.times:
            return []
        first = "log time" if self.hazard.log_time else "time"
        listed = ", ".join(f"{time:g}" for time in self.hazard.times)
        return [
            f"the hazard is constant between the times {listed}; the network's first input is the {first}"
        ]

    @property
    def added_inputs(self) -> tuple[str, ...]:
        return ("time",) if self.hazard.times else ()

    @property
    def n_cells(self) -> int:
        return self.hazard.n_pieces

    def target_range(self, targets: Array) -> TargetRange:
        return TargetRange(targets != 0, "a time above 0, or minus the time of censoring")

    def cell_inputs(self, inputs: Array) -> Array:
        """Return the inputs of each cell: the time of the piece, then the inputs of the case."""
        if not self.hazard.times:
            return inputs
        xp = array_namespace(inputs)
        cells = xp.empty((len(inputs), self.n_cells, inputs.shape[1] + 1))
        cells[:, :, 0] = xp.asarray(self.hazard.piece_inputs())
        cells[:, :, 1:] = inputs[:, None]
        return cells.reshape(-1, cells.shape[2])

    def reached_cells(self, rows: Array) -> tuple[Array, Array]:
        """Return the cells with time at risk, and where the cells of each case begin.

        The first cell of a case is included even if it has no time at risk.
        """
        xp = array_namespace(rows)
        is_reached = (rows[1] > -xp.inf).reshape(-1, self.n_cells)
        is_reached[:, 0] = True
        starts = xp.concatenate([xp.zeros(1, dtype=xp.int64), xp.cumsum(is_reached.sum(axis=1))])
        return xp.flatnonzero(is_reached.ravel()), starts

    def target_rows(self, targets: Array) -> Array:
        """Return whether each cell holds its case's event, and the log of the time at risk in it.

        The result is (..., 2, n_cases * n_cells). A time equal to a time point belongs to the piece that ends
        there.

        targets  (..., n_cases, 1), negative if observation ended before the event, NaN if missing
        """
        xp = array_namespace(targets)
        targets = targets.astype(xp.float64)
        starts = xp.asarray(self.hazard.piece_starts)
        ends = xp.concatenate([starts[1:], xp.full(1, xp.inf)])
        time = xp.abs(xp.nan_to_num(targets, nan=0.0))  # (..., n_cases, 1), broadcasts over the pieces
        at_risk = xp.maximum(xp.minimum(time, ends) - starts, 0.0)
        has_event = (targets > 0) & (starts < time) & (time <= ends)
        with np.errstate(divide="ignore"):
            cells = xp.stack([has_event.astype(xp.float64), xp.log(at_risk)])
        cells = cells.reshape(2, *targets.shape[:-2], -1)
        return xp.ascontiguousarray(xp.moveaxis(cells, 0, -2))

    def observed(self, targets: Array) -> None:
        """Return None, because the cells of a missing time have no time at risk and add nothing."""
        return None

    def terms_and_gradient(self, outputs: Array, rows: Array, noise: Array) -> tuple[Array, Array]:
        """Return d v - exp(v) t for each cell (n_chains, 1, n_cells), and its derivative d - exp(v) t.

        d is 1 if the event is in the cell, and t is the time at risk in it. The log density of a time is the
        log hazard at the event minus the integral of the hazard up to then. For a censored time, it is minus
        the integral.
        """
        xp = array_namespace(outputs)
        v = outputs.astype(xp.float64)
        event = rows[..., :1, :]
        cumulative = xp.exp(v + rows[..., 1:, :])  # zero in a cell that is not reached, however large v is
        return xp.where(event > 0, v, 0.0) - cumulative, event - cumulative

    def output_curvature(self, outputs: Array, rows: Array, noise: Array) -> Array:
        """Return exp(v) t of each cell."""
        xp = array_namespace(outputs)
        return xp.exp(outputs.astype(xp.float64) + rows[..., 1:, :])

    def log_density(self, outputs: Array, targets: Array, noise: Array) -> Array:
        cells = outputs.reshape(len(outputs), 1, -1)
        terms, _ = self.terms_and_gradient(cells, self.target_rows(targets), noise)
        return terms.reshape(outputs.shape).sum(axis=2)

    def log_density_by_target(self, outputs: Array, targets: Array, noise: Array) -> Array:
        return self.log_density(outputs, targets, noise)[:, None]

    def draw(self, outputs: Array, noise: Array, streams: Streams) -> Array:
        """Draw uncensored times: the integral of the hazard up to the event is exponential with mean one."""
        xp = array_namespace(outputs)
        v = outputs.reshape(outputs.shape[0], -1, self.n_cells).astype(xp.float64)
        exponential = -xp.log(streams.uniform(Purpose.TARGET_VALUE, (v.shape[1],)))
        with np.errstate(over="ignore", invalid="ignore"):
            time = self.hazard.time_at(exponential, v)
        return xp.clip(time, 1e-300, 1e300)[:, None, :]

    def largest_terms(self, rows: Array) -> Array:
        """Return -log t - 1 for a cell with an event, at exp(v) = 1/t; otherwise 0, for exp(v) -> 0."""
        xp = array_namespace(rows)
        event, log_time = rows[..., :1, :], rows[..., 1:, :]
        return xp.where(event > 0, -log_time - 1, 0.0)

    def largest_curvature(self, noise: Array, n_outputs: int) -> Array:
        """Return one, the mean of the integrated hazard up to the event, as in FBM."""
        return array_namespace(noise).full((noise.shape[0], n_outputs), 1.0)

    def function_names(self, target_names: Sequence[str]) -> list[str]:
        if not self.hazard.times:
            return ["log_hazard"]
        return [f"log_hazard_{piece}" for piece in range(self.n_cells)]

    def moments(self, outputs: Array, noise_sigmas: Array) -> tuple[Array, Array]:
        """Return log mean survival times, and the variance of a log time under a constant hazard, pi**2/6.

        On the log scale, draws with long times do not dominate the others.
        """
        with np.errstate(over="ignore"):
            log_times = np.log(self.hazard.mean_times(outputs.swapaxes(1, 2)))[:, None]
        return log_times, np.full_like(log_times, np.pi**2 / 6)

    def target_moments(self, outputs: Array, noise_sigmas: Array) -> tuple[Array, Array]:
        """Return the mean time and the variance of the time, not of its logarithm."""
        log_hazard = outputs.swapaxes(1, 2)
        times = self.hazard.mean_times(log_hazard)
        with np.errstate(over="ignore", invalid="ignore"):
            variances = np.maximum(self.hazard.second_moments(log_hazard) - times**2, 0)
        return times[:, None], variances[:, None]

    def distribution(self, outputs: Array, noise_sigmas: Array, values: Array) -> Array:
        return self.hazard.distribution(outputs.swapaxes(1, 2), values[:, 0])[:, :, None]

    def curves(self, outputs: Array, training_targets: Array) -> dict[str, Array]:
        """Return sums over draws of P(T > t).

        The points are those of the hazard. For a constant hazard, they are the quartiles of the training
        times.
        """
        log_hazard = outputs.swapaxes(1, 2)
        points = self.curve_times(training_targets)
        curve = self.hazard.survival_curve(log_hazard, points) * log_hazard.shape[1]
        return dict(zip(self.curve_names(points), curve.T, strict=True))

    def curve_names(self, times: Array) -> list[str]:
        return [f"survival_{time:.6g}" for time in times]

    def curve_times(self, training_targets: Array) -> Array:
        if self.hazard.times:
            return np.array(self.hazard.times)
        return np.nanquantile(np.abs(training_targets), [0.25, 0.5, 0.75])

    def exported_settings(self, training_targets: Array) -> dict[str, list[float]]:
        """Return the start of each piece of the hazard, its time as an input, and the times of the curve."""
        return {
            "piece_starts": list(self.hazard.piece_starts),
            "piece_inputs": self.hazard.piece_inputs() if self.hazard.times else [],
            "curve_times": self.curve_times(training_targets).tolist(),
        }

    def remedies(self, misfit: Misfit, name: str, *, is_positive: bool) -> list[str]:
        if self.hazard.times:
            return ["more time points of the hazard: model.time_points"]
        return [
            "a hazard that changes with time: model = { kind ="
            ' "survival", hazard = "piecewise", time_points = [...] }'
        ]

    def errors(
        self, columns: dict[str, Array], targets: Array, target_names: Sequence[str]
    ) -> dict[str, Array]:
        """Return the errors of mean and median; NaN for a censored time."""
        return super().errors(columns, np.where(targets < 0, np.nan, targets), target_names)
