"""Errors of single draws and of the predictive mean of the draws so far, by iteration."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

import numpy as np
from scipy.special import logsumexp

from rayfbnn.arrays import Array
from rayfbnn.draws.subsets import spread, with_chains, with_draws
from rayfbnn.draws.view import Committed, Draws, of_source
from rayfbnn.reduce.tile import DrawBlock, Reader, Tile, by_draw, units_of

if TYPE_CHECKING:
    from rayfbnn.data.dataset import TargetUnits
    from rayfbnn.model.likelihood.data_model import DataModel
    from rayfbnn.spec import RunSpec
    from rayfbnn.store.store import Store


_DRAWS = 4_000  # of all chains together
_COPIES = 8  # of the values of the draws and cases at work

Measure = Literal["squared_error", "error_rate", "log_probability"]


@dataclass(frozen=True)
class Course:
    """The errors of some draws, evenly spaced.

    iterations  (n_draws,), counted from 1
    of_draws    (n_chains, n_draws): the error of each draw alone
    so_far      (n_chains, n_draws): the error of the predictive mean of a chain's draws up to each
    together    (n_draws,): the error of the predictive mean of all chains' draws up to each
    """

    iterations: Array
    of_draws: Array
    so_far: Array
    together: Array


@dataclass(frozen=True)
class ErrorsByIteration:
    """The errors of a run on the cases of a file, means over the cases with known targets.

    measure  "squared_error" for real targets and "error_rate" for labels, as `predict` computes them, and
             otherwise "log_probability", with its sign changed
    n_cases  number of cases
    kept     of draws from the posterior
    warmup   of draws of phases with keep = "warmup"; None if there are none
    starts   first iterations of the phases, except the first phase
    """

    measure: Measure
    n_cases: int
    kept: Course
    warmup: Course | None
    starts: tuple[int, ...]


def errors_by_iteration(
    run: Draws, inputs: Array, targets: Array, *, at_most: int = _DRAWS, memory_bytes: float = 128e6
) -> ErrorsByIteration | None:
    """Return the errors of about `at_most` draws of a run of Markov chains; None if no target is known.

    The predictive means are those of the chosen draws. A draw whose outputs are not finite has the error NaN.

    inputs, targets  (n_cases, n_inputs) and (n_cases, n_targets) as in the data file
    """
    is_known = ~np.isnan(targets).all(axis=1)
    if not is_known.any():
        return None
    model = run.spec.data_model
    measure: Measure = (
        "error_rate" if model.has_labels else "squared_error" if model.is_real else "log_probability"
    )
    errors = _Errors(measure, inputs[is_known], targets[is_known], at_most, memory_bytes)
    warmup, numbers = warmup_draws(run.store), np.array(run.chain_numbers)
    ends = list(accumulate(phase.iterations for phase in run.spec.phase))
    return ErrorsByIteration(
        measure,
        int(is_known.sum()),
        errors.of_run(run, keep=True),
        None if warmup is None else errors.of_run(with_chains(warmup, numbers), keep="warmup"),
        tuple(end + 1 for end in ends[:-1]),
    )


@dataclass(frozen=True)
class _Errors:
    """The errors on some cases; `inputs` and `targets` are as in the data file."""

    measure: Measure
    inputs: Array
    targets: Array
    at_most: int
    memory_bytes: float

    def of_run(self, run: Draws, *, keep: Literal["warmup", True]) -> Course:
        """Return the errors of some draws, all chains and a few cases at a time."""
        numbers = spread(run.n_draws, max(1, self.at_most // run.n_chains))
        some = with_draws(run, numbers)
        n_values = max(run.spec.network.outputs, run.data.n_targets)
        at_once = max(1, int(self.memory_bytes / (8 * _COPIES * n_values * some.total)))
        n_cases, reader = len(self.inputs), Reader([some])
        totals = np.zeros((2 * run.n_chains + 1, len(numbers)))
        for first in range(0, n_cases, at_once):
            totals += self._of_cases(some, reader, slice(first, first + at_once))
        of_draws, so_far, (together,) = np.split(totals / n_cases, [run.n_chains, 2 * run.n_chains])
        iterations = iterations_of(run.spec, numbers + run.skipped, keep=keep)
        return Course(iterations, of_draws, so_far, together)

    def _of_cases(self, run: Draws, reader: Reader, cases: slice) -> Array:
        """Return sums over some cases: the errors of draws, of chains so far, and of all chains so far."""
        targets = self.targets[cases]
        values: Array = None
        with np.errstate(all="ignore"):
            for unit in units_of([run]):
                of_unit = self._of_unit(run, reader.block(unit), cases)
                if values is None:
                    values = np.empty((run.n_chains, run.n_draws, *of_unit.shape[1:]))
                at = slice(*unit.chains), slice(*unit.draws)
                values[at] = of_unit.reshape(values[at].shape)
            n = np.arange(1, run.n_draws + 1)[:, None, None]
            if self.measure == "log_probability":
                means = np.logaddexp.accumulate(values, axis=1) - np.log(n)
                together = (logsumexp(means, axis=0) - np.log(len(means)))[None]
            else:
                means = np.cumsum(values, axis=1) / n
                together = means.mean(axis=0)[None]
        return np.concatenate([self._total(run, of_rows, targets) for of_rows in (values, means, together)])

    def _of_unit(self, run: Draws, block: DrawBlock, cases: slice) -> Array:
        """Return log densities, or what `_means` returns, (n_draws, n_cases, n_values)."""
        data = run.data
        tile = Tile(run, data.standardized(self.inputs[cases]))
        if self.measure == "log_probability":
            targets = data.target_units.to_network(self.targets[cases])
            parts = [tile.model.log_density(of, targets, some.noise) for _, some, of in tile.parts(block)]
            return np.concatenate(parts)[..., None]
        units = data.target_units
        return np.concatenate([_means(tile.model, units, of, some) for _, some, of in tile.parts(block)])

    def _total(self, run: Draws, values: Array, targets: Array) -> Array:
        """Return the error of predictions (..., n_cases, n_values), summed over the cases, (...)."""
        if self.measure == "log_probability":
            return np.asarray(-values[..., 0].sum(axis=-1))
        data, model, flat = run.data, run.spec.data_model, values.reshape(-1, values.shape[-1])
        if model.has_labels:
            columns = dict(zip(model.probability_columns(data.target_names), flat.T, strict=True))
        else:
            scaled = data.target_units.to_file(flat)
            if model.has_exponential_moments:  # `_means` has converted them
                scaled = np.where(data.target_units.is_log, flat, scaled)
            pairs = list(zip(data.target_names, scaled.T, strict=True))
            columns = {f"{name}_{kind}": column for name, column in pairs for kind in ("mean", "median")}
        repeated = np.tile(targets, (len(flat) // len(targets), 1))
        with np.errstate(all="ignore"):
            errors = model.errors(columns, repeated, data.target_names)[self.measure]
        errors = np.where(np.isfinite(flat).all(axis=1), errors, np.nan)
        return np.asarray(errors.reshape(values.shape[:-1]).sum(axis=-1))


def _means(model: DataModel, units: TargetUnits, outputs: Array, block: DrawBlock) -> Array:
    """Return the mean of each target, or the probability of each label, (n_draws, n_cases, n_values).

    Means are on the network's scale, but those of targets on a log scale in the units of the data file. If
    these do not exist, they are medians on the network's scale.
    """
    mean, variance = model.target_moments(*by_draw(outputs, block))
    values = np.moveaxis(mean, 2, 0).astype(np.float64)
    if units.has_logs and model.has_exponential_moments:
        half = np.square(units.scale) * np.moveaxis(variance, 2, 0) / 2
        values = np.where(units.is_log, np.exp(values * units.scale + units.center + half), values)
    return values


def warmup_draws(store: Store) -> Draws | None:
    """Return a view of the draws of phases with keep = "warmup"; None if none are committed.

    They are not draws from the posterior.
    """
    n_draws = store.committed("warmup")
    return of_source(store, Committed(store, n_draws, "warmup"), n_draws) if n_draws else None


def iterations_of(spec: RunSpec, numbers: Array, *, keep: Literal["warmup", True] = True) -> Array:
    """Return the iterations, counted from 1, that draws come from, (n_draws,).

    numbers  the numbers of the draws among those of all phases with this value of `keep`
    """
    iterations = np.zeros(len(numbers), dtype=np.int64)
    first_draw, first_iteration = 0, 1
    for phase in spec.phase:
        if phase.keep == keep:
            is_here = (numbers >= first_draw) & (numbers < first_draw + phase.iterations)
            iterations[is_here] = numbers[is_here] - first_draw + first_iteration
            first_draw += phase.iterations
        first_iteration += phase.iterations
    return iterations
