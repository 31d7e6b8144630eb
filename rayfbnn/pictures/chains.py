"""Pictures of how chains move and agree: traces, ranks, R-hat and effective sample sizes."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.draws.quantities import adjustments, sigmas
from rayfbnn.pictures.chosen_quantities import least_converged, log_densities
from rayfbnn.pictures.figures import figure_with_axes, save, styled
from rayfbnn.pictures.panels import BLUE, CHAIN_COLOURS, GREY, RED, SKY, Axes, logarithmic

if TYPE_CHECKING:
    import pandas as pd

    from rayfbnn.answers.diagnostics import Diagnosis
    from rayfbnn.draws.view import Draws

_KOLMOGOROV_95 = 1.358  # 95 % quantile of sqrt(n) times the largest distance, for n uniform numbers


def describe_quantity(name: str) -> str:
    """Return a quantity's name and description: "sigma_ih0: weights, inputs to hidden layer 0"."""
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


def draw_traces(axes: Array, drawn: dict[str, Array]) -> None:
    """Draw a row for each quantity: its values by draw on the left, the ranks of its chains on the right."""
    for row, (name, values) in enumerate(drawn.items()):
        draw_trace(axes[row, 0], values, name)
        axes[row, 0].set_title(describe_quantity(name))
    draw_rank_differences(axes[:, 1], list(drawn.values()))
    axes[-1, 0].set_xlabel(f"draw ({len(values)} chains)")


def draw_trace(axis: Axes, values: Array, name: str) -> None:
    """Draw the values of each chain by draw, on a logarithmic scale for sigmas."""
    for chain, trace in enumerate(values):
        axis.plot(trace, color=chain_colour(chain), lw=0.7, alpha=0.8)
    axis.set_xlim(0, max(1, values.shape[1] - 1))
    if name.startswith(("sigma_", "adjustment_")):
        logarithmic(axis, values)
    axis.margins(y=0.05)


def draw_rank_differences(axes: Sequence[Axes], drawn: Sequence[Array]) -> None:
    """Draw the distribution function of each chain's ranks minus the uniform one, on one scale.

    The grey band contains one chain of independent draws with a probability of 95 %.

    Säilynoja, Bürkner and Vehtari (2022), with the constant width of Kolmogorov's test.
    """
    n_chains, n_draws = drawn[0].shape
    # The ranks of one chain vary less than uniform numbers, because the chain is itself a share of all draws.
    width = _KOLMOGOROV_95 * math.sqrt((1 - 1 / n_chains) / n_draws)
    reach = width
    for axis, values in zip(axes, drawn, strict=True):
        ranks = values.ravel().argsort(kind="stable").argsort().reshape(values.shape) + 1
        fractions = np.zeros((n_chains, n_draws + 2))
        fractions[:, 1:-1], fractions[:, -1] = np.sort(ranks, axis=1) / values.size, 1
        difference = np.append(np.linspace(0, 1, n_draws + 1), 1) - fractions
        for chain in range(n_chains):
            axis.plot(fractions[chain], difference[chain], color=chain_colour(chain), lw=0.8, alpha=0.8)
        reach = max(reach, float(np.abs(difference).max()))
    for axis in axes:
        axis.axhspan(-width, width, color=GREY, alpha=0.18, lw=0, zorder=0)
        axis.axhline(0, color="black", lw=0.6, zorder=0)
        axis.set_xlim(0, 1)
        axis.set_ylim(-1.08 * (reach or 1), 1.08 * (reach or 1))  # 0: one draw of one chain
    axes[0].set_title("ranks: distribution − uniform")
    axes[-1].set_xlabel("rank / number of draws")


def chain_colour(chain: int) -> str:
    """Return the colour of a chain; every eighth chain has the same."""
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


_MAX_ROWS = 12  # of traces
_MAX_BARS = 40


@styled
def traces_and_ranks(run: Draws, path: str | Path) -> Path:
    """Plot hyperparameters and log densities by draw and chain, and the ranks of each chain's draws."""
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
