"""The status of a study: the progress of its configurations and members, as records and as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from rayfbnn.errors import at_most_ten
from rayfbnn.run.status import status_if_driven
from rayfbnn.study.members import Member

if TYPE_CHECKING:
    from rayfbnn.study.files import StudyFiles
    from rayfbnn.study.looks import Due, Look

State: TypeAlias = Literal["not begun", "under way", "ready", "failed"]


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
    iteration = min(progress.iteration for progress in store.all_progress())
    if reason is not None:
        state = "failed"
    else:
        state = "ready" if due is None or study.is_ready(member, due) else "under way"
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


def study_text(status: StudyStatus) -> str:
    """Return a line for the study, one for its drivers, and a paragraph for each configuration."""
    verdict = {None: "not complete", True: "ok: all members agree", False: "not ok"}[status.ok]
    paragraphs = [_paragraph(one) for one in status.configurations]
    return "\n".join([f"{status.path}: {verdict}", *_driver_lines(status), *paragraphs])


def _driver_lines(status: StudyStatus) -> Iterator[str]:
    """Yield lines on the drivers that are or may be at work; none for a complete study without drivers."""
    at_work, perhaps = status.drivers(), status.drivers(None)
    if perhaps:
        yield f"perhaps at work, on other machines: {counted_drivers(perhaps)}"
    if at_work or (status.ok is None and not perhaps):
        yield f"at work: {counted_drivers(at_work)}"


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
