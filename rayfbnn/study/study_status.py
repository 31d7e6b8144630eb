"""The status of a study: the progress of its configurations and members, as records and as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rayfbnn.run.status import driver_of
from rayfbnn.study.members import Member

if TYPE_CHECKING:
    from rayfbnn.study.files import StudyFiles
    from rayfbnn.study.looks import Due, Look


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
    """

    seed: int
    state: Literal["not begun", "under way", "ready", "failed"]
    draws: int = 0
    reason: str = ""
    driver: str | None = None
    at_work: bool | None = False


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
class StudyStatus:
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


def verdict_of(configurations: Sequence[ConfigurationStatus]) -> bool | None:
    """Return True if all configurations have converged, False if not; None before all are complete."""
    verdicts = [one.ok for one in configurations]
    return None if None in verdicts else all(verdicts)


def status_of_study(study: StudyFiles) -> StudyStatus:
    """Return the status of a study. Nothing is locked or changed."""
    due = study.due()
    configurations = []
    for configuration in study.configurations:
        number = configuration.number
        look = due.get(number)
        configurations.append(
            ConfigurationStatus(
                label=configuration.label,
                members=tuple(_member(study, Member(number, seed), look) for seed in study.seeds(number)),
                looks=tuple(study.looks(number)),
                next_iterations=None if look is None else look.iterations,
            )
        )
    return StudyStatus(str(study.place), tuple(configurations))


def _member(study: StudyFiles, member: Member, due: Due | None) -> MemberStatus:
    reason = study.members.failure(member)
    is_there = study.members.is_there(member)
    store = study.members.open(member, headers_only=True) if is_there else None
    draws = 0 if store is None else store.committed_draws
    driver, at_work = (None, False) if store is None else driver_of(store)
    if reason is not None:
        return MemberStatus(member.seed, "failed", draws, reason, driver, at_work)
    if store is None:
        return MemberStatus(member.seed, "not begun")
    is_ready = due is None or study.is_ready(member, due)
    return MemberStatus(member.seed, "ready" if is_ready else "under way", draws, "", driver, at_work)


def study_text(status: StudyStatus) -> str:
    """Return a line for the study, one for its drivers, and a paragraph for each configuration."""
    verdict = {None: "not complete", True: "ok: all members agree", False: "not ok"}[status.ok]
    paragraphs = [_paragraph(one) for one in status.configurations]
    return "\n".join([f"{status.path}: {verdict}", *_driver_lines(status), *paragraphs])


def _driver_lines(status: StudyStatus) -> Iterator[str]:
    """Yield lines on the drivers that are or may be at work; none for a complete study without drivers."""
    at_work, perhaps = status.drivers(), status.drivers(None)
    if perhaps:
        yield f"perhaps at work, on other machines: {_counted(perhaps)}"
    if at_work or (status.ok is None and not perhaps):
        yield f"at work: {_counted(at_work)}"


def _counted(drivers: list[str]) -> str:
    if not drivers:
        return "no driver"
    return f"{len(drivers)} driver{'s' if len(drivers) > 1 else ''}: {', '.join(drivers)}"


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
