"""A study while it runs: a row for each member, a line for the whole, and the first line of a driver."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rayfbnn.run.estimate import duration
from rayfbnn.study.study_status import ConfigurationStatus, MemberStatus, StudyStatus, counted_drivers

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
        f" {done / max(1, needed):.1%} of the iterations, time left {duration(seconds_left(status))}"
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
        lines += _table([_row(member) for member in members])
        if len(members) < len(configuration.members):
            lines.append(f"and {len(configuration.members) - len(members)} more")
    return "\n".join(lines)


def first_line(status: StudyStatus, how: str) -> str:
    """Return the first line of a driver: the members that it finds, and its next work.

    how  the processes that will work, such as "in 4 processes"
    """
    due = [one for one in status.configurations if one.next_iterations is not None]
    members = [member for one in due for member in one.members]
    states = [member.state for member in members]
    found = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    line = f"{status.path}: {len(members)} members: {found}; {_next_looks(due)}, {how}"
    others = counted_drivers(status.drivers())
    return f"{line}; at work already: {others}" if status.drivers() else line


def _next_looks(due: Sequence[ConfigurationStatus]) -> str:
    """Return the next looks, with the lengths of members there."""
    if len(due) == 1:
        (one,) = due
        return f"now to look {len(one.looks) + 1}, {one.next_iterations} iterations of the last phase"
    return f"now to the next look at each of {len(due)} configurations"


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
    return (
        str(member.seed),
        member.state,
        f"{member.iteration}/{member.needed}" if member.needed else "-",
        str(member.draws),
        f"{member.speed:.3g}" if member.speed else "-",
        duration(left),
        _who(member),
    )


def _who(member: MemberStatus) -> str:
    if member.driver is None:
        return "-"
    return {True: member.driver, False: f"{member.driver} was killed", None: f"perhaps {member.driver}"}[
        member.at_work
    ]


def _table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Yield the lines of a table: headings and rows, in columns of equal width."""
    every = [_HEADINGS, *rows]
    widths = [max(len(row[column]) for row in every) for column in range(len(_HEADINGS))]
    for row in every:
        cells = [text.rjust(width) for text, width in zip(row[:-1], widths, strict=False)]
        yield "  ".join([*cells, row[-1]])
