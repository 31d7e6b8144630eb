"""The nodes of a Ray cluster: their room, the reason for a wait, and the end of silent workers."""

from __future__ import annotations

import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

from rayfbnn.errors import ClusterGoneError, RayFBNNError

_ASK_SECONDS = 2.0  # between two questions
_WAIT_SECONDS = 5.0  # for an answer that is needed at once
_JOIN_SECONDS = 1.0  # for the end of the thread, which comes at once unless the head is gone
_GONE_SECONDS = 40.0  # a head that is silent for this long is gone; after 60 Ray would end this process
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Nodes:
    """The nodes that a cluster has now, by their Ray ids.

    alive     the nodes that are up, even if they will be taken away
    draining  the nodes that will be taken away. Ray starts nothing on them any more
    room      number of workers that fit on the cores, or GPUs, of the other nodes; at least 1, because an
              autoscaler starts a node only for a worker that waits for one
    """

    alive: frozenset[str]
    draining: frozenset[str]
    room: int


def look_at_nodes(ray: Any, gpus_per_worker: float) -> Nodes:
    """Return the nodes of Ray's cluster. A worker needs one core, or gpus_per_worker GPUs if not 0."""
    name, needed = ("GPU", gpus_per_worker) if gpus_per_worker else ("CPU", 1.0)
    resources = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
    draining = _draining_nodes(ray) & resources.keys()
    room = sum(int(has.get(name, 0) / needed) for node, has in resources.items() if node not in draining)
    return Nodes(frozenset(resources), frozenset(draining), max(1, room))


def _draining_nodes(ray: Any) -> set[str]:
    """Return the ids of the nodes that will be taken away. If Ray cannot say, warn and return none.

    Ray has no public function for this. Its own libraries (Train, Data) call this one.
    """
    try:
        ask = ray._private.state.state.get_draining_nodes
    except AttributeError:
        _warn_of_version(getattr(ray, "__version__", "of this version"))
        return set()
    return set(ask())


def cluster_is_gone(why: str) -> ClusterGoneError:
    """Return the error of a cluster that is gone; `why` says how that was noticed."""
    return ClusterGoneError(
        f"the Ray cluster is gone: {why}. Committed work is kept: `resume`, or `study run` for a study,"
        " continues from there, on any cluster or without one"
    )


