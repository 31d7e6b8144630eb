"""Pictures of predictions against actual targets: calibration, residuals, and survival."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from rayfbnn.answers.measures import BINS, Places, labelled, places, reliability, share_limits
from rayfbnn.arrays import Array
from rayfbnn.draws.outputs import output_blocks
from rayfbnn.draws.subsets import for_picture
from rayfbnn.model.likelihood.survival import SurvivalTargets
from rayfbnn.output.lines import all_shortened, shortened
from rayfbnn.pictures.figures import BLUE, CHAIN_COLOURS, GREEN, GREY, ORANGE, RED, SKY, Axes, Panel, arrange
from rayfbnn.pictures.panels import draw_cases, opacity, set_log_scale, titled

if TYPE_CHECKING:
    import pandas as pd

    from rayfbnn.answers.predict import Prediction
    from rayfbnn.draws.view import Draws


_MAX_LABELS = len(CHAIN_COLOURS)  # that have separate lines
_BESIDE = 22  # characters of a name beside a panel
ByLabel: TypeAlias = dict[str, tuple[Array, Array]]  # probabilities, and whether the label occurred


def pit_panel(places: Places, caption: str) -> Panel:
    """Return the histogram of places within predictive distributions, which is flat if calibrated."""
    shapes = (
        " A valley in the middle means that intervals are too narrow, a hill that they are too wide, and a"
        " slope that predictions are too low or too high."
    )
    return Panel(_draw_pit, (places,), caption=f"{caption}{shapes}")


def coverage_panel(places: Places, name: str) -> Panel:
    """Return the share of cases in central intervals by the interval's probability."""
    return Panel(
        _draw_coverage,
        (places,),
        caption=f"{name}: the share of cases in central intervals. Below the line, intervals are too narrow;"
        " above it, they are too wide.",
    )


def _draw_pit(axis: Axes, places: Places) -> None:
    shares = places.histogram()
    edges = np.linspace(0, 1, BINS + 1)
    low, high = share_limits(len(places.low), 1 / BINS)
    axis.bar(edges[:-1], BINS * shares, width=1 / BINS, align="edge", color=BLUE, lw=0)
    axis.axhspan(BINS * low, BINS * high, color=GREY, alpha=0.3, lw=0, zorder=2)
    axis.axhline(1, color="black", lw=0.8)
    axis.set(xlim=(0, 1), xlabel="place in the predictive distribution (PIT)", ylabel="density")


def _draw_coverage(axis: Axes, places: Places) -> None:
    levels = np.linspace(0.02, 0.98, 49)
    limits = np.array([share_limits(len(places.low), level) for level in levels])
    axis.fill_between(levels, limits[:, 0], limits[:, 1], color=GREY, alpha=0.18, lw=0)
    axis.plot([0, 1], [0, 1], color="black", lw=0.8)
    axis.plot(levels, places.coverage(levels), color=BLUE, lw=1.6)
    axis.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="probability of the central interval", ylabel="share inside")


def reliability_panels(by_label: ByLabel) -> list[Panel]:
    """Return the share of cases that have a label by its probability, and a histogram of probabilities."""
    return [
        Panel(
            _draw_reliability,
            (by_label,),
            caption="The share of cases that have a label, by its predicted probability. If predictions are"
            " calibrated, 95 % of the points lie within the bars.",
            size=(4.6, 3.4),
        ),
        Panel(
            _draw_probability_histogram,
            (by_label,),
            caption="The number of predictions by their probability.",
            size=(4.6, 1.6),
        ),
    ]


def _draw_reliability(axis: Axes, by_label: ByLabel) -> None:
    """Draw a line for each label; the labels share one if there are more of them than colours."""
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


def _draw_probability_histogram(axis: Axes, by_label: ByLabel) -> None:
    every = np.concatenate([probability for probability, _ in by_label.values()])
    axis.hist(every, bins=np.linspace(0, 1, BINS + 1), color=BLUE, alpha=0.75)
    axis.set(xlim=(-0.02, 1.02), xlabel="predicted probability", ylabel="predictions")


def residual_panels(
    table: pd.DataFrame, actual: Array, places: Places, name: str, *, are_times: bool
) -> list[Panel]:
    """Return actual values by their predicted medians, and normal scores of the actual values.

    actual  (n_cases,), NaN where missing
    places  of the cases that are not missing
    """
    is_known = ~np.isnan(actual)
    median = table[f"{name}_median"].to_numpy()[is_known]
    n = len(median)
    inside = f", {100 * float(places.coverage([0.8])[0]):.0f} % in their 80 % interval" if n else ""
    return [
        Panel(
            _draw_actual,
            (median, actual[is_known], name, are_times),
            title=titled(name, f"{n:,} cases{inside}"),
            size=(3.6, 3.4),
        ),
        Panel(
            _draw_residuals,
            (median, places.scores, name, 1.96, "normal score", are_times and n > 0),
            alt=f"Normal scores of {name} by its predicted value",
            size=(3.6, 1.6),
        ),
    ]


