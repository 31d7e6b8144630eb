"""Metrics of a run on a Ray cluster, which Ray's agents offer to Prometheus with those of the cluster."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rayfbnn.run.sampler import Progress
    from rayfbnn.store.store import Store


class RayMetrics:
    """Sets the metrics at each commit; Ray must be connected.

    rayfbnn_draws, rayfbnn_iterations, rayfbnn_commits  counters of what this driver has seen committed: draws
                    and iterations of all chains, and blocks
    rayfbnn_divergences  counter of updates that diverged in iterations kept for the posterior
    rayfbnn_failures     counter of workers that died
    rayfbnn_acceptance   share of updates accepted in the last block of a batch
    rayfbnn_seconds_behind  seconds since the last commit of a batch
    Each has the tag `store`; the last two have the tag `batch` too.
    """

    def __init__(self, store: Store, failures: Callable[[], int]) -> None:
        """Take the store and a function that gives the number of workers that died so far."""
        from ray.util.metrics import Counter, Gauge

        self._store, self._failures = store, failures
        tags = ("store",)
        self._draws = Counter("rayfbnn_draws", "Draws committed, of all chains", tags)
        self._iterations = Counter("rayfbnn_iterations", "Iterations committed, of all chains", tags)
        self._commits = Counter("rayfbnn_commits", "Blocks committed", tags)
        self._divergences = Counter("rayfbnn_divergences", "Updates that diverged after the warm-up", tags)
        self._dead = Counter("rayfbnn_failures", "Workers that died", tags)
        self._acceptance = Gauge("rayfbnn_acceptance", "Share accepted in the last block", (*tags, "batch"))
        self._behind = Gauge("rayfbnn_seconds_behind", "Seconds since the last commit", (*tags, "batch"))
        self._tags = {"store": str(store.path)}
        self._diverged: dict[int, int] = {}  # divergences of each batch at its last commit
        self._n_failures = 0
        self._committed: dict[int, float] = {}  # time of each batch's last commit, on the monotonic clock

    def update(self, progress: Progress) -> None:
        """Set the metrics of a batch, and the time that every batch is behind."""
        now = time.monotonic()
        if progress.committed and progress.block_iterations:
            self._count(progress)
            self._committed[progress.batch] = now
        for batch, committed in self._committed.items():
            self._behind.set(now - committed, tags={**self._tags, "batch": str(batch)})

    def _count(self, progress: Progress) -> None:
        chains = len(self._store.batch_chains(progress.batch))
        is_kept = self._store.spec.phase[progress.phase].keep is True
        before = self._diverged.get(progress.batch, progress.divergences)
        self._diverged[progress.batch] = progress.divergences
        n_failures = self._failures()
        counts = (
            (self._draws, progress.block_iterations * chains if is_kept else 0),
            (self._iterations, progress.block_iterations * chains),
            (self._commits, 1),
            (self._divergences, progress.divergences - before),
            (self._dead, n_failures - self._n_failures),
        )
        self._n_failures = n_failures
        for counter, count in counts:
            if count > 0:  # Ray refuses to add nothing
                counter.inc(count, tags=self._tags)
        if not math.isnan(progress.acceptance):
            self._acceptance.set(progress.acceptance, tags={**self._tags, "batch": str(progress.batch)})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        pass
