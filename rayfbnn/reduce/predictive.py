"""Summaries of predictive distributions, which are mixtures over all draws, by passes of sums over draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.data.dataset import TargetUnits
from rayfbnn.draws.subsets import hold, spread, with_chains, with_draws
from rayfbnn.draws.view import Draws
from rayfbnn.model.likelihood.data_model import QUANTILES
from rayfbnn.reduce.passes import Passes, PassJob, TaskExecutor, distribution_sums, mass_sums
from rayfbnn.reduce.pieces import Pieces, exponential_moments
from rayfbnn.reduce.search import Guesses, QuantileSearch, most_probable
from rayfbnn.reduce.tile import Reader, Tile, by_draw, first_draw

_MOST_CASES = 1 << 16  # at once, where memory allows more
_MANY, _SOME, _MOST_SOME = 1 << 15, 1 << 12, 1 << 16  # draws, of which some show where quantiles are
_SHARE = 32  # one of so many draws, where that is between `_SOME` and `_MOST_SOME`
_GROUPS = 8  # of these draws
_MANY_CASES = 100  # for fewer, reading the draws once more would take longer
_PASSES = 2  # over all guesses at quantiles, about as many as are needed


def summaries(
    runs: Sequence[Draws],
    inputs: Array,
    targets: Array | None = None,
    *,
    executor: TaskExecutor,
    quantiles: dict[str, float],
    with_modes: bool = True,
    memory_bytes: float,
    on_progress: Callable[[float], None] = lambda share: None,
) -> Iterator[tuple[slice, PredictiveSummary]]:
    """Yield the cases in order, some at a time, with their summaries.

    The draws are read in units that the stores fix, and sums over them are added in the order of the units.
    The results therefore do not depend on the executor.

    inputs        (n_cases, n_inputs), standardised
    targets       (n_cases, n_targets), standardised and NaN if missing; None if they are not known
    quantiles     names and probabilities of quantiles; none for labels
    memory_bytes  approximate memory of this process for sums
    on_progress   called with the share of the work that is done, about
    """
    pieces = Pieces.of_runs(runs)
    n_values = max(runs[0].spec.network.outputs, runs[0].data.n_targets)
    some_draws = _some_draws(runs, len(inputs)) if quantiles else []
    of_groups = 6 * _GROUPS * len(quantiles) if some_draws else 0  # F, f, f' before and after a step
    n_sums = pieces.n_pieces + 12 * (1 + len(quantiles)) + of_groups
    at_once = int(min(max(1, memory_bytes / 4 / (8 * n_values * n_sums)), _MOST_CASES))
    per_case = (1 + runs[0].data.target_units.has_logs + _PASSES * bool(quantiles)) * sum(
        run.total for run in runs
    )
    with_modes = bool(with_modes and quantiles and runs[0].spec.data_model.has_modes)
    for first in range(0, len(inputs), at_once):
        at = slice(first, min(first + at_once, len(inputs)))
        share = _Share(at, len(inputs), per_case, on_progress)
        passes = Passes(runs, inputs[at], executor, memory_bytes=memory_bytes / 6, on_work=share.add)
        few = None
        if some_draws:
            few = _Groups(Passes(some_draws, inputs[at], executor, memory_bytes=memory_bytes / 6), len(runs))
        work = _Work(passes, pieces, None if targets is None else targets[at], few)
        yield at, work.summary(quantiles, with_modes=with_modes)
        on_progress(at.stop / len(inputs))


def _some_draws(runs: Sequence[Draws], n_cases: int) -> list[Draws]:
    """Return some draws of all runs, in memory, group after group; none if they would save no time."""
    total = sum(run.total for run in runs)
    has_tiny_run = any(max(run.n_chains, run.n_draws) < _GROUPS for run in runs)
    if total < _MANY or n_cases < _MANY_CASES or has_tiny_run:
        return []
    share = min(max(_SOME, total // _SHARE), _MOST_SOME) / total
    by_run = [_groups(run, share) for run in runs]
    return [run for of_group in zip(*by_run, strict=True) for run in of_group]


def _groups(run: Draws, share: float) -> list[Draws]:
    """Return groups of evenly spaced draws, or of chains if there are only a few draws of each."""
    at_least = 1 if run.n_chains >= _GROUPS else _GROUPS
    some = hold(run, spread(run.n_draws, max(at_least, round(share * run.n_draws))))
    some = replace(some, chains_per_batch=some.n_chains)  # one task for all chains
    numbers = np.arange(some.n_draws)
    if some.n_draws >= _GROUPS:
        return [with_draws(some, numbers[group::_GROUPS]) for group in range(_GROUPS)]
    ends = np.linspace(0, some.n_chains, _GROUPS + 1).astype(int)
    return [with_chains(some, np.arange(first, end)) for first, end in zip(ends[:-1], ends[1:], strict=True)]


class _Share:
    """The share of the work for all cases that is done, while some of them are at work."""

    def __init__(self, at: slice, n_cases: int, per_case: int, tell: Callable[[float], None]) -> None:
        self._at, self._n_cases, self._per_case, self._tell = at, n_cases, per_case, tell
        self._done = 0

    def add(self, n_evaluations: int) -> None:
        """Count some evaluations of networks."""
        self._done += n_evaluations
        n = min(self._done / self._per_case, 0.99 * (self._at.stop - self._at.start))
        self._tell((self._at.start + n) / self._n_cases)


class _Work:
    def __init__(self, passes: Passes, pieces: Pieces, targets: Array | None, few: _Groups | None) -> None:
        """Take passes over all draws, and over groups of some of them if these save time."""
        self._passes, self._pieces, self._targets, self._few = passes, pieces, targets, few
        self._first = passes.runs[0]

    def summary(self, quantiles: dict[str, float], *, with_modes: bool) -> PredictiveSummary:
        n = self._passes.n_draws
        first = self._first_pass()
        with np.errstate(over="ignore", invalid="ignore"):
            excess = first.by_piece.sum(axis=0) / n
            between = np.maximum(first.squares / n - excess**2, 0)
            variance = between + first.variances / n
        mean = (first.shift + excess).T
        found: dict[str, Any] = {"curves": {name: sums / n for name, sums in first.curves.items()}}
        units = self._first.data.target_units
        if units.has_logs:
            found["exponentials"] = exponential_moments(self._passes, self._pieces, units, mean)
        if quantiles:
            found["quantiles"] = self._quantiles(quantiles, mean, np.sqrt(variance).T)
        if with_modes:
            found["modes"], found["mass"] = self._modes(
                found["quantiles"][min(quantiles, key=quantiles.__getitem__)],
                found["quantiles"][max(quantiles, key=quantiles.__getitem__)],
            )
        log_probability = None
        if self._targets is not None:
            with np.errstate(divide="ignore"):
                log_probability = first.maxima + np.log(first.scaled) - math.log(n)
        mcse = self._pieces.mcse_of_mean(first.by_piece).T
        return PredictiveSummary(mean, np.sqrt(variance).T, mcse, log_probability, **found)

    def _first_pass(self) -> _FirstSums:
        """Return sums of means, variances, densities and curves, all (..., n_values, n_cases)."""
        shift = self._shift()
        n_values, n_cases = shift.shape
        total = _FirstSums.zeros(shift, self._pieces.n_pieces, n_cases)

        def arguments(at: slice) -> tuple[Any, ...]:
            return (None if self._targets is None else self._targets[at], shift[:, at], self._pieces)

        for unit, at, part in self._passes.map(_first_sums, arguments):
            total.add(part, self._pieces.rows_of(unit), at)
        return total

    def _shift(self) -> Array:
        """Return the mean of the targets given the first draw, (n_values, n_cases).

        Subtracting it before squares are summed saves the digits of a small spread about a large mean.
        """
        block = first_draw(self._first)
        shift = []
        for at in self._passes.all_cases():
            outputs = Tile(self._first, self._passes.inputs[at]).outputs(block)
            with np.errstate(over="ignore", invalid="ignore"):
                moments = self._first.spec.data_model.target_moments(*by_draw(outputs, block))
                shift.append(moments[0][:, :, 0].T)
        return np.nan_to_num(np.concatenate(shift, axis=1).astype(np.float64), posinf=0.0, neginf=0.0)

    def _quantiles(self, wanted: dict[str, float], mean: Array, sd: Array) -> dict[str, Array]:
        """Return quantiles; the search begins with those of some of the draws, where there are many."""
        search = self._search(wanted, mean, sd)
        if self._few is not None:
            self._few.find(search)
            search = self._search(wanted, mean, sd, start=search.values)
        for of_round in search.rounds():
            lists = [(guesses.cases, guesses.values) for guesses in of_round]
            sums = self._passes.sums(distribution_sums, lists, shape=(3,))
            for guesses, of_guesses in zip(of_round, sums, strict=True):
                search.improve(guesses, of_guesses, self._passes.n_draws)
            if self._few is not None:
                self._few.confirm(search, of_round)
        return dict(zip(wanted, search.values, strict=True))

    def _search(
        self, wanted: dict[str, float], mean: Array, sd: Array, start: Array | None = None
    ) -> QuantileSearch:
        spec = self._first.spec
        scale, probabilities = spec.data_model.quantile_scale, list(wanted.values())
        return QuantileSearch(probabilities, mean, sd, scale=scale, dtype=spec.dtype, start=start)

    def _modes(self, low: Array, high: Array) -> tuple[Array, Array]:
        """Return the most probable count between low and high and its probability, (n_cases, n_targets)."""
        cases = np.arange(len(low))

        def mass(counts: Array) -> Array:
            (sums,) = self._passes.sums(mass_sums, [(cases, counts)])
            return sums / self._passes.n_draws

        return most_probable(mass, low, high)


class _Groups:
    """Passes over some of the draws in groups, each with draws of all runs."""

    def __init__(self, passes: Passes, n_runs: int) -> None:
        """Take passes over the runs of the first group, then of the second, and so on."""
        self._passes, self._n_runs = passes, n_runs
        totals = np.array([run.total for run in passes.runs])
        self._sizes = totals.reshape(-1, n_runs).sum(axis=1)

    def find(self, search: QuantileSearch) -> None:
        """Find the quantiles of the draws of all groups."""
        for of_round in search.rounds():
            sums = self._sums([(guesses.cases, guesses.values) for guesses in of_round])
            for guesses, of_guesses in zip(of_round, sums, strict=True):
                search.improve(guesses, of_guesses.sum(axis=0), self._passes.n_draws)

    def confirm(self, search: QuantileSearch, of_round: Sequence[Guesses]) -> None:
        """Correct the last steps from some guesses, and end the search where the groups agree."""
        steps = [guesses for guesses in of_round if search.has_short_steps(guesses)]
        ends = [np.concatenate([guesses.values, search.values[guesses.place]]) for guesses in steps]
        sums = self._sums([(guesses.cases, values) for guesses, values in zip(steps, ends, strict=True)])
        for guesses, of_ends in zip(steps, sums, strict=True):
            of_ends /= self._sizes[:, None, None, None, None]
            search.confirm(guesses, *np.split(of_ends, 2, axis=2))

    def _sums(self, lists: Sequence[tuple[Array, Array]]) -> list[Array]:
        """Return sums of F, f and f' over each group, (n_groups, 3, *values.shape) for each list."""
        shape, n_runs = (len(self._sizes), 3), self._n_runs
        return self._passes.sums(
            distribution_sums, lists, shape=shape, row_of=lambda unit: unit.run // n_runs
        )


