"""The job of a worker: one block of one batch, committed to the store, with its progress."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from rayfbnn.arrays import Array, device_namespace
from rayfbnn.errors import StoreOvertakenError
from rayfbnn.kernels import choose
from rayfbnn.run.blocks import BlockPlan, Collected, next_block
from rayfbnn.spec import RunSpec
from rayfbnn.store.records import BatchProgress, Block, Record
from rayfbnn.store.store import Store
from rayfbnn.streams import Streams

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Progress:
    """The progress of a batch, in a few numbers that are cheap to send after every iteration.

    iteration, total_iterations  iterations done so far, and in all
    draws, total_draws  draws kept for the posterior so far, and in all
    acceptance  share of updates accepted in the current block
    divergences, warmup_divergences  updates that diverged so far, in iterations kept for the posterior and in
                the others
    committed   whether everything up to `iteration` is in the store
    block_iterations, seconds  iterations done and seconds spent in the current block
    commit_seconds  the part of `seconds` that its commit took
    other_kernel  kernel of the worker if it lacks the one that the run started with, otherwise ""
    """

    batch: int
    iteration: int
    total_iterations: int
    draws: int
    total_draws: int
    phase: int
    acceptance: float
    divergences: int
    warmup_divergences: int
    block_iterations: int
    seconds: float
    committed: bool
    worker: str = ""
    other_kernel: str = ""
    commit_seconds: float = 0.0

    @property
    def is_complete(self) -> bool:
        """True if the batch has done all its iterations."""
        return self.has_done(None)

    def has_done(self, until: int | None) -> bool:
        """Return True if `until` iterations are committed (all if None)."""
        return self.committed and self.iteration >= (self.total_iterations if until is None else until)


def streams_of(spec: RunSpec, chains: Array) -> Streams:
    """Return the random numbers of the chains, ladders, or starts with these numbers."""
    xp = device_namespace(spec.device)
    return choose.streams_class(spec.device)(spec.seed, xp.asarray(chains))


class Job(ABC):
    """An open store, and what a worker needs to run its blocks.

    Each block starts from the state in the store, so a repeated block gives the same bits, here or elsewhere.
    """

    other_kernel = ""

    def __init__(self, store: Store, *, worker: str = "") -> None:
        """Take the store; `worker` is the name in progress reports."""
        self.store, self.worker = store, worker
        self.until: int | None = None  # the iteration at which blocks end for a while; None for the whole run

    def run_block(self, batch: int, *, should_stop: Callable[[], bool] = lambda: False) -> Iterator[Progress]:
        """Run and commit the batch's next block. Yield Progress after each iteration and after the commit.

        If should_stop returns True, what is done so far is committed as a shorter block. The draws do not
        depend on the ends of blocks. If a worker that was believed dead has meanwhile committed, its progress
        is yielded, and the run continues there.
        """
        # Progress and state come from one record: a worker believed dead may commit between two reads.
        last = self.store.commits.last(batch)
        plan = self._next_block(0 if last is None else last.progress.iteration)
        if plan is None:
            yield self._progress(batch, last, None, Collected(), committed=True)
            return
        try:
            for result in self._block(batch, last, plan, should_stop):
                if isinstance(result, Block):
                    self.store.commit(batch, result)
                else:
                    yield result
        except StoreOvertakenError as exc:
            _log.info("%s", exc)
            yield self._progress(batch, self.store.commits.last(batch), None, Collected(), committed=True)

    @abstractmethod
    def _block(
        self, batch: int, last: Record | None, plan: BlockPlan, should_stop: Callable[[], bool]
    ) -> Iterator[Progress | Block]:
        """Yield the progress of a block, the block to commit, and the progress once it is committed.

        last  the record of the batch's last block; None before the first
        """

    def _next_block(self, iteration: int) -> BlockPlan | None:
        plan = next_block(self.store.spec, iteration, draws_per_chunk=self.store.header.draws_per_chunk)
        if plan is None or self.until is None or not plan.first <= self.until < plan.last:
            return plan
        return replace(plan, count=self.until - iteration)

    def _streams(self, batch: int) -> Streams:
        return streams_of(self.store.spec, np.array(self.store.header.batch_chains(batch), dtype=np.uint64))

    def _progress(
        self,
        batch: int,
        last: Record | None,
        plan: BlockPlan | None,
        collected: Collected,
        *,
        committed: bool = False,
    ) -> Progress:
        """Return a batch's progress after its last record and the collected iterations of `plan`."""
        spec = self.store.spec
        before = BatchProgress() if last is None else last.progress
        updates = self.store.commits.updates_until(last)
        is_kept = plan is not None and plan.section == "posterior"
        return Progress(
            batch=batch,
            iteration=before.iteration + collected.n_iterations,
            total_iterations=spec.total_iterations,
            draws=before.draws + (collected.n_iterations if is_kept else 0),
            total_draws=spec.kept_draws,
            phase=plan.phase if plan else len(spec.phase) - 1,
            acceptance=collected.acceptance,
            divergences=updates.kept.divergences + (collected.diverged if is_kept else 0),
            warmup_divergences=updates.warmup.divergences + (0 if is_kept else collected.diverged),
            block_iterations=collected.n_iterations,
            seconds=time.monotonic() - collected.started,
            committed=committed,
            worker=self.worker,
            other_kernel=self.other_kernel,
        )
