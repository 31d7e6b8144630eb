"""The picture of predictions against actual targets, and an overview that adds the state of the chains."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from rayfbnn.answers.calibration import labelled, places
from rayfbnn.arrays import Array
from rayfbnn.draws.quantities import sigmas
from rayfbnn.pictures.calibrated import draw_numbers, draw_probability_histogram, draw_reliability
from rayfbnn.pictures.chains import draw_ess, draw_rhat, draw_traces
from rayfbnn.pictures.figures import Figure, blank_figure, save, styled
from rayfbnn.pictures.panels import draw_predicted
from rayfbnn.pictures.selection import least_converged, log_densities, worst_of_each

if TYPE_CHECKING:
    from rayfbnn.answers.diagnostics import Diagnosis
    from rayfbnn.answers.predict import Prediction
    from rayfbnn.draws.view import Draws


@styled
def predicted_against_actual(
    run: Draws, prediction: Prediction, inputs: Array, targets: Array, path: str | Path
) -> Path:
    """Plot predictions against actual targets.

    For numbers, the picture has predictive medians and actual values, above the place of each target in its
    predictive distribution. For labels, it has the share of cases that have a label, by its probability.

    inputs, targets  (n_cases, n_inputs) and (n_cases, n_targets), the cases of `prediction`
    """
    n = _n_columns(run)
    figure = blank_figure(3.6 * n if n > 1 else 4.6, 4.8)
    draw_beside_actual(figure, run, prediction, inputs, targets)
    return save(figure, path)


def _n_columns(run: Draws) -> int:
    return 1 if run.spec.data_model.has_labels else run.data.n_targets


def draw_beside_actual(
    figure: Figure, run: Draws, prediction: Prediction, inputs: Array, targets: Array
) -> None:
    """Draw predictions against actual targets onto a figure or a part of one; arguments as above."""
    model, names = run.spec.data_model, run.data.target_names
    ratios = (3, 1.2)
    if model.has_labels:
        axes = figure.subplots(2, 1, sharex=True, height_ratios=ratios)
        by_label = labelled(run, prediction.table, targets)
        draw_reliability(axes[0], by_label)
        draw_probability_histogram(axes[1], by_label)
        axes[0].set_xlabel("")
        axes[0].set_title(f"Reliability at {len(targets):,} cases")
        return
    axes = figure.subplots(2, len(names), sharex="col", height_ratios=ratios, squeeze=False)
    placed = None if model.is_real else places([run], inputs, targets)
    for target, name in enumerate(names):
        column, actual = axes[:, target], targets[:, target]
        if placed is None:
            draw_predicted(column, prediction.table, actual, name)
        else:
            of_target = placed.of_target(target)
            draw_numbers(column, prediction.table, actual, of_target, name, are_times=model.are_times)


@styled
def overview(
    run: Draws,
    diagnosis: Diagnosis,
    prediction: Prediction,
    inputs: Array,
    targets: Array,
    path: str | Path,
    *,
    title: str = "",
) -> Path:
    """Plot one page: predictions and actual targets, traces and ranks of the common sigmas, convergence."""
    candidates = {name: values for name, values in sigmas(run).items() if "[" not in name}
    candidates = candidates or log_densities(run)  # every sigma fixed
    rows = least_converged(candidates, 5)
    figure = blank_figure(11.5, 3.9 + 1.25 * len(rows) + 0.6)
    halves = figure.add_gridspec(2, 1, height_ratios=(3.9, 1.25 * len(rows) + 0.6), hspace=0.03)
    top, bottom = figure.add_subfigure(halves[0]), figure.add_subfigure(halves[1])
    sides = top.add_gridspec(1, 2, width_ratios=(1.6, 1))
    predictions, bars = top.add_subfigure(sides[0]), top.add_subfigure(sides[1])
    draw_beside_actual(predictions, run, prediction, inputs, targets)
    axes = bars.subplots(1, 2, sharey=True, squeeze=False)
    table = worst_of_each(diagnosis.quantities)
    draw_rhat(axes[0, 0], table, diagnosis.thresholds["max_rhat"])
    draw_ess(axes[0, 1], table, diagnosis.thresholds["min_ess"])
    axes = bottom.subplots(len(rows), 2, sharex="col", width_ratios=(2.4, 1), squeeze=False)
    draw_traces(axes, {name: candidates[name] for name in rows})
    summary = prediction.summary
    errors = ", ".join(
        f"{name.replace('_', ' ')} {_with_error(summary[name], summary.get(f'{name}_se', math.nan))}"
        for name in ("squared_error", "error_rate", "log_probability")
        if name in summary
    )
    heading = f"{title + ': ' if title else ''}{run.n_chains} chains of {run.n_draws} draws; {errors} on "
    heading += f"{len(targets):,} test cases"
    figure.suptitle(heading, x=0.01, ha="left", fontsize=11)
    return save(figure, path)


def _with_error(value: float, error: float) -> str:
    """Return the value as text, rounded to the second digit of its standard error if that is known."""
    if not (math.isfinite(error) and error > 0):
        return f"{value:.3g}"
    decimals = max(0, 1 - math.floor(math.log10(error)))
    return f"{value:.{decimals}f} ± {error:.{decimals}f}"
