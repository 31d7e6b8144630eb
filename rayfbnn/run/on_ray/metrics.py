"""Metrics of a run on a Ray cluster, which Ray's agents offer to Prometheus with those of the cluster."""

from __future__ import annotations

import logging
import math
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Self

from rayfbnn.run.progress import Observer

if TYPE_CHECKING:
    from rayfbnn.run.job import Progress
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
    """Counts as blocks are committed, and reports to Ray every five seconds. Ray must be connected.

    rayfbnn_draws, rayfbnn_iterations, rayfbnn_commits  counters of the draws and iterations of all chains,
                    and of the blocks, that this driver has seen committed
    rayfbnn_divergences  counter of updates that diverged in iterations kept for the posterior
    rayfbnn_failures     counter of workers that died
    rayfbnn_acceptance   share of updates accepted in the last block of a batch
    rayfbnn_seconds_behind  seconds since the last commit of a batch; 0 once the batch is complete
    Each has the tag `store`; the last two have the tag `batch` too.

    A thread reports to Ray, because the seconds must grow while no worker reports. Setting one gauge takes
    some microseconds: for 512 batches at each of 200 messages a second, it took a fifth of the driver's core.
    """

    def __init__(self, store: Store, failures: Callable[[], int]) -> None:
        """Take the store and a function that returns the number of workers that have died."""
        from ray.util import metrics

        self._store, self._failures = store, failures
        tags = ("store",)
        self._counters = {name: metrics.Counter(name, text, tags) for name, text in _COUNTS.items()}
        self._acceptance = metrics.Gauge(
            "rayfbnn_acceptance", "Share accepted in the last block", (*tags, "batch")
        )
        self._behind = metrics.Gauge(
            "rayfbnn_seconds_behind", "Seconds since the last commit", (*tags, "batch")
        )
        self._tags = {"store": str(store.path)}
        self._lock = threading.Lock()  # of all attributes below
        self._counts: Counter[str] = Counter()  # since the last report to Ray
        self._accepted: dict[int, float] = {}  # by batch, since the last report to Ray
        self._committed: dict[int, float] = {}  # time of each batch's last commit, on the monotonic clock
        lasts = store.commits.lasts(range(store.n_batches))
        # Divergences of each batch up to its last commit, in iterations kept for the posterior.
        self._diverged = [store.commits.updates_until(last).kept.divergences for last in lasts]
        self._n_failures = failures()  # workers that an earlier round counted
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._tell_again_and_again, daemon=True)

    def update(self, progress: Progress) -> None:
        """Count a committed block, and ignore other progress."""
        if not progress.committed or not progress.block_iterations:
            return
        n_iterations = progress.block_iterations * len(self._store.header.batch_chains(progress.batch))
        is_kept = self._store.spec.phase[progress.phase].keep is True
        with self._lock:
            self._counts["rayfbnn_iterations"] += n_iterations
            self._counts["rayfbnn_draws"] += n_iterations if is_kept else 0
            self._counts["rayfbnn_commits"] += 1
            self._counts["rayfbnn_divergences"] += progress.divergences - self._diverged[progress.batch]
            self._diverged[progress.batch] = progress.divergences
            self._committed[progress.batch] = math.inf if progress.is_complete else time.monotonic()
            if not math.isnan(progress.acceptance):
                self._accepted[progress.batch] = progress.acceptance

    def _tell_again_and_again(self) -> None:
        while not self._has_ended.wait(_SECONDS):
            self._tell()

    def _tell(self) -> None:
        now, n_failures = time.monotonic(), self._failures()
        with self._lock:
            counts, self._counts = self._counts, Counter()
            accepted, self._accepted = self._accepted, {}
            behind = {batch: max(0.0, now - time) for batch, time in self._committed.items()}
        counts["rayfbnn_failures"] = n_failures - self._n_failures
        self._n_failures = n_failures
        for name, count in counts.items():
            if count > 0:  # Ray refuses to add zero
                self._counters[name].inc(count, tags=self._tags)
        self._set(self._acceptance, accepted)
        self._set(self._behind, behind)

    def _set(self, gauge: Any, values: Mapping[int, float]) -> None:
        for batch, value in values.items():
            gauge.set(value, tags={**self._tags, "batch": str(batch)})

    def __enter__(self) -> Self:
        warn_without_agent()
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._has_ended.set()
        self._thread.join()
        self._committed = dict.fromkeys(self._committed, math.inf)  # nobody waits for a commit any more
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
