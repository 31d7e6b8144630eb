"""The status of a run, from its store alone: how far each batch is, how fast, and whether anyone is at work.

Any machine that reads the store can ask. Nothing is locked or changed.
"""

from __future__ import annotations

import math
import os
import socket
import time
from dataclasses import dataclass

from rayfbnn.errors import StoreError
from rayfbnn.run.estimate import current_costs, work
from rayfbnn.store.locking import read_holder
from rayfbnn.store.records import Record
from rayfbnn.store.store import Store

_RECENT = 5  # blocks of a batch, from which its speed is taken
_QUIET = 5.0  # times as long as its recent blocks took: a batch without a commit for so long is not at work
_LEAST_QUIET = 120.0  # seconds; short blocks may wait for a disk, or for other batches


@dataclass(frozen=True)
class BatchStatus:
    """The status of one batch of chains.

    Attributes
    ----------
    batch
        Number of the batch.
    first_chain, last_chain
        Numbers of its chains.
    iteration
        Number of iterations that are committed.
    draws
        Number of committed draws of the posterior in each chain.
    seconds_since_commit
        Seconds since its last commit; None before the first.
    seconds_of_block
        Mean seconds between its recent commits; None before the second.
    seconds_left
        Seconds until it is complete at the speed of its recent blocks; None where that is not known.
    """

    batch: int
    first_chain: int
    last_chain: int
    iteration: int
    draws: int
    seconds_since_commit: float | None = None
    seconds_of_block: float | None = None
    seconds_left: float | None = None


@dataclass(frozen=True)
class Status:
    """The status of a run.

    Attributes
    ----------
    path
        The store.
    total_iterations, total_draws
        Numbers of iterations and draws that each chain will have.
    batches
        The status of each batch.
    acceptance, divergences
        Mean share of updates accepted, and number that diverged, in iterations kept for the posterior.
    driver
        Host and process id of the driver that has the store's lock, or had it when it was killed; None
        where no driver is on record.
    at_work
        Whether a driver is at work: True, False, or None where this machine cannot tell.
    complete
        Whether every batch has all its iterations.
    """

    path: str
    total_iterations: int
    total_draws: int
    batches: tuple[BatchStatus, ...]
    acceptance: float | None
    divergences: int
    driver: str | None
    at_work: bool | None
    complete: bool

    @property
    def done(self) -> float:
        """Share of all iterations that are committed, from 0 to 1."""
        n_done = sum(batch.iteration for batch in self.batches)
        return n_done / (len(self.batches) * self.total_iterations)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the slowest batch is complete; None where that is not known of every batch."""
        left = [batch.seconds_left for batch in self.batches]
        known = [seconds for seconds in left if seconds is not None]
        return max(known) if len(known) == len(left) else None


def status_of(store: Store, now: float | None = None) -> Status:
    """Return the status of a store; `now` is the time in seconds since 1970."""
    now = time.time() if now is None else now
    costs = current_costs(store)
    batches = tuple(_batch_status(store, batch, costs, now) for batch in range(store.n_batches))
    updates = store.updates().kept
    complete = all(batch.iteration >= store.spec.total_iterations for batch in batches)
    driver = _driver(store)
    return Status(
        path=str(store.path),
        total_iterations=store.spec.total_iterations,
        total_draws=store.spec.kept_draws,
        batches=batches,
        acceptance=updates.acceptance,
        divergences=updates.divergences,
        driver=None if driver is None else f"{driver[0]} pid {driver[1]}",
        at_work=False if driver is None else _is_at_work(driver, batches),
        complete=complete,
    )


def _batch_status(store: Store, batch: int, costs: list[int], now: float) -> BatchStatus:
    chains = store.batch_chains(batch)
    last = store.last_record(batch)
    common = {"batch": batch, "first_chain": chains[0], "last_chain": chains[-1]}
    if last is None:
        return BatchStatus(**common, iteration=0, draws=0)
    recent = list(store.commits.all(batch))[-_RECENT - 1 :]
    earlier, committed = recent[0], _committed_at(store, recent[-1])
    seconds, n_blocks = committed - _committed_at(store, earlier), recent[-1].block - earlier.block
    left = None
    if n_blocks and seconds > 0:
        before = earlier.progress.iteration
        done = work(store.spec, costs, last.progress.iteration)
        rate = (done - work(store.spec, costs, before)) / seconds
        left = (work(store.spec, costs, store.spec.total_iterations) - done) / rate if rate > 0 else math.nan
    return BatchStatus(
        **common,
        iteration=last.progress.iteration,
        draws=last.progress.draws,
        seconds_since_commit=max(0.0, now - committed),
        seconds_of_block=seconds / n_blocks if n_blocks else None,
        seconds_left=left,
    )


def _committed_at(store: Store, record: Record) -> float:
    """Return the time at which a block was committed, or gathered, by the clock of the storage.

    A block that was gathered since its record was read was so just now.
    """
    try:
        return store.fs.modified(store.commits.file_of(record))
    except FileNotFoundError:
        return time.time()


def _driver(store: Store) -> tuple[str, int] | None:
    """Return host and process id on record for the driver; None without a record that can be read."""
    try:
        holder = read_holder(store.fs, store.path)
    except (FileNotFoundError, StoreError):
        return None
    return holder.host, holder.pid


def _is_at_work(driver: tuple[str, int], batches: tuple[BatchStatus, ...]) -> bool | None:
    """Return whether the driver on record is at work.

    On its own machine its process is looked for. Elsewhere recent commits show that it is; without them
    nobody can tell a driver that died from one whose blocks are long.
    """
    host, pid = driver
    if host == socket.gethostname():
        return _is_alive(pid)
    quiet = [
        batch.seconds_since_commit > max(_LEAST_QUIET, _QUIET * (batch.seconds_of_block or 0.0))
        for batch in batches
        if batch.seconds_since_commit is not None
    ]
    return True if quiet and not all(quiet) else None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
