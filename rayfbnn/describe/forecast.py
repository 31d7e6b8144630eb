"""Describes a forecast of how long a run will take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayfbnn.describe.verb_results import duration
from rayfbnn.memory import bytes_text
from rayfbnn.store.sizes import planned_size
from rayfbnn.timing.changes import shorter
from rayfbnn.timing.measured_times import Change

if TYPE_CHECKING:
    from rayfbnn.spec import RunSpec
    from rayfbnn.timing.measured_times import Forecast

_LONG_TO_WAIT = 30.0  # seconds before the first draw
_LARGE_STORE = 100e6  # bytes


def describe_forecast(forecast: Forecast) -> str:
    """Describe the time of a run, the basis of the forecast, and options that change it, one item a line."""
    at_most = "at most " if forecast.first_verdict is not None else ""
    lines = [
        f"Time: {at_most}about {duration(forecast.seconds)} {_with_workers(forecast)},"
        f" {duration(forecast.before_draws)} of it before the first draw is kept ({_basis(forecast)})"
    ]
    if forecast.first_verdict is not None:
        judged = "predictions and ladders" if forecast.is_of_ladders else "predictions"
        lines.append(
            f"  the run ends when its {judged} are ok; the first verdict comes after about"
            f" {duration(forecast.first_verdict)}"
        )
    if forecast.before_draws >= _LONG_TO_WAIT and not forecast.is_of_ladders:
        lines.append("  until then `rayfbnn predict` answers from the earlier phases, and marks the answers")
    if forecast.lengths:
        steps = " and ".join(str(length) for length in forecast.lengths)
        lines.append(
            f"  the run finds the lengths of its trajectories itself: this assumes {steps} steps, as usual"
            f" for such a network; the longest trajectories would take {duration(forecast.longest)};"
            " sample updates the time left as it runs"
        )
    if forecast.levels:
        lines.append(
            f"  the ladders find their levels themselves: this assumes {forecast.levels}, as hard posteriors"
            " need; an easy one needs about 5, with short trajectories, and much less time; sample updates"
            " the time left as it runs"
        )
    options = [*_limit_of_time(forecast), *((change, "") for change in forecast.changes)]
    if options:
        lines.append("  options for `rayfbnn sample` that save time (the number of draws needed may differ):")
        lines += [f"    {_option(change, words)}" for change, words in options]
    return "\n".join(lines)


def _limit_of_time(forecast: Forecast) -> list[tuple[Change, str]]:
    """Return the option that ends a long run of open length after about half of its longest time."""
    minutes = int(forecast.seconds / 120)
    if forecast.first_verdict is None or minutes < 1:
        return []
    return [(Change(f"--max-time {minutes}m", 60.0 * minutes, "whatever the verdict"), "at most ")]


def _option(change: Change, words: str) -> str:
    """Return a line with a time and options to paste; in a shell the note is a comment."""
    note = f"  # {change.note}" if change.note else ""
    return f"{words + duration(change.seconds):>20}  {change.options}{note}"


def describe_large_store(spec: RunSpec) -> str:
    """Return the size of a store that will be large, with an option that makes it smaller; otherwise ""."""
    _, n_bytes = planned_size(spec, 1)
    if n_bytes < _LARGE_STORE:
        return ""
    option, shorter_spec = shorter(spec)
    _, fewer = planned_size(shorter_spec, 1)
    at_most = "at most " if spec.has_open_length else ""
    return (
        f"Store: {at_most}about {bytes_text(n_bytes)}, because each draw has all parameters of the network\n"
        f"    {bytes_text(fewer):>20}  {option}\n"
    )


def describe_fit_forecast(spec: RunSpec, forecast: Forecast) -> str:
    """Describe the time of a fit, as an upper limit if the fit may finish early."""
    assert spec.fit is not None
    timing = spec.fit.timing()
    at_most = "at most " if timing.is_most else ""
    return (
        f"Time: {at_most}about {duration(forecast.seconds)} {_with_workers(forecast)},"
        f" {duration(forecast.before_draws)} of it before the first draw"
        f"{'' if timing.n_densities else ', without the evidence'} ({_basis(forecast)})"
    )


def _with_workers(forecast: Forecast) -> str:
    return f"with {forecast.workers} worker{'s' if forecast.workers > 1 else ''}"


def _basis(forecast: Forecast) -> str:
    of_workers = f", except for {duration(forecast.start)} to start workers" if forecast.start else ""
    return f"measured on this machine{of_workers}"