@dataclass
class _FirstSums:
    """Sums over draws of a first pass.

    by_piece   (n_pieces, n_values, n_cases): the mean given each draw minus `shift`, for each piece
    squares    (n_values, n_cases): its square; variances: the variance given each draw
    maxima, scaled  (n_cases,): the density of the targets, as a largest logarithm and a sum relative to it
    curves     (n_cases,) each
    """

    shift: Array
    by_piece: Array
    squares: Array
    variances: Array
    maxima: Array
    scaled: Array
    curves: dict[str, Array] = field(default_factory=dict)

    @classmethod
    def zeros(cls, shift: Array, n_pieces: int, n_cases: int) -> _FirstSums:
        by_piece = np.zeros((n_pieces, *shift.shape))
        squares, variances = np.zeros(shift.shape), np.zeros(shift.shape)
        return cls(shift, by_piece, squares, variances, np.full(n_cases, -np.inf), np.zeros(n_cases))

    def add(self, part: _FirstSums, rows: Array, at: slice) -> None:
        """Add the sums of a unit at some cases; `rows` are the numbers of its pieces."""
        self.by_piece[rows, :, at] += part.by_piece
        self.squares[:, at] += part.squares
        self.variances[:, at] += part.variances
        before, added = self.maxima[at], part.maxima
        largest = np.maximum(before, added)
        with np.errstate(invalid="ignore"):
            shares = [np.where(np.isneginf(one), 0.0, np.exp(one - largest)) for one in (before, added)]
        self.scaled[at] = self.scaled[at] * shares[0] + part.scaled * shares[1]
        self.maxima[at] = largest
        for name, sums in part.curves.items():
            self.curves.setdefault(name, np.zeros(len(self.maxima)))[at] += sums


