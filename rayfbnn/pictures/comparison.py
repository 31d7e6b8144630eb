"""The picture of a comparison: distances with their floor, calibration, scores by time, and bands."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.answers.comparison import Comparison
from rayfbnn.answers.effects import probability_bands
from rayfbnn.answers.predict import predict_from_draws
from rayfbnn.arrays import Array
from rayfbnn.draws.fits import with_members
from rayfbnn.draws.subsets import for_picture
from rayfbnn.output.lines import shortened
from rayfbnn.pictures.figures import GREY, Figure, blank_figure, save, series_colour, styled
from rayfbnn.pictures.panels import (
    Axes,
    draw_band,
    draw_probabilities,
    draw_targets,
    logarithmic,
)

if TYPE_CHECKING:
    from rayfbnn.draws.view import Draws

_POINTS = 200  # along the input
_BANDS_IN_A_ROW = 3
_NAMES = {
    "total_variation": "mean total variation from the reference",
    "w2": "mean W2 from the reference, in its standard deviations",
}


@styled
def picture(comparison: Comparison, runs: Mapping[str, Draws], path: str | Path) -> Path:
    """Draw distances as bars with the floor as a line, calibration, and log probability by seconds.

    If there is a single input, the picture also has the predictive band of each run.

    runs  by the names of the rows, except the last one
    """
    data = next(iter(runs.values())).data
    n_rows = -(-len(runs) // _BANDS_IN_A_ROW) if data.n_inputs == 1 else 0
    figure = blank_figure(11.0, 3.6 + 2.6 * n_rows)
    parts = figure.subfigures(2, 1, height_ratios=[3.4, 2.6 * n_rows]) if n_rows else [figure]
    left, middle, right = parts[0].subplots(1, 3)
    rows = [name for name in comparison.rows if name in runs]
    colours = {name: series_colour(n) for n, name in enumerate(rows)}
    _draw_distances(left, comparison, colours)
    has_labels = next(iter(runs.values())).spec.data_model.has_labels
    _draw_calibration(middle, comparison, colours, has_labels=has_labels)
    _draw_times(right, comparison, colours)
    if n_rows:
        _draw_bands(parts[1], {name: runs[name] for name in rows}, n_rows)
    return save(figure, path)


def _draw_distances(axis: Axes, comparison: Comparison, colours: Mapping[str, str]) -> None:
    """Draw a bar for each method except the reference, with twice its standard error, and the floor."""
    name = next(name for name in _NAMES if name in comparison.floor.values)
    shown = [row for row in colours if row != comparison.reference]
    places = np.arange(len(shown))[::-1]
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
    axis.set_yticks(places, shown)
    axis.set_ylim(-0.6, max(len(shown), 1) - 0.4)
    axis.set_xlim(0, None)
    axis.tick_params(axis="y", length=0)
    axis.set(
        xlabel=f"{_NAMES[name]}\n(lines: 2 standard errors)",
        title="Distance from the posterior: shorter is closer",
    )
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.24))


def _draw_calibration(
    axis: Axes, comparison: Comparison, colours: Mapping[str, str], *, has_labels: bool
) -> None:
    axis.plot([0, 1], [0, 1], color="black", lw=0.8)
    for row, colour in colours.items():
        compared = comparison.rows[row]
        label = f"{row} (reference)" if row == comparison.reference else row
        axis.plot(compared.said, compared.happened, "o-", ms=3, color=colour, label=label)
    if has_labels:
        lowest = min(float(comparison.rows[row].said.min(initial=1)) for row in colours)
        axis.set_xlim(lowest - 0.03, 1.02)
        axis.set(
            xlabel="largest probability",
            ylabel="share of right guesses",
            title="Calibration: closer to the line is better",
        )
    else:
        axis.set(xlim=(0, 1), xlabel="probability of the central interval", ylabel="share of targets inside")
        axis.set_title("Calibration: closer to the line is better")
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
    axis.set_title("Score by time: higher is better")


def _draw_bands(part: Figure, runs: Mapping[str, Draws], n_rows: int) -> None:
    axes: Array = part.subplots(n_rows, _BANDS_IN_A_ROW, squeeze=False, sharex=True, sharey=True).ravel()
    for axis, (name, run) in zip(axes, runs.items(), strict=False):
        data, model = run.data, run.spec.data_model
        x = data.inputs[:, 0]
        reach = 0.2 * (x.max() - x.min())
        points = np.linspace(x.min() - reach, x.max() + reach, _POINTS)
        table = predict_from_draws([for_picture(with_members(run))], points[:, None]).table
        if model.has_labels:
            labelled, words = model.labelled_cases(data.targets), model.probability_words(data.target_names)
            draw_probabilities(
                axis,
                points,
                table[model.probability_columns(data.target_names)].to_numpy(),
                x,
                labelled,
                names=words,
                bands=probability_bands([for_picture(with_members(run))], points[:, None]),
            )
        else:
            target = data.target_names[0]
            draw_band(axis, points, table, target)
            draw_targets(axis, x, data.targets[:, 0], are_times=model.are_times, is_only_input=True)
            axis.set_ylabel(shortened(target))
        axis.set(title=name, xlabel=shortened(data.input_names[0]), xlim=(points[0], points[-1]))
    axes[0].legend(loc="best")
    for axis in axes[len(runs) :]:
        axis.set_axis_off()
    for axis in axes[: len(runs)][-_BANDS_IN_A_ROW:]:  # the lowest one in each column
        axis.tick_params(labelbottom=True)
