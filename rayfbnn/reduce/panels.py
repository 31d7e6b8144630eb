"""The panels that pictures of a run are made of, each drawn on axes that it is given."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from rayfbnn.arrays import Array

if TYPE_CHECKING:
    import pandas as pd

Axes: TypeAlias = Any  # matplotlib's; only figures.py imports it

# Okabe and Ito's palette, told apart with any colour vision; black is kept for text and reference lines.
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, YELLOW, GREY = "#CC79A7", "#56B4E9", "#B8A900", "#666666"
CHAIN_COLOURS = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY, YELLOW, GREY)
_KOLMOGOROV_95 = 1.358  # 95 % of the largest distance of n uniforms' distribution function, times sqrt(n)


def describe_quantity(name: str) -> str:
    """Return a quantity's name and description: "sigma_ih0: weights, inputs to hidden layer 0"."""
    if name in ("log_likelihood", "log_prior"):
        return name
    if name.startswith("adjustment_ah"):
        return f"{name}: adjustments of hidden layer {name.removeprefix('adjustment_ah')}, geometric mean"
    if name.startswith("adjustment_ao"):
        return f"{name}: adjustment of one output"
    match = re.fullmatch(r"sigma_([a-z0-9]+?)(_unit|_common)?(\[.*\])?", name)
    if match is None:
        return name
    group, level, which = match.groups()
    words = _group_in_words(group)
    detail = ", those of one unit" if level == "_unit" else ", one target" if which else ""
    return f"{name}: {words}{detail}"


def _group_in_words(group: str) -> str:
    if group == "noise":
        return "noise"
    if group in ("bo", "ti", "io"):
        return {"bo": "output biases", "ti": "input offsets", "io": "weights, inputs to outputs"}[group]
    if group[0] in "bt":
        return f"{'biases' if group[0] == 'b' else 'offsets'} of hidden layer {group[2:]}"
    if group.startswith("ih"):
        return f"weights, inputs to hidden layer {group[2:]}"
    if group.startswith("ho"):
        return f"weights, hidden layer {group[2:]} to outputs"
    source, destination = group[1:].split("h")
    return f"weights, hidden layer {source} to {destination}"


def draw_band(axis: Axes, x: Array, table: pd.DataFrame, name: str) -> None:
    """Draw the 98 % and 80 % intervals and the median of a target along x."""
    axis.fill_between(
        x, table[f"{name}_q01"], table[f"{name}_q99"], color=SKY, alpha=0.3, lw=0, label="98 % interval"
    )
    axis.fill_between(
        x, table[f"{name}_q10"], table[f"{name}_q90"], color=SKY, alpha=0.6, lw=0, label="80 % interval"
    )
    axis.plot(x, table[f"{name}_median"], color=BLUE, label="median")


def draw_targets(axis: Axes, x: Array, y: Array, *, are_times: bool, is_only_input: bool) -> None:
    """Draw cases as points; times on a logarithmic axis, hollow where they are censored (negative)."""
    points: dict[str, Any] = {"marker": "o", "ls": "", "ms": 3, "mew": 0, "alpha": opacity(len(x))}
    points |= {"color": "black" if is_only_input else GREY, "zorder": 3 if is_only_input else 0}
    label = "data" if is_only_input else "data, whatever the other inputs"
    if are_times:
        axis.set_yscale("log")
        if (y < 0).any():
            axis.plot(x[y < 0], -y[y < 0], label="censored", **{**points, "mfc": "none", "mew": 0.7})
        x, y = x[~(y < 0)], y[~(y < 0)]
    axis.plot(x, y, label=label, **points)


def draw_probabilities(
    axis: Axes,
    x: Array,
    probabilities: Array,
    x_data: Array,
    labelled: Sequence[tuple[Array, Array | None]],
    *,
    names: Sequence[str],
) -> None:
    """Draw probabilities as lines; cases as ticks in the colour of their label, below for the opposite label.

    probabilities  (n_points, n_labels); x (n_points,); x_data (n_cases,)
    labelled       for each label the cases that have it, and those that have its opposite if it has one
    """
    for number, (name, (of_label, of_opposite)) in enumerate(zip(names, labelled, strict=True)):
        colour = CHAIN_COLOURS[number % len(CHAIN_COLOURS)]
        axis.plot(x, probabilities[:, number], color=colour, label=name)
        axis.plot(x_data[of_label], np.full(of_label.sum(), 1.04), "|", color=colour, ms=6, alpha=0.7)
        if of_opposite is not None:
            below = np.full(of_opposite.sum(), -0.04)
            axis.plot(x_data[of_opposite], below, "|", color=colour, ms=6, alpha=0.7)
    axis.set_ylim(-0.08, 1.08)
    axis.set_ylabel("probability")


