"""Who runs the tasks of a reduction: this process, the cores of this machine, or a Ray cluster."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from rayfbnn.draws.view import Draws
from rayfbnn.reduce.blocks import Reader

_Job = TypeVar("_Job")
_Result = TypeVar("_Result")
_AHEAD = 3  # jobs for each worker that are under way or whose results wait for earlier ones


class Executor(Protocol):
    """Runs pure functions of committed draws. The results do not depend on the executor."""

    def map(
        self, function: Callable[[Reader, _Job], _Result], runs: Sequence[Draws], jobs: Sequence[_Job]
    ) -> Iterator[_Result]:
        """Yield the result of each job in order. `function` must be a function of a module."""
        ...


class InProcess:
    """Runs the tasks one after the other in this process."""

    def __init__(self) -> None:
        self._reader: Reader | None = None

    def map(
        self, function: Callable[[Reader, _Job], _Result], runs: Sequence[Draws], jobs: Sequence[_Job]
    ) -> Iterator[_Result]:
        """Yield the result of each job in order."""
        if self._reader is None or self._reader.runs is not runs:
            self._reader = Reader(runs)
        for job in jobs:
            yield function(self._reader, job)


class Cores:
    """Runs the tasks in processes of this machine. Use it as a context manager, which ends them.

    The processes start anew, without the threads and handles of this one, and open the stores themselves.
    """

    def __init__(self, n_workers: int, runs: Sequence[Draws]) -> None:
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor

        self._runs, self._n_workers = runs, n_workers
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(
            n_workers, mp_context=context, initializer=_start_worker, initargs=(runs,)
        )

    def __enter__(self) -> Cores:
        return self

    def __exit__(self, *exc: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def map(
        self, function: Callable[[Reader, _Job], _Result], runs: Sequence[Draws], jobs: Sequence[_Job]
    ) -> Iterator[_Result]:
        """Yield the result of each job in order; a few jobs for each worker are under way at a time."""
        assert runs is self._runs
        waiting: deque[Any] = deque()
        for job in jobs:
            waiting.append(self._pool.submit(_run, function, job))
            if len(waiting) >= _AHEAD * self._n_workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


_reader: Reader | None = None  # of a worker process


def _start_worker(runs: Sequence[Draws]) -> None:
    global _reader
    _reader = Reader(runs)


def _run(function: Callable[[Reader, _Job], _Result], job: _Job) -> _Result:
    assert _reader is not None
    return function(_reader, job)
