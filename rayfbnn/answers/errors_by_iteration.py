"""Errors of single draws and of the predictive mean of the draws so far, by iteration."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

import numpy as np
from scipy.special import logsumexp

from rayfbnn.arrays import Array
from rayfbnn.draws.subsets import spread, with_chains, with_draws
from rayfbnn.draws.view import Committed, Draws, of_source
from rayfbnn.reduce.blocks import Reader
from rayfbnn.reduce.passes import Passes, PassJob, TasksInProcess
from rayfbnn.reduce.tile import by_draw

if TYPE_CHECKING:
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
        """Return the errors of some draws, all chains and a few draws at a time."""
        numbers = spread(run.n_draws, max(1, self.at_most // run.n_chains))
        n_values = max(run.spec.network.outputs, run.data.n_targets)
        most = self.memory_bytes / (8 * _COPIES * n_values * run.n_chains)  # of draws times cases
        n_cases = len(self.inputs)
        cases_at_once = int(np.clip(most, 1, n_cases))
        draws_at_once = int(np.clip(most / cases_at_once, 1, len(numbers)))
        some = replace(with_draws(run, numbers), chains_per_batch=run.n_chains, draws_per_chunk=draws_at_once)
        totals = np.zeros((2 * run.n_chains + 1, len(numbers)))
        for first in range(0, n_cases, cases_at_once):
            totals += self._of_cases(some, slice(first, first + cases_at_once))
        of_draws, so_far, (together,) = np.split(totals / n_cases, [run.n_chains, 2 * run.n_chains])
        iterations = iterations_of(run.spec, numbers + run.skipped, keep=keep)
        return Course(iterations, of_draws, so_far, together)

    def _of_cases(self, run: Draws, cases: slice) -> Array:
        """Return sums over some cases: the errors of draws, of chains so far, and of all chains so far."""
        data, targets = run.data, self.targets[cases]
        inputs = data.standardized(self.inputs[cases])
        standardized = data.target_units.to_network(targets)
        function = _log_densities if self.measure == "log_probability" else _means
        passes = Passes([run], inputs, TasksInProcess(), memory_bytes=self.memory_bytes)
        sums = np.zeros((2 * run.n_chains + 1, run.n_draws))
        before: dict[int, Array] = {}  # the sum over a chain's draws so far, by the first case
        for unit, at, part in passes.map(function, lambda at: (standardized[at],)):
            draws = slice(*unit.draws)
            values = part.reshape(run.n_chains, -1, *part.shape[1:])
            means, before[at.start] = self._means_so_far(values, before.get(at.start), draws)
            together = self._mean_of_chains(means)
            for rows, of_rows in enumerate((values, means, together[None])):
                first = rows * run.n_chains
                total = self._total(run, of_rows, targets[at])
                sums[first : first + len(of_rows), draws] += total
        return sums

    def _means_so_far(self, values: Array, before: Array | None, draws: slice) -> tuple[Array, Array]:
        """Return the means over the draws up to each, and the sum over all, of densities as logarithms."""
        n = np.arange(draws.start + 1, draws.stop + 1)[:, None, None]
        if before is not None:
            values = np.concatenate([before[:, None], values], axis=1)
        add = np.logaddexp if self.measure == "log_probability" else np.add
        with np.errstate(all="ignore"):
            sums = add.accumulate(values, axis=1)[:, -len(n) :]
        return sums - np.log(n) if self.measure == "log_probability" else sums / n, sums[:, -1]

    def _mean_of_chains(self, means: Array) -> Array:
        if self.measure == "log_probability":
            return np.asarray(logsumexp(means, axis=0) - np.log(len(means)))
        return np.asarray(means.mean(axis=0))

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


def _means(reader: Reader, job: PassJob) -> Array:
    """Return the mean of each target, or the probability of each label, (n_draws, n_cases, n_values).

    Means are on the network's scale, but those of targets on a log scale in the units of the data file. If
    these do not exist, they are medians on the network's scale.
    """
    tile, block = job.read(reader)
    units = reader.runs[job.unit.run].data.target_units
    parts = []
    with np.errstate(all="ignore"):
        for _, some, outputs in tile.parts(block):
            mean, variance = tile.model.target_moments(*by_draw(outputs, some))
            values = np.moveaxis(mean, 2, 0).astype(np.float64)
            if units.has_logs and tile.model.has_exponential_moments:
                half = np.square(units.scale) * np.moveaxis(variance, 2, 0) / 2
                means = np.exp(values * units.scale + units.center + half)
                values = np.where(units.is_log, means, values)
            parts.append(values)
    return np.concatenate(parts)


def _log_densities(reader: Reader, job: PassJob) -> Array:
    """Return the log density of each case's targets, (n_draws, n_cases, 1)."""
    (targets,) = job.arguments
    tile, block = job.read(reader)
    with np.errstate(all="ignore"):
        parts = [
            tile.model.log_density(outputs, targets, some.noise) for _, some, outputs in tile.parts(block)
        ]
    return np.concatenate(parts)[..., None]


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