def _interval_panels(table: pd.DataFrame, actual: Array, name: str) -> list[Panel]:
    """Return actual values by their predicted medians, and errors relative to the ends of the 80 % interval.

    actual  (n_cases,), NaN where missing
    """
    is_known = ~np.isnan(actual)
    actual, table = actual[is_known], table[is_known]
    median, low, high = (table[f"{name}_{column}"].to_numpy() for column in ("median", "q10", "q90"))
    off = (actual - median) / np.where(actual > median, high - median, median - low)
    inside = f"{100 * np.mean(np.abs(off) <= 1):.0f} % of " if len(off) else ""
    title = titled(name, f"{inside}{len(off):,} cases in their 80 % interval")
    return [
        Panel(_draw_actual, (median, actual, name, False), title=title, size=(3.6, 3.4)),
        Panel(
            _draw_residuals, (median, off, name, 1.0, "place in the\n80 % interval", False), size=(3.6, 1.6)
        ),
    ]


def _draw_actual(axis: Axes, median: Array, actual: Array, name: str, are_times: bool) -> None:
    """Draw actual values against predicted ones, without missing values; times on logarithmic axes."""
    both = np.append(np.abs(actual) if are_times else actual, median)
    ends = [both.min(), both.max()] if both.size else []
    axis.plot(ends, ends, color="black", lw=0.8, zorder=1)
    draw_cases(axis, median, actual, are_times=are_times and both.size > 0, color=BLUE, zorder=2)
    if are_times and both.size:
        set_log_scale(axis, "x")
        if (actual < 0).any():
            axis.legend(loc="upper left")
    axis.set(ylabel=f"actual {shortened(name, _BESIDE)}", xlabel=_predicted(name))


def _predicted(name: str) -> str:
    return f"predicted {shortened(name, _BESIDE)} (median)"


def _draw_residuals(
    axis: Axes, median: Array, values: Array, name: str, band: float, label: str, is_log: bool
) -> None:
    """Draw residuals by the predicted median, with a band about zero."""
    axis.axhspan(-band, band, color=SKY, alpha=0.3, lw=0, zorder=0)
    axis.axhline(0, color="black", lw=0.6, zorder=1)
    axis.plot(median, values, "o", ms=2.6, mew=0, color=BLUE, alpha=opacity(len(values)), zorder=2)
    reach = 1.08 * float(np.abs(values).max(initial=max(2.0, band + 0.6)))
    axis.set(ylim=(-reach, reach), ylabel=label, xlabel=_predicted(name))
    if is_log:
        set_log_scale(axis, "x")


def predicted_against_actual(
    run: Draws, prediction: Prediction, inputs: Array, targets: Array, path: str | Path
) -> Path:
    """Plot predictions against actual targets.

    For numbers, the picture has predictive medians and actual values, above the place of each target in its
    predictive distribution. For labels, it has the share of cases that have a label, by its probability.

    inputs, targets  (n_cases, n_inputs) and (n_cases, n_targets), the cases of `prediction`
    """
    model, names, table = run.spec.data_model, run.data.target_names, prediction.table
    if model.has_labels:
        above, below = reliability_panels(labelled(run, table, targets))
        above = replace(above, title=f"Reliability at {len(targets):,} cases")
        return arrange(path, [above, below], sharex=True)
    if model.is_real:
        pairs = [_interval_panels(table, targets[:, n], name) for n, name in enumerate(names)]
    else:
        placed = places([run], inputs, targets)
        pairs = [
            residual_panels(table, targets[:, n], placed.of_target(n), name, are_times=model.are_times)
            for n, name in enumerate(names)
        ]
    rows = [panel for row in zip(*pairs, strict=True) for panel in row]
    return arrange(path, rows, columns=len(names), sharex="col")


_MAX_CURVES, _TIMES = 400, 120  # draws of a survival curve, and times
_MEMORY_BYTES = 64e6


