"""Pictures of predictions against actual targets: calibration, residuals, survival, and an overview."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from rayfbnn.answers.calibration import BINS, Places, labelled, places, reliability, share_limits
from rayfbnn.arrays import Array
from rayfbnn.draws.outputs import outputs_alone
from rayfbnn.draws.quantities import sigmas
from rayfbnn.draws.subsets import for_picture
from rayfbnn.model.likelihood.survival import SurvivalTargets
from rayfbnn.numerals import plain
from rayfbnn.output.lines import all_shortened, shortened
from rayfbnn.pictures.chains import (
    draw_ess,
    draw_rhat,
    draw_traces,
    least_converged,
    log_densities,
    worst_of_each,
)
from rayfbnn.pictures.figures import (
    BLUE,
    CHAIN_COLOURS,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    Figure,
    blank_figure,
    figure_with_axes,
    save,
    styled,
)
from rayfbnn.pictures.panels import (
    BESIDE,
    Axes,
    draw_predicted,
    draw_survival,
    opacity,
    set_log_scale,
    titled,
)
from rayfbnn.store.store import word_for_chains

if TYPE_CHECKING:
    from rayfbnn.answers.diagnostics import Diagnosis
    from rayfbnn.answers.predict import Prediction
    from rayfbnn.draws.view import Draws


_MAX_LABELS = len(CHAIN_COLOURS)  # that have separate lines


def draw_pit(axis: Axes, places: Places) -> None:
    """Draw the histogram of places within predictive distributions, which is flat if these are calibrated.

    If predictions are calibrated, 95 % of the bars end in the grey band.
    """
    shares = places.histogram()
    edges = np.linspace(0, 1, BINS + 1)
    low, high = share_limits(len(places.low), 1 / BINS)
    axis.bar(edges[:-1], BINS * shares, width=1 / BINS, align="edge", color=BLUE, lw=0)
    axis.axhspan(BINS * low, BINS * high, color=GREY, alpha=0.3, lw=0, zorder=2)
    axis.axhline(1, color="black", lw=0.8)
    axis.set(xlim=(0, 1), xlabel="place in the predictive distribution (PIT)", ylabel="density")


def draw_coverage(axis: Axes, places: Places) -> None:
    """Draw the share of cases in central intervals by the interval's probability."""
    levels = np.linspace(0.02, 0.98, 49)
    limits = np.array([share_limits(len(places.low), level) for level in levels])
    axis.fill_between(levels, limits[:, 0], limits[:, 1], color=GREY, alpha=0.18, lw=0)
    axis.plot([0, 1], [0, 1], color="black", lw=0.8)
    axis.plot(levels, places.coverage(levels), color=BLUE, lw=1.6)
    axis.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="probability of the central interval", ylabel="share inside")


def draw_reliability(axis: Axes, by_label: dict[str, tuple[Array, Array]]) -> None:
    """Draw the share of cases that have a label by its predicted probability.

    If predictions are calibrated, 95 % of the points lie within the bars. More than eight labels share one
    line.
    """
    if len(by_label) > _MAX_LABELS:
        probability, happened = map(np.concatenate, zip(*by_label.values(), strict=True))
        by_label = {"all labels": (probability, happened)}
    axis.plot([0, 1], [0, 1], color="black", lw=0.8)
    labels = all_shortened(list(by_label))
    for number, (label, (probability, happened)) in enumerate(zip(labels, by_label.values(), strict=True)):
        bins = reliability(probability, happened)
        colour = CHAIN_COLOURS[number]
        axis.vlines(bins["predicted"], bins["low"], bins["high"], color=colour, lw=4, alpha=0.25)
        axis.plot(bins["predicted"], bins["observed"], "o-", color=colour, ms=4, label=label)
    axis.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), xlabel="predicted probability", ylabel="share observed")
    axis.legend(loc="upper left")


