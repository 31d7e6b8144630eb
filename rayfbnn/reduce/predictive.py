"""Describes predictive distributions, which are mixtures over all draws, by passes of sums over the draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.draws.view import Draws
from rayfbnn.reduce.blocks import Reader, Unit, units_of
from rayfbnn.reduce.executors import Executor
from rayfbnn.reduce.pieces import Pieces
from rayfbnn.reduce.search import QuantileSearch, most_probable
from rayfbnn.reduce.tile import Tile, by_draw

_CASES_OF_A_JOB = 512
_MOST_CASES = 1 << 16  # at once, where memory allows more


@dataclass(frozen=True)
class Cases:
    """Some cases to predict.

    inputs   (n_cases, n_inputs), standardised
    targets  (n_cases, n_targets), standardised and NaN if missing; None if they are not known
    """

    inputs: Array
    targets: Array | None = None

    def __len__(self) -> int:
        return len(self.inputs)

    def some(self, at: slice | Array) -> Cases:
        """Return the cases at a slice or at numbers."""
        return Cases(self.inputs[at], None if self.targets is None else self.targets[at])


@dataclass(frozen=True)
class Summary:
    """The predictive distributions at some cases, on the network's scale, (n_cases, n_values) each.

    A value is a target, or the probability of a label.

    mean, sd         of the mixture over all draws
    mcse             Monte Carlo error of the mean; NaN below 4 draws a chain
    log_probability  (n_cases,): log of the mean over draws of the joint density of a case's targets; None
                     without targets
    quantiles        by name, for targets that are numbers
    modes, mass      the most probable value and its probability, for counts
    curves           further columns by name, (n_cases,) each
    """

    mean: Array
    sd: Array
    mcse: Array
    log_probability: Array | None
    quantiles: dict[str, Array] = field(default_factory=dict)
    modes: Array = None
    mass: Array = None
    curves: dict[str, Array] = field(default_factory=dict)


def summaries(
    runs: Sequence[Draws],
    cases: Cases,
    *,
    executor: Executor,
    quantiles: dict[str, float],
    with_modes: bool = True,
    memory_bytes: float,
) -> Iterator[tuple[slice, Summary]]:
    """Yield the cases in order, some at a time, with their summaries.

    The draws are read in units that the stores fix, and sums over them are added in the order of the units.
    The results therefore do not depend on the executor.

    quantiles     names and probabilities of quantiles; none for labels
    memory_bytes  approximate memory of this process for sums
    """
    pieces = Pieces.of_runs(runs)
    n_values = max(runs[0].spec.network.outputs, runs[0].data.n_targets)
    n_sums = pieces.n_pieces + 12 * (1 + len(quantiles))
    at_once = int(min(max(1, memory_bytes / 4 / (8 * n_values * n_sums)), _MOST_CASES))
    for first in range(0, len(cases), at_once):
        at = slice(first, min(first + at_once, len(cases)))
        work = _Work(runs, pieces, cases.some(at), executor, memory_bytes / 6)
        yield at, work.summary(quantiles, with_modes=with_modes and runs[0].spec.data_model.has_modes)


@dataclass(frozen=True)
class _Job:
    """A unit of draws at some cases, with the arguments of a pass."""

    unit: Unit
    inputs: Array
    memory_bytes: float
    arguments: tuple[Any, ...]

    def tile(self, reader: Reader) -> Tile:
        """Return the networks of the unit's run at the cases."""
        return Tile(reader.runs[self.unit.run], self.inputs, memory_bytes=self.memory_bytes)


