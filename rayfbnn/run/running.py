"""Runs the batches of a store to the end, or in rounds, with workers, a display and signal handlers."""

from __future__ import annotations

import logging
import math
import shlex
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from socket import gethostname
from typing import Any, Literal, Self, TypeAlias

from rayfbnn.errors import RayStartError
from rayfbnn.output.facts import Answer, Paragraph, updates_text
from rayfbnn.run.executor import Executor, InProcess
from rayfbnn.run.hardware import n_cores
from rayfbnn.run.job import Progress
from rayfbnn.run.on_ray.executor import RayExecutor
from rayfbnn.run.on_ray.metrics import RayMetrics
from rayfbnn.run.progress import JsonLog, Observer, display
from rayfbnn.run.signals import GRACE_SECONDS, stop_on_signal
from rayfbnn.spec import RunSpec
from rayfbnn.store.store import Store, word_for_chains

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
class RunSummary(Answer):
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

    def facts(self) -> list[Paragraph]:
        """Return a sentence: store, chains, draws, acceptance, divergences, replaced workers.

        A run in rounds that is not ok also gets the command to go on, or the reason that this would not help.
        """
        draws = f"{self.chains} {self.word} of {self.draws:,} draws"
        updates = updates_text(
            self.acceptance, self.warmup_acceptance, self.divergences, self.warmup_divergences
        )
        replaced = f", {self.failures} workers replaced" if self.failures else ""
        store = shlex.quote(self.path)
        way = f"; not ok; continue with: rayfbnn resume {store} --until ok --max-time 30m"
        if self.obstacle:
            why = f"more iterations would not help, because {self.obstacle}"
            way = f"; not ok; {why}; what to do: rayfbnn diagnose {store}"
        return [Paragraph(f"{self.path}: {draws}, {updates}{replaced}{way if self.ok is False else ''}")]


_SECONDS_HERE = 10.0  # Ray takes 8 to 15 to start


class Loop:
    """Advances a store to a goal, an iteration of all chains, and then to the next one if it is in rounds.

    The first goal that leaves work starts the workers, which are kept for later goals. In this process
    nothing is kept, because the verdict between two rounds may then use all cores. A KeyboardInterrupt in the
    context gets a message on how to continue.
    """

    def __init__(
        self,
        store: Store,
        options: RunOptions,
        *,
        deadline: float = math.inf,
        in_rounds: bool = False,
        starts_here: bool = False,
        executor: Executor | None = None,
    ) -> None:
        """Prepare to run a locked store until the deadline, a time on the monotonic clock.

        in_rounds    whether further goals may follow
        starts_here  whether the first seconds are run in this process, if the user leaves the workers open: a
                     run of a few seconds may be all that is needed, and workers take longer to start
        executor     runs all batches, and is left open; by default the options say who does
        """
        self._store, self._deadline, self._in_rounds = store, deadline, in_rounds
        self._ways = [(math.inf, options)]
        is_open = options.workers is None and options.address is None and store.spec.device == "cpu"
        if starts_here and is_open and store.spec.n_parts == 1:
            # A single worker would do no more than this process.
            seconds = math.inf if store.n_batches == 1 else _SECONDS_HERE
            self._ways.insert(0, (time.monotonic() + seconds, replace(options, workers=0)))
        self._kept, self._is_interrupted = executor, threading.Event()
        self._context = ExitStack()
        self._context.enter_context(_advice_on_interrupt(store))

    def run(self, last: int) -> RunSummary:
        """Run every batch up to the iteration `last`, and return a summary of the store.

        At the deadline the run ends early, but without an error. After a signal KeyboardInterrupt is raised,
        in rounds even if everything was done, because more rounds may follow.
        """
        store, failures = self._store, 0
        for end, options in self._ways:
            if time.monotonic() >= end:
                continue
            _publish_finished_rounds(store)
            batches = unfinished_batches(store, last)
            if not batches:
                with Gathering(store) as gathering:
                    gathering.all()
                break
            deadline = min(end, self._deadline)
            with self._observed(len(batches), options, deadline) as (executor, observers):
                for latest in run_rounds(store, executor, last=last):
                    for observer in observers:
                        observer.update(latest)
            failures += executor.failures
            is_early = bool(unfinished_batches(store, last))
            if self._is_interrupted.is_set() and (is_early or self._in_rounds):
                raise KeyboardInterrupt
            if is_early and time.monotonic() < deadline:
                raise KeyboardInterrupt
            if not is_early or time.monotonic() >= self._deadline:
                break
        return _summary(store, failures)

    @contextmanager
    def _observed(
        self, n_batches: int, options: RunOptions, deadline: float
    ) -> Iterator[tuple[Executor, list[Observer]]]:
        """Yield the executor and the observers of its progress; gather all batches at the end."""
        store = self._store
        with ExitStack() as stack:
            shown = stack.enter_context(display(store, show=options.progress))
            # Later rounds run every batch.
            n_batches = store.n_batches if self._in_rounds else n_batches
            executor = stack.enter_context(self._executor(n_batches, options))
            stack.enter_context(stop_on_signal(partial(self._interrupt, executor), shown.note))
            stack.enter_context(_stop_at(executor, deadline))
            observers: list[Observer] = [OtherKernels(store), shown]
            if options.log_format == "json":
                observers.append(stack.enter_context(JsonLog(store, lambda: executor.failures)))
            if options.address is not None:
                observers.append(stack.enter_context(RayMetrics(store, lambda: executor.failures)))
            gathering = stack.enter_context(Gathering(store))
            yield executor, [*observers, gathering]
            gathering.all()  # in this context, because a scheduler's second signal must not end it

    def _interrupt(self, executor: Executor) -> None:
        self._is_interrupted.set()
        executor.request_stop(GRACE_SECONDS)

    @contextmanager
    def _executor(self, n_batches: int, options: RunOptions) -> Iterator[Executor]:
        if self._kept is None and options.workers == 0:
            with new_executor(self._store, n_batches, options) as executor:
                yield executor
            return
        if self._kept is None:
            self._kept = self._context.enter_context(new_executor(self._store, n_batches, options))
        yield self._kept

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._context.__exit__(*error)