def survival_curves(run: Draws, path: str | Path) -> Path:
    """Plot survival of the training cases, all and by predicted risk, by the model and by the cases.

    Cases with a missing time are left out. The groups are of equal size, by each case's mean survival over
    the times. Lines and bands are the mean and the 80 % interval over draws of the model's curves, averaged
    over the cases. Steps are Kaplan and Meier's estimate.
    """
    data = run.data
    is_known = ~np.isnan(data.targets[:, 0])
    targets, name = data.targets[is_known, 0], data.target_names[0]
    times = np.linspace(0, np.abs(targets).max(), _TIMES)
    curves = curves_by_draw(for_picture(run), data.inputs[is_known], times)
    order = np.argsort(curves.mean(axis=(0, 2)), kind="stable")
    by_risk = [
        (f"{risk} risk", curves[:, group].mean(axis=1), targets[group], colour)
        for risk, colour, group in zip(
            ("high", "middle", "low"), (RED, ORANGE, GREEN), np.array_split(order, 3), strict=True
        )
        if len(group)
    ]
    whole = survival_panel(times, curves.mean(axis=1), targets, name)
    groups = replace(whole, args=(times, by_risk, name), title="By predicted risk")
    return arrange(path, [whole, groups], columns=2, sharey="row")


def survival_panel(times: Array, curves: Array, targets: Array, name: str) -> Panel:
    """Return the share of cases that survive, by the model and by the cases themselves.

    curves   (n_draws, n_times) survival of each draw, averaged over the cases
    targets  (n_cases,), negative for censored cases
    """
    return Panel(
        _draw_survival_of_groups,
        (times, [("model", curves, targets, BLUE)], name),
        title=f"All {len(targets):,} cases",
        caption=f"The share of {len(targets):,} cases that survive: the average of the model's curves, and"
        " Kaplan and Meier's estimate from the times of the cases.",
        size=(3.8, 3.3),
    )


def _draw_survival_of_groups(
    axis: Axes, times: Array, groups: Sequence[tuple[str, Array, Array, str]], name: str
) -> None:
    """Draw survival of each group of cases; a single one has a legend with all parts."""
    for label, curves, targets, colour in groups:
        _draw_survival(axis, times, curves, targets, label, colour, explain=len(groups) == 1)
    axis.set(xlabel=shortened(name), ylabel="share surviving", xlim=(0, times[-1]), ylim=(-0.02, 1.02))
    axis.legend(loc="best")


def _draw_survival(
    axis: Axes, times: Array, curves: Array, targets: Array, label: str, colour: str, *, explain: bool
) -> None:
    """Draw survival by the model as a line with its 80 % interval, and by the cases themselves as steps.

    explain  True to explain interval, steps and ticks in the legend
    """
    names = ["80 % interval", "Kaplan and Meier", "censored"] if explain else [None, None, None]
    low, high = np.quantile(curves, [0.1, 0.9], axis=0)
    axis.fill_between(times, low, high, color=colour, alpha=0.22, lw=0, label=names[0])
    axis.plot(times, curves.mean(axis=0), color=colour, label=label)
    events, left = kaplan_meier(targets)
    ends = np.concatenate([[0.0], events, [np.abs(targets).max()]])
    values = np.concatenate([[1.0], left, left[-1:] if len(left) else [1.0]])
    axis.step(ends, values, where="post", color=colour, lw=0.9, ls=(0, (3, 1.2)), label=names[1])
    censored = -targets[targets < 0]
    at = values[np.searchsorted(ends[:-1], censored, side="right") - 1]
    axis.plot(censored, at, "|", color=colour, ms=6, mew=0.9, label=names[2])


def kaplan_meier(targets: Array) -> tuple[Array, Array]:
    """Return the times of events, and the share surviving after each of them.

    S(t) = product over events at t_i <= t of (1 - d_i / r_i), d_i events and r_i cases at risk at t_i.
    Kaplan and Meier (1958), "Nonparametric estimation from incomplete observations".

    targets  (n_cases,), negative where censored
    """
    times, is_event = np.abs(targets), targets > 0
    events, n_events = np.unique(times[is_event], return_counts=True)
    at_risk = (times[:, None] >= events).sum(axis=0)
    return events, np.asarray(np.cumprod(1 - n_events / at_risk))


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
    for _, _, outputs in output_blocks(run, standardized, memory_bytes=_MEMORY_BYTES):
        log_hazard = outputs.reshape(-1, *outputs.shape[2:])  # (n_draws, n_cases, n_pieces)
        chosen = log_hazard[-seen % stride :: stride]
        seen += len(log_hazard)
        shape = (*chosen.shape[:2], len(times))
        # Each case of each draw counts as a mixture of one draw.
        by_case = chosen.reshape(-1, 1, chosen.shape[2])
        kept.append(model.hazard.survival_curve(by_case, times).reshape(shape))
    return np.concatenate(kept)
