"""Kills workers that do not answer, because they are stopped or hang, by their process ids."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

_SECONDS = 5.0  # for another node to start the task that kills
_LOOK_SECONDS = 0.5


class Deadline:
    """The time by which workers must have ended. A thread then kills the others.

    The driver cannot do this, because inside Ray it may wait forever for a worker that is stopped.
    """

    def __init__(self, kill: Callable[[], None]) -> None:
        """Take the function that kills the workers."""
        self._kill = kill
        self._by = math.inf  # on the monotonic clock
        self._is_set, self._is_over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="rayfbnn-deadline", daemon=True)

    def set(self, seconds: float) -> None:
        """Set the deadline to `seconds` from now, if it was not earlier. A signal handler may call this."""
        self._by = min(self._by, time.monotonic() + seconds)
        self._is_set.set()

    def is_past(self, seconds: float = 0.0) -> bool:
        """Return True if `seconds` have passed since the deadline."""
        return time.monotonic() > self._by + seconds

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._is_over.set()
        self._is_set.set()
        self._thread.join()

    def _watch(self) -> None:
        self._is_set.wait()
        while not self._is_over.wait(_LOOK_SECONDS):
            if self.is_past():
                self._kill()
                return


def kill_processes(ray: Any, workers: Iterable[tuple[str, str]]) -> None:
    """Kill workers, each given by its name (from `worker_name`) and Ray's id of its node.

    On other nodes a Ray task does this. It has five seconds to answer.
    """
    here, tasks = ray.get_runtime_context().get_node_id(), []
    for name, node in workers:
        pid = int(name.rpartition(" pid ")[2])
        if node == here:
            _kill(pid)
        else:
            there = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
            remote = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=there)(_kill)
            tasks.append(remote.remote(pid))
    if tasks:
        ray.wait(tasks, num_returns=len(tasks), timeout=_SECONDS)


def _kill(pid: int) -> None:
    """Kill a process, unless it is known not to be one of Ray's workers."""
    with suppress(OSError):
        title = Path(f"/proc/{pid}/cmdline")
        if not title.parent.parent.exists() or title.read_bytes().startswith(b"ray::"):
            os.kill(pid, signal.SIGKILL)
