"""Runs that become longer in rounds, whose workers stay from round to round."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Self

from rayfbnn.run.executor import Executor
from rayfbnn.run.running import (
    RunOptions,
    RunSummary,
    advice_on_interrupt,
    new_executor,
    run_batches,
    summarized,
    unfinished_batches,
)
from rayfbnn.store.store import Store


class KeptWorkers:
    """The Ray workers of a run in rounds: started by the first round that has work, and then kept.

    In this process nothing is kept, because the verdict between two rounds may then use all cores.
    """

    def __init__(self, options: RunOptions) -> None:
        self._options = options
        self._executor: Executor | None = None
        self._context = ExitStack()

    def for_round(self, store: Store) -> Executor | None:
        """Return the executor of the workers, or None if none are kept or needed."""
        is_needed = self._executor is None and self._options.workers != 0
        if is_needed and unfinished_batches(store, store.spec.total_iterations):
            started = new_executor(store, store.n_batches, self._options)  # later rounds run every batch
            self._executor = self._context.enter_context(started)
        return self._executor

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        self._context.close()


def run_round(store: Store, options: RunOptions, kept: KeptWorkers, deadline: float) -> RunSummary:
    """Run every incomplete batch on the kept workers, and return a summary of the store, as run_to_end does.

    At the deadline, a time on the monotonic clock, the round ends early, but without an error. After a signal
    it always raises KeyboardInterrupt, even if everything was done, because more rounds may follow.
    """
    with advice_on_interrupt(store):
        failures, is_interrupted = run_batches(store, options, kept.for_round(store), deadline)
        is_early = bool(unfinished_batches(store, store.spec.total_iterations))
        if is_interrupted or (is_early and time.monotonic() < deadline):
            raise KeyboardInterrupt
    return summarized(store, failures)
