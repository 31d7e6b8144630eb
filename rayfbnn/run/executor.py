"""Executors, which run the batches of a run: their interface, and the one that runs them in this process."""

from __future__ import annotations

import math
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Protocol, Self

from threadpoolctl import threadpool_limits

from rayfbnn.run.fitter import Fitter
from rayfbnn.run.job import Job, Progress
from rayfbnn.run.ladder_sampler import LadderSampler
from rayfbnn.run.sampler import Sampler
from rayfbnn.store.storage.places import Place
from rayfbnn.store.store import Store

if TYPE_CHECKING:
    from rayfbnn.ring.transport import Transport


class Executor(Protocol):
    """Runs batches block by block. Leaving its context frees the workers."""

    failures: int  # workers that died and were replaced

    def run(
        self, store_path: Place, batches: Sequence[int], *, until: int | None = None
    ) -> Iterator[Progress]:
        """Run batches until each has committed `until` iterations (all if None), and yield their progress.

        This may be called again for more iterations, also once the run has become longer.
        """

    def request_stop(self, within: float = math.inf) -> None:
        """Ask `run` to end once the current iterations are committed. A signal handler may call this.

        within  time limit in seconds: `run` then ends in any case, and workers that are still busy are killed
        """

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: object, error: object, traceback: object) -> None: ...


class InProcess:
    """Runs all batches in this process, in turn, with one BLAS thread like the workers.

    With more threads BLAS rounds differently, and draws would depend on where they were made.
    """

    def __init__(self, should_stop: Callable[[], bool] = lambda: False) -> None:
        """Take a function that is called after every iteration, and returns True to stop."""
        self.failures = 0
        self._stop = threading.Event()
        self._should_stop = should_stop
        self._sampler: Job | None = None  # for the store that was run last

    def run(
        self, store_path: Place, batches: Sequence[int], *, until: int | None = None
    ) -> Iterator[Progress]:
        """Run the batches in this process, one block of each in turn, and yield their progress."""
        return chain.from_iterable(self._blocks(store_path, batches, until))

    def _blocks(
        self, store_path: Place, batches: Sequence[int], until: int | None
    ) -> Iterator[Iterator[Progress]]:
        if self._sampler is None or self._sampler.store.path != store_path:
            self._sampler = job_of(Store.open(store_path), worker=worker_name())
        follow_length(self._sampler, until)
        sampler, store = self._sampler, self._sampler.store
        last = store.spec.total_iterations if until is None else until
        waiting = deque(batches)
        while waiting and not self._is_stopping():
            batch = waiting.popleft()
            yield sampler.run_block(batch, should_stop=self._is_stopping)
            if store.progress(batch).iteration < last:
                waiting.append(batch)

    def _is_stopping(self) -> bool:
        return self._stop.is_set() or self._should_stop()

    def request_stop(self, within: float = math.inf) -> None:
        """End `run` once the current iterations are committed, however long they take.

        A signal handler may call this.
        """
        self._stop.set()

    def __enter__(self) -> Self:
        import_module("scipy.linalg.cython_blas")  # loads a BLAS, because the limit applies to loaded ones
        self._threads = threadpool_limits(limits=1)
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._stop.set()
        self._threads.restore_original_limits()


def job_of(store: Store, *, worker: str, transport: Transport | None = None, n_owners: int = 1) -> Job:
    """Return the job that runs the blocks of a store, by the kind of its run."""
    if store.kind == "approximate":
        return Fitter(store, worker=worker)
    if store.spec.ladder is not None:
        return LadderSampler(store, worker=worker)
    return Sampler(store, worker=worker, transport=transport, n_owners=n_owners)


def follow_length(job: Job, until: int | None) -> None:
    """End the blocks of a job at `until` iterations, and open its store again if its run has become longer.

    The cases stay where they are, and so does the posterior, because only the length can have changed.
    """
    job.until = until
    if until is not None and until > job.store.spec.total_iterations:
        job.store = Store.open(job.store.path, fs=job.store.fs)


def worker_name() -> str:
    """Return the host and process id of this process, the name of a worker in progress and messages."""
    return f"{socket.gethostname()} pid {os.getpid()}"
