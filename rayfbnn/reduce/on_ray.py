"""The tasks of a reduction on Ray's workers."""

from __future__ import annotations

import math
import pickle
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

from rayfbnn.draws.view import Draws
from rayfbnn.errors import WorkerError
from rayfbnn.reduce.passes import AT_ONCE
from rayfbnn.reduce.tile import Reader
from rayfbnn.run.on_ray.cluster import (
    WORKER_ENVIRONMENT,
    connect,
    first_line,
    result_alone_on_stdout,
    stop_ray,
)
from rayfbnn.run.on_ray.nodes import Waiting, cause_of_task

_Job = TypeVar("_Job")
_Result = TypeVar("_Result")
_LOOK_SECONDS = 1.0  # between two looks for a first result
_AHEAD = 3  # tasks for each worker that are under way, or have results that wait for earlier ones
_RETRIES = 20  # for each task, after deaths of workers or nodes


class OnRay:
    """Runs the tasks on Ray's workers, of this machine or of a cluster. Use it as a context manager.

    The workers open the stores themselves. If a worker dies, another one runs its task again, so the
    function must not change anything.
    """

    def __init__(self, workers: int | None, address: str | None, device: str = "cpu") -> None:
        """Start Ray here with some workers, one for each core if None, or join a cluster.

        device  "gpu" gives each task a GPU, which Ray must know of
        """
        self.device = device
        self._context = ExitStack()
        self._ray, self._is_ours = connect(workers, address)
        self._has_room = self._is_ours
        n_gpus = 1 if device == "gpu" else 0
        self._options: dict[str, Any] = {"num_cpus": 1, "num_gpus": n_gpus, "max_retries": _RETRIES}
        self._room = Waiting(self._ray, n_gpus, doubt=math.inf)
        if not self._is_ours:
            self._options["runtime_env"] = {"env_vars": WORKER_ENVIRONMENT}
            self._room.starting()
        self._n_workers = int(self._ray.cluster_resources().get("CPU", 1)) if workers is None else workers
        self._shared: list[tuple[Sequence[Draws], str, Any]] = []

    def __enter__(self) -> OnRay:
        self._context.enter_context(result_alone_on_stdout())
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        with self._context:
            if self._is_ours:
                stop_ray(self._ray)

    def map(
        self, function: Callable[[Reader, _Job], _Result], runs: Sequence[Draws], jobs: Sequence[_Job]
    ) -> Iterator[_Result]:
        """Yield the result of each job in order. WorkerError if workers die again and again."""
        shared = next((known for known in self._shared if known[0] is runs), None)
        if shared is None:
            shared = runs, uuid.uuid4().hex, self._ray.put(pickle.dumps(list(runs)))
            self._shared = [*self._shared[1 - AT_ONCE :], shared]
        remote = self._ray.remote(_run).options(**self._options)
        waiting: deque[Any] = deque()
        try:
            for job in jobs:
                waiting.append(remote.remote(function, *shared[1:], job))
                if len(waiting) >= _AHEAD * self._n_workers:
                    yield self._result(waiting.popleft())
            while waiting:
                yield self._result(waiting.popleft())
        finally:
            for reference in waiting:  # after an error or an interruption
                self._ray.cancel(reference, force=True)

    def _result(self, reference: Any) -> Any:
        try:
            # The first result says that there is room.
            while not self._has_room and not self._ray.wait([reference], timeout=_LOOK_SECONDS)[0]:
                self._room.note(self._n_workers, 0)
            if not self._has_room:
                self._has_room = True
                self._room.note(0, self._n_workers)
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as exc:
            raise cause_of_task(exc) from None
        except self._ray.exceptions.RayError as exc:
            raise WorkerError(f"a task of the reduction failed on Ray: {first_line(exc)}") from exc


_readers: dict[str, Reader] = {}  # of a worker process, by the token of the reduction


def _run(function: Callable[[Reader, _Job], _Result], token: str, runs: bytes, job: _Job) -> _Result:
    if token not in _readers:
        while len(_readers) >= AT_ONCE:
            del _readers[next(iter(_readers))]
        _readers[token] = Reader(pickle.loads(runs))
    return function(_readers[token], job)
