"""Panels for pictures of a run, each drawn on given axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.output.lines import all_shortened, shortened
from rayfbnn.pictures.figures import BLUE, GREY, SKY, series_colour

if TYPE_CHECKING:
    import pandas as pd

Axes: TypeAlias = Any  # matplotlib's; only figures.py imports it

_LEAST_TICKS, _MOST_TICKS = 3, 6  # of a logarithmic axis
_LEAST_PLAIN, _MOST_PLAIN = 1e-6, 1e7  # numbers at ticks without exponent
# characters of a name beside a panel, and of a line and a name above
BESIDE, _ABOVE, _NAME_ABOVE = 22, 44, 32
_FEW_DECADES = 30  # ratio of the ends of an axis on which 2 and 5 times powers of ten are labelled


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
    """Draw cases as points; times are on a logarithmic axis, and hollow if censored (negative)."""
    points: dict[str, Any] = {"marker": "o", "ls": "", "ms": 3, "mew": 0, "alpha": opacity(len(x))}
    points |= {"color": "black" if is_only_input else GREY, "zorder": 3 if is_only_input else 0}
    label = "data" if is_only_input else "data, at any values of the other inputs"
    if are_times:
        set_log_scale(axis, "y")
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
    bands: tuple[Array, Array],
) -> None:
    """Draw probabilities as lines, and cases as ticks in the colour of the label, below for its opposite.

    probabilities  (n_points, n_labels); x (n_points,); x_data (n_cases,)
    bands          10 % and 90 % quantiles over draws of the probabilities, in their shape
    labelled       for each label the cases that have it, and the cases with its opposite if it has one
    """
    for number, (name, (of_label, of_opposite)) in enumerate(
        zip(all_shortened(names), labelled, strict=True)
    ):
        colour = series_colour(number)
        low, high = (ends[:, number] for ends in bands)
        axis.fill_between(
            x, low, high, color=colour, alpha=0.22, lw=0, label=None if number else "80 % of draws"
        )
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
    """Draw survival by the model as a line with its 80 % interval, and by the cases themselves as steps.

    curves   (n_draws, n_times) survival of each draw, averaged over the cases
    targets  (n_cases,), negative for censored cases
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
    logarithmic(axis, levels, which="x")
    axis.set_yticks(places, all_shortened(names))
    axis.tick_params(axis="y", length=0)
    axis.set_ylim(-0.7, len(names) - 0.4)
    axis.grid(axis="x", color="0.9", lw=0.6)
    axis.set_axisbelow(True)


def draw_predicted(axes: Array, table: pd.DataFrame, actual: Array, name: str) -> None:
    """Draw actual by predicted values above, and errors relative to the ends of the 80 % interval below.

    actual (n_cases,); cases with a missing value (NaN) are left out
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
    above.set_title(titled(name, f"{inside}{len(off):,} cases in their 80 % interval"))
    above.set_ylabel(f"actual {shortened(name, BESIDE)}")
    below.set_ylabel("place in the\n80 % interval")
    below.set_xlabel(f"predicted {shortened(name, BESIDE)} (median)")


def titled(name: str, text: str) -> str:
    """Return a title that begins with a name, on two lines if it is long."""
    title = f"{name}: {text}"
    return title if len(title) <= _ABOVE else f"{shortened(name, _NAME_ABOVE)}\n{text}"


def set_log_scale(axis: Axes, which: str) -> None:
    """Set a logarithmic scale with plain numbers at its ticks."""
    axis.set(**{f"{which}scale": "log"})
    scaled = axis.yaxis if which == "y" else axis.xaxis

    def between(value: float, _: object) -> str:
        """Return the label of a tick between powers of ten, "" unless there are few of these."""
        low, high = scaled.get_view_interval()
        leading = round(value / 10.0 ** math.floor(math.log10(value)))
        return tick_text(value) if high < _FEW_DECADES * low and leading in (2, 5) else ""

    scaled.set_major_formatter(lambda value, _: tick_text(value))
    scaled.set_minor_formatter(between)


def logarithmic(axis: Axes, values: Array, *, which: str = "y") -> None:
    """Set a logarithmic scale with labelled round ticks, even within one decade."""
    scaled = axis.yaxis if which == "y" else axis.xaxis
    axis.set(**{f"{which}scale": "log"})
    ticks = _log_ticks(float(values.min()), float(values.max()))
    scaled.set_ticks(ticks, labels=[tick_text(tick) for tick in ticks])
    axis.minorticks_off()


def tick_text(value: float) -> str:
    """Return a round number as 0.001, 1 or 10,000; very small and very large ones have an exponent."""
    return f"{value:,.10f}".rstrip("0").rstrip(".") if _LEAST_PLAIN <= value < _MOST_PLAIN else f"{value:g}"


def _log_ticks(low: float, high: float) -> list[float]:
    """Return two to six round numbers from low to high: powers of ten alone if there are enough."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1,), (1, 3), (1, 2, 5)):
        ticks = [float(f"{step}e{decade}") for decade in decades for step in steps]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) >= _LEAST_TICKS:
            return ticks[:: -(-len(ticks) // _MOST_TICKS)]
    return ticks if len(ticks) >= 2 else _round_numbers(low, high)


def _round_numbers(low: float, high: float) -> list[float]:
    """Return two to five multiples of 1, 2 or 5 times a power of ten, from low to high."""
    if not high > low:
        return [low]
    half = (high - low) / 2
    decade = 10.0 ** math.floor(math.log10(half))
    step = max(factor * decade for factor in (1, 2, 5) if factor * decade <= half)
    first, last = math.ceil(low / step), math.floor(high / step)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def opacity(n_points: int) -> float:
    """Return the opacity of points, which is lower for many points."""
    return float(np.clip(30 / math.sqrt(max(n_points, 1)) / 3, 0.15, 0.85))


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