def cause_of_task(error: Any) -> Exception:
    """Return the error of this package that code on a worker raised, or else Ray's error as it is."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, RayFBNNError) else error


def workers_in_words(count: int) -> str:
    """Return "1 worker", "2 workers" and so on."""
    return "1 worker" if count == 1 else f"{count} workers"


@cache
def _warn_of_version(version: str) -> None:
    _log.warning(
        "Ray %s does not report which nodes will be taken away: workers stay there until they are killed",
        version,
    )


class NodeWatch:
    """Asks for the nodes in a separate thread, because a question to a head that is gone never returns."""

    def __init__(self, ray: Any, gpus_per_worker: float) -> None:
        """Ask once. Inside its context the watch asks every two seconds."""
        self._ray, self._gpus_per_worker = ray, gpus_per_worker
        self.nodes = look_at_nodes(ray, gpus_per_worker)
        self._asked: float | None = None  # when the unanswered question was asked
        self._n_answers = 0
        self._answered = threading.Condition()
        self._wake, self._is_over = threading.Event(), False
        self._thread = threading.Thread(target=self._watch, name="rayfbnn-nodes", daemon=True)

    def seconds_silent(self) -> float:
        """Return for how many seconds the head of the cluster has not answered a question."""
        asked = self._asked
        return 0.0 if asked is None else time.monotonic() - asked

    @property
    def is_gone(self) -> bool:
        """True if the head has been silent for so long that it counts as gone."""
        return self.seconds_silent() > _GONE_SECONDS

    def gone(self) -> ClusterGoneError:
        """Return the error for a head that is gone."""
        return cluster_is_gone(f"its head has not answered for {self.seconds_silent():.0f} seconds")

    def look_again(self) -> Nodes:
        """Ask now and return the nodes, or those of the last answer if none comes within five seconds."""
        with self._answered:
            # An answer that is on its way may be too old.
            wanted = self._n_answers + (1 if self._asked is None else 2)
            self._wake.set()
            self._answered.wait_for(lambda: self._n_answers >= wanted, timeout=_WAIT_SECONDS)
        return self.nodes

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._is_over = True
        self._wake.set()
        self._thread.join(_JOIN_SECONDS)

    def _watch(self) -> None:
        while not self._is_over:
            self._wake.wait(_ASK_SECONDS)
            self._wake.clear()
            if self._asked is None:
                self._asked = time.monotonic()
            try:
                nodes = look_at_nodes(self._ray, self._gpus_per_worker)
            except Exception as exc:  # an error of any kind counts as silence
                _log.debug("the nodes of the cluster are not known: %s", exc)
                continue
            with self._answered:
                self.nodes, self._asked = nodes, None
                self._n_answers += 1
                self._answered.notify_all()


_QUIET_SECONDS = 10.0  # workers usually start within this time
_DOUBT_SECONDS = 60.0  # workers that seemed to fit have then lost their place to others
_AGAIN_SECONDS = 600.0
_UNITS = {"CPU": ("core", "cores"), "GPU": ("GPU", "GPUs")}
_ADVICE = (
    "; the run goes on once one fits; to go on now, use another cluster, or --workers 0 (in Python workers=0)"
    " to run without Ray"
)


class Waiting:
    """Says after ten seconds, and rarely again, what workers that have not started wait for."""

    def __init__(
        self, ray: Any, gpus: float = 0, *, doubt: float = _DOUBT_SECONDS, session: str = ""
    ) -> None:
        """Take Ray's module, the GPUs of a worker, and the folder of a Ray that was started here.

        Nobody else takes the cores of that Ray.

        doubt  seconds until workers that had room count as waiting
        """
        self._ray, self._doubt, self._session = ray, doubt, session
        self._needs = {"CPU": 1.0} | ({"GPU": gpus} if gpus else {})
        self._fits = self._n_working = 0
        self._since = self._next = 0.0  # on the monotonic clock; 0 if nothing waits
        self._has_spoken = False

    def starting(self) -> None:
        """Note how many workers there is room for, before they are started."""
        if not self._session:
            self._fits = self._room(self._ray.available_resources())

    def note(self, n_waiting: int, n_working: int) -> None:
        """Say what workers wait for, if that is due. Call this again and again.

        Raises ClusterGoneError if none works, and none can start because Ray's folder is gone.
        """
        now = time.monotonic()
        if self._has_spoken and (n_working > self._n_working or not n_waiting):
            _log.warning("the run goes on with %s", workers_in_words(n_working))
            self._has_spoken = False
        self._n_working = n_working
        if not n_waiting:
            self._since = 0.0
        elif not self._since:
            self._since, self._next = now, now + _QUIET_SECONDS
        elif now >= self._next and (line := self._line(n_waiting, n_working, now - self._since)):
            _log.warning("%s", line)
            self._has_spoken = not n_working
            self._next = math.inf if n_working else now + _AGAIN_SECONDS

    def _line(self, n_waiting: int, n_working: int, seconds: float) -> str:
        meanwhile = f"; the run goes on with {workers_in_words(n_working)} meanwhile" if n_working else ""
        if self._session:
            return "" if os.path.isdir(self._session) else self._without_session(meanwhile)
        if n_waiting <= self._fits and seconds < self._doubt:
            return ""
        free, total = self._ray.available_resources(), self._ray.cluster_resources()
        each = " and ".join(f"{need:g} {_UNITS[name][need > 1]}" for name, need in self._needs.items())
        shares = " and ".join(
            f"{free.get(name, 0):g} of {total.get(name, 0):g} {_UNITS[name][1]}" for name in self._needs
        )
        return (
            f"waiting for {workers_in_words(n_waiting)} with {each} each: {shares} of the Ray cluster are"
            f" free{meanwhile or _ADVICE}"
        )

    def _without_session(self, meanwhile: str) -> str:
        gone = f"Ray's folder {self._session} is gone, perhaps by a cleaner of temporary folders"
        if meanwhile:
            return f"{gone}, so that no worker can start{meanwhile}"
        raise ClusterGoneError(
            f"{gone}. Committed work is kept: `resume` continues from there; set RAY_TMPDIR to a folder that"
            " no cleaner empties"
        )

    def _room(self, free: dict[str, float]) -> int:
        return min(int(free.get(name, 0) / need) for name, need in self._needs.items())


_KILL_SECONDS = 5.0  # for another node to start the task that kills
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
        ray.wait(tasks, num_returns=len(tasks), timeout=_KILL_SECONDS)


def _kill(pid: int) -> None:
    """Kill a process, unless it is known not to be one of Ray's workers."""
    with suppress(OSError):
        title = Path(f"/proc/{pid}/cmdline")
        if not title.parent.parent.exists() or title.read_bytes().startswith(b"ray::"):
            os.kill(pid, signal.SIGKILL)
