"""Who runs the tasks of a reduction: this process, or Ray on this machine or on a cluster."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from rayfbnn.draws.view import Draws
from rayfbnn.reduce.blocks import KEPT_BYTES, Reader
from rayfbnn.run.on_ray.tasks import Tasks

_AT_ONCE = 2  # lists of runs that tasks change between: all draws, and some of them
_Job = TypeVar("_Job")
_Result = TypeVar("_Result")


class Executor(Protocol):
    """Runs pure functions of committed draws. The results do not depend on the executor.

    device  "cpu" or "gpu", where its tasks compute sums; their last bits depend on it
    """

    device: str

    def map(
        self, function: Callable[[Reader, _Job], _Result], runs: Sequence[Draws], jobs: Sequence[_Job]
    ) -> Iterator[_Result]:
        """Yield the result of each job in order. `function` must be a function of a module."""
        ...


class InProcess:
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
            self._readers = [*self._readers[1 - _AT_ONCE :], reader]
        for job in jobs:
            yield function(reader, job)


class OnRay:
    """Runs the tasks on Ray's workers, of this machine or of a cluster. Use it as a context manager.

    The workers open the stores themselves. A task whose worker dies is run again by another one.
    """

    def __init__(self, workers: int | None, address: str | None, device: str = "cpu") -> None:
        """Start Ray here with some workers, one for each core if None, or join a cluster."""
        self.device = device
        self._tasks = Tasks(workers, address, needs_gpu=device == "gpu")
        self._shared: list[tuple[Sequence[Draws], str, Any]] = []

    def __enter__(self) -> OnRay:
        self._tasks.__enter__()
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._tasks.__exit__(kind, error, traceback)

    def map(
        self, function: Callable[[Reader, _Job], _Result], runs: Sequence[Draws], jobs: Sequence[_Job]
    ) -> Iterator[_Result]:
        """Yield the result of each job in order."""
        shared = next((known for known in self._shared if known[0] is runs), None)
        if shared is None:
            shared = runs, uuid.uuid4().hex, self._tasks.share(pickle.dumps(list(runs)))
            self._shared = [*self._shared[1 - _AT_ONCE :], shared]
        _, token, reference = shared
        yield from self._tasks.map(_run, (function, token, reference), jobs)


_readers: dict[str, Reader] = {}  # of a worker process, by the token of the reduction


def _run(function: Callable[[Reader, _Job], _Result], token: str, runs: bytes, job: _Job) -> _Result:
    if token not in _readers:
        while len(_readers) >= _AT_ONCE:
            del _readers[next(iter(_readers))]
        _readers[token] = Reader(pickle.loads(runs))
    return function(_readers[token], job)
