"""The picture of a comparison: distances with their floor, calibration, scores by time, and bands."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.answers.comparison import Comparison
from rayfbnn.draws.subsets import for_picture, with_members
from rayfbnn.pictures.along_input import band_panels
from rayfbnn.pictures.figures import GREY, Axes, Panel, arrange, series_colour
from rayfbnn.pictures.panels import logarithmic, name_rows

if TYPE_CHECKING:
    from rayfbnn.draws.view import Draws

_POINTS = 200  # along the input
_COLUMNS, _WIDTH = 3, 3.67
_NAMES = {
    "total_variation": "mean total variation from the reference",
    "w2": "mean W2 from the reference, in its standard deviations",
}


def picture(comparison: Comparison, runs: Mapping[str, Draws], path: str | Path) -> Path:
    """Draw distances as bars with the floor as a line, calibration, and log probability by seconds.

    If there is a single input, the picture also has the predictive band of each run.

    runs  by the names of the rows, except the last one
    """
    first = next(iter(runs.values()))
    rows = [name for name in comparison.rows if name in runs]
    colours = {name: series_colour(n) for n, name in enumerate(rows)}
    has_labels = first.spec.data_model.has_labels
    panels = [
        Panel(draw, (comparison, colours, *more), title=title, size=(_WIDTH, 3.5))
        for draw, more, title in (
            (_draw_distances, (), "Distance from the posterior: shorter is closer"),
            (_draw_calibration, (has_labels,), "Calibration: closer to the line is better"),
            (_draw_times, (), "Score by time: higher is better"),
        )
    ]
    parts = [panels]
    if first.data.n_inputs == 1:
        parts.append([_band(name, runs[name], place) for place, name in enumerate(rows)])
    return arrange(path, *parts, columns=_COLUMNS)


def _band(name: str, run: Draws, place: int) -> Panel:
    x = run.data.inputs[:, 0]
    reach = 0.2 * (x.max() - x.min())
    points = np.linspace(x.min() - reach, x.max() + reach, _POINTS)[:, None]
    some = for_picture(with_members(run))
    return band_panels(some, points, 0, title=name, has_legend=place == 0, size=(_WIDTH, 2.6))[0]


def _draw_distances(axis: Axes, comparison: Comparison, colours: Mapping[str, str]) -> None:
    """Draw a bar for each method except the reference, with twice its standard error, and the floor."""
    name = next(name for name in _NAMES if name in comparison.floor.values)
    shown = [row for row in colours if row != comparison.reference]
    places = name_rows(axis, shown)
    values = [comparison.rows[row].values for row in shown]
    axis.barh(
        places,
        [value[name] for value in values],
        xerr=[2 * value[f"{name}_se"] for value in values],
        height=0.6,
        color=[colours[row] for row in shown],
        error_kw={"lw": 0.8},
    )
    axis.axvline(
        comparison.floor.values[name],
        color="black",
        lw=1,
        ls="--",
        label="floor: distance between halves of the reference",
    )
    axis.set_xlim(0, None)
    axis.set_xlabel(f"{_NAMES[name]}\n(lines: 2 standard errors)")
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.24))


def _draw_calibration(
    axis: Axes, comparison: Comparison, colours: Mapping[str, str], has_labels: bool
) -> None:
    axis.plot([0, 1], [0, 1], color="black", lw=0.8)
    for row, colour in colours.items():
        compared = comparison.rows[row]
        label = f"{row} (reference)" if row == comparison.reference else row
        axis.plot(compared.said, compared.happened, "o-", ms=3, color=colour, label=label)
    if has_labels:
        lowest = min(float(comparison.rows[row].said.min(initial=1)) for row in colours)
        axis.set_xlim(lowest - 0.03, 1.02)
        axis.set(xlabel="largest probability", ylabel="share of right guesses")
    else:
        axis.set(xlim=(0, 1), xlabel="probability of the central interval", ylabel="share of targets inside")
    axis.legend(loc="best")


def _draw_times(axis: Axes, comparison: Comparison, colours: Mapping[str, str]) -> None:
    """Draw log probability by seconds, with the standard error of the difference from the reference."""
    rows = {row: comparison.rows[row].values for row in colours}
    points = {
        row: (values["seconds"], values["log_probability"])
        for row, values in rows.items()
        if values.get("seconds", math.nan) > 0
    }
    for row, (seconds, score) in points.items():
        colour, error = colours[row], rows[row]["log_probability_difference_se"]
        axis.errorbar(seconds, score, yerr=2 * error, fmt="o", color=colour, lw=0.9)
        # The lower of two neighbouring points has its name below, so names do not overlap.
        others = [point for other, point in points.items() if other != row]
        nearest = min(others, key=lambda point: abs(math.log(point[0] / seconds)), default=(seconds, score))
        place = {"xytext": (5, -4), "va": "top"} if score < nearest[1] else {"xytext": (5, 4)}
        axis.annotate(row, (seconds, score), textcoords="offset points", color=colour, **place)
    reference = comparison.rows.get(comparison.reference, comparison.floor).values["log_probability"]
    axis.axhline(reference, color=GREY, lw=0.8, ls=":", label="reference")
    axis.legend(loc="best")
    if points:
        logarithmic(axis, np.array([seconds for seconds, _ in points.values()]), which="x")
    axis.margins(x=0.25, y=0.15)
    axis.set(
        xlabel="seconds of fitting\n(lines: 2 standard errors of the difference)",
        ylabel="log probability of a test case",
    )
