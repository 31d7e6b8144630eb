"""Metrics of a run on a Ray cluster, which Ray's agents offer to Prometheus with those of the cluster."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Self

from rayfbnn.errors import RayFBNNError
from rayfbnn.run.progress import Observer
from rayfbnn.run.status import Status, for_status, status_of

if TYPE_CHECKING:
    from rayfbnn.store.store import Store

_log = logging.getLogger(__name__)
_SECONDS = 5.0  # between two reports to Ray; Ray itself passes metrics on every ten seconds
_CONNECT_SECONDS = 1.0
_COUNTS = {
    "rayfbnn_draws": "Draws committed, of all chains",
    "rayfbnn_iterations": "Iterations committed, of all chains",
    "rayfbnn_commits": "Blocks committed",
    "rayfbnn_divergences": "Updates that diverged after the warm-up",
    "rayfbnn_failures": "Workers that died",
}
# Modules that Ray's agent on a node imports before it offers metrics; `ray[default]` installs all.
_PARTS = ("aiohttp", "aiohttp_cors", "grpc", "opencensus", "opentelemetry", "prometheus_client")


class RayMetrics(Observer):
    """Reports the status of a run to Ray every five seconds, from a thread. Ray must be connected.

    rayfbnn_draws, rayfbnn_iterations, rayfbnn_commits  counters of the draws and iterations of all chains,
                    and of the blocks, that were committed while this driver was at work
    rayfbnn_divergences  counter of updates that diverged in iterations kept for the posterior
    rayfbnn_failures     counter of workers that died
    rayfbnn_acceptance   share of updates accepted in the last block of a batch
    rayfbnn_seconds_behind  seconds since the last commit of a batch; 0 once the batch is complete
    Each has the tag `store`; the last two have the tag `batch` too.
    """

    def __init__(self, store: Store, failures: Callable[[], int]) -> None:
        """Take the store and a function that returns the number of workers that have died."""
        from ray.util import metrics

        self._store, self._failures = for_status(store), failures
        tags = ("store",)
        self._counters = {name: metrics.Counter(name, text, tags) for name, text in _COUNTS.items()}
        self._acceptance = metrics.Gauge(
            "rayfbnn_acceptance", "Share accepted in the last block", (*tags, "batch")
        )
        self._behind = metrics.Gauge(
            "rayfbnn_seconds_behind", "Seconds since the last commit", (*tags, "batch")
        )
        self._tags = {"store": str(store.path)}
        self._told = self._counts(status_of(self._store, latest={}))  # by earlier drivers and rounds
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._tell_again_and_again, daemon=True)

    def _counts(self, status: Status) -> dict[str, int]:
        chains = [(one.last_chain - one.first_chain + 1, one) for one in status.batches]
        return {
            "rayfbnn_draws": sum(n * one.draws for n, one in chains),
            "rayfbnn_iterations": sum(n * one.iteration for n, one in chains),
            "rayfbnn_commits": sum(progress.blocks for progress in self._store.all_progress()),
            "rayfbnn_divergences": status.divergences,
            "rayfbnn_failures": self._failures(),
        }

    def _tell_again_and_again(self) -> None:
        while not self._has_ended.wait(_SECONDS):
            self._tell()

    def _tell(self) -> None:
        try:
            status = status_of(self._store, latest={})
            counts = self._counts(status)
        except (OSError, RayFBNNError) as exc:  # the run goes on without this report
            _log.debug("no metrics could be read: %s", exc)
            return
        for name, count in counts.items():
            if count > self._told[name]:  # Ray refuses to add zero
                self._counters[name].inc(count - self._told[name], tags=self._tags)
        self._told = counts
        for one in status.batches:
            tags = {**self._tags, "batch": str(one.batch)}
            if one.acceptance is not None:
                self._acceptance.set(one.acceptance, tags=tags)
            if one.seconds_since_commit is not None:
                # Once a batch is complete, or the run has ended, nobody waits for a commit any more.
                is_over = self._has_ended.is_set() or one.iteration >= status.total_iterations
                self._behind.set(0.0 if is_over else one.seconds_since_commit, tags=tags)

    def __enter__(self) -> Self:
        warn_without_agent()
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._has_ended.set()
        self._thread.join()
        self._tell()


@cache
def warn_without_agent() -> None:
    """Warn once, in one line, if Ray's agent on this node lacks the modules for offering metrics."""
    missing = [name for name in _PARTS if find_spec(name) is None]
    if missing and not _somebody_offers_metrics():
        _log.warning(
            "there will be no metrics: Ray's agent lacks %s;"
            ' install "rayfbnn[metrics]" on every node, and restart the cluster',
            ", ".join(missing),
        )


def _somebody_offers_metrics() -> bool:
    """Return True if somebody answers at the port for metrics of the node that this process is on."""
    import ray as imported

    ray: Any = imported  # Ray's functions have no types
    if not ray.is_initialized():
        return False
    own = ray.get_runtime_context().get_node_id()
    for node in ray.nodes():
        if node["NodeID"] == own and node.get("MetricsExportPort"):
            place = node["NodeManagerAddress"], node["MetricsExportPort"]
            try:
                socket.create_connection(place, timeout=_CONNECT_SECONDS).close()
            except OSError:
                return False
            return True
    return False