def draw_survival(
    axis: Axes,
    times: Array,
    curves: Array,
    targets: Array,
    *,
    label: str,
    colour: str,
    explain: bool = False,
) -> None:
    """Draw survival by the model as a line with its 80 % interval, by the cases themselves as steps.

    curves   (n_draws, n_times) survival of each draw, averaged over the cases
    targets  (n_cases,), negative for censored cases
    explain  True for a legend that says what interval, steps and ticks are
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


def draw_relevance(axis: Axes, names: Sequence[str], values: Array) -> None:
    """Draw the posterior of each input's sigma as a row: median, 80 % and 98 % intervals, chains' medians.

    values (n_inputs, n_chains, n_draws)
    """
    places = np.arange(len(names))[::-1]
    pooled = values.reshape(len(values), -1)
    levels = np.quantile(pooled, [0.01, 0.1, 0.5, 0.9, 0.99], axis=1)
    axis.hlines(places, levels[0], levels[4], color=SKY, lw=1.4, label="98 %")
    axis.hlines(places, levels[1], levels[3], color=BLUE, lw=3.6, label="80 %")
    axis.plot(levels[2], places, "o", color="white", mec=BLUE, mew=1.3, ms=5.5, ls="", label="median")
    if values.shape[1] > 1:
        chains = np.median(values, axis=2)
        x, y = chains.ravel(), np.repeat(places, values.shape[1]) - 0.28
        axis.plot(x, y, "|", color=GREY, ms=4.5, mew=0.7, alpha=0.8, ls="", label="medians of chains")
    _logarithmic(axis, levels, which="x")
    axis.set_yticks(places, names)
    axis.tick_params(axis="y", length=0)
    axis.set_ylim(-0.7, len(names) - 0.4)
    axis.grid(axis="x", color="0.9", lw=0.6)
    axis.set_axisbelow(True)


def draw_predicted(axes: Array, table: pd.DataFrame, actual: Array, name: str) -> None:
    """Draw predicted against actual values above, and below errors relative to the ends of the 80 % interval.

    actual (n_cases,); cases where it is missing (NaN) are left out
    """
    above, below = axes
    is_known = ~np.isnan(actual)
    actual, table = actual[is_known], table[is_known]
    median, low, high = (table[f"{name}_{column}"].to_numpy() for column in ("median", "q10", "q90"))
    both = np.append(actual, median)
    ends = [both.min(), both.max()] if both.size else []
    above.plot(ends, ends, color="black", lw=0.8, zorder=1)
    points: dict[str, Any] = {"marker": "o", "ls": "", "mew": 0, "color": BLUE, "alpha": opacity(len(actual))}
    above.plot(median, actual, ms=3.2, zorder=2, **points)
    off = (actual - median) / np.where(actual > median, high - median, median - low)
    below.axhspan(-1, 1, color=SKY, alpha=0.35, lw=0, zorder=0)
    below.axhline(0, color="black", lw=0.6, zorder=1)
    below.plot(median, off, ms=2.6, zorder=2, **points)
    reach = 1.08 * float(np.abs(off).max(initial=2.0))
    below.set_ylim(-reach, reach)
    inside = f"{100 * np.mean(np.abs(off) <= 1):.0f} % of " if len(off) else ""
    above.set_title(f"{name}: {inside}{len(off):,} cases in their 80 % interval")
    above.set_ylabel(f"actual {name}")
    below.set_ylabel("place in the\n80 % interval")
    below.set_xlabel(f"predicted {name} (median)")


def draw_traces(axes: Array, drawn: dict[str, Array]) -> None:
    """Draw a row for each quantity: its values by draw on the left, the ranks of its chains on the right."""
    for row, (name, values) in enumerate(drawn.items()):
        _draw_trace(axes[row, 0], values, name)
        axes[row, 0].set_title(describe_quantity(name))
    _draw_ranks(axes[:, 1], list(drawn.values()))
    axes[-1, 0].set_xlabel(f"draw ({len(values)} chains)")


def _draw_trace(axis: Axes, values: Array, name: str) -> None:
    """Draw the values of each chain by draw, on a logarithmic scale for sigmas."""
    for chain, trace in enumerate(values):
        axis.plot(trace, color=_chain_colour(chain), lw=0.7, alpha=0.8)
    axis.set_xlim(0, max(1, values.shape[1] - 1))
    if name.startswith(("sigma_", "adjustment_")):
        _logarithmic(axis, values)
    axis.margins(y=0.05)


def _logarithmic(axis: Axes, values: Array, *, which: str = "y") -> None:
    """Set a logarithmic scale with a written value at each round tick, also within one decade."""
    scaled = axis.yaxis if which == "y" else axis.xaxis
    axis.set(**{f"{which}scale": "log"})
    low, high = float(values.min()), float(values.max())
    steps = (1,) if high / low > 1e3 else (1, 3) if high / low > 30 else (1, 2, 5)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [step * 10.0**decade for decade in decades for step in steps]
    ticks = [tick for tick in ticks if low <= tick <= high]
    if len(ticks) < 2:
        ticks = _round_numbers(low, high)
    ticks = ticks[:: 1 + len(ticks) // 6]
    scaled.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    axis.minorticks_off()


def _round_numbers(low: float, high: float) -> list[float]:
    """Return two to five multiples of 1, 2 or 5 times a power of ten, from low to high."""
    if not high > low:
        return [low]
    half = (high - low) / 2
    decade = 10.0 ** math.floor(math.log10(half))
    step = max(factor * decade for factor in (1, 2, 5) if factor * decade <= half)
    first, last = math.ceil(low / step), math.floor(high / step)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def _draw_ranks(axes: Sequence[Axes], drawn: Sequence[Array]) -> None:
    """Draw the distribution function of each chain's ranks minus the uniform one, on one scale.

    The grey band holds one chain of independent draws with probability 95 %.

    Säilynoja, Bürkner and Vehtari (2022), with the constant width of Kolmogorov's test.
    """
    n_chains, n_draws = drawn[0].shape
    # The ranks of one chain among all vary less than uniforms, by the share that the chain itself has.
    width = _KOLMOGOROV_95 * math.sqrt((1 - 1 / n_chains) / n_draws)
    reach = width
    for axis, values in zip(axes, drawn, strict=True):
        ranks = values.ravel().argsort(kind="stable").argsort().reshape(values.shape) + 1
        fractions = np.zeros((n_chains, n_draws + 2))
        fractions[:, 1:-1], fractions[:, -1] = np.sort(ranks, axis=1) / values.size, 1
        difference = np.append(np.linspace(0, 1, n_draws + 1), 1) - fractions
        for chain in range(n_chains):
            axis.plot(fractions[chain], difference[chain], color=_chain_colour(chain), lw=0.8, alpha=0.8)
        reach = max(reach, float(np.abs(difference).max()))
    for axis in axes:
        axis.axhspan(-width, width, color=GREY, alpha=0.18, lw=0, zorder=0)
        axis.axhline(0, color="black", lw=0.6, zorder=0)
        axis.set_xlim(0, 1)
        axis.set_ylim(-1.08 * reach, 1.08 * reach)
    axes[0].set_title("ranks: distribution − uniform")
    axes[-1].set_xlabel("rank / number of draws")


def _chain_colour(chain: int) -> str:
    return CHAIN_COLOURS[chain % len(CHAIN_COLOURS)]


def draw_rhat(axis: Axes, table: pd.DataFrame, threshold: float) -> None:
    """Draw R-hat as bars from 1, largest on top; bars above the threshold have another colour."""
    values = table["rhat"].to_numpy()
    places = np.arange(len(table))[::-1]
    colours = [RED if value > threshold else BLUE for value in values]
    axis.barh(places, np.nan_to_num(values - 1), left=1.0, height=0.62, color=colours)
    _draw_threshold(axis, threshold, len(table))
    axis.set_yticks(places, table.index)
    axis.tick_params(axis="y", length=0)
    known = values[np.isfinite(values)]
    axis.set_xlim(1.0, max(2 * threshold - 1, 1 + 1.08 * (known.max() - 1) if known.size else 0))
    axis.locator_params(axis="x", nbins=3)
    axis.set_xlabel("R-hat")


def draw_ess(axis: Axes, table: pd.DataFrame, threshold: float) -> None:
    """Draw bulk and tail effective sample sizes as paired bars."""
    places = np.arange(len(table))[::-1].astype(float)
    for column, colour, shift, label in (("ess_bulk", BLUE, 0.19, "bulk"), ("ess_tail", SKY, -0.19, "tail")):
        axis.barh(places + shift, np.nan_to_num(table[column]), height=0.34, color=colour, label=label)
    _draw_threshold(axis, threshold, len(table))
    axis.set_xlabel("effective draws")
    axis.tick_params(axis="y", length=0)
    largest = np.nanmax([threshold, table["ess_bulk"].max(), table["ess_tail"].max()])
    axis.set_xlim(0, 1.05 * largest)
    axis.locator_params(axis="x", nbins=4)
    axis.legend(
        loc="lower right",
        bbox_to_anchor=(1, 1.05),
        ncols=2,
        borderaxespad=0.1,
        handlelength=1.0,
        columnspacing=1.0,
    )


def _draw_threshold(axis: Axes, threshold: float, n_rows: int) -> None:
    axis.axvline(threshold, color="black", lw=0.8, ls="--")
    axis.annotate(
        f"{threshold:g}",
        (threshold, 1),
        xycoords=("data", "axes fraction"),
        xytext=(0, 2),
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=8,
    )
    axis.set_ylim(-0.6, n_rows - 0.4)


def opacity(n_points: int) -> float:
    """Return the opacity of points, which is less where there are many."""
    return float(np.clip(30 / math.sqrt(max(n_points, 1)) / 3, 0.15, 0.85))


def kaplan_meier(targets: Array) -> tuple[Array, Array]:
    """Return the times of events, and after each of them the share that lived on.

    S(t) = product over events at t_i <= t of (1 - d_i / r_i), d_i events and r_i cases at risk at t_i.
    Kaplan and Meier (1958), "Nonparametric estimation from incomplete observations".

    targets  (n_cases,), negative where censored
    """
    times, is_event = np.abs(targets), targets > 0
    events, n_events = np.unique(times[is_event], return_counts=True)
    at_risk = (times[:, None] >= events).sum(axis=0)
    return events, np.asarray(np.cumprod(1 - n_events / at_risk))
