"""Pictures of inputs: predictions and functions along one of them, and the sigma of each (ARD)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.answers.effects import probability_bands
from rayfbnn.answers.predict import predict_from_draws
from rayfbnn.arrays import Array
from rayfbnn.draws.outputs import network_values
from rayfbnn.draws.quantities import sigmas
from rayfbnn.draws.subsets import for_picture
from rayfbnn.draws.view import Draws
from rayfbnn.output.lines import all_shortened, shortened
from rayfbnn.pictures.figures import BLUE, GREY, SKY, Axes, Panel, arrange, series_colour
from rayfbnn.pictures.panels import draw_band, draw_targets, logarithmic, name_rows, tick_text

if TYPE_CHECKING:
    import pandas as pd

    from rayfbnn.data import Dataset


_ABOVE_ALL, _OTHER = 76, 40  # characters of a title, and of the names of other inputs in it
_MAX_SPREAD = 30  # largest ratio of the largest to the typical value on a linear axis
_SIZE = 6.4, 3.4  # inches
_POINTS, _FUNCTIONS = 300, 8


def predictive_bands(run: Draws, path: str | Path, *, input_name: str | None = None) -> Path:
    """Plot the predictive median and intervals along one input, with the others at their medians.

    The training cases are drawn as points.

    The bands are the central 80 % and 98 % of targets, noise included, from about 4,000 draws. For binary
    targets P(y = 1) is plotted, for class targets the probability of each class.
    """
    data = run.data
    name, column, inputs = _along_input(data, input_name)
    title = _title("Prediction", data.input_names, name)
    return arrange(path, band_panels(run, inputs, column, title=title, size=_SIZE))


def band_panels(
    run: Draws, inputs: Array, column: int, *, title: str, size: tuple[float, float], has_legend: bool = True
) -> list[Panel]:
    """Return panels of predictions along an input: one for each target, or one for all labels.

    inputs  (n_points, n_inputs) as in the data file, which differ in one column
    title   of the first panel
    """
    table = predict_from_draws([for_picture(run)], inputs).table
    n_panels = 1 if run.spec.data_model.has_labels else run.data.n_targets
    return [
        Panel(
            _draw_predictions,
            (run, inputs, column, table, target, has_legend),
            title="" if target else title,
            size=size,
        )
        for target in range(n_panels)
    ]


def _draw_predictions(
    axis: Axes, run: Draws, inputs: Array, column: int, table: pd.DataFrame, target: int, has_legend: bool
) -> None:
    data, model = run.data, run.spec.data_model
    name, points = data.target_names[target], inputs[:, column]
    if model.has_labels:
        _draw_probabilities(axis, run, inputs, column, table)
    else:
        y = data.targets[:, target]
        draw_band(axis, points, table, name)
        draw_targets(
            axis, data.inputs[:, column], y, are_times=model.are_times, is_only_input=data.n_inputs == 1
        )
        axis.set_ylabel(shortened(name))
        if run.kind == "prior" and not model.are_times:
            ends = np.stack([table[f"{name}_{end}"] for end in ("q10", "q90", "q01", "q99")])
            _compress(axis, ends, typical=float(np.median(np.abs(ends[:2]))))
    axis.set(xlabel=shortened(data.input_names[column]), xlim=(points[0], points[-1]))
    if has_legend:
        axis.legend(loc="best")


def _draw_probabilities(axis: Axes, run: Draws, inputs: Array, column: int, table: pd.DataFrame) -> None:
    """Draw probabilities as lines, and cases as ticks in the colour of the label, below for its opposite."""
    data, model = run.data, run.spec.data_model
    x, cases = inputs[:, column], data.inputs[:, column]
    columns = model.probability_columns(data.target_names)
    names = all_shortened(model.probability_words(data.target_names))
    low, high = probability_bands([run], inputs)
    for number, of_cases in enumerate(model.labelled_cases(data.targets)):
        colour, label = series_colour(number), None if number else "80 % of draws"
        axis.fill_between(x, low[:, number], high[:, number], color=colour, alpha=0.22, lw=0, label=label)
        axis.plot(x, table[columns[number]], color=colour, label=names[number])
        for chosen, height in zip(of_cases, (1.04, -0.04), strict=True):
            if chosen is not None:  # a label without an opposite
                axis.plot(cases[chosen], np.full(chosen.sum(), height), "|", color=colour, ms=6, alpha=0.7)
    axis.set(ylim=(-0.08, 1.08), ylabel="probability")


def function_lines(run: Draws, path: str | Path, *, input_name: str | None = None) -> Path:
    """Plot the network outputs of the first draws along one input, with the others at their medians."""
    data = run.data
    name, column, inputs = _along_input(data, input_name)
    values = network_values(run, inputs, draws=_FUNCTIONS)[:_FUNCTIONS]
    labels = [f"output {output}" for output in range(values.shape[2])]
    if run.spec.data_model.is_real and len(labels) == data.n_targets:
        labels, values = list(data.target_names), data.target_units.to_file(values)
    titles = [_title("Functions", data.input_names, name), *[""] * (len(labels) - 1)]
    panels = [
        Panel(_draw_functions, (inputs[:, column], values[..., output], name, label), title=title, size=_SIZE)
        for output, (label, title) in enumerate(zip(labels, titles, strict=True))
    ]
    return arrange(path, panels, sharex=True)


def _draw_functions(axis: Axes, x: Array, values: Array, name: str, label: str) -> None:
    """Draw values (n_functions, n_points) by x."""
    for number, function in enumerate(values):
        axis.plot(x, function, color=series_colour(number), lw=1)
    _compress(axis, values)
    axis.set(xlabel=shortened(name), ylabel=shortened(label), xlim=(x[0], x[-1]))


def _compress(axis: Axes, values: Array, *, typical: float | None = None) -> None:
    """Set a scale that is linear near zero and logarithmic far out, if the values are widely spread."""
    sizes = np.abs(values[np.isfinite(values)])
    if typical is None:
        typical = float(np.median(sizes)) if sizes.size else 0.0
    if not typical > 0 or sizes.max() <= _MAX_SPREAD * typical:
        return
    axis.set_yscale("asinh", linear_width=typical)
    low, high = math.ceil(math.log10(2 * typical)), math.floor(math.log10(sizes.max()))
    decades = [10.0**power for power in range(low, high + 1, max(1, (high - low) // 3))]
    axis.set_yticks([*(-decade for decade in decades), 0, *decades])
    axis.yaxis.set_major_formatter(
        lambda value, _: f"−{tick_text(-value)}" if value < 0 else tick_text(value)
    )
    axis.minorticks_off()


def _along_input(data: Dataset, input_name: str | None) -> tuple[str, int, Array]:
    """Return the input's name and column, and points along it, with the other inputs at their medians."""
    name = data.input_names[0] if input_name is None else input_name
    column = data.input_names.index(name)
    x = data.inputs[:, column]
    margin = 0.15 * (np.ptp(x) or 1.0)
    inputs = np.tile(np.median(data.inputs, axis=0), (_POINTS, 1))
    inputs[:, column] = np.linspace(x.min() - margin, x.max() + margin, _POINTS)
    return name, column, inputs


