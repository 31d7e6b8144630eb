"""Pictures of inputs: predictions and functions along one of them, and the sigma of each (ARD)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rayfbnn.answers.effects import probability_bands
from rayfbnn.answers.predict import predict_from_draws
from rayfbnn.arrays import Array
from rayfbnn.draws.outputs import network_values
from rayfbnn.draws.quantities import sigmas
from rayfbnn.draws.subsets import for_picture
from rayfbnn.draws.view import Draws
from rayfbnn.errors import ConfigError
from rayfbnn.output.lines import all_shortened, shortened
from rayfbnn.pictures.figures import figure_with_axes, save, series_colour, styled
from rayfbnn.pictures.panels import (
    draw_band,
    draw_probabilities,
    draw_relevance,
    draw_targets,
    tick_text,
)

if TYPE_CHECKING:
    from rayfbnn.data import Dataset


_ABOVE_ALL, _OTHER = 76, 40  # characters of a title, and of the names of other inputs in it
_MAX_SPREAD = 30  # largest ratio of the largest to the typical value on a linear axis


@styled
def predictive_bands(
    runs: Sequence[Draws], path: str | Path, *, input_name: str | None = None, n_points: int = 200
) -> Path:
    """Plot the predictive median and intervals along one input, with the others at their medians.

    The training cases are drawn as points.

    The bands are the central 80 % and 98 % of targets, noise included, from about 4,000 draws. For binary
    targets P(y = 1) is plotted, for class targets the probability of each class.
    """
    data, model = runs[0].data, runs[0].spec.data_model
    name, column, inputs = _along_input(data, input_name, n_points)
    x = data.inputs[:, column]
    table = predict_from_draws([for_picture(run) for run in runs], inputs).table
    has_bands = not model.has_labels
    n_panels = data.n_targets if has_bands else 1
    figure, axes = figure_with_axes(n_panels, 1, width=6.4, height=3.4 * n_panels)
    for target, axis in enumerate(axes[:, 0] if has_bands else []):
        draw_band(axis, inputs[:, column], table, data.target_names[target])
        draw_targets(
            axis, x, data.targets[:, target], are_times=model.are_times, is_only_input=data.n_inputs == 1
        )
        axis.set_ylabel(shortened(data.target_names[target]))
        if runs[0].kind == "prior" and not model.are_times:
            ends = [table[f"{data.target_names[target]}_{end}"] for end in ("q10", "q90", "q01", "q99")]
            _compress(axis, np.stack(ends), typical=float(np.median(np.abs(ends[:2]))))
    if not has_bands:
        draw_probabilities(
            axes[0, 0],
            inputs[:, column],
            table.to_numpy(),
            x,
            model.labelled_cases(data.targets),
            names=model.probability_words(data.target_names),
            bands=probability_bands(runs, inputs),
        )
    for axis in axes[:, 0]:
        axis.set_xlabel(shortened(name))
        axis.set_xlim(inputs[0, column], inputs[-1, column])
        axis.legend(loc="best")
    axes[0, 0].set_title(_title("Prediction", data.input_names, name))
    return save(figure, path)


@styled
def function_lines(
    run: Draws,
    path: str | Path,
    *,
    input_name: str | None = None,
    n_functions: int = 8,
    n_points: int = 400,
) -> Path:
    """Plot the network outputs of the first draws along one input, with the others at their medians."""
    data = run.data
    name, column, inputs = _along_input(data, input_name, n_points)
    values = network_values(run, inputs, draws=n_functions)[:n_functions]
    n_outputs = values.shape[2]
    labels = [f"output {output}" for output in range(n_outputs)]
    if run.spec.data_model.is_real and n_outputs == data.n_targets:
        labels, values = list(data.target_names), data.target_units.to_file(values)
    figure, axes = figure_with_axes(n_outputs, 1, width=6.4, height=3.4 * n_outputs, sharex=True)
    for output, (axis, label) in enumerate(zip(axes[:, 0], labels, strict=True)):
        for number, function in enumerate(values):
            colour = series_colour(number)
            axis.plot(inputs[:, column], function[:, output], color=colour, lw=1)
        axis.set_ylabel(shortened(label))
        _compress(axis, values[..., output])
    axes[-1, 0].set_xlabel(shortened(name))
    axes[-1, 0].set_xlim(inputs[0, column], inputs[-1, column])
    axes[0, 0].set_title(_title("Functions", data.input_names, name))
    return save(figure, path)


def _compress(axis: Any, values: Array, *, typical: float | None = None) -> None:
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


def _along_input(data: Dataset, input_name: str | None, n_points: int) -> tuple[str, int, Array]:
    """Return the input's name and column, and points along it, with the other inputs at their medians."""
    name = data.input_names[0] if input_name is None else input_name
    if name not in data.input_names:
        raise ConfigError(
            f"input_name: the store has no input {name}; its inputs are {', '.join(data.input_names)}"
        )
    column = data.input_names.index(name)
    x = data.inputs[:, column]
    margin = 0.15 * (np.ptp(x) or 1.0)
    inputs = np.tile(np.median(data.inputs, axis=0), (n_points, 1))
    inputs[:, column] = np.linspace(x.min() - margin, x.max() + margin, n_points)
    return name, column, inputs


def _title(what: str, names: Sequence[str], name: str) -> str:
    """Return a title of one line, or of two if the names are long."""
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


@styled
def relevance_of_inputs(run: Draws, path: str | Path) -> Path:
    """Plot the sigma of each input's weights, for each group with such sigmas in its prior (ARD).

    At most 40 inputs of a group are shown, those with the largest medians, in their order.
    """
    all_sigmas = sigmas(run)
    groups = relevance_groups(run)
    rows = {group: largest(of_inputs(all_sigmas, group), _MAX_INPUTS) for group in groups}
    height = 1.1 + 0.27 * max(len(of_inputs_shown) for of_inputs_shown in rows.values())
    longest = max(len(name) for name in all_shortened([name for values in rows.values() for name in values]))
    width = 4.4 + max(0.0, _INCHES * (longest - _SHORT_NAME))
    figure, axes = figure_with_axes(1, len(rows), width=0.6 + width * len(rows), height=max(2.2, height))
    for axis, (group, values) in zip(axes[0], rows.items(), strict=True):
        draw_relevance(axis, list(values), np.stack(list(values.values())))
        axis.set_xlabel(f"sigma_{group}_unit")
        where = "outputs" if group == "io" else f"hidden layer {group[2:]}"
        left_out = len(of_inputs(all_sigmas, group)) - len(values)
        more = f", the {len(values)} largest" if left_out else ""
        axis.set_title(f"Weights from each input to {where}{more}")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return save(figure, path)


def relevance_groups(run: Draws) -> list[str]:
    """Return the groups of weights from the inputs in which each input has its own sigma."""
    groups = run.precision_layout.units
    return [group for group in groups if group == "io" or group.startswith("ih")]


def of_inputs(all_sigmas: dict[str, Array], group: str) -> dict[str, Array]:
    """Return the sigma of each input in the group by the input's name, (n_chains, n_draws) each."""
    start = f"sigma_{group}_unit["
    return {name[len(start) : -1]: values for name, values in all_sigmas.items() if name.startswith(start)}


def largest(values: dict[str, Array], at_most: int) -> dict[str, Array]:
    """Return the values with the largest medians, in their original order."""
    medians = sorted(values, key=lambda name: -float(np.median(values[name])))
    return {name: values[name] for name in values if name in medians[:at_most]}
