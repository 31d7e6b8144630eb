"""The status of a run: the progress and speed of its batches, and who is at work, as records and as text.

Any machine that can read the store can ask. Nothing is locked or changed. A driver shows the same text as its
progress, with what its workers have reported since the last commits.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rayfbnn.errors import StoreError
from rayfbnn.output.facts import Answer, Fact, Paragraph, TableFact
from rayfbnn.run.estimate import Pace, iterations_by_phase, n_at_work, relative_times, round_with_own_pace
from rayfbnn.store.hierarchy import METADATA
from rayfbnn.store.locking import has_lock_open, read_holder
from rayfbnn.store.records import SECONDS, BatchProgress, Record, RunUpdates
from rayfbnn.store.rounds import round_of, round_words, stage_words
from rayfbnn.store.store import Store

if TYPE_CHECKING:
    from rayfbnn.run.job import Progress

_RECENT = 5  # number of blocks that determine the speed of a batch in a phase
_QUIET = 5.0  # a batch without a commit for this many times its recent blocks' duration is not at work
_SKEW_SECONDS = 60.0  # the clocks of two machines may differ by this much
_CLOCK_SECONDS = 2.0  # the durations that they measure may differ by this much
_LEAST_SHARE = 0.9  # share of the seconds of all blocks that must have passed since the store was made
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
    acceptance
        Share of updates accepted in its last block; None before the first, and if nothing was proposed.
    divergences, warmup_divergences
        Number of updates that diverged in iterations kept for the posterior, and in all others.
    stage
        The round of tuning that it is in, such as "tuning 3/40"; None outside of rounds.
    seconds_since_commit
        Seconds since its last commit; None before the first commit, and if the times of the files cannot be
        those of the commits: in a copy of a store, or if the clocks of two machines disagree.
    seconds_of_block
        Mean seconds that workers took for its recent blocks, according to their records; None if these do
        not say.
    seconds_left
        Seconds until it is complete at the speed of its recent blocks, with as many batches at work as now;
        None if that is not known, or if nobody is known to be at work.
    """

    batch: int
    first_chain: int
    last_chain: int
    iteration: int
    draws: int
    acceptance: float | None = None
    divergences: int = 0
    warmup_divergences: int = 0
    stage: str | None = None
    seconds_since_commit: float | None = None
    seconds_of_block: float | None = None
    seconds_left: float | None = None


@dataclass(frozen=True)
class Status(Answer):
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
        Host and process id of the driver that has the store's lock, or had it when it was killed; None if
        no driver is on record.
    at_work
        Whether a driver is at work: True, False, or None if this machine cannot tell.
    complete
        Whether every batch has all its iterations.
    stage
        What a run of ladders is doing, such as "adapting levels, round 2 of 7"; None for other runs.
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
    stage: str | None = None

    @property
    def done(self) -> float:
        """Share of all iterations that are committed, from 0 to 1."""
        n_done = sum(batch.iteration for batch in self.batches)
        return n_done / (len(self.batches) * self.total_iterations)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the slowest batch is complete; None unless this is known for every batch."""
        left = [batch.seconds_left for batch in self.batches]
        known = [seconds for seconds in left if seconds is not None]
        return max(known) if len(known) == len(left) else None

    def facts(self) -> list[Fact]:
        """Return the progress of the run, its driver, and a table with a row for each batch."""
        first = "chains" if self.stage is None else "ladders"
        rows = [_batch_row(batch, self) for batch in self.batches]
        table = TableFact((first, *_HEADINGS), rows)
        return [Paragraph(progress_line(self)), Paragraph(_driver_text(self)), table]


@dataclass(frozen=True)
class _Course:
    """The course of a batch so far: its status without the time left, and the data for estimating that time.

    updates    acceptances and divergences of its committed blocks
    committed  time of the last commit by the clock of the storage; None if it is not known
    is_copied  whether its files belong to a copy
    newest     seconds of the last block; None if its record does not say
    pace       pace of its recent blocks
    is_ahead   whether a worker of this driver has done more than is committed
    """

    status: BatchStatus
    updates: RunUpdates = RunUpdates()
    committed: float | None = None
    is_copied: bool = False
    newest: float | None = None
    pace: Pace = field(default_factory=Pace)
    is_ahead: bool = False


def for_status(store: Store) -> Store:
    """Open a run's store again, to read its status: without cases, and without the draws of blocks."""
    return Store.open(store.path, fs=store.fs, check_records=False, headers_only=True)