def _title(what: str, names: Sequence[str], name: str) -> str:
    head, held = f"{what} along {shortened(name)}", _others_held(names, name)
    return f"{head}{held}" if len(head + held) <= _ABOVE_ALL else f"{head},\n{held.removeprefix(', ')}"


def _others_held(names: Sequence[str], name: str) -> str:
    others = [other for other in names if other != name]
    if not others:
        return ""
    if len(others) == 1:
        return f", with {shortened(others[0], _OTHER)} at its median"
    held = ", ".join(others)
    if len(held) > _OTHER:
        held = f"the other {len(others)} inputs"
    return f", with {held} at their medians"


_MAX_INPUTS = 40
_SHORT_NAME, _INCHES = 16, 0.07  # characters that need no wider panel, and inches for each further one


def relevance_of_inputs(run: Draws, path: str | Path) -> Path:
    """Plot the sigma of each input's weights, for each group with such sigmas in its prior (ARD).

    At most 40 inputs of a group are shown, those with the largest medians, in their order.
    """
    panels = relevance_panels(run, _MAX_INPUTS)
    return arrange(path, panels, columns=len(panels), has_common_legend=True)


def relevance_panels(run: Draws, at_most: int) -> list[Panel]:
    """Return a panel for each group with sigmas of inputs, with the `at_most` largest."""
    all_sigmas, panels = sigmas(run), []
    for group in relevance_groups(run):
        of_group = of_inputs(all_sigmas, group)
        shown = _largest(of_group, at_most)
        if not shown:  # no input is connected
            continue
        where = "the outputs" if group == "io" else f"hidden layer {group[2:]}"
        more = f", the {len(shown)} largest of {len(of_group)}" if len(shown) < len(of_group) else ""
        longest = max(map(len, all_shortened(list(shown))))
        width = 4.4 + max(0.0, _INCHES * (longest - _SHORT_NAME))
        panels.append(
            Panel(
                _draw_relevance,
                (shown, f"sigma_{group}_unit"),
                title=f"Weights from each input to {where}{more}",
                caption=f"Sigmas of the weights from each input to {where}{more}: median, 80 % and 98 %"
                " intervals; ticks are the medians of chains.",
                size=(width, max(2.2, 1.1 + 0.27 * len(shown))),
            )
        )
    return panels


