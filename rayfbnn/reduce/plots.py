"""Pictures of a run: predictions, traces and ranks, R-hat and effective sample sizes; each a PNG file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.errors import ConfigError
from rayfbnn.model.likelihood.survival import SurvivalTargets
from rayfbnn.reduce.draws import committed, output_blocks
from rayfbnn.reduce.figures import blank_figure, figure_with_axes, save, styled
from rayfbnn.reduce.functions import function_values
from rayfbnn.reduce.panels import (
    BLUE,
    CHAIN_COLOURS,
    GREEN,
    ORANGE,
    PURPLE,
    RED,
    draw_band,
    draw_ess,
    draw_predicted,
    draw_probabilities,
    draw_relevance,
    draw_rhat,
    draw_survival,
    draw_targets,
    draw_traces,
)
from rayfbnn.reduce.predict import predict
from rayfbnn.reduce.quantities import adjustments, sigmas
from rayfbnn.reduce.selection import (
    largest,
    least_converged,
    log_densities,
    of_inputs,
    relevance_groups,
    worst_of_each,
)

if TYPE_CHECKING:
    from rayfbnn.data import Dataset
    from rayfbnn.reduce.diagnostics import Diagnosis
    from rayfbnn.reduce.predict import Prediction
    from rayfbnn.store.store import Store

_MAX_ROWS = 12  # of traces
_MAX_BARS = 40
_MAX_CURVES = 400  # draws of a survival curve
_MEMORY_BYTES = 64e6
_MAX_SPREAD = 30  # of a linear axis: the largest value to the typical one


@styled
def predictive_bands(
    stores: Sequence[Store], path: str | Path, *, input_name: str | None = None, n_points: int = 200
) -> Path:
    """Plot the predictive median and intervals along one input, the others at their medians; data as points.

    The bands are the central 80 % and 98 % of targets, noise included. For binary targets P(y = 1) is
    plotted, for class targets the probability of each class.
    """
    data, model = stores[0].data, stores[0].spec.data_model
    name, column, inputs = _along_input(data, input_name, n_points)
    x = data.inputs[:, column]
    table = predict(stores, inputs).table
    has_bands = not model.has_labels
    n_panels = data.n_targets if has_bands else 1
    figure, axes = figure_with_axes(n_panels, 1, width=6.4, height=3.4 * n_panels)
    for target, axis in enumerate(axes[:, 0] if has_bands else []):
        draw_band(axis, inputs[:, column], table, data.target_names[target])
        draw_targets(
            axis, x, data.targets[:, target], are_times=model.are_times, is_only_input=data.n_inputs == 1
        )
        axis.set_ylabel(data.target_names[target])
        if stores[0].kind == "prior" and not model.are_times:
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
        )
    for axis in axes[:, 0]:
        axis.set_xlabel(name)
        axis.set_xlim(inputs[0, column], inputs[-1, column])
        axis.legend(loc="best")
    axes[0, 0].set_title(f"Prediction along {name}{_others_held(data.input_names, name)}")
    return save(figure, path)


@styled
def function_lines(
    store: Store,
    path: str | Path,
    *,
    input_name: str | None = None,
    n_functions: int = 8,
    n_points: int = 400,
) -> Path:
    """Plot the outputs of the first draws' networks along one input, the others held at their medians."""
    data = store.data
    name, column, inputs = _along_input(data, input_name, n_points)
    values = function_values(store, inputs, draws=n_functions)[:n_functions]
    n_outputs = values.shape[2]
    labels = [f"output {output}" for output in range(n_outputs)]
    if store.spec.data_model.is_real and n_outputs == data.n_targets:
        labels, values = list(data.target_names), values * data.target_scale + data.target_center
    figure, axes = figure_with_axes(n_outputs, 1, width=6.4, height=3.4 * n_outputs, sharex=True)
    for output, (axis, label) in enumerate(zip(axes[:, 0], labels, strict=True)):
        for number, function in enumerate(values):
            colour = CHAIN_COLOURS[number % len(CHAIN_COLOURS)]
            axis.plot(inputs[:, column], function[:, output], color=colour, lw=1)
        axis.set_ylabel(label)
        _compress(axis, values[..., output])
    axes[-1, 0].set_xlabel(name)
    axes[-1, 0].set_xlim(inputs[0, column], inputs[-1, column])
    axes[0, 0].set_title(f"Functions along {name}{_others_held(data.input_names, name)}")
    return save(figure, path)


@styled
def predicted_against_actual(
    prediction: Prediction, targets: Array, path: str | Path, *, target_names: Sequence[str]
) -> Path:
    """Plot predictive medians of real targets against actual values, and their errors against intervals."""
    n = len(target_names)
    figure, axes = figure_with_axes(2, n, width=3.6 * n, height=4.8, height_ratios=(3, 1.3), sharex="col")
    for target, name in enumerate(target_names):
        draw_predicted(axes[:, target], prediction.table, targets[:, target], name)
    return save(figure, path)


