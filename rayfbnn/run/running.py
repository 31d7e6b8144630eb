"""Runs the batches of a store to the end, with workers, a display and signal handlers."""

from __future__ import annotations

import logging
import math
import shlex
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain
from socket import gethostname
from typing import Literal, TypeAlias

from rayfbnn.errors import RayStartError
from rayfbnn.output import tables
from rayfbnn.run.executor import Executor, InProcess
from rayfbnn.run.gathering_threads import Gathering
from rayfbnn.run.hardware import n_cores
from rayfbnn.run.json_log import JsonLog
from rayfbnn.run.on_ray.executor import RayExecutor
from rayfbnn.run.on_ray.metrics import RayMetrics
from rayfbnn.run.progress import Display, display
from rayfbnn.run.sampler import Progress
from rayfbnn.run.signals import GRACE_SECONDS, stop_on_signal
from rayfbnn.store.ladder_words import word_for_chains
from rayfbnn.store.store import Store

_log = logging.getLogger(__name__)

LogFormat: TypeAlias = Literal["text", "json"]


@dataclass(frozen=True)
class RunOptions:
    """How a run is executed and shown. None of these options changes a draw.

    The fields are the parameters of `rayfbnn.sample` with the same names.
    """

    workers: int | None = None
    address: str | None = None
    max_failures: int = 3
    progress: bool = True
    log_format: LogFormat = "text"


@dataclass(frozen=True)
class RunSummary:
    """The counts of a finished run.

    Attributes
    ----------
    path
        The store.
    chains
        Number of chains.
    draws
        Number of draws of the posterior in each chain.
    acceptance
        Mean share of updates accepted in the iterations kept for the posterior; None if nothing was
        accepted or rejected.
    divergences
        Number of updates in these iterations with an energy that was not finite; each was rejected.
    warmup_acceptance, warmup_divergences
        The same for all other iterations.
    failures
        Number of workers that died and were replaced.
    ok
        Whether the verdict of a run in rounds is ok; None for any other run.
    word
        "ladders" for a run of ladders, whose chains these are; else "chains".
    obstacle
        The reason that more iterations cannot make the verdict on ladders ok; "" if they may.
    """

    path: str
    chains: int
    draws: int
    acceptance: float | None = None
    warmup_acceptance: float | None = None
    divergences: int = 0
    warmup_divergences: int = 0
    failures: int = 0
    ok: bool | None = None
    word: str = "chains"
    obstacle: str = ""

    def _repr_html_(self) -> str:
        """Return the counts as HTML, for notebooks."""
        return tables.pairs(
            {
                "store": self.path,
                self.word: self.chains,
                f"draws of each {self.word[:-1]}": self.draws,
                "acceptance": self.acceptance,
                "divergences": self.divergences,
                "acceptance in the warm-up": self.warmup_acceptance,
                "divergences in the warm-up": self.warmup_divergences,
                "workers replaced": self.failures or None,
                "verdict": None if self.ok is None else "ok" if self.ok else "not ok",
            }
        )


def run_to_end(store: Store, options: RunOptions) -> RunSummary:
    """Run every incomplete batch, and return a summary of the store. The store must be locked.

    Raises KeyboardInterrupt, with a message on how to continue, if a signal ended the run early.
    """
    with advice_on_interrupt(store):
        failures, _ = run_batches(store, options)
        if unfinished_batches(store, store.spec.total_iterations):
            raise KeyboardInterrupt
    return summarized(store, failures)


def run_batches(
    store: Store,
    options: RunOptions,
    kept: Executor | None = None,
    deadline: float = math.inf,
    last: int | None = None,
) -> tuple[int, bool]:
    """Run and gather every incomplete batch, on an executor that was kept or on a new one.

    Returns the number of workers that died, and whether a signal asked for the end.

    last  the last iteration to run; None for all
    """
    _publish_finished_rounds(store)
    last = store.spec.total_iterations if last is None else last
    batches = unfinished_batches(store, last)
    if not batches:
        with Gathering(store) as gathering:
            gathering.all()
        return 0, False
    is_interrupted = threading.Event()
    with (
        display(store, show=options.progress) as shown,
        new_executor(store, len(batches), options) if kept is None else nullcontext(kept) as executor,
        stop_on_signal(partial(_interrupt, executor, is_interrupted), shown.note),
        _stop_at(executor, deadline),
        _observers(store, executor, options) as observers,
        Gathering(store) as gathering,
    ):
        reported_kernels: set[str] = set()
        for latest in run_rounds(store, executor, last=last):
            show_progress(store, shown, reported_kernels, latest)
            for observer in observers:
                observer.update(latest)
            gathering.update(latest)
        gathering.all()  # in this context, because a scheduler's second signal must not end it
    return executor.failures, is_interrupted.is_set()


def _interrupt(executor: Executor, is_interrupted: threading.Event) -> None:
    is_interrupted.set()
    executor.request_stop(GRACE_SECONDS)


