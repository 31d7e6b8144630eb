"""The status of a study, as records and as text, at one time or while the study runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from rayfbnn.errors import at_most_ten
from rayfbnn.output.facts import Answer, Lines
from rayfbnn.output.lines import table_text
from rayfbnn.run.estimate import clock_time
from rayfbnn.run.status import status_if_driven
from rayfbnn.study.files import Look, StudyFiles
from rayfbnn.study.plan import Member

if TYPE_CHECKING:
    from rayfbnn.study.files import Due


@dataclass(frozen=True)
class MemberStatus:
    """The status of a member.

    Attributes
    ----------
    seed
        Its seed.
    state
        "not begun", "under way", "ready" for the next look (or complete), or "failed".
    draws
        Number of draws that every chain has.
    reason
        Why it failed; "" if it did not.
    driver
        Host and process id of the driver that has it, or had it when it was killed; None without a driver.
    at_work
        Whether that driver is at work: True, False, or None if this machine cannot tell.
    iteration
        Number of iterations, of all phases together, that every chain has.
    needed
        Number that the next look needs, or that it has if its configuration is complete.
    seconds_left
        Seconds until it has the iterations that are planned, if a driver is at work on it and its recent
        blocks say how fast; otherwise None.
    """

    seed: int
    state: State
    draws: int = 0
    reason: str = ""
    driver: str | None = None
    at_work: bool | None = False
    iteration: int = 0
    needed: int = 0
    seconds_left: float | None = None

    @property
    def left(self) -> int:
        """Number of iterations that are missing for the next look."""
        return max(0, self.needed - self.iteration)

    @property
    def speed(self) -> float | None:
        """Iterations of all chains in a second; None unless a driver is at work on it."""
        return self.left / self.seconds_left if self.seconds_left and self.left else None


@dataclass(frozen=True)
class ConfigurationStatus:
    """The status of a configuration.

    Attributes
    ----------
    label
        The values that distinguish it from the others.
    members
        Its members.
    looks
        The looks that were taken.
    next_iterations
        Iterations of the last phase that the next look needs; None if the configuration is complete.
    """

    label: str
    members: tuple[MemberStatus, ...]
    looks: tuple[Look, ...]
    next_iterations: int | None

    @property
    def ok(self) -> bool | None:
        """True if it has converged, False if not; None before it is complete."""
        return None if self.next_iterations is not None else self.looks[-1].ok


@dataclass(frozen=True)
class StudyStatus(Answer):
    """The status of a study.

    Attributes
    ----------
    path
        Its folder.
    configurations
        Its configurations, in the order of the grid.
    """

    path: str
    configurations: tuple[ConfigurationStatus, ...]

    @property
    def ok(self) -> bool | None:
        """True if every configuration has converged, False if not; None before all are complete."""
        return verdict_of(self.configurations)

    def drivers(self, at_work: bool | None = True) -> list[str]:
        """Return the host and process id of each driver that has members.

        at_work  True for drivers that are at work, None for drivers about which this machine cannot tell
        """
        members = [member for one in self.configurations for member in one.members]
        return sorted({m.driver for m in members if m.driver is not None and m.at_work is at_work})

    def facts(self) -> list[Lines]:
        """Return a line for the study, one for its drivers, and some lines for each configuration."""
        return [Lines(_study_text(self))]


def verdict_of(configurations: Sequence[ConfigurationStatus]) -> bool | None:
    """Return True if all configurations have converged, False if not; None before all are complete."""
    verdicts = [one.ok for one in configurations]
    return None if None in verdicts else all(verdicts)


def status_of_study(study: StudyFiles) -> StudyStatus:
    """Return the status of a study. Nothing is locked or changed."""
    due, seeds = study.due(), study.seeds()
    configurations = []
    for configuration in study.configurations:
        number = configuration.number
        look = due.get(number)
        configurations.append(
            ConfigurationStatus(
                label=configuration.label,
                members=tuple(_member(study, Member(number, seed), look) for seed in seeds),
                looks=tuple(study.looks(number)),
                next_iterations=None if look is None else look.iterations,
            )
        )
    return StudyStatus(str(study.place), tuple(configurations))


def _member(study: StudyFiles, member: Member, due: Due | None) -> MemberStatus:
    reason = study.members.failure(member)
    needed = 0 if due is None else study.needed_iterations(member, due)
    if not study.members.is_there(member):
        state: State = "not begun" if reason is None else "failed"
        return MemberStatus(member.seed, state, reason=reason or "", needed=needed)
    store = study.members.open(member, headers_only=True)
    current = status_if_driven(store)
    iteration = store.done
    is_ready = due is None or study.is_ready(member, due)
    state = "failed" if reason is not None else "ready" if is_ready else "under way"
    return MemberStatus(
        seed=member.seed,
        state=state,
        draws=store.committed_draws,
        reason=reason or "",
        driver=None if current is None else current.driver,
        at_work=False if current is None else current.at_work,
        iteration=iteration,
        needed=needed or iteration,
        seconds_left=None if current is None or not current.at_work else current.seconds_left,
    )


def _study_text(status: StudyStatus) -> str:
    """Return a line for the study, one for its drivers, and a paragraph for each configuration."""
    verdict = {None: "not complete", True: "ok: all members agree", False: "not ok"}[status.ok]
    lines = [f"{status.path}: {verdict}"]
    at_work, perhaps = status.drivers(), status.drivers(None)
    if perhaps:
        lines.append(f"perhaps at work, on other machines: {counted_drivers(perhaps)}")
    if at_work or (status.ok is None and not perhaps):
        lines.append(f"at work: {counted_drivers(at_work)}")
    return "\n".join([*lines, *map(_paragraph, status.configurations)])


def counted_drivers(drivers: list[str]) -> str:
    """Return the number of drivers and their names."""
    if not drivers:
        return "no driver"
    return f"{len(drivers)} driver{'s' if len(drivers) > 1 else ''}: {', '.join(at_most_ten(drivers))}"


def _paragraph(configuration: ConfigurationStatus) -> str:
    states = [member.state for member in configuration.members]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    lines = [f"{configuration.label}: {len(states)} members: {counts}"]
    if configuration.next_iterations is not None:
        lines.append(f"  the next look needs {configuration.next_iterations} iterations of the last phase")
    lines += [look_text(look, indent="  ") for look in configuration.looks]
    return "\n".join(lines)


def look_head(look: Look) -> str:
    """Return a look in one line: draws, members, the largest R-hat and drift, and the decision."""
    rhat, drift = (
        "not known" if value is None else f"{value:.4g}" for value in (look.max_rhat, look.max_drift)
    )
    words = {"stop": "ok", "continue": "not ok, continuing", "end": "not ok"}[look.action]
    return (
        f"look {look.number}: {look.draws} draws of each chain of {len(look.seeds)} members,"
        f" largest nested R-hat {rhat}, largest shared drift {drift} sd: {words}"
    )


def look_text(look: Look, *, indent: str = "") -> str:
    """Return the lines of a look: its summary, and each reason that it was not ok."""
    return "\n".join([f"{indent}{look_head(look)}", *(f"{indent}  {reason}" for reason in look.reasons)])


_HEADINGS = ("seed", "state", "iteration", "draws", "iterations/s", "time left", "driver")
_FEWEST_ROWS = 5  # however low a terminal is


def progress_line(status: StudyStatus) -> str:
    """Return the progress of a study in one line: members, the share of the iterations, and the time left."""
    members = _unfinished_members(status)
    if not members:
        return f"{status.path}: complete, {'ok' if status.ok else 'not ok'}"
    ready = sum(member.state in ("ready", "failed") for member in members)
    at_work = sum(member.at_work is True for member in members)
    needed = sum(member.needed for member in members)
    done = sum(min(member.iteration, member.needed) for member in members)
    return (
        f"{status.path}: {ready} of {len(members)} members are ready for the next look, {at_work} at work,"
        f" {done / max(1, needed):.1%} of the iterations, time left {clock_time(seconds_left(status))}"
    )


def seconds_left(status: StudyStatus) -> float:
    """Return the seconds until all members are ready for the next look; NaN if nothing is known.

    The other members are assumed to follow at the total speed of the members at work.
    """
    members = _unfinished_members(status)
    at_work = [member for member in members if member.speed]
    rate = sum(member.speed or 0.0 for member in at_work)
    if not rate:
        return math.nan
    left = sum(member.left for member in members if member.state != "failed")
    return max(left / rate, *(member.seconds_left or 0.0 for member in at_work), 0.0)


def watch_text(status: StudyStatus, *, most_rows: int | None = None) -> str:
    """Return the line of a study, and a table with a row for each member.

    most_rows  the largest number of rows for a configuration; members at work are chosen first
    """
    lines = [progress_line(status)]
    room = None if most_rows is None else max(_FEWEST_ROWS, most_rows)
    for configuration in status.configurations:
        if len(status.configurations) > 1:
            lines.append(configuration.label)
        members = _shown(configuration.members, room)
        lines.append(table_text(_HEADINGS, [_row(member) for member in members]))
        if len(members) < len(configuration.members):
            lines.append(f"and {len(configuration.members) - len(members)} more")
    return "\n".join(lines)


def first_line(status: StudyStatus, how: str) -> str:
    """Return the first line of a driver: the members that it finds, and its next work.

    how  the processes that will work, such as "in 4 processes"
    """
    due = [one for one in status.configurations if one.next_iterations is not None]
    looks = f"the next look at each of {len(due)} configurations"
    if len(due) == 1:
        looks = f"look {len(due[0].looks) + 1}, {due[0].next_iterations} iterations of the last phase"
    members = [member for one in due for member in one.members]
    states = [member.state for member in members]
    found = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    line = f"{status.path}: {len(members)} members: {found}; now to {looks}, {how}"
    others = counted_drivers(status.drivers())
    return f"{line}; at work already: {others}" if status.drivers() else line


def _unfinished_members(status: StudyStatus) -> list[MemberStatus]:
    return [m for one in status.configurations if one.next_iterations is not None for m in one.members]


def _shown(members: Sequence[MemberStatus], room: int | None) -> Sequence[MemberStatus]:
    """Return the members that fit into the room, in order. Members at work are chosen first."""
    if room is None or len(members) <= room:
        return members
    first = sorted(members, key=lambda member: (member.at_work is not True, member.state == "not begun"))
    chosen = {member.seed for member in first[:room]}
    return [member for member in members if member.seed in chosen]


def _row(member: MemberStatus) -> tuple[str, ...]:
    left = math.nan if member.seconds_left is None else member.seconds_left
    words = {True: "{}", False: "{} was killed", None: "perhaps {}"}[member.at_work]
    return (
        str(member.seed),
        member.state,
        f"{member.iteration}/{member.needed}" if member.needed else "-",
        str(member.draws),
        f"{member.speed:.3g}" if member.speed else "-",
        clock_time(left),
        "-" if member.driver is None else words.format(member.driver),
    )


State: TypeAlias = Literal["not begun", "under way", "ready", "failed"]
