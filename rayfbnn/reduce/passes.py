"""Passes over all draws, with sums in a fixed order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.draws.view import Draws
from rayfbnn.reduce.tile import KEPT_BYTES, DrawBlock, Reader, Tile, Unit, units_of

_CASES_OF_A_JOB = {"cpu": 512, "gpu": 8192}  # at least, and at most 16 times as many where draws are few
_EVALUATIONS = 4_000_000  # of networks that a task has then; Ray takes a millisecond or two for each task
_Place = TypeVar("_Place")


@dataclass(frozen=True)
class PassJob:
    """A unit of draws at some cases, with the arguments of a pass.

    inputs        (n_cases, n_inputs), standardised
    memory_bytes  for networks at work
    device        "cpu" or "gpu"
    """

    unit: Unit
    inputs: Array
    memory_bytes: float
    device: str
    arguments: tuple[Any, ...]

    def read(self, reader: Reader) -> tuple[Tile, DrawBlock]:
        """Return the networks of the unit's run at the cases, and the draws."""
        run = reader.runs[self.unit.run]
        tile = Tile(run, self.inputs, memory_bytes=self.memory_bytes, device=self.device)
        return tile, reader.block(self.unit)


class Passes:
    """Passes over all draws of some runs at some cases.

    The draws are read in units that the stores fix, and results come in the order of the units. Sums of them
    therefore do not depend on the executor.
    """

    def __init__(
        self,
        runs: Sequence[Draws],
        inputs: Array,
        executor: TaskExecutor,
        *,
        memory_bytes: float,
        on_work: Callable[[int], None] = lambda n_evaluations: None,
    ) -> None:
        """Take standardised inputs, (n_cases, n_inputs), and the memory of one task.

        on_work  called after each task with the number of networks it evaluated, times the number of cases
        """
        self.runs, self.n_draws = runs, sum(run.total for run in runs)
        self.inputs, self._executor, self._memory_bytes = inputs, executor, memory_bytes
        self._units, self._on_work = list(units_of(runs)), on_work
        least = _CASES_OF_A_JOB[executor.device]
        most_draws = max(unit.n_draws for unit in self._units)
        self._at_once = min(max(least, _EVALUATIONS // most_draws), 16 * least)

    def all_cases(self) -> list[slice]:
        """Return the cases of each task of a complete pass."""
        return self._columns(len(self.inputs))

    def _columns(self, n: int) -> list[slice]:
        return [slice(first, min(first + self._at_once, n)) for first in range(0, n, self._at_once)]

    def map(
        self, function: Callable[[Reader, PassJob], Any], arguments: Callable[[slice], tuple[Any, ...]]
    ) -> Iterator[tuple[Unit, slice, Any]]:
        """Yield the results of a pass at all cases: the unit, the cases, and function(reader, job).

        arguments  of the tasks at some cases
        """
        places = [(at, self.inputs[at], arguments(at)) for at in self.all_cases()]
        for at, job, part in self._results(function, places):
            yield job.unit, at, part

    def sums(
        self,
        function: Callable[[Reader, PassJob], Array],
        lists: Sequence[tuple[Array, Array]],
        *,
        shape: tuple[int, ...] = (),
        row_of: Callable[[Unit], Any] = lambda unit: ...,
    ) -> list[Array]:
        """Return the sums of one pass for each list of cases, (*shape, *values.shape).

        lists   of cases, (n_chosen,) numbers in order, of which one may be there several times, with the
                values at them that the tasks get, (n_values, n_chosen, n_targets)
        row_of  the index into the sums for the draws of a unit; all units have the same unless given
        """
        sums = [np.zeros((*shape, *values.shape)) for _, values in lists]
        places = [
            ((total, column), self.inputs[cases[column]], (np.ascontiguousarray(values[:, column]),))
            for total, (cases, values) in zip(sums, lists, strict=True)
            for column in self._columns(len(cases))
        ]
        for (total, column), job, part in self._results(function, places):
            total[row_of(job.unit)][..., column, :] += part
        return sums

    def _results(
        self, function: Callable[[Reader, PassJob], Any], places: list[tuple[_Place, Array, tuple[Any, ...]]]
    ) -> Iterator[tuple[_Place, PassJob, Any]]:
        """Yield the results of tasks for each unit at each place, which has some inputs and arguments."""
        device = self._executor.device
        jobs = [
            (at, PassJob(unit, inputs, self._memory_bytes, device, given))
            for unit in self._units
            for at, inputs, given in places
        ]
        results = self._executor.map(function, self.runs, [job for _, job in jobs])
        for (at, job), part in zip(jobs, results, strict=True):
            yield at, job, part
            self._on_work(job.unit.n_draws * len(job.inputs))


def distribution_sums(reader: Reader, job: PassJob) -> Array:
    """Return sums of F, f and f' at values (n_values, n_cases, n_targets), (3, *values.shape)."""
    (values,) = job.arguments
    sums = np.zeros((3, *values.shape))
    tile, block = job.read(reader)
    tile.add_distribution(block, values, sums)
    return sums


def mass_sums(reader: Reader, job: PassJob) -> Array:
    """Return sums of the probabilities of counts, in the shape of these, (n_counts, n_cases, n_targets)."""
    (counts,) = job.arguments
    sums = np.zeros(counts.shape)
    tile, block = job.read(reader)
    tile.add_mass(block, counts, sums)
    return sums


AT_ONCE = 2  # lists of runs that tasks change between: all draws, and some of them
_Job = TypeVar("_Job")
_Result = TypeVar("_Result")


class TaskExecutor(Protocol):
    """Runs pure functions of committed draws. The results do not depend on the executor.

    device  "cpu" or "gpu", where its tasks compute sums; their last bits depend on it
    """

    device: str

    def map(
        self, function: Callable[[Reader, _Job], _Result], runs: Sequence[Draws], jobs: Sequence[_Job]
    ) -> Iterator[_Result]:
        """Yield the result of each job in order. `function` must be a function of a module."""


class TasksInProcess:
    """Runs the tasks one after the other in this process."""

    def __init__(self, device: str = "cpu", *, kept_bytes: float = KEPT_BYTES) -> None:
        """Take the memory for draws that are kept for the next tasks."""
        self.device, self._kept_bytes = device, kept_bytes
        self._readers: list[Reader] = []

    def map(
        self, function: Callable[[Reader, _Job], _Result], runs: Sequence[Draws], jobs: Sequence[_Job]
    ) -> Iterator[_Result]:
        """Yield the result of each job in order."""
        reader = next((known for known in self._readers if known.runs is runs), None)
        if reader is None:
            reader = Reader(runs, kept_bytes=self._kept_bytes)
            self._readers = [*self._readers[1 - AT_ONCE :], reader]
        for job in jobs:
            yield function(reader, job)
