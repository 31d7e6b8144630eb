"""Places of targets within predictive distributions, of all draws or of draws that leave the case out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.special

from rayfbnn.arrays import Array
from rayfbnn.draws.outputs import activation_bytes
from rayfbnn.draws.view import Draws
from rayfbnn.model.likelihood.data_model import DataModel
from rayfbnn.reduce.blocks import KEPT_BYTES, Reader, bytes_of, units_of
from rayfbnn.reduce.executors import Executor
from rayfbnn.reduce.importance import smoothed
from rayfbnn.reduce.tile import Tile, by_draw

_MOST_CASES = 128  # of a tile whose draws a process keeps in memory


@dataclass(frozen=True)
class Placed:
    """Predictive distributions at some cases, and the places of the targets in them.

    A value is a target, or the probability of a label.

    low, high    (n_cases, n_targets) ends of the place of each target that is a number, as in
                 `answers.calibration.Places`; NaN for labels
    probability  (n_cases, n_labels) of each label; no labels for numbers
    mean, sd     (n_cases, n_values) of the targets by all draws, on the scale of `DataModel.moments`
    p            (n_cases,) effective number of parameters that a case takes; zero if none is left out
    pareto_k     (n_cases,) of the weights, as in `importance.smoothed`; NaN if none is left out
    is_finite    (n_cases,) whether the outputs of all networks are finite; other fields say nothing if not
    """

    low: Array
    high: Array
    probability: Array
    mean: Array
    sd: Array
    p: Array
    pareto_k: Array
    is_finite: Array

    def some(self, at: Array) -> Placed:
        """Return the fields at some cases."""
        return Placed(*(part[at] for part in _fields(self)))


def place(
    runs: Sequence[Draws],
    inputs: Array,
    targets: Array,
    *,
    leaves_out: bool,
    executor: Executor,
    memory_bytes: float = 64e6,
) -> Placed:
    """Place the targets of some cases within the predictive distributions of one or several runs.

    With `leaves_out` the cases are training cases. Each is placed within the predictive distribution given
    all other cases: draw d has the weight 1 / p_d, where p_d is the density of the case's targets, and the
    largest weights are smoothed (`importance.smoothed`). At a temperature T the weights are p_d**(-1/T).

    The values of all draws at the cases of a tile are held at once. The tiles depend on the runs and
    `memory_bytes`, not on the executor.

    Parameters
    ----------
    inputs, targets : (n_cases, ...)   standardised; a missing target is NaN
    memory_bytes : float               approximate memory of a task, besides the draws that it keeps
    """
    at_once = _cases_at_once(runs, memory_bytes)
    slices = [slice(first, first + at_once) for first in range(0, len(inputs), at_once)]
    jobs = [PlaceJob(inputs[at], targets[at], leaves_out, memory_bytes / 4) for at in slices]
    tiles = list(executor.map(place_tile, runs, jobs))
    return Placed(*(np.concatenate(parts) for parts in zip(*map(_fields, tiles), strict=True)))


def _fields(placed: Placed) -> tuple[Array, ...]:
    return tuple(vars(placed).values())


@dataclass(frozen=True)
class PlaceJob:
    """Some cases to place; the fields are as in `place`."""

    inputs: Array
    targets: Array
    leaves_out: bool
    memory_bytes: float


def place_tile(reader: Reader, job: PlaceJob) -> Placed:
    """Return the places at some cases. They depend on the draws and the job alone."""
    runs = reader.runs
    model, n_cases = runs[0].spec.data_model, len(job.targets)
    tiles = [Tile(run, job.inputs, memory_bytes=job.memory_bytes) for run in runs]
    values, densities, moments, is_finite = [], [], np.zeros(()), np.ones(n_cases, bool)
    for unit in units_of(runs):
        for _, some, outputs in tiles[unit.run].parts(reader.block(unit)):
            is_finite &= np.isfinite(outputs).all(axis=(0, 2))
            if not is_finite.all():
                outputs = np.where(np.isfinite(outputs), outputs, 0)
            given = by_draw(outputs, some)
            mean, variance = (part.astype(np.float64) for part in model.moments(*given))
            moments = moments + np.stack([mean.sum(axis=2), (mean**2 + variance).sum(axis=2)])
            values.append(mean if model.has_labels else _places(model, *given, job.targets))
            if job.leaves_out:
                densities.append(model.log_density(outputs, job.targets, some.noise).T)
    n_draws = sum(run.total for run in runs)
    weights = np.full((n_cases, n_draws), 1 / n_draws)
    p, pareto_k = np.zeros(n_cases), np.full(n_cases, np.nan)
    if job.leaves_out:
        density = _finite(np.concatenate(densities, axis=1))
        weights, pareto_k = smoothed(-density / runs[0].spec.temperature)
        p = _log_mean(density, 1 / n_draws) - _log_mean(density, weights)
    weighted = np.einsum("...cd,cd->...c", _by_row(values), weights)  # (2 or 1, n_values, n_cases)
    mean, square = moments / n_draws
    sd = np.sqrt(np.maximum(square - mean**2, 0))
    return Placed(*_ends(model, weighted, job.targets), mean, sd, p, pareto_k, is_finite)


def _by_row(values: list[Array]) -> Array:
    """Return values of all draws, (..., n_values, n_cases, n_draws)."""
    return np.moveaxis(np.concatenate(values, axis=-1), -3, -2)


def _places(model: DataModel, outputs: Array, sigmas: Array, targets: Array) -> Array:
    """Return P(Y < y) and P(Y <= y) given each draw, (2, n_cases, n_targets, n_draws).

    The sums of `DataModel.distribution` are over a single draw each: every draw is treated as a case.
    """
    n_cases, _, n_draws = outputs.shape
    each = outputs.transpose(0, 2, 1).reshape(n_cases * n_draws, -1, 1)
    of_noise = np.broadcast_to(sigmas.transpose(0, 2, 1), (n_cases, n_draws, sigmas.shape[1]))
    values = np.repeat(np.nan_to_num(np.abs(targets) if model.are_times else targets), n_draws, axis=0)
    cdf, mass, _ = model.distribution(each, of_noise.reshape(n_cases * n_draws, -1, 1), values)
    low = np.maximum(cdf - mass, 0) if model.has_modes else cdf  # a count
    return np.stack([low, cdf]).reshape(2, n_cases, n_draws, -1).swapaxes(2, 3)


def _ends(model: DataModel, weighted: Array, targets: Array) -> tuple[Array, Array, Array]:
    """Return low, high and probability of `Placed`."""
    nothing = np.full(targets.shape, np.nan)
    if model.has_labels:
        return nothing, nothing, weighted.T
    low, high = np.clip(weighted.swapaxes(1, 2), 0, 1)
    if model.are_times:  # a censored time has a minus sign, and the event comes later
        high = np.where(targets < 0, 1.0, high)
    is_known = ~np.isnan(targets)
    low, high = (np.where(is_known, end, np.nan) for end in (low, high))
    return low, high, np.empty((len(targets), 0))


def _finite(log_density: Array) -> Array:
    """Return log densities with a very small number for minus infinity."""
    return np.nan_to_num(log_density.astype(np.float64), nan=0.0, neginf=-1e8, posinf=1e8)


def _log_mean(logs: Array, weights: Array | float) -> Array:
    """Return the log of the weighted mean over draws, (n_cases,)."""
    return np.asarray(scipy.special.logsumexp(logs, axis=1, b=weights))


def _cases_at_once(runs: Sequence[Draws], memory_bytes: float) -> int:
    """Return the number of cases in a tile, whose values and densities take at most half of the memory."""
    first, n_draws = runs[0], sum(run.total for run in runs)
    n_values = 2 * max(first.data.n_targets, first.spec.network.outputs)
    of_network = first.spec.data_model.n_cells * activation_bytes(first.spec.network, first.spec.dtype)
    is_kept = sum(map(bytes_of, runs)) <= KEPT_BYTES
    needed = max(8 * n_draws * (3 + 2 * n_values), 4 * of_network)
    return max(1, min(_MOST_CASES if is_kept else 1 << 16, int(memory_bytes / 2 / needed)))