def _first_sums(reader: Reader, job: PassJob) -> _FirstSums:
    targets, shift, pieces = job.arguments
    tile, block = job.read(reader)
    rows = pieces.rows_of(job.unit)
    sums = _FirstSums.zeros(shift, len(rows), len(job.inputs))
    numbers = np.searchsorted(rows, pieces.numbers_of(job.unit))
    tile.add_moments(block, numbers, shift, (sums.by_piece, sums.squares, sums.variances))
    if targets is not None:
        tile.add_scores(block, targets, sums.maxima, sums.scaled)
    sums.curves = tile.curves(block)
    return sums


@dataclass(frozen=True)
class PredictiveSummary:
    """The predictive distributions at some cases, on the network's scale, (n_cases, n_values) each.

    A value is a target, or the probability of a label.

    mean, sd         of the mixture over all draws
    mcse             Monte Carlo error of the mean; NaN below 4 draws a chain
    log_probability  (n_cases,): log of the mean over draws of the joint density of a case's targets; None
                     without targets
    quantiles        by name, for targets that are numbers
    modes, mass      the most probable value and its probability, for counts
    curves           further columns by name, (n_cases,) each
    exponentials     "mean", "sd" and "mcse" of targets on a log scale, in the units of the data file; empty
                     if there are none
    """

    mean: Array
    sd: Array
    mcse: Array
    log_probability: Array | None
    quantiles: dict[str, Array] = field(default_factory=dict)
    modes: Array = None
    mass: Array = None
    curves: dict[str, Array] = field(default_factory=dict)
    exponentials: dict[str, Array] = field(default_factory=dict)

    def in_file_units(self, units: TargetUnits) -> PredictiveSummary:
        """Return the same for targets in the units of the data file.

        Mean, sd and mcse are NaN for a target on a log scale that has no mean. The log probability remains
        that on the network's scale.
        """
        moments = {
            "mean": self.mean * units.scale + units.center,
            "sd": self.sd * units.scale,
            "mcse": self.mcse * units.scale,
        }
        for name, values in self.exponentials.items():
            moments[name] = np.where(units.is_log, values, moments[name])
        return replace(
            self,
            **moments,
            quantiles={name: units.to_file(values) for name, values in self.quantiles.items()},
            modes=None if self.modes is None else units.to_file(self.modes),
            exponentials={},
        )

    @property
    def point(self) -> Array:
        """The prediction of each value, (n_cases, n_values): its mean, or its median if it has no mean."""
        if "median" not in self.quantiles:
            return self.mean
        return np.where(np.isnan(self.mean), self.quantiles["median"], self.mean)


def quantiles_of_points(run: Draws) -> dict[str, float]:
    """Return the quantiles that points need: the median if a target of a run may have no mean."""
    has_means = run.spec.data_model.has_exponential_moments or not run.data.target_units.has_logs
    return {} if has_means else {"median": QUANTILES["median"]}


def joined(parts: Iterable[tuple[slice, PredictiveSummary]]) -> PredictiveSummary:
    """Return the summaries of all cases as one, in the order of the cases."""
    found = [vars(summary) for _, summary in parts]
    return PredictiveSummary(**{name: _concatenated([one[name] for one in found]) for name in found[0]})


def _concatenated(values: list[Any]) -> Any:
    if isinstance(values[0], dict):
        return {name: np.concatenate([value[name] for value in values]) for name in values[0]}
    return None if values[0] is None else np.concatenate(values)
