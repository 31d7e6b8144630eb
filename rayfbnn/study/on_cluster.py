"""Runs several drivers of a study as tasks of a Ray cluster, which share its members."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from rayfbnn.errors import RayFBNNError, WorkerError, at_most_ten
from rayfbnn.output.printing import say_from_handler
from rayfbnn.run.executor import worker_name
from rayfbnn.run.on_ray.actors import current_node
from rayfbnn.run.on_ray.cluster import WORKER_ENVIRONMENT, cause_of, connect
from rayfbnn.run.on_ray.killing import Deadline, kill_processes
from rayfbnn.run.on_ray.nodes import NodeWatch, warn_of_death, warn_of_leaving
from rayfbnn.run.on_ray.waiting import Waiting
from rayfbnn.run.running import RunOptions
from rayfbnn.run.signals import GRACE_SECONDS, stop_on_signal
from rayfbnn.study.driving import drive, show
from rayfbnn.study.files import StudyFiles

_LOOK_SECONDS = 0.5  # between two checks of the tasks
_KILL_SECONDS = 5.0  # for the driver to hear of tasks that were killed at the deadline


@dataclass(frozen=True)
class _Node:
    """The first item that a task yields: its process, named by `worker_name`, and Ray's id of its node."""

    worker: str
    name: str


@dataclass(eq=False)
class _Task:
    """A task as the driver knows it: its process and node, "" until it has started, and whether it leaves."""

    worker: str = ""
    node: str = ""
    is_leaving: bool = False


class ClusterDrivers:
    """The tasks, one for each core or GPU of the cluster; up to max_failures tasks that die are replaced.

    Tasks are started as nodes join. They leave a node that will be taken away once they have committed their
    current work. Tasks that die with their node are not counted. The study's folder must refer to the same
    folder on every node.
    """

    def __init__(self, study: StudyFiles, options: RunOptions) -> None:
        """Connect to the cluster, and look at its nodes."""
        gpus = 1 if study.members.with_cases().spec.device == "gpu" else 0
        self._ray, _ = connect(options.workers, options.address)
        self._watch, self._room = NodeWatch(self._ray, gpus), Waiting(self._ray, gpus)
        self._n_members = sum(len(due.seeds) for due in study.due().values())
        self._options = options
        self._arguments = str(study.place), replace(options, workers=0, address=None)
        self._remote = self._ray.remote(
            num_cpus=1, num_gpus=gpus, max_retries=0, runtime_env={"env_vars": WORKER_ENVIRONMENT}
        )(_lines)
        self._tasks: dict[Any, _Task] = {}  # by Ray's generator of their lines
        self._failures = 0
        self._is_stopping = self._is_over = False
        self._deadline = Deadline(self._kill)

    @property
    def count(self) -> int:
        """Number of tasks: as many as were requested, or as there is room for now."""
        return self._options.workers or self._watch.nodes.room

    def run(self) -> None:
        """Run the tasks to their end.

        Raises KeyboardInterrupt if they were stopped, the error of a task that failed, WorkerError if more
        than max_failures died, and ClusterGoneError if the head of the cluster no longer answers.
        """
        with stop_on_signal(self._request_stop, say_from_handler), self._watch, self._deadline:
            show(self._all_lines(), self._options)
        if self._is_stopping:
            raise KeyboardInterrupt("stopped; committed work is kept")

    def _request_stop(self) -> None:
        """Ask the tasks to commit their current work, and to end. A signal handler may call this."""
        self._deadline.set(GRACE_SECONDS)
        self._is_stopping = True

    def _all_lines(self) -> Iterator[str]:
        """Yield the lines of all tasks as they arrive, until all have ended."""
        is_told = False
        while True:
            if self._watch.is_gone:
                raise self._watch.gone()
            if not self._is_stopping:
                self._follow_nodes()
            elif not is_told:
                is_told = True
                self._cancel()
            if not self._tasks:
                return
            if self._deadline.is_past(_KILL_SECONDS):
                return
            yield from self._new_lines()

    def _follow_nodes(self) -> None:
        """Let tasks leave nodes that will be taken away, and start others while there is room and work."""
        draining = self._watch.nodes.draining
        new = {one: task for one, task in self._tasks.items() if task.node in draining - {""}}
        new = {one: task for one, task in new.items() if not task.is_leaving}
        for reference, task in new.items():
            task.is_leaving = True
            self._ray.cancel(reference)
        warn_of_leaving(Counter(task.node for task in new.values()))
        n_staying = sum(not task.is_leaving for task in self._tasks.values())
        n_working = sum(bool(task.node) for task in self._tasks.values())
        self._room.note(len(self._tasks) - n_working, n_working)
        if not self._is_over and n_staying < min(self.count, self._n_members):
            self._room.starting()
            for _ in range(min(self.count, self._n_members) - n_staying):
                self._tasks[self._start()] = _Task()

    def _new_lines(self) -> Iterator[str]:
        """Wait at most half a second for a line, and yield it."""
        tasks = list(self._tasks)
        ready, _ = self._ray.wait(tasks, num_returns=1, timeout=_LOOK_SECONDS, fetch_local=False)
        for reference in ready:
            try:
                line = self._ray.get(next(reference))
            except (StopIteration, self._ray.exceptions.RayError) as exc:
                self._ended(self._tasks.pop(reference), exc)
                continue
            if isinstance(line, _Node):
                task = self._tasks[reference]
                task.worker, task.node = line.worker, line.name
            else:
                yield line

    def _ended(self, task: _Task, how: Exception) -> None:
        """Handle the end of a task: count one that died, and raise the error of one that failed."""
        exceptions = self._ray.exceptions
        self._is_over |= isinstance(how, StopIteration)  # nothing is due any more
        if self._is_stopping or task.is_leaving or isinstance(how, StopIteration):
            return
        if isinstance(how, exceptions.RayTaskError):  # the process is alive, and the code in it raised
            self._cancel()
            raise (how.cause if isinstance(how.cause, RayFBNNError) else how) from None
        # The list of nodes may still have the one that died.
        if isinstance(how, exceptions.NodeDiedError) or self._is_lost(task.node):
            warn_of_death(task.node, 1)
            return
        self._failures += 1
        if self._failures > self._options.max_failures:
            self._cancel()
            raise WorkerError(
                f"{self._failures} drivers of the study died, more than max_failures ="
                f" {self._options.max_failures} allows; committed work is kept: {cause_of(how)}"
            ) from how

    def _is_lost(self, node: str) -> bool:
        nodes = self._watch.look_again()
        return bool(node) and node not in nodes.alive - nodes.draining

    def _start(self) -> Any:
        return self._remote.options(num_returns="streaming").remote(*self._arguments)

    def _cancel(self) -> None:
        """Interrupt the tasks as a signal does. A task that is sampling commits its iterations first."""
        for reference in self._tasks:
            self._ray.cancel(reference)

    def _kill(self) -> None:
        """Kill the tasks that have not ended, because one that is stopped or hangs would never end."""
        begun = [(task.worker, task.node) for task in list(self._tasks.values()) if task.worker]
        if begun:
            names = ", ".join(at_most_ten(worker for worker, _ in begun))
            say_from_handler(f"{names}: did not end in time after the signal, killed")
            kill_processes(self._ray, begun)


def _lines(folder: str, options: RunOptions) -> Iterator[_Node | str]:
    """Drive a study as a task of a cluster."""
    yield _Node(worker_name(), current_node())
    yield from drive(StudyFiles.open(folder), options)