def draw_probability_histogram(axis: Axes, by_label: dict[str, tuple[Array, Array]]) -> None:
    """Draw the histogram of predicted probabilities, for all labels together."""
    every = np.concatenate([probability for probability, _ in by_label.values()])
    axis.hist(every, bins=np.linspace(0, 1, BINS + 1), color=BLUE, alpha=0.75)
    axis.set(xlim=(-0.02, 1.02), xlabel="predicted probability", ylabel="predictions")


def draw_actual(axis: Axes, median: Array, actual: Array, name: str, *, are_times: bool = False) -> None:
    """Draw actual values against predicted ones; times on logarithmic axes, hollow where censored.

    median, actual  (n_cases,), without missing values
    """
    is_censored = (actual < 0) if are_times else np.zeros(len(actual), dtype=bool)
    values = np.abs(actual) if are_times else actual
    both = np.append(values, median)
    ends = [both.min(), both.max()] if both.size else []
    if are_times and both.size:
        set_log_scale(axis, "x")
        set_log_scale(axis, "y")
    axis.plot(ends, ends, color="black", lw=0.8, zorder=1)
    points: dict[str, Any] = {
        "marker": "o",
        "ls": "",
        "color": BLUE,
        "alpha": opacity(len(values)),
        "ms": 3.2,
    }
    axis.plot(median[~is_censored], values[~is_censored], mew=0, zorder=2, **points)
    if is_censored.any():
        hollow = {**points, "mfc": "none", "mew": 0.8}
        axis.plot(median[is_censored], values[is_censored], zorder=2, label="censored", **hollow)
        axis.legend(loc="upper left")
    axis.set_ylabel(f"actual {shortened(name, BESIDE)}")


def draw_scores(axis: Axes, median: Array, places: Places, *, are_times: bool = False) -> None:
    """Draw the normal scores of targets by their predicted value; 95 % should lie in the band.

    median  (n_cases,), of the cases with known places
    """
    scores = places.scores
    axis.axhspan(-1.96, 1.96, color=SKY, alpha=0.2, lw=0, zorder=0)
    axis.axhline(0, color="black", lw=0.6, zorder=1)
    if are_times and len(median):
        set_log_scale(axis, "x")
    axis.plot(median, scores, "o", ms=2.6, mew=0, color=BLUE, alpha=opacity(len(scores)), zorder=2)
    reach = 1.08 * max(2.6, float(np.abs(scores).max(initial=0)))
    axis.set_ylim(-reach, reach)
    axis.set_ylabel("normal score")


def _draw_numbers(
    axes: Array, table: pd.DataFrame, actual: Array, places: Places, name: str, *, are_times: bool
) -> None:
    """Draw counts or times by their predicted medians above, and their normal scores below.

    actual  (n_cases,), NaN where missing; places  of the cases that are not missing
    """
    above, below = axes
    is_known = ~np.isnan(actual)
    median = table[f"{name}_median"].to_numpy()[is_known]
    draw_actual(above, median, actual[is_known], name, are_times=are_times)
    draw_scores(below, median, places, are_times=are_times)
    n = int(is_known.sum())
    inside = f", {100 * float(places.coverage([0.8])[0]):.0f} % in their 80 % interval" if n else ""
    above.set_title(titled(name, f"{n:,} cases{inside}"))
    below.set_xlabel(f"predicted {shortened(name, BESIDE)} (median)")


@styled
def predicted_against_actual(
    run: Draws, prediction: Prediction, inputs: Array, targets: Array, path: str | Path
) -> Path:
    """Plot predictions against actual targets.

    For numbers, the picture has predictive medians and actual values, above the place of each target in its
    predictive distribution. For labels, it has the share of cases that have a label, by its probability.

    inputs, targets  (n_cases, n_inputs) and (n_cases, n_targets), the cases of `prediction`
    """
    n = 1 if run.spec.data_model.has_labels else run.data.n_targets
    figure = blank_figure(3.6 * n if n > 1 else 4.6, 4.8)
    _draw_beside_actual(figure, run, prediction, inputs, targets)
    return save(figure, path)


