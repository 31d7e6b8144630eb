"""The picture of R-hat and effective sample sizes, and what each quantity is in words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.output.lines import all_shortened, shortened
from rayfbnn.pictures.colours import BLUE, RED, SKY
from rayfbnn.pictures.figures import figure_with_axes, save, styled
from rayfbnn.pictures.panels import Axes

if TYPE_CHECKING:
    import pandas as pd

    from rayfbnn.answers.diagnostics import Diagnosis


def describe_quantity(name: str, at_most: int | None = None) -> str:
    """Return a quantity's name and description: "sigma_ih0: weights, inputs to hidden layer 0".

    at_most  characters that fit; a longer text is the name alone, shortened if need be
    """
    words = _described(name)
    return words if at_most is None or len(words) <= at_most else shortened(name, at_most)


def _described(name: str) -> str:
    if name in ("log_likelihood", "log_prior"):
        return name
    if name.startswith("adjustment_ah"):
        return f"{name}: adjustments of hidden layer {name.removeprefix('adjustment_ah')}, geometric mean"
    if name.startswith("adjustment_ao"):
        return f"{name}: adjustment of one output"
    if name.startswith("rms_"):
        return f"{name}: {_group_in_words(name.removeprefix('rms_'))}"
    match = re.fullmatch(r"sigma_([a-z0-9]+?)(_unit|_common)?(\[.*\])?", name)
    if match is None:
        return name
    group, level, which = match.groups()
    words = _group_in_words(group)
    detail = ", those of one unit" if level == "_unit" else ", one target" if which else ""
    return f"{name}: {words}{detail}"


def _group_in_words(group: str) -> str:
    if group in ("noise", "dispersion"):
        return group
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


def draw_rhat(axis: Axes, table: pd.DataFrame, threshold: float) -> None:
    """Draw R-hat as bars from 1, largest on top; bars above the threshold have another colour."""
    values = table["rhat"].to_numpy()
    places = np.arange(len(table))[::-1]
    colours = [RED if value > threshold else BLUE for value in values]
    axis.barh(places, np.nan_to_num(values - 1), left=1.0, height=0.62, color=colours)
    _draw_threshold(axis, threshold, len(table))
    axis.set_yticks(places, all_shortened(list(table.index)))
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
    axis.locator_params(axis="x", nbins=3)
    axis.xaxis.set_major_formatter("{x:,.0f}")
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


_MAX_BARS = 40


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
