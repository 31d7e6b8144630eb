"""The nodes of a Ray cluster. A thread asks for them every two seconds, and notices a head that is silent."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from rayfbnn.errors import ClusterGoneError

_SECONDS = 2.0  # between two questions
_WAIT_SECONDS = 5.0  # for an answer that is needed at once
_JOIN_SECONDS = 1.0  # for the end of the thread, which comes at once unless the head is gone
_GONE_SECONDS = 40.0  # a head that is silent for this long is gone; after 60 Ray would end this process
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Nodes:
    """The nodes that a cluster has now, by their Ray ids.

    Attributes
    ----------
    alive
        The nodes that are up, even if they will be taken away.
    draining
        The nodes that will be taken away. Ray starts nothing on them any more.
    room
        Number of workers for which the other nodes have cores, or GPUs; at least 1, because an autoscaler
        starts a node only for a worker that waits for one.
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
        _warn_once(
            "Ray %s does not report which nodes will be taken away: workers stay there until they are killed",
            getattr(ray, "__version__", "of this version"),
        )
        return set()
    return set(ask())


def cluster_is_gone(why: str) -> ClusterGoneError:
    """Return the error of a cluster that is gone; `why` says how that was noticed."""
    return ClusterGoneError(
        f"the Ray cluster is gone: {why}. Committed work is kept: `resume`, or `study run` for a study,"
        " continues from there, on any cluster or without one"
    )


def warn_of_leaving(counts: Mapping[str, int]) -> None:
    """Warn that workers leave nodes that will be taken away, given their number on each."""
    for node, count in counts.items():
        _log.warning(
            "node %s will be taken away: its %s will commit and stop, and others continue elsewhere",
            node[:8],
            workers_in_words(count),
        )


def warn_of_death(node: str, count: int) -> None:
    """Warn that a node has died with some workers."""
    _log.warning("node %s died with %s: other workers continue", node[:8], workers_in_words(count))


def workers_in_words(count: int) -> str:
    """Return "1 worker", "2 workers" and so on."""
    return "1 worker" if count == 1 else f"{count} workers"


_has_warned = False


def _warn_once(message: str, *arguments: object) -> None:
    global _has_warned
    if not _has_warned:
        _has_warned = True
        _log.warning(message, *arguments)


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
            self._wake.wait(_SECONDS)
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