@styled
def traces_and_ranks(store: Store, path: str | Path) -> Path:
    """Plot hyperparameters and log densities by draw and chain, and the ranks of each chain's draws."""
    run = committed(store)
    candidates = sigmas(run) | adjustments(run) | log_densities(run)
    chosen = least_converged(candidates, _MAX_ROWS)
    figure, axes = figure_with_axes(
        len(chosen), 2, width=8.2, height=1.35 * len(chosen) + 0.7, width_ratios=(2.2, 1), sharex="col"
    )
    draw_traces(axes, {name: candidates[name] for name in chosen})
    if len(chosen) < len(candidates):
        figure.suptitle(
            f"The {len(chosen)} of {len(candidates)} quantities with the largest R-hat", fontsize=9
        )
    return save(figure, path)


@styled
def rhat_and_ess(diagnosis: Diagnosis, path: str | Path) -> Path:
    """Plot R-hat and effective sample sizes of each quantity as bars, with the thresholds."""
    table = diagnosis.quantities.sort_values("rhat", ascending=False).head(_MAX_BARS)
    figure, axes = figure_with_axes(1, 2, width=8.2, height=1.3 + 0.24 * len(table), sharey="row")
    draw_rhat(axes[0, 0], table, diagnosis.thresholds["max_rhat"])
    draw_ess(axes[0, 1], table, diagnosis.thresholds["min_ess"])
    if len(table) < len(diagnosis.quantities):
        figure.suptitle(
            f"The {len(table)} of {len(diagnosis.quantities)} quantities with the largest R-hat", fontsize=9
        )
    return save(figure, path)


@styled
def survival_curves(store: Store, path: str | Path, *, n_groups: int = 3, n_times: int = 120) -> Path:
    """Plot survival of the training cases, all and by predicted risk, by the model and by the cases.

    Cases whose time is missing are left out. The groups are of equal size, by each case's mean survival
    over the times. Lines and bands are the model's curves averaged over the cases, and over draws; steps
    are Kaplan and Meier's estimate.
    """
    data = store.data
    is_known = ~np.isnan(data.targets[:, 0])
    targets = data.targets[is_known, 0]
    times = np.linspace(0, np.abs(targets).max(), n_times)
    curves = _curves_by_draw(store, times)[:, is_known]  # (n_draws, n_cases, n_times)
    order = np.argsort(curves.mean(axis=(0, 2)), kind="stable")
    groups = np.array_split(order, min(n_groups, len(order)))
    figure, axes = figure_with_axes(1, 2, width=7.6, height=3.3, sharey="row")
    draw_survival(axes[0, 0], times, curves.mean(axis=1), targets, label="model", colour=BLUE, explain=True)
    axes[0, 0].set_title(f"All {len(targets):,} cases")
    names = ("high", "middle", "low") if len(groups) == 3 else tuple(map(str, range(1, len(groups) + 1)))
    for group, name, colour in zip(groups, names, (RED, ORANGE, GREEN, BLUE, PURPLE), strict=False):
        of_group = curves[:, group].mean(axis=1)
        draw_survival(axes[0, 1], times, of_group, targets[group], label=f"{name} risk", colour=colour)
    axes[0, 1].set_title("By predicted risk")
    for axis in axes[0]:
        axis.set(xlabel=data.target_names[0], ylim=(-0.02, 1.02))
        axis.set_xlim(0, times[-1])
        axis.legend(loc="best")
    axes[0, 0].set_ylabel("share surviving")
    return save(figure, path)


def has_survival_curves(store: Store) -> bool:
    """Return whether the targets are times, of which there are survival curves."""
    return isinstance(store.spec.data_model, SurvivalTargets)


def has_relevance(store: Store) -> bool:
    """Return whether inputs have sigmas of their own."""
    return bool(relevance_groups(store))


@styled
def relevance_of_inputs(store: Store, path: str | Path) -> Path:
    """Plot the sigma of each input's weights, for each group whose prior has one (ARD).

    At most 40 inputs of a group are shown, those with the largest medians, in their order.
    """
    run = committed(store)
    all_sigmas = sigmas(run)
    groups = relevance_groups(store)
    rows = {group: largest(of_inputs(all_sigmas, group), _MAX_BARS) for group in groups}
    height = 1.1 + 0.27 * max(len(of_inputs_shown) for of_inputs_shown in rows.values())
    figure, axes = figure_with_axes(1, len(rows), width=0.6 + 4.4 * len(rows), height=max(2.2, height))
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