def _draw_beside_actual(
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
            _draw_numbers(column, prediction.table, actual, of_target, name, are_times=model.are_times)


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
    _draw_beside_actual(predictions, run, prediction, inputs, targets)
    axes = bars.subplots(1, 2, sharey=True, squeeze=False)
    table = worst_of_each(diagnosis.quantities)
    draw_rhat(axes[0, 0], table, diagnosis.thresholds["max_rhat"])
    draw_ess(axes[0, 1], table, diagnosis.thresholds["min_ess"])
    axes = bottom.subplots(len(rows), 2, sharex="col", width_ratios=(2.4, 1), squeeze=False)
    draw_traces(axes, {name: candidates[name] for name in rows}, numbers=run.chain_numbers)
    summary = prediction.summary
    errors = ", ".join(
        f"{name.replace('_', ' ')} {_with_error(summary[name], summary.get(f'{name}_se', math.nan))}"
        for name in ("squared_error", "error_rate", "log_probability")
        if name in summary
    )
    word = word_for_chains(run.store)
    heading = f"{title + ': ' if title else ''}{run.n_chains} {word} of {run.n_draws:,} draws; {errors} on "
    heading += f"{len(targets):,} test cases"
    figure.suptitle(heading, x=0.01, ha="left", fontsize=11)
    return save(figure, path)


def _with_error(value: float, error: float) -> str:
    """Return the value as text, rounded to the second digit of its standard error if that is known."""
    if not (math.isfinite(error) and error > 0):
        return plain(value, 3)
    decimals = max(0, 1 - math.floor(math.log10(error)))
    return f"{value:,.{decimals}f} ± {error:,.{decimals}f}"


_MAX_CURVES = 400  # draws of a survival curve
_MEMORY_BYTES = 64e6


@styled
def survival_curves(run: Draws, path: str | Path, *, n_groups: int = 3, n_times: int = 120) -> Path:
    """Plot survival of the training cases, all and by predicted risk, by the model and by the cases.

    Cases with a missing time are left out. The groups are of equal size, by each case's mean survival over
    the times. Lines and bands are the mean and the 80 % interval over draws of the model's curves, averaged
    over the cases. Steps are Kaplan and Meier's estimate.
    """
    data = run.data
    is_known = ~np.isnan(data.targets[:, 0])
    targets = data.targets[is_known, 0]
    times = np.linspace(0, np.abs(targets).max(), n_times)
    curves = curves_by_draw(for_picture(run), data.inputs[is_known], times)
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
        axis.set(xlabel=shortened(data.target_names[0]), ylim=(-0.02, 1.02))
        axis.set_xlim(0, times[-1])
        axis.legend(loc="best")
    axes[0, 0].set_ylabel("share surviving")
    return save(figure, path)


def has_survival_curves(run: Draws) -> bool:
    """Return True if the targets are survival times, which have survival curves."""
    return isinstance(run.spec.data_model, SurvivalTargets)


def curves_by_draw(run: Draws, inputs: Array, times: Array) -> Array:
    """Return P(T > t) of some cases for at most 400 draws, (n_draws, n_cases, n_times).

    inputs  (n_cases, n_inputs) as in the data file
    """
    model, data = run.spec.data_model, run.data
    assert isinstance(model, SurvivalTargets)
    standardized = (inputs - data.input_center) / data.input_scale
    stride = math.ceil(run.total / _MAX_CURVES)
    kept: list[Array] = []
    seen = 0
    for _, _, outputs in outputs_alone(run, standardized, memory_bytes=_MEMORY_BYTES):
        log_hazard = outputs.reshape(-1, *outputs.shape[2:])  # (n_draws, n_cases, n_pieces)
        chosen = log_hazard[-seen % stride :: stride]
        seen += len(log_hazard)
        shape = (*chosen.shape[:2], len(times))
        # Each case of each draw counts as a mixture of one draw.
        by_case = chosen.reshape(-1, 1, chosen.shape[2])
        kept.append(model.hazard.survival_curve(by_case, times).reshape(shape))
    return np.concatenate(kept)