@contextmanager
def advice_on_interrupt(store: Store) -> Iterator[None]:
    """Give a KeyboardInterrupt a message on how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_how_to_go_on(store)) from None


def run_rounds(store: Store, executor: Executor, *, last: int | None = None) -> Iterator[Progress]:
    """Run every batch up to the iteration `last`, by default to the end; yield progress as it is made.

    The progress is yielded after each iteration and each commit.
    Between tuning rounds all batches wait until the next settings are published. Only the process that holds
    the store's lock may run this, because it alone publishes settings. The iterator ends early if the
    executor is asked to stop.
    """
    return chain.from_iterable(_rounds(store, executor, last))


def _rounds(store: Store, executor: Executor, last: int | None) -> Iterator[Iterator[Progress]]:
    """Yield the progress of each tuning round, then that of all later iterations."""
    total = store.spec.total_iterations if last is None else last
    for tuning_round in store.tuning.rounds:
        if tuning_round.last > total:
            break
        waiting = unfinished_batches(store, tuning_round.last)
        if waiting:
            yield executor.run(store.path, waiting, until=tuning_round.last)
        if unfinished_batches(store, tuning_round.last):
            return
        store.tuning.publish(tuning_round.number)
    yield executor.run(store.path, unfinished_batches(store, total), until=total)


def _publish_finished_rounds(store: Store) -> None:
    """Publish the records of finished rounds that are missing after a crash or a repair."""
    for tuning_round in store.tuning.rounds:
        if unfinished_batches(store, tuning_round.last):
            return
        store.tuning.publish(tuning_round.number)


def unfinished_batches(store: Store, iteration: int) -> list[int]:
    """Return the numbers of the batches that have not committed `iteration` iterations yet."""
    return [batch for batch, done in enumerate(store.all_progress()) if done.iteration < iteration]


def new_executor(store: Store, n_batches: int, options: RunOptions) -> Executor:
    """Return an executor with as many workers as n_batches batches have use for."""
    workers = options.workers
    if workers == 0:
        return InProcess()
    is_gpu = store.spec.device == "gpu"
    n_parts = store.spec.n_parts
    if options.address is None and not is_gpu:
        _remark_on_batches(store, workers)
        useful = n_batches if n_parts == 1 else n_parts
        workers = min(n_cores() if workers is None else workers, useful)
    try:
        return RayExecutor(
            workers=workers,
            address=options.address,
            max_failures=options.max_failures,
            gpus_per_worker=1 if is_gpu else 0,
            n_parts=n_parts,
        )
    except RayStartError as exc:
        _log.warning("%s. This run goes on without Ray, in one process", exc)
        return InProcess()


def _remark_on_batches(store: Store, workers: int | None) -> None:
    """Warn if more workers were asked for than the run has batches, and name the setting that gives more."""
    n_batches, chains = store.n_batches, store.n_chains
    if workers is None or workers <= n_batches or store.spec.n_parts > 1:
        return
    per_batch = max(1, chains // workers)
    more = -(-chains // per_batch)
    _log.warning(
        "%s: %d workers were asked for, but one samples a batch, and the %d chains are in %d batch%s; %s",
        store.path,
        workers,
        chains,
        n_batches,
        "es" if n_batches > 1 else "",
        f"a new run with chains_per_batch = {per_batch} has {more}"
        if more > n_batches
        else "use more chains",
    )


@contextmanager
def _observers(store: Store, executor: Executor, options: RunOptions) -> Iterator[list[JsonLog | RayMetrics]]:
    """Yield the observers of progress other than the display: a log, and the metrics of a cluster."""
    with ExitStack() as stack:
        observers: list[JsonLog | RayMetrics] = []
        if options.log_format == "json":
            observers.append(stack.enter_context(JsonLog(store, lambda: executor.failures)))
        if options.address is not None:
            observers.append(stack.enter_context(RayMetrics(store, lambda: executor.failures)))
        yield observers


@contextmanager
def _stop_at(executor: Executor, deadline: float) -> Iterator[None]:
    """Request a stop at a time on the monotonic clock."""
    if math.isinf(deadline):
        yield
        return
    timer = threading.Timer(max(0.0, deadline - time.monotonic()), executor.request_stop)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def show_progress(store: Store, shown: Display, reported_kernels: set[str], progress: Progress) -> None:
    """Show progress, and warn once for each different kernel that workers on other machines use.

    For this machine, resuming.compare_kernel warns before anything is run.
    """
    is_elsewhere = progress.worker.partition(" ")[0] != gethostname()
    if progress.other_kernel and is_elsewhere and progress.other_kernel not in reported_kernels:
        reported_kernels.add(progress.other_kernel)
        _log.warning(
            "%s: the run started with the kernel %s, which %s does not have; it continues with %s: draws are"
            " as correct, but not bit for bit those of the first kernel",
            store.path,
            store.root.kernel,
            progress.worker,
            progress.other_kernel,
        )
    shown.update(progress)


def _how_to_go_on(store: Store) -> str:
    done = min(progress.iteration for progress in store.all_progress())
    return (
        f"stopped: {done} of {store.spec.total_iterations} iterations of every chain are committed;"
        f" continue with: rayfbnn resume {shlex.quote(str(store.path))}"
    )


def summarized(store: Store, failures: int) -> RunSummary:
    """Return the counts of a store, and the number of workers that died."""
    updates = store.updates()
    return RunSummary(
        path=str(store.path),
        chains=store.n_chains,
        draws=store.committed_draws,
        acceptance=updates.kept.acceptance,
        warmup_acceptance=updates.warmup.acceptance,
        divergences=updates.kept.divergences,
        warmup_divergences=updates.warmup.divergences,
        failures=failures,
        word=word_for_chains(store),
    )
