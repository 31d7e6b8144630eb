"""Formats the status of a run as the text that `rayfbnn status` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayfbnn.output.lines import table_text, width_up_to

if TYPE_CHECKING:
    from rayfbnn.run.status import BatchStatus, Status

_HEADINGS = ("iteration", "draws", "last commit", "block takes", "time left")


def status_text(status: Status) -> str:
    """Return the line of the run, the line of its driver, and a table with a row for each batch."""
    first = "chains" if status.stage is None else "ladders"
    rows = [(first, *_HEADINGS), *(_row(batch, status) for batch in status.batches)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    table = ["  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in rows]
    if len(table[0]) > width_up_to(len(table[0])):
        table = [table_text(rows[0], rows[1:])]
    return "\n".join([f"{status.path}: {_run(status)}", _driver(status), *table])


def _run(status: Status) -> str:
    if status.complete:
        of_each = "chain" if status.stage is None else "ladder"
        return f"complete, {status.total_draws:,} draws of each {of_each}"
    left = status.seconds_left
    end = "" if left is None or status.at_work is not True else f", complete in {_time(left)}"
    acceptance = "" if status.acceptance is None else f", acceptance {status.acceptance:.0%}"
    stage = "" if status.stage is None else f", {status.stage}"
    return f"{status.done:.1%} done{stage}{acceptance}, divergences {status.divergences}{end}"


def _driver(status: Status) -> str:
    if status.driver is None:
        return "nobody is at work" if status.complete else "nobody is at work; continue with: rayfbnn resume"
    if status.at_work is None:
        return f"the last driver was {status.driver}; this machine cannot tell whether it is still at work"
    if status.at_work:
        return f"at work: {status.driver}"
    return f"nobody is at work: {status.driver} was killed; continue with: rayfbnn resume"


def _row(batch: BatchStatus, status: Status) -> tuple[str, ...]:
    ago = batch.seconds_since_commit
    unknown = "unknown" if batch.iteration else "-"  # before the first commit nothing has been measured
    return (
        f"{batch.first_chain}-{batch.last_chain}",
        f"{batch.iteration}/{status.total_iterations}",
        f"{batch.draws}/{status.total_draws}",
        unknown if ago is None else f"{_time(ago)} ago",
        unknown if batch.seconds_of_block is None else _time(batch.seconds_of_block),
        _time_left(batch, status),
    )


def _time_left(batch: BatchStatus, status: Status) -> str:
    """Return the time until a batch is complete; "-" if no driver is known to be at work."""
    if batch.seconds_left is not None:
        return _time(batch.seconds_left)
    return "unknown" if status.at_work else "-"


def _time(seconds: float) -> str:
    """Format seconds as 45 s, 12 min, 3.5 h or 2.1 days."""
    for size, unit in ((86_400, "days"), (3600, "h")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return (
        f"{seconds / 60:.0f} min"
        if seconds >= 120
        else f"{seconds:.3g} s"
        if seconds < 10
        else f"{seconds:.0f} s"
    )