def _draw_relevance(axis: Axes, shown: dict[str, Array], label: str) -> None:
    """Draw the posterior of each input's sigma as a row: median, 80 % and 98 % intervals, chains' medians.

    shown  (n_chains, n_draws) by input
    """
    values = np.stack(list(shown.values()))
    levels = np.quantile(values, [0.01, 0.1, 0.5, 0.9, 0.99], axis=(1, 2))
    places = name_rows(axis, list(shown))
    axis.hlines(places, levels[0], levels[4], color=SKY, lw=1.4, label="98 %")
    axis.hlines(places, levels[1], levels[3], color=BLUE, lw=3.6, label="80 %")
    axis.plot(levels[2], places, "o", color="white", mec=BLUE, mew=1.3, ms=5.5, ls="", label="median")
    if values.shape[1] > 1:
        chains = np.median(values, axis=2)
        x, y = chains.ravel(), np.repeat(places, values.shape[1]) - 0.28
        axis.plot(x, y, "|", color=GREY, ms=4.5, mew=0.7, alpha=0.8, ls="", label="medians of chains")
    logarithmic(axis, levels, which="x")
    axis.grid(axis="x", color="0.9", lw=0.6)
    axis.set_axisbelow(True)
    axis.set_xlabel(label)


def relevance_groups(run: Draws) -> list[str]:
    """Return the groups of weights from the inputs in which each input has its own sigma."""
    groups = run.precision_layout.units
    return [group for group in groups if group == "io" or group.startswith("ih")]


def of_inputs(all_sigmas: dict[str, Array], group: str) -> dict[str, Array]:
    """Return the sigma of each input in the group by the input's name, (n_chains, n_draws) each."""
    start = f"sigma_{group}_unit["
    return {name[len(start) : -1]: values for name, values in all_sigmas.items() if name.startswith(start)}


def _largest(values: dict[str, Array], at_most: int) -> dict[str, Array]:
    """Return the values with the largest medians, in their original order."""
    medians = sorted(values, key=lambda name: -float(np.median(values[name])))
    return {name: values[name] for name in values if name in medians[:at_most]}