def status_of(
    store: Store, now: float | None = None, *, latest: Mapping[int, Progress] | None = None
) -> Status:
    """Return the status of a store.

    now     the time in seconds since 1970
    latest  the latest progress of each batch at this process's workers, if this process is the driver
    """
    now = time.time() if now is None else now
    total = store.spec.total_iterations
    made = store.fs.modified(store.path / METADATA)
    seen = store.commits.look(range(store.n_batches))
    courses = [
        _course(store, store.commits.records(batch, seen=seen.get(batch)), batch, made, now)
        for batch in range(store.n_batches)
    ]
    driver: tuple[str, int] | None = socket.gethostname(), os.getpid()
    if latest is None:
        driver = _driver(store, is_copied=any(course.is_copied for course in courses))
    else:
        courses = [_with_news(store, course, latest.get(course.status.batch)) for course in courses]
    batches = tuple(course.status for course in courses)
    complete = all(batch.iteration >= total for batch in batches)
    at_work = False if driver is None else _is_at_work(driver, batches)
    updates = sum((course.updates for course in courses), RunUpdates()).kept
    return Status(
        path=str(store.path),
        total_iterations=total,
        total_draws=store.spec.kept_draws,
        batches=_with_times_left(store, courses) if at_work is True or complete else batches,
        acceptance=updates.acceptance,
        divergences=updates.divergences,
        driver=None if driver is None else f"{driver[0]} pid {driver[1]}",
        at_work=at_work,
        complete=complete,
        stage=None
        if store.spec.ladder is None
        else stage_words(store.spec, store.tuning.rounds, min(batch.iteration for batch in batches)),
    )


def status_if_driven(store: Store) -> Status | None:
    """Return the status of a store with a driver on record; None, at little cost, without one."""
    return None if _driver(store, is_copied=False) is None else status_of(store)


def _course(store: Store, records: list[Record], batch: int, made: float, now: float) -> _Course:
    chains, last = store.header.batch_chains(batch), records[-1] if records else None
    before = BatchProgress() if last is None else last.progress
    updates = store.commits.updates_until(last)
    n_accepted = before.last.get("n_accepted", 0.0)
    current = round_of(store.tuning.rounds, before.iteration + 1)
    status = BatchStatus(
        batch,
        chains[0],
        chains[-1],
        iteration=before.iteration,
        draws=before.draws,
        acceptance=before.last["accepted_sum"] / n_accepted if n_accepted else None,
        divergences=updates.kept.divergences,
        warmup_divergences=updates.warmup.divergences,
        stage=None if current is None else round_words(store.tuning.rounds, current),
    )
    if last is None:
        return _Course(status)
    committed: float | None = None
    with suppress(FileNotFoundError):  # the head is written at each commit, and never by gathering
        committed = store.fs.modified(store.commits.head_file(batch))
    is_copied = committed is not None and _is_copied(last, committed - made)
    if is_copied or (committed is not None and committed > now + _SKEW_SECONDS):  # or on a different clock
        committed = None
    status = replace(
        status,
        seconds_since_commit=None if committed is None else max(0.0, now - committed),
        seconds_of_block=_seconds_of_block(records),
    )
    return _Course(status, updates, committed, is_copied, _seconds_of_block([last]), _pace(store, records))


def _with_news(store: Store, course: _Course, news: Progress | None) -> _Course:
    """Return the course with the iterations that a worker has done since the last commit."""
    if news is None or news.iteration <= course.status.iteration:
        return course
    status = replace(
        course.status,
        iteration=news.iteration,
        draws=news.draws,
        acceptance=None if math.isnan(news.acceptance) else news.acceptance,
        divergences=news.divergences,
        warmup_divergences=news.warmup_divergences,
    )
    own_round = round_with_own_pace(store, news.iteration)
    pace = course.pace.after(news.phase, news.seconds, news.block_iterations, own_round)
    return replace(course, status=status, pace=pace, is_ahead=not news.committed)


def _n_blocks(record: Record) -> int:
    return record.block - record.first_block + 1


def _seconds_of_block(records: Sequence[Record]) -> float | None:
    newest = records[-1].block
    recent = [record for record in records if newest - record.block < _RECENT]
    if not all(SECONDS in record.progress.last for record in recent):
        return None
    seconds = sum(record.progress.last[SECONDS] for record in recent)
    return seconds / sum(map(_n_blocks, recent)) if math.isfinite(seconds) else None


def _pace(store: Store, records: Sequence[Record]) -> Pace:
    """Return the seconds of the iterations of each phase, in the recent blocks of the phase."""
    left = dict.fromkeys(range(len(store.spec.phase)), _RECENT)  # blocks of each phase that may still count
    recent: list[tuple[int, float, int, int | None]] = []
    for record in reversed(records):
        seconds = record.progress.last.get(SECONDS, math.nan)
        phases = iterations_by_phase(store.spec, record.first_iteration, record.progress.iteration)
        own_round = round_with_own_pace(store, record.first_iteration)
        for phase, count in phases.items():
            if left[phase] > 0 and math.isfinite(seconds):
                recent.append((phase, seconds * count / record.n_iterations, count, own_round))
            left[phase] -= _n_blocks(record)
    pace = Pace()
    for block in reversed(recent):
        pace = pace.after(*block)
    return pace