@styled
def overview(
    store: Store,
    diagnosis: Diagnosis,
    prediction: Prediction,
    targets: Array,
    path: str | Path,
    *,
    title: str = "",
) -> Path:
    """Plot one page for real targets: predictions, traces and ranks of the common sigmas, convergence."""
    if not store.spec.data_model.has_residuals:
        raise ConfigError(f"overview: needs real targets, got model.kind = {store.spec.model.kind}")
    run = committed(store)
    names = store.data.target_names
    candidates = {name: values for name, values in sigmas(run).items() if "[" not in name}
    candidates = candidates or log_densities(run)  # every sigma fixed
    rows = least_converged(candidates, 5)
    figure = blank_figure(11.5, 3.9 + 1.25 * len(rows) + 0.6)
    halves = figure.add_gridspec(2, 1, height_ratios=(3.9, 1.25 * len(rows) + 0.6), hspace=0.03)
    top, bottom = figure.add_subfigure(halves[0]), figure.add_subfigure(halves[1])
    sides = top.add_gridspec(1, 2, width_ratios=(1.6, 1))
    predictions, bars = top.add_subfigure(sides[0]), top.add_subfigure(sides[1])
    axes = predictions.subplots(2, len(names), sharex="col", height_ratios=(3, 1.2), squeeze=False)
    for target, name in enumerate(names):
        draw_predicted(axes[:, target], prediction.table, targets[:, target], name)
    axes = bars.subplots(1, 2, sharey=True, squeeze=False)
    table = worst_of_each(diagnosis.quantities)
    draw_rhat(axes[0, 0], table, diagnosis.thresholds["max_rhat"])
    draw_ess(axes[0, 1], table, diagnosis.thresholds["min_ess"])
    axes = bottom.subplots(len(rows), 2, sharex="col", width_ratios=(2.4, 1), squeeze=False)
    draw_traces(axes, {name: candidates[name] for name in rows})
    summary = prediction.summary
    errors = ", ".join(
        f"{name.replace('_', ' ')} {_with_error(summary[name], summary.get(f'{name}_se', math.nan))}"
        for name in ("squared_error", "log_probability")
    )
    heading = f"{title + ': ' if title else ''}{run.n_chains} chains of {run.n_draws} draws; {errors} on "
    heading += f"{len(targets):,} test cases"
    figure.suptitle(heading, x=0.01, ha="left", fontsize=11)
    return save(figure, path)


# What the figures share.


def _curves_by_draw(store: Store, times: Array) -> Array:
    """Return P(T > t) of the training cases for at most _MAX_CURVES draws, (n_draws, n_cases, n_times)."""
    run, model, data = committed(store), store.spec.data_model, store.data
    assert isinstance(model, SurvivalTargets)
    stride = math.ceil(run.n_chains * run.n_draws / _MAX_CURVES)
    kept: list[Array] = []
    seen = 0
    for _, _, outputs, _ in output_blocks(run, data.standardized_inputs, memory_bytes=_MEMORY_BYTES):
        log_hazard = outputs.reshape(-1, *outputs.shape[2:])  # (n_draws, n_cases, n_pieces)
        chosen = log_hazard[-seen % stride :: stride]
        seen += len(log_hazard)
        shape = (*chosen.shape[:2], len(times))
        # Each case of each draw by itself, as one draw of a mixture.
        by_case = chosen.reshape(-1, 1, chosen.shape[2])
        kept.append(model.hazard.survival_curve(by_case, times).reshape(shape))
    return np.concatenate(kept)


def _with_error(value: float, error: float) -> str:
    """Write the value to the second digit of its standard error, if there is one."""
    if not (math.isfinite(error) and error > 0):
        return f"{value:.3g}"
    decimals = max(0, 1 - math.floor(math.log10(error)))
    return f"{value:.{decimals}f} ± {error:.{decimals}f}"


def _compress(axis: Any, values: Array, *, typical: float | None = None) -> None:
    """Set a scale that is linear near zero and logarithmic far out, if vague priors spread values so far."""
    sizes = np.abs(values[np.isfinite(values)])
    if typical is None:
        typical = float(np.median(sizes)) if sizes.size else 0.0
    if not typical > 0 or sizes.max() <= _MAX_SPREAD * typical:
        return
    axis.set_yscale("asinh", linear_width=typical)
    low, high = math.ceil(math.log10(2 * typical)), math.floor(math.log10(sizes.max()))
    decades = [10.0**power for power in range(low, high + 1, max(1, (high - low) // 3))]
    axis.set_yticks([*(-decade for decade in decades), 0, *decades])
    axis.minorticks_off()


def _along_input(data: Dataset, input_name: str | None, n_points: int) -> tuple[str, int, Array]:
    """Return the input's name and column, and points along it with the other inputs at their medians."""
    name = data.input_names[0] if input_name is None else input_name
    if name not in data.input_names:
        raise ConfigError(
            f"input_name: is not an input of the store, got {name};"
            f" the inputs are {', '.join(data.input_names)}"
        )
    column = data.input_names.index(name)
    x = data.inputs[:, column]
    margin = 0.15 * (np.ptp(x) or 1.0)
    inputs = np.tile(np.median(data.inputs, axis=0), (n_points, 1))
    inputs[:, column] = np.linspace(x.min() - margin, x.max() + margin, n_points)
    return name, column, inputs


def _others_held(names: Sequence[str], name: str) -> str:
    others = [other for other in names if other != name]
    if not others:
        return ""
    if len(others) == 1:
        return f", with {others[0]} at its median"
    held = ", ".join(others) if len(others) <= 3 else f"the other {len(others)} inputs"
    return f", with {held} at their medians"
