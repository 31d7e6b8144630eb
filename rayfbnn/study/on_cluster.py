"""Several drivers of a study as tasks of a Ray cluster, which share its members out among themselves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from rayfbnn.errors import RayFBNNError, WorkerError
from rayfbnn.run.on_ray.cluster import WORKER_ENVIRONMENT, connect, first_line
from rayfbnn.run.on_ray.nodes import look_at_nodes
from rayfbnn.run.signals import stop_on_signal
from rayfbnn.study.driving import Driving, drive, show
from rayfbnn.study.files import StudyFiles
from rayfbnn.study.processes import note

_LOOK_SECONDS = 0.5  # between two looks at the tasks


class ClusterDrivers:
    """The tasks, one for each core or GPU of the cluster; up to max_failures tasks that die are replaced.

    The study's folder must mean the same on every node.
    """

    def __init__(self, study: StudyFiles, how: Driving) -> None:
        """Connect to the cluster, and decide how many tasks there are."""
        gpus = 1 if study.members.first.spec.device == "gpu" else 0
        self._ray, _ = connect(how.workers, how.address)
        self.count = how.workers or look_at_nodes(self._ray, gpus).room
        self._how = how
        self._arguments = str(study.place), replace(how, workers=0, address=None)
        self._remote = self._ray.remote(
            num_cpus=1, num_gpus=gpus, max_retries=0, runtime_env={"env_vars": WORKER_ENVIRONMENT}
        )(_lines)
        self._pending: list[Any] = []
        self._failures = 0
        self._is_stopping = False

    def run(self) -> None:
        """Run the tasks to their end.

        KeyboardInterrupt if they were stopped, the error of a task that failed, WorkerError if more died than
        may.
        """
        with stop_on_signal(self._request_stop, note):
            show(self._all_lines(), self._how)
        if self._is_stopping:
            raise KeyboardInterrupt("stopped; what was committed is kept")

    def _request_stop(self) -> None:
        """Let the tasks commit what they have in hand, and end. A signal handler may call this."""
        self._is_stopping = True

    def _all_lines(self) -> Iterator[str]:
        """Yield the lines of all tasks as they arrive, until all have ended."""
        is_told = False
        self._pending = [self._start() for _ in range(self.count)]
        while self._pending:
            if self._is_stopping and not is_told:
                is_told = True
                self._cancel()
            ready, _ = self._ray.wait(self._pending, num_returns=1, timeout=_LOOK_SECONDS, fetch_local=False)
            for task in ready:
                try:
                    line = self._ray.get(next(task))
                except (StopIteration, self._ray.exceptions.RayError) as exc:
                    self._pending.remove(task)
                    self._ended(exc)
                else:
                    yield line

    def _ended(self, how: Exception) -> None:
        """Act on the end of a task: replace one that died, and raise the error of one that failed."""
        exceptions = self._ray.exceptions
        if self._is_stopping or isinstance(how, StopIteration | exceptions.TaskCancelledError):
            return
        if isinstance(how, exceptions.RayTaskError):  # the process is alive, and the code in it raised
            self._cancel()
            raise (how.cause if isinstance(how.cause, RayFBNNError) else how) from None
        self._failures += 1
        if self._failures > self._how.max_failures:
            self._cancel()
            raise WorkerError(
                f"{self._failures} drivers of the study died, more than max_failures ="
                f" {self._how.max_failures} allows; what was committed is kept: {first_line(how)}"
            ) from how
        self._pending.append(self._start())

    def _start(self) -> Any:
        return self._remote.options(num_returns="streaming").remote(*self._arguments)

    def _cancel(self) -> None:
        """Interrupt the tasks as a signal does: one that is sampling commits its iterations first."""
        for task in self._pending:
            self._ray.cancel(task)


def _lines(folder: str, how: Driving) -> Iterator[str]:
    """Drive a study as a task of a cluster."""
    yield from drive(StudyFiles.open(folder), how)
