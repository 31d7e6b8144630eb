"""Parts that several panels share, each drawn on given axes: bands, cases, survival, and scales."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.output.lines import all_shortened, shortened
from rayfbnn.pictures.figures import BLUE, GREY, SKY, Axes

if TYPE_CHECKING:
    import pandas as pd

_LEAST_TICKS, _MOST_TICKS = 3, 6  # of a logarithmic axis
_LEAST_PLAIN, _MOST_PLAIN = 1e-6, 1e7  # numbers at ticks without exponent
_ABOVE, _NAME_ABOVE = 44, 32  # characters of a line above a panel, and of a name in it
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
    """Draw training cases along an input; they are grey if they differ in other inputs too."""
    label = "data" if is_only_input else "data, at any values of the other inputs"
    colour, zorder = ("black", 3) if is_only_input else (GREY, 0)
    draw_cases(axis, x, y, are_times=are_times, color=colour, zorder=zorder, label=label)


def draw_cases(axis: Axes, x: Array, y: Array, *, are_times: bool, **look: Any) -> None:
    """Draw cases as points; times are on a logarithmic axis, and hollow if censored (negative)."""
    points = {"marker": "o", "ls": "", "ms": 3, "mew": 0, "alpha": opacity(len(x)), **look}
    if are_times:
        set_log_scale(axis, "y")
        if (y < 0).any():
            axis.plot(x[y < 0], -y[y < 0], **{**points, "label": "censored", "mfc": "none", "mew": 0.7})
        x, y = x[~(y < 0)], y[~(y < 0)]
    axis.plot(x, y, **points)


def name_rows(axis: Axes, names: Sequence[str]) -> Array:
    """Name the rows of a panel, the first on top, and return their places (n_rows,)."""
    places = np.arange(len(names))[::-1]
    axis.set_yticks(places, all_shortened(names))
    axis.tick_params(axis="y", length=0)
    axis.set_ylim(-0.6, max(len(names), 1) - 0.4)
    return places


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
