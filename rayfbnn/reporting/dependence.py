"""The section on effects: predictions averaged over the cases, by the value of one column."""

from __future__ import annotations

from functools import partial

import numpy as np

from rayfbnn.answers.effects import Dependence, partial_dependence, value_names
from rayfbnn.arrays import Array
from rayfbnn.data.encoding import InputColumn
from rayfbnn.output import tables
from rayfbnn.output.lines import all_shortened, shortened
from rayfbnn.pictures.colours import GREY, series_colour
from rayfbnn.pictures.panels import Axes, set_log_scale
from rayfbnn.reporting.page import beside, picture
from rayfbnn.reporting.reported_run import ReportedRun

_MAX_VALUES = 6
_MAX_TICKS = 60
_MAX_LETTERS = 24  # of all names of levels, if these are side by side


def dependence_section(run: ReportedRun, columns: list[InputColumn]) -> str:
    """Return a picture for each of the columns."""
    names = value_names(run.draws)
    model = run.draws.spec.data_model
    # Targets that are numbers have different scales, so each has its own picture.
    panels = [list(range(len(names)))[:_MAX_VALUES]] if model.has_labels else [[n] for n in range(len(names))]
    pictures = []
    dependences = [partial_dependence(run.few, run.cases.few, column) for column in columns]
    for column, dependence in zip(columns, dependences, strict=True):
        for which in panels[:_MAX_VALUES]:
            draw = partial(
                _draw,
                dependence=dependence,
                names=names,
                which=which,
                reach=_reach(dependences, which),
                ticks=_ticks(run, column),
                is_log=model.are_times,
            )
            shown = ", ".join(names[number] for number in which)
            pictures.append(
                picture(draw, alt=f"{shown} averaged over the cases, by {column.name}", width=3.2, height=2.5)
            )
    words = (
        "Each picture sets one column to a value in all cases and averages the predictions over the cases,"
        " with the other columns unchanged. The band or bar contains 80 % of the posterior of that average,"
        " without noise. All pictures have the same scale. If columns depend on each other, some of these"
        " combinations do not occur."
    )
    if model.are_times:
        words += " Times are averaged on the logarithmic scale."
    return tables.paragraph(words) + beside(pictures)


def _ticks(run: ReportedRun, column: InputColumn) -> Array:
    """Return values of a column of numbers to mark the training cases; none for levels."""
    if column.kind != "number":
        return np.empty(0)
    values = run.draws.data.inputs[:, run.draws.data.input_names.index(column.name)]
    return np.quantile(values, np.linspace(0.02, 0.98, min(_MAX_TICKS, len(values))))


def _reach(dependences: list[Dependence], which: list[int]) -> tuple[float, float]:
    """Return the smallest and the largest value of all columns, for the common scale of their pictures."""
    low = min(float(one.low[:, which].min()) for one in dependences)
    high = max(float(one.high[:, which].max()) for one in dependences)
    return low, high


def _draw(
    axis: Axes,
    dependence: Dependence,
    names: list[str],
    which: list[int],
    reach: tuple[float, float],
    ticks: Array,
    is_log: bool,
) -> None:
    labels = all_shortened(names)
    for number in which:
        _draw_value(axis, dependence, number, labels[number])
    if dependence.levels:
        levels = all_shortened(dependence.levels, _MAX_LETTERS)
        is_crowded = len("".join(levels)) > _MAX_LETTERS
        axis.set_xticks(dependence.points, levels, rotation=90 if is_crowded else 0)
        axis.margins(x=0.15)
    _set_reach(axis, reach, is_log=is_log)
    if len(ticks):
        axis.plot(ticks, np.zeros(len(ticks)), "|", color=GREY, ms=5, transform=axis.get_xaxis_transform())
    axis.set_xlabel(shortened(dependence.column))
    axis.set_ylabel("probability" if len(which) > 1 else shortened(names[which[0]], _MAX_LETTERS))
    if len(which) > 1:
        axis.legend(loc="best")


def _draw_value(axis: Axes, dependence: Dependence, number: int, name: str) -> None:
    """Draw one of the predicted values: a line with its band, or points with bars for levels."""
    colour = series_colour(number)
    mean, low, high = (values[:, number] for values in (dependence.mean, dependence.low, dependence.high))
    if dependence.levels:
        bars = np.abs(np.stack([mean - low, high - mean]))
        axis.errorbar(dependence.points, mean, yerr=bars, fmt="o", color=colour, ms=4, label=name)
        return
    axis.fill_between(dependence.points, low, high, color=colour, alpha=0.22, lw=0)
    axis.plot(dependence.points, mean, color=colour, label=name)


def _set_reach(axis: Axes, reach: tuple[float, float], *, is_log: bool) -> None:
    """Set the common scale of all columns, if their values are finite."""
    low, high = reach
    if is_log:
        set_log_scale(axis, "y")
        low, high = low / 1.1, high * 1.1
    else:
        low, high = low - 0.06 * (high - low), high + 0.06 * (high - low)
    if np.isfinite([low, high]).all() and low < high:
        axis.set_ylim(low, high)
