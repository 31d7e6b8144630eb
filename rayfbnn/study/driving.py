"""The driver of a study, which brings members to their looks, here or on the executor of runs, and decides.

Several drivers may work on one study, on one machine or many. A driver takes a member by locking its store.
A decision is a file that is written once, and its bytes follow from the draws. Therefore it does not matter
which driver does which work, how often, or which of them is killed meanwhile.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from rayfbnn.errors import RayStartError, SamplingError, StoreBusyError, StoreMismatchError
from rayfbnn.output.printing import say, say_from_handler
from rayfbnn.run.executor import Executor, InProcess
from rayfbnn.run.hardware import n_cores
from rayfbnn.run.on_ray.actors import Worker
from rayfbnn.run.on_ray.executor import RayExecutor
from rayfbnn.run.resuming import take_up
from rayfbnn.run.running import Loop, RunOptions
from rayfbnn.run.signals import GRACE_SECONDS, stop_on_signal
from rayfbnn.study.files import Due, StudyFiles
from rayfbnn.study.plan import Member
from rayfbnn.study.study_status import first_line, look_head, status_of_study
from rayfbnn.verbs.sampling import checked_store
from rayfbnn.version import difference

_log = logging.getLogger(__name__)
_WAIT_SECONDS = 2.0  # if other drivers have all remaining members


def run_study(study: StudyFiles, options: RunOptions) -> None:
    """Run a study until no look is due, and print lines on standard error if the progress is shown.

    Raises KeyboardInterrupt if a signal ended it early.
    """
    n_members = sum(len(due.seeds) for due in study.due().values())
    if n_members == 0:
        return
    executor = None if options.workers == 0 else _executor(study, options, n_members)
    if executor is None:
        options, how = replace(options, workers=0), "one member after another in this process"
    elif options.address is None:
        how = f"in {executor.n_workers} process{'es' if executor.n_workers > 1 else ''}"
    elif executor.n_workers <= n_members:
        how = f"by {executor.n_workers} workers of the cluster"
    else:
        executor, how = None, "the workers of the cluster share the batches of a member"
    if options.progress:
        say(first_line(status_of_study(study), how))
    for line in drive(study, options) if executor is None else _drive_on(executor, study, options):
        if options.progress:
            say(line)


def _executor(study: StudyFiles, options: RunOptions, n_members: int) -> RayExecutor | None:
    """Return an executor for members, on this machine with at most one worker for each; None without Ray."""
    workers = options.workers
    if options.address is None:
        workers = min(workers or n_cores(), n_members)
    try:
        return RayExecutor(
            workers=workers,
            address=options.address,
            max_failures=options.max_failures,
            gpus_per_worker=1 if study.members.with_cases().spec.device == "gpu" else 0,
            worker_class=MemberWorker,
        )
    except RayStartError as exc:
        _log.warning("%s. This study goes on without Ray, in one process", exc)
        return None


def _drive_on(executor: RayExecutor, study: StudyFiles, options: RunOptions) -> Iterator[str]:
    """Drive a study on an executor. Yield a line on each step."""
    is_interrupted = threading.Event()

    def stop() -> None:
        is_interrupted.set()
        executor.request_stop(GRACE_SECONDS)

    def run(work: Iterable[Work]) -> Iterator[Ended]:
        yield from executor.run(study.place, list(work))
        if is_interrupted.is_set():
            raise KeyboardInterrupt("stopped; committed work is kept")

    with executor, stop_on_signal(stop, say_from_handler):
        yield from drive(study, replace(options, workers=0, address=None), run)


def drive(
    study: StudyFiles,
    options: RunOptions,
    run: Callable[[Iterable[Work]], Iterator[Ended]] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[str]:
    """Run members and decide, until no configuration has a look that is due. Yield a line on each step.

    run  yields how the work on each member ended; by default they are run here, one after another

    Raises StoreMismatchError if a look is due and the study was made by another version.
    """
    run = run or partial(map, partial(run_member, study))
    options, known = replace(options, progress=False), _Known(study)
    while due := study.due():
        if words := difference(study.plan.version, study.plan.results):
            raise StoreMismatchError(
                f"{study.place}: {words}, and its draws may differ; run it with the version that made it"
            )
        has_worked = False
        for ended in run(_work(known, dict(due), options)):
            member, look = ended.batch.member, ended.batch.look
            if ended.how in ("busy", "stopped"):
                continue
            has_worked = True
            known.ready.add((member, look.number))
            what = f"failed: {ended.reason}" if ended.reason else f"has {look.iterations} iterations"
            yield f"{_label(study, member.configuration)}look {look.number}: seed {member.seed} {what}"
            yield from _decisions(study, known, due, [member.configuration])
        n_due = len(due)
        yield from _decisions(study, known, due, list(due))
        if not has_worked and len(due) == n_due:
            sleep(_WAIT_SECONDS)


def _work(known: _Known, due: Mapping[int, Due], options: RunOptions) -> Iterator[Work]:
    """Yield the members that need work, unless other drivers have them."""
    for configuration, look in due.items():
        start = os.getpid() % len(look.seeds)  # drivers that start together begin at different members
        for seed in (*look.seeds[start:], *look.seeds[:start]):
            member = Member(configuration, seed)
            if known.needs_work(member, look):
                yield Work(member, replace(look, seeds=()), options)


def _decisions(
    study: StudyFiles, known: _Known, due: dict[int, Due], configurations: Sequence[int]
) -> Iterator[str]:
    """Decide on configurations with all members ready, and remove them from the ones that are due."""
    for number in configurations:
        if number in due and known.all_ready(number, due[number]):
            decision = study.decide(number, due.pop(number))
            if decision is not None:
                yield _label(study, number) + look_head(decision)


class _Known:
    """What a driver remembers of the members, so that it need not open each store while it waits.

    A store is opened only if its member is not known to be ready for a look, and no driver is sampling it.
    """

    def __init__(self, study: StudyFiles) -> None:
        self._study = study
        self.ready: set[tuple[Member, int]] = set()  # with the number of the look

    def needs_work(self, member: Member, look: Due) -> bool:
        """Return True if a member is not ready for a look, and no driver is known to be sampling it."""
        if (member, look.number) in self.ready or self._study.members.is_busy(member):
            return False
        if not self._study.is_ready(member, look):
            return True
        self.ready.add((member, look.number))
        return False

    def all_ready(self, configuration: int, look: Due) -> bool:
        """Return True if all members are ready for a look. If they are known to be, they are asked again."""
        members = [Member(configuration, seed) for seed in look.seeds]
        if any((member, look.number) not in self.ready for member in members):
            return False
        lost = [member for member in members if not self._study.is_ready(member, look)]
        self.ready -= {(member, look.number) for member in lost}
        return not lost


@dataclass(frozen=True)
class Work:
    """A member that needs the iterations of a look, of any seeds; an executor takes it as a batch."""

    member: Member
    look: Due
    options: RunOptions

    def __str__(self) -> str:
        return self.member.name


@dataclass(frozen=True)
class Ended:
    """The end of the work on a member, as the progress of an executor's batch.

    how     "busy" if another driver is sampling it, "stopped" if it does not have all iterations yet
    reason  why it failed
    """

    batch: Work
    how: Literal["ready", "failed", "busy", "stopped"]
    reason: str = ""
    committed: bool = True

    def has_done(self, until: int | None) -> bool:
        """Return False if another worker is to go on, because this one leaves its node."""
        return self.how != "stopped"


class MemberWorker(Worker):
    """The work of a Ray actor of a study: its blocks are members, each up to a look."""

    noun = "member"
    _study: StudyFiles | None = None
    _ended: Ended | None = None

    def run_block(self, batch: Any, division: object = None, until: int | None = None) -> Iterator[Any]:
        """Run a member to its look, and yield how it ended."""
        self._study = self._study or StudyFiles.open(self._store_path)
        with InProcess(self.should_stop) as executor:
            self._ended = run_member(self._study, batch, executor)
        yield self._ended

    def latest(self) -> Any:
        """Return how the latest work ended; None before its end."""
        return self._ended


def run_member(study: StudyFiles, work: Work, executor: Executor | None = None) -> Ended:
    """Sample a member until its last phase has the iterations of a look, on an executor or on a new one."""
    try:
        _sample(study, work, executor)
    except StoreBusyError:
        return Ended(work, "busy")
    except SamplingError as exc:
        place = study.members.place(work.member)
        study.members.fail(work.member, str(exc).removeprefix(f"{place}: "))
    reason = study.members.failure(work.member)
    if reason is not None:
        return Ended(work, "failed", reason)
    return Ended(work, "ready" if study.is_ready(work.member, work.look) else "stopped")


def _sample(study: StudyFiles, work: Work, executor: Executor | None) -> None:
    """Sample a member; StoreBusyError if another driver is sampling it."""
    if not study.members.is_there(work.member):
        study.members.create(work.member, work.look.iterations)
    store = study.members.open(work.member)
    length = max(work.look.iterations, store.spec.phase[-1].iterations)
    store, asked = checked_store(store.path, None, None, None, work.options, iterations=length)
    with store.lock():
        take_up(store, asked)
        # This executor may be asked to stop early, and that is no error.
        stopped = nullcontext() if executor is None else suppress(KeyboardInterrupt)
        with stopped, Loop(store, work.options, executor=executor) as loop:
            loop.run(store.spec.total_iterations)


def _label(study: StudyFiles, configuration: int) -> str:
    """Return the start of a line that names a configuration, or "" if the study has only one."""
    return f"{study.configurations[configuration].label}: " if len(study.configurations) > 1 else ""
