"""Runs pure functions as Ray tasks, which Ray repeats if a worker or a node dies."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any, Self

from rayfbnn.errors import RayFBNNError, WorkerError
from rayfbnn.run.on_ray.cluster import WORKER_ENVIRONMENT, connect, first_line, stop_ray
from rayfbnn.run.on_ray.output import result_alone_on_stdout
from rayfbnn.run.on_ray.waiting import Waiting

_LOOK_SECONDS = 1.0  # between two looks for a first result
_AHEAD = 3  # tasks for each worker that are under way, or whose results wait for those of earlier ones
_RETRIES = 20  # for each task, after deaths of workers or nodes


class Tasks:
    """Workers of Ray on this machine or on a cluster; a context manager, which stops what it started."""

    def __init__(self, workers: int | None, address: str | None, *, needs_gpu: bool = False) -> None:
        """Start Ray here with some workers, one for each core if None, or join a cluster.

        needs_gpu  gives each task a GPU, which Ray must know of
        """
        self._context = ExitStack()
        self._ray, self._is_ours = connect(workers, address)
        self._has_room = self._is_ours
        environment = {} if self._is_ours else WORKER_ENVIRONMENT
        self._options: dict[str, Any] = {"num_cpus": 1, "max_retries": _RETRIES}
        if needs_gpu:
            self._options["num_gpus"] = 1
        if environment:
            self._options["runtime_env"] = {"env_vars": environment}
        self._room = Waiting(self._ray, self._options.get("num_gpus", 0), doubt=math.inf)
        if not self._is_ours:
            self._room.starting()
        n_cores = int(self._ray.cluster_resources().get("CPU", 1))
        self.n_workers = n_cores if workers is None else workers

    def __enter__(self) -> Self:
        self._context.enter_context(result_alone_on_stdout())
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        with self._context:
            if self._is_ours:
                stop_ray(self._ray)

    def share(self, value: object) -> Any:
        """Return a reference to a value, which tasks get instead of the reference."""
        return self._ray.put(value)

    def map(
        self, function: Callable[..., Any], shared: tuple[Any, ...], jobs: Iterable[Any]
    ) -> Iterator[Any]:
        """Yield function(*shared, job) for each job, in order.

        The function must not change anything: Ray may run it twice. Its errors are raised here. WorkerError
        if its workers die again and again.
        """
        remote = self._ray.remote(function).options(**self._options)
        waiting: deque[Any] = deque()
        try:
            for job in jobs:
                waiting.append(remote.remote(*shared, job))
                if len(waiting) >= _AHEAD * self.n_workers:
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
                self._room.note(self.n_workers, 0)
            if not self._has_room:
                self._has_room = True
                self._room.note(0, self.n_workers)
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as exc:
            cause = exc.cause if hasattr(exc, "cause") else None
            if isinstance(cause, RayFBNNError):
                raise cause from None
            raise
        except self._ray.exceptions.RayError as exc:
            raise WorkerError(f"a task of the reduction failed on Ray: {first_line(exc)}") from exc
