"""One driver of a study: it runs members that no other driver is running, and decides when a look is due.

Several drivers may work on one study, on one machine or many. A driver takes a member by locking its store.
A decision is a file that is written once, and its bytes follow from the draws. Therefore it does not matter
which driver does which work, how often, or which of them is killed meanwhile.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from rayfbnn.errors import SamplingError, StoreBusyError, StoreMismatchError
from rayfbnn.output.printing import say
from rayfbnn.run.running import RunOptions
from rayfbnn.study.looks import Due
from rayfbnn.study.members import Member
from rayfbnn.study.study_status import look_head
from rayfbnn.verbs.sampling import resume
from rayfbnn.version import difference

if TYPE_CHECKING:
    from rayfbnn.study.files import StudyFiles

_WAIT_SECONDS = 2.0  # if other drivers have all remaining members


def show(lines: Iterable[str], options: RunOptions) -> None:
    """Run a driver to its end, and print its lines on standard error if the progress is shown."""
    for line in lines:
        if options.progress:
            say(line)


def drive(
    study: StudyFiles, options: RunOptions, sleep: Callable[[float], None] = time.sleep
) -> Iterator[str]:
    """Run members and decide, until no configuration has a look that is due. Yield a line on each step.

    Raises StoreMismatchError if a look is due and the study was made by another version.
    """
    known = _Known(study)
    while True:
        due = study.due()
        if not due:
            return
        _check_version(study)
        has_worked = False
        for configuration, look in due.items():
            has_worked |= yield from _advance(study, known, configuration, look, options)
            if known.all_ready(configuration, look):
                decision = study.decide(configuration, look)
                has_worked = True
                if decision is not None:
                    yield _label(study, configuration) + look_head(decision)
        if not has_worked:
            sleep(_WAIT_SECONDS)


def _check_version(study: StudyFiles) -> None:
    """Raise StoreMismatchError for a study of another version or other results: new draws might differ."""
    if words := difference(study.plan.version, study.plan.results):
        raise StoreMismatchError(
            f"{study.place}: {words}, and its draws may differ; run it with the version that made it"
        )


class _Known:
    """What a driver remembers of the members, so that it need not open each store while it waits.

    Which members are ready for a look, and which another driver is sampling. A busy member is opened again
    when its lock has become free.
    """

    def __init__(self, study: StudyFiles) -> None:
        self._study = study
        self._ready: set[tuple[Member, int]] = set()  # with the number of the look
        self._busy: set[Member] = set()

    def needs_work(self, member: Member, look: Due) -> bool:
        """Return True if a member is not ready for a look, and no driver is known to be sampling it."""
        if (member, look.number) in self._ready:
            return False
        if member in self._busy and self._study.members.is_busy(member):
            return False
        self._busy.discard(member)
        if not self._study.is_ready(member, look):
            return True
        self.found_ready(member, look)
        return False

    def found_ready(self, member: Member, look: Due) -> None:
        """Remember that a member is ready for a look."""
        self._ready.add((member, look.number))

    def found_busy(self, member: Member) -> None:
        """Remember that another driver is sampling a member."""
        self._busy.add(member)

    def all_ready(self, configuration: int, look: Due) -> bool:
        """Return True if all members are ready for a look. If they are known to be, they are asked again."""
        members = [Member(configuration, seed) for seed in look.seeds]
        if any((member, look.number) not in self._ready for member in members):
            return False
        lost = [member for member in members if not self._study.is_ready(member, look)]
        self._ready -= {(member, look.number) for member in lost}
        return not lost


def _advance(
    study: StudyFiles, known: _Known, configuration: int, look: Due, options: RunOptions
) -> Generator[str, None, bool]:
    """Bring members to the length of a look, except those of other drivers; return True if any was."""
    has_worked = False
    start = os.getpid() % len(look.seeds)  # drivers that start together begin at different members
    for seed in (*look.seeds[start:], *look.seeds[:start]):
        member = Member(configuration, seed)
        if not known.needs_work(member, look):
            continue
        try:
            _run(study, member, look, options)
        except StoreBusyError:
            known.found_busy(member)
            continue
        except SamplingError as exc:
            place = study.members.place(member)
            study.members.fail(member, str(exc).removeprefix(f"{place}: "))
        known.found_ready(member, look)
        has_worked = True
        reason = study.members.failure(member)
        what = f"has {look.iterations} iterations" if reason is None else f"failed: {reason}"
        yield f"{_label(study, configuration)}look {look.number}: seed {seed} {what}"
    return has_worked


def _run(study: StudyFiles, member: Member, look: Due, options: RunOptions) -> None:
    """Sample a member until its last phase has the iterations of a look.

    Raises StoreBusyError if another driver is sampling it.
    """
    if not study.members.is_there(member):
        study.members.create(member, look.iterations)
    store = study.members.open(member)
    resume(
        str(store.path),
        iterations=max(look.iterations, store.spec.phase[-1].iterations),
        **asdict(replace(options, progress=False)),
    )


def _label(study: StudyFiles, configuration: int) -> str:
    """Return the start of a line that names a configuration, or "" if the study has only one."""
    return f"{study.configurations[configuration].label}: " if len(study.configurations) > 1 else ""