def _summary(store: Store, failures: int) -> RunSummary:
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


@contextmanager
def _advice_on_interrupt(store: Store) -> Iterator[None]:
    """Give a KeyboardInterrupt a message on how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"stopped: {store.done} of {store.spec.total_iterations} iterations of every chain are committed;"
            f" continue with: rayfbnn resume {shlex.quote(str(store.path))}"
        ) from None


def run_rounds(store: Store, executor: Executor, *, last: int | None = None) -> Iterator[Progress]:
    """Run every batch up to the iteration `last`, by default to the end; yield progress as it is made.

    The progress is yielded after each iteration and each commit.
    Between tuning rounds all batches wait until the next settings are published. Only the process that holds
    the store's lock may run this, because it alone publishes settings. The iterator ends early if the
    executor is asked to stop.
    """
    return chain.from_iterable(_rounds(store, executor, last))


def _rounds(store: Store, executor: Executor, last: int | None) -> Iterator[Iterator[Progress]]:
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
def _stop_at(executor: Executor, deadline: float) -> Iterator[None]:
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


class OtherKernels(Observer):
    """Warns once for each different kernel that workers on other machines use.

    For this machine, resuming.compare_kernel warns before anything is run.
    """

    def __init__(self, store: Store) -> None:
        self._store, self._reported = store, set[str]()

    def update(self, progress: Progress) -> None:
        """Warn if the worker has another kernel than the run started with."""
        kernel, store = progress.other_kernel, self._store
        is_elsewhere = progress.worker.partition(" ")[0] != gethostname()
        if kernel and is_elsewhere and kernel not in self._reported:
            self._reported.add(kernel)
            _log.warning(
                "%s: the run started with the kernel %s, which %s does not have; it continues with %s: draws"
                " are as correct, but not bit for bit those of the first kernel",
                store.path,
                store.root.kernel,
                progress.worker,
                kernel,
            )


_THREADS = 4
_BLOCKS_BETWEEN_LOOKS = 64


class Gathering(Observer):
    """Gathers the batches whose chunks may be full; the store must be locked until the context ends.

    A batch is gathered by one thread at a time. If it may have another full chunk meanwhile, it is gathered
    once more. An error of a thread is raised by the next call, or at the end of the context. The context ends
    when no thread works any more. If an error ends it, batches that were waiting are left to the next driver.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._n_blocks: Counter[int] = Counter()  # by batch, seen by this driver
        self._running: dict[int, Future[None]] = {}  # by batch
        self._again: set[int] = set()

    def update(self, latest: Progress) -> None:
        """Gather the blocks of a batch if its latest commit may have filled a chunk."""
        self._go_on()
        if not latest.committed:
            return
        self._n_blocks[latest.batch] += 1
        if self._may_have_full_chunk(latest):
            self._again.add(latest.batch)
            self._go_on()

    def all(self) -> None:
        """Gather everything that the batches have committed, because Zarr readers see only chunks."""
        self._wait()
        for batch in range(self._store.n_batches):
            self._start(batch, everything=True)
        self._wait()

    def _may_have_full_chunk(self, latest: Progress) -> bool:
        """Return True at the end of a chunk or of a section, and otherwise at every 64th block.

        The worker's message tells this, so the store need not be asked.
        """
        spec, size = self._store.spec, self._store.header.draws_per_chunk
        sections = ((latest.draws, spec.kept_draws), (_warmup_draws(spec, latest), spec.warmup_draws))
        is_full = any(n and (n % size == 0 or n == planned) for n, planned in sections)
        return is_full or self._n_blocks[latest.batch] % _BLOCKS_BETWEEN_LOOKS == 0

    def _start(self, batch: int, *, everything: bool = False) -> None:
        self._running[batch] = self._threads.submit(self._store.gather, batch, everything=everything)

    def _go_on(self) -> None:
        """Raise the error of a thread, if any, and start what waited for the end of its batch."""
        for batch, future in list(self._running.items()):
            if future.done():
                del self._running[batch]
                future.result()
        for batch in sorted(self._again - self._running.keys()):
            self._again.discard(batch)
            self._start(batch)

    def _wait(self) -> None:
        while self._running:
            next(iter(self._running.values())).exception()
            self._go_on()

    def __enter__(self) -> Self:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="gathering")
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        try:
            if kind is None:
                self._wait()
        finally:
            self._threads.shutdown(wait=True, cancel_futures=True)


def _warmup_draws(spec: RunSpec, latest: Progress) -> int:
    n_draws = before = 0
    for phase in spec.phase:
        if phase.keep == "warmup":
            n_draws += max(0, min(phase.iterations, latest.iteration - before))
        before += phase.iterations
    return n_draws