def _with_times_left(store: Store, courses: Sequence[_Course]) -> tuple[BatchStatus, ...]:
    """Return the status of each batch with the time that it has left.

    If fewer batches are at work than are incomplete, they take turns: each has its share of the workers, and
    all together need the sum of their times, divided among the workers.
    """
    times, total = relative_times(store), store.spec.total_iterations
    known = next((course.pace for course in courses if course.pace), Pace())

    def alone(course: _Course) -> float:
        """Return the seconds that one worker needs. A batch that has not started counts as like another."""
        pace = course.pace or known
        seconds, is_known = pace.seconds_of(store.spec, times, course.status.iteration + 1, total)
        return seconds if is_known or (store.spec.fit is not None and seconds) else math.nan

    unfinished = [course for course in courses if course.status.iteration < total]
    commits = [(one.committed, one.newest or 0.0) for one in unfinished if one.committed is not None]
    n_workers = max(n_at_work(commits), sum(course.is_ahead for course in courses))
    all_together = sum(map(alone, unfinished)) / n_workers
    share = max(1.0, len(unfinished) / n_workers)
    statuses = []
    for course in courses:
        own = alone(course)
        left = max(own, min(own * share, all_together)) if math.isfinite(all_together) else None
        is_complete = course.status.iteration >= total
        statuses.append(replace(course.status, seconds_left=0.0 if is_complete else left))
    return tuple(statuses)


def _is_copied(last: Record, passed: float) -> bool:
    """Return True if the times of a store's files cannot be those of the run, and are those of a copy.

    passed  seconds from the root to the last commit of a batch; its blocks cannot have taken longer
    """
    seconds = last.progress.totals.get(SECONDS, 0.0)
    return math.isfinite(seconds) and passed < _LEAST_SHARE * seconds - _CLOCK_SECONDS


def _driver(store: Store, *, is_copied: bool) -> tuple[str, int] | None:
    """Return the host and process id on record for the driver; None without a readable record.

    The record in a copy may name the driver of the original.
    """
    try:
        holder = read_holder(store.fs, store.path)
    except (FileNotFoundError, StoreError):
        return None
    if is_copied and not (holder.host == socket.gethostname() and has_lock_open(store.path, holder.pid)):
        return None
    return holder.host, holder.pid


def _is_at_work(driver: tuple[str, int], batches: tuple[BatchStatus, ...]) -> bool | None:
    """Return whether the driver on record is at work.

    On the driver's machine this looks for its process. On other machines recent commits show that it is at
    work; without them, a dead driver looks the same as one with long blocks.
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
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """Return True if a process has ended but was not waited for; in a container it may stay so forever."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] == "Z"


_HEADINGS = (
    "iteration",
    "draws",
    "acceptance",
    "divergences",
    "last commit",
    "block takes",
    "time left",
)


def progress_line(status: Status) -> str:
    """Return the line of a run: the share of its iterations that is done, and when it will be complete."""
    return f"{status.path}: {_progress_text(status)}"


def _progress_text(status: Status) -> str:
    if status.complete:
        of_each = "chain" if status.stage is None else "ladder"
        return f"complete, {status.total_draws:,} draws of each {of_each}"
    left = status.seconds_left
    end = "" if left is None or status.at_work is not True else f", complete in {_time(left)}"
    acceptance = "" if status.acceptance is None else f", acceptance {status.acceptance:.0%}"
    stage = "" if status.stage is None else f", {status.stage}"
    return f"{status.done:.1%} done{stage}{acceptance}, divergences {status.divergences}{end}"


def _driver_text(status: Status) -> str:
    if status.driver is None:
        return "nobody is at work" if status.complete else "nobody is at work; continue with: rayfbnn resume"
    if status.at_work is None:
        return f"the last driver was {status.driver}; this machine cannot tell whether it is still at work"
    if status.at_work:
        return f"at work: {status.driver}"
    return f"nobody is at work: {status.driver} was killed; continue with: rayfbnn resume"


def _batch_row(batch: BatchStatus, status: Status) -> tuple[str, ...]:
    ago = batch.seconds_since_commit
    unknown = "unknown" if batch.iteration else "-"  # before the first commit nothing has been measured
    no_time = "unknown" if status.at_work else "-"
    return (
        f"{batch.first_chain}-{batch.last_chain}",
        f"{batch.iteration}/{status.total_iterations}{f', {batch.stage}' if batch.stage else ''}",
        f"{batch.draws}/{status.total_draws}",
        "-" if batch.acceptance is None else f"{batch.acceptance:.2f}",
        f"{batch.divergences} (warm-up {batch.warmup_divergences})",
        unknown if ago is None else f"{_time(ago)} ago",
        unknown if batch.seconds_of_block is None else _time(batch.seconds_of_block),
        no_time if batch.seconds_left is None else _time(batch.seconds_left),
    )


def _time(seconds: float) -> str:
    for size, unit in ((86_400, "days"), (3600, "h")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    if seconds >= 120:
        return f"{seconds / 60:.0f} min"
    return f"{seconds:.3g} s" if seconds < 10 else f"{seconds:.0f} s"