class _Work:
    """The passes over all draws for some cases."""

    def __init__(
        self,
        runs: Sequence[Draws],
        pieces: Pieces,
        cases: Cases,
        executor: Executor,
        memory_bytes: float,
    ) -> None:
        self._runs, self._pieces, self._cases, self._executor = runs, pieces, cases, executor
        self._memory_bytes = memory_bytes
        self._units = list(units_of(runs))
        self._n_draws = sum(run.total for run in runs)

    def summary(self, quantiles: dict[str, float], *, with_modes: bool) -> Summary:
        n = self._n_draws
        first = self._first_pass()
        with np.errstate(over="ignore", invalid="ignore"):
            excess = first.by_piece.sum(axis=0) / n
            between = np.maximum(first.squares / n - excess**2, 0)
            variance = between + first.variances / n
        mean = (first.shift + excess).T
        found: dict[str, Any] = {"curves": {name: sums / n for name, sums in first.curves.items()}}
        if quantiles:
            found["quantiles"] = self._quantiles(quantiles, mean, np.sqrt(variance).T)
        if with_modes:
            found["modes"], found["mass"] = self._modes(
                found["quantiles"][min(quantiles, key=quantiles.__getitem__)],
                found["quantiles"][max(quantiles, key=quantiles.__getitem__)],
            )
        log_probability = None
        if self._cases.targets is not None:
            with np.errstate(divide="ignore"):
                log_probability = first.maxima + np.log(first.scaled) - math.log(n)
        mcse = self._pieces.mcse_of_mean(first.by_piece).T
        return Summary(mean, np.sqrt(variance).T, mcse, log_probability, **found)

    def _first_pass(self) -> _FirstSums:
        """Return sums of means, variances, densities and curves, all (..., n_values, n_cases)."""
        shift = self._shift()
        n_values, n_cases = shift.shape
        total = _FirstSums.zeros(shift, self._pieces.n_pieces, n_cases)

        def arguments(at: slice | Array) -> tuple[Any, ...]:
            return (self._cases.some(at), shift[:, at], self._pieces)

        for unit, at, part in self._map(_first_sums, self._all_cases(), arguments):
            total.add(part, self._pieces.rows_of(unit), at)
        return total

    def _shift(self) -> Array:
        """Return the mean of the targets given the first draw, (n_values, n_cases).

        Subtracting it before squares are summed saves the digits of a small spread about a large mean.
        """
        run = self._runs[0]
        unit = Unit(0, (0, 1), (0, 1))
        shift = []
        for cases in self._all_cases():
            block = Reader([run]).block(unit)
            outputs = Tile(run, self._cases.inputs[cases]).outputs(block)
            with np.errstate(over="ignore", invalid="ignore"):
                shift.append(run.spec.data_model.target_moments(*by_draw(outputs, block))[0][:, :, 0].T)
        return np.nan_to_num(np.concatenate(shift, axis=1).astype(np.float64), posinf=0.0, neginf=0.0)

    def _quantiles(self, wanted: dict[str, float], mean: Array, sd: Array) -> dict[str, Array]:
        spec = self._runs[0].spec
        search = QuantileSearch(
            list(wanted.values()), mean, sd, scale=spec.data_model.quantile_scale, dtype=spec.dtype
        )
        for of_round in search.rounds():
            for guesses in of_round:
                sums = np.zeros((3, *guesses.values.shape))
                self._add_sums(_distribution_sums, guesses.cases, guesses.values, sums)
                search.improve(guesses, sums, self._n_draws)
        return dict(zip(wanted, search.values, strict=True))

    def _modes(self, low: Array, high: Array) -> tuple[Array, Array]:
        """Return the most probable count between low and high and its probability, (n_cases, n_targets)."""
        cases = np.arange(len(low))

        def mass(counts: Array) -> Array:
            sums = np.zeros(counts.shape)
            self._add_sums(_mass_sums, cases, counts, sums)
            return sums / self._n_draws

        return most_probable(mass, low, high)

    def _add_sums(self, function: Callable[..., Array], cases: Array, at_values: Array, sums: Array) -> None:
        """Add the sums of a pass at some cases, (..., n_values, n_cases, n_targets), to `sums`."""
        places = [cases[first : first + _CASES_OF_A_JOB] for first in range(0, len(cases), _CASES_OF_A_JOB)]
        ends = np.searchsorted(cases, [place[-1] for place in places], side="right")
        columns = [slice(end - len(place), end) for place, end in zip(places, ends, strict=True)]
        jobs = [
            (unit, place, column)
            for unit in self._units
            for place, column in zip(places, columns, strict=True)
        ]
        work = [
            _Job(
                unit,
                self._cases.inputs[place],
                self._memory_bytes,
                (np.ascontiguousarray(at_values[:, column]),),
            )
            for unit, place, column in jobs
        ]
        results = self._executor.map(function, self._runs, work)
        for (_, _, column), part in zip(jobs, results, strict=True):
            sums[..., column, :] += part

    def _all_cases(self) -> list[slice]:
        n = len(self._cases)
        return [slice(first, min(first + _CASES_OF_A_JOB, n)) for first in range(0, n, _CASES_OF_A_JOB)]

    def _map(
        self, function: Callable[..., Any], places: list[slice], arguments: Callable[[slice], tuple[Any, ...]]
    ) -> Iterator[tuple[Unit, slice, Any]]:
        jobs = [(unit, at) for unit in self._units for at in places]
        work = [_Job(unit, self._cases.inputs[at], self._memory_bytes, arguments(at)) for unit, at in jobs]
        for (unit, at), part in zip(jobs, self._executor.map(function, self._runs, work), strict=True):
            yield unit, at, part


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


def _first_sums(reader: Reader, job: _Job) -> _FirstSums:
    cases, shift, pieces = job.arguments
    tile, block = job.tile(reader), reader.block(job.unit)
    rows = pieces.rows_of(job.unit)
    sums = _FirstSums.zeros(shift, len(rows), len(cases))
    numbers = np.searchsorted(rows, pieces.numbers_of(job.unit))
    tile.add_moments(block, numbers, shift, (sums.by_piece, sums.squares, sums.variances))
    if cases.targets is not None:
        tile.add_scores(block, cases.targets, sums.maxima, sums.scaled)
    sums.curves = tile.curves(block)
    return sums


def _distribution_sums(reader: Reader, job: _Job) -> Array:
    (guesses,) = job.arguments
    sums = np.zeros((3, *guesses.shape))
    job.tile(reader).add_distribution(reader.block(job.unit), guesses, sums)
    return sums


def _mass_sums(reader: Reader, job: _Job) -> Array:
    (counts,) = job.arguments
    sums = np.zeros(counts.shape)
    job.tile(reader).add_mass(reader.block(job.unit), counts, sums)
    return sums
