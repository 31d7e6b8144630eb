"""Runs that become longer in rounds, whose workers stay from round to round."""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from dataclasses import replace
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

_SECONDS_HERE = 10.0  # Ray takes 8 to 15 to start


class KeptWorkers:
    """The Ray workers of a run in rounds: started by the first round that has work, and then kept.

    In this process nothing is kept, because the verdict between two rounds may then use all cores.
    """

    def __init__(self, options: RunOptions) -> None:
        self._options = options
        self._executor: Executor | None = None
        self._context = ExitStack()

    def for_round(self, store: Store, last: int) -> Executor | None:
        """Return the executor of the workers up to an iteration, or None if none are kept or needed."""
        is_needed = self._executor is None and self._options.workers != 0
        if is_needed and unfinished_batches(store, last):
            started = new_executor(store, store.n_batches, self._options)  # later rounds run every batch
            self._executor = self._context.enter_context(started)
        return self._executor

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        self._context.close()


class Rounds:
    """The rounds of a run, each up to some iteration of all chains.

    If the user leaves the workers open, a run of a few seconds may be all that is needed, and workers take
    longer to start. The first seconds are therefore run in this process.
    """

    def __init__(self, store: Store, options: RunOptions, *, deadline: float, starts_here: bool) -> None:
        """Prepare to run a locked store until the deadline, a time on the monotonic clock.

        starts_here  whether the first seconds are run in this process
        """
        is_open = options.workers is None and options.address is None and store.spec.device == "cpu"
        self._store, self._deadline = store, deadline
        self._kept = KeptWorkers(options)
        here = replace(options, workers=0)
        self._ways = [(math.inf, options, self._kept)]
        if starts_here and is_open and store.spec.n_parts == 1:
            # A single worker would do no more than this process.
            seconds = math.inf if store.n_batches == 1 else _SECONDS_HERE
            self._ways.insert(0, (time.monotonic() + seconds, here, KeptWorkers(here)))

    def run(self, last: int) -> RunSummary:
        """Run every batch up to the iteration `last`, and return a summary of the store, as run_to_end does.

        At the deadline the round ends early, but without an error. After a signal it always raises
        KeyboardInterrupt, even if everything was done, because more rounds may follow.
        """
        failures = 0
        with advice_on_interrupt(self._store):
            for end, options, kept in self._ways:
                if time.monotonic() >= end:
                    continue
                deadline = min(end, self._deadline)
                executor = kept.for_round(self._store, last)
                died, is_interrupted = run_batches(self._store, options, executor, deadline, last)
                failures += died
                is_early = bool(unfinished_batches(self._store, last))
                if is_interrupted or (is_early and time.monotonic() < deadline):
                    raise KeyboardInterrupt
                if not is_early or time.monotonic() >= self._deadline:
                    break
        return summarized(self._store, failures)

    def __enter__(self) -> Self:
        self._kept.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        self._kept.__exit__(kind, error, traceback)
