"""The picture of traces: thinned draws of each chain, and the ranks of the chains."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.answers.mixing import Ranks, ranks_of_chains
from rayfbnn.arrays import Array
from rayfbnn.draws.quantities import adjustments, sigmas
from rayfbnn.pictures.chains import describe_quantity
from rayfbnn.pictures.chosen_quantities import least_converged, log_densities
from rayfbnn.pictures.colours import GREY, chain_style
from rayfbnn.pictures.figures import figure_with_axes, save, styled
from rayfbnn.pictures.panels import Axes, logarithmic

if TYPE_CHECKING:
    from rayfbnn.draws.view import Draws

_MAX_ROWS = 12
_POINTS, _LEAST_POINTS = 2400, 100  # of one trace, for all chains together and for each
_WINDOWS, _LEAST_IN_WINDOW = 30, 20  # of the band, and values of all chains in each
_MANY_CHAINS = 4  # more hide each other, and have thinner lines
_NAMED = 6  # outlying chains in a legend
_TITLE = 70  # characters that fit above a trace


@styled
def traces_and_ranks(run: Draws, path: str | Path) -> Path:
    """Plot hyperparameters and log densities by draw and chain, and the ranks of each chain's draws."""
    candidates = sigmas(run) | adjustments(run) | log_densities(run)
    chosen = least_converged(candidates, _MAX_ROWS)
    figure, axes = figure_with_axes(
        len(chosen), 2, width=8.2, height=1.35 * len(chosen) + 1.0, width_ratios=(2.2, 1), sharex="col"
    )
    draw_traces(axes, {name: candidates[name] for name in chosen}, numbers=run.chain_numbers)
    if len(chosen) < len(candidates):
        figure.suptitle(
            f"The {len(chosen)} of {len(candidates)} quantities with the largest R-hat", fontsize=9
        )
    return save(figure, path)


def draw_traces(axes: Array, drawn: dict[str, Array], *, numbers: Sequence[int] | None = None) -> None:
    """Draw a row for each quantity: its values by draw on the left, the ranks of its chains on the right.

    numbers  the numbers that the chains have; 0, 1, ... unless given
    """
    ranks = [ranks_of_chains(values) for values in drawn.values()]
    for row, (name, values) in enumerate(drawn.items()):
        draw_trace(axes[row, 0], values, name, outlying=ranks[row].outlying, numbers=numbers)
        axes[row, 0].set_title(describe_quantity(name, _TITLE))
    draw_rank_differences(axes[:, 1], ranks, numbers=numbers)
    n_chains, n_draws = values.shape
    step = -(-n_draws // points_of_each(n_chains))
    shown = f", one draw of {step} shown" if step > 1 else ""
    axes[-1, 0].set_xlabel(f"draw ({n_chains} chains{shown})\ngrey: 80 % of the draws of all chains")


def points_of_each(n_chains: int) -> int:
    """Return how many draws of each chain a trace has at most."""
    return max(_LEAST_POINTS, _POINTS // n_chains)


def draw_trace(
    axis: Axes,
    values: Array,
    name: str,
    *,
    outlying: Sequence[int] = (),
    numbers: Sequence[int] | None = None,
) -> None:
    """Draw the thinned values of each chain by draw, on a logarithmic scale for sigmas.

    The grey band has 80 % of the draws of all chains about each draw. A legend names outlying chains only.

    outlying  places of chains, as in `Ranks`
    numbers   the numbers that the chains have; 0, 1, ... unless given
    """
    n_chains, n_draws = values.shape
    names = range(n_chains) if numbers is None else numbers
    step = -(-n_draws // points_of_each(n_chains))
    width, alpha = (0.7, 0.8) if n_chains <= _MANY_CHAINS else (0.5, 0.55)
    for chain, trace in enumerate(values):
        style = chain_style(names[chain]) | {"lw": width, "alpha": alpha}
        if chain in outlying[:_NAMED]:
            style |= {"lw": 1.0, "alpha": 1.0, "label": f"chain {names[chain]}", "zorder": 3}
        axis.plot(np.arange(0, n_draws, step), trace[::step], **style)
    _draw_band(axis, values)
    axis.set_xlim(0, max(1, n_draws - 1))
    if name.startswith(("sigma_", "adjustment_")):
        logarithmic(axis, values)
    axis.margins(y=0.05)
    _name_outlying(axis, len(outlying))


def _draw_band(axis: Axes, values: Array) -> None:
    """Draw the 10 % and 90 % quantiles of all chains in windows of successive draws."""
    n_chains, n_draws = values.shape
    most = min(_WINDOWS, n_chains * n_draws // _LEAST_IN_WINDOW, n_draws)
    if most < 2:
        return
    windows = np.array_split(values, most, axis=1)
    low, high = np.array([np.quantile(window, [0.1, 0.9]) for window in windows]).T
    ends = np.cumsum([0] + [window.shape[1] for window in windows])
    axis.stairs(high, ends, baseline=low, fill=True, color=GREY, alpha=0.3, lw=0, zorder=0)


def _name_outlying(axis: Axes, n_outlying: int) -> None:
    """Name the outlying chains in a legend above the traces, if there are any."""
    if not n_outlying:
        return
    more = f"and {n_outlying - _NAMED} more" if n_outlying > _NAMED else None
    low, high = axis.get_ylim()
    is_log = axis.get_yscale() == "log"
    axis.set_ylim(low, high * (high / low) ** 0.25 if is_log else high + 0.25 * (high - low))
    axis.legend(
        loc="upper right",
        ncols=_NAMED,
        fontsize=7,
        title=more,
        borderaxespad=0.1,
        handlelength=1.2,
        columnspacing=1.0,
    )


def draw_rank_differences(
    axes: Sequence[Axes], ranks: Sequence[Ranks], *, numbers: Sequence[int] | None = None
) -> None:
    """Draw the distribution function of each chain's ranks minus the uniform one, on one scale.

    The grey band contains a chain of as many effective draws with a probability of 95 %.
    """
    reach = max(max(one.chance, float(np.abs(one.differences).max())) for one in ranks) or 1
    for axis, one in zip(axes, ranks, strict=True):
        names = range(len(one.fractions)) if numbers is None else numbers
        for chain, (fractions, difference) in enumerate(zip(one.fractions, one.differences, strict=True)):
            style = chain_style(names[chain]) | {"lw": 0.8, "alpha": 0.8}
            if chain in one.outlying[:_NAMED]:
                style |= {"lw": 1.3, "alpha": 1.0, "zorder": 3}
            axis.plot(fractions, difference, **style)
        axis.axhspan(-one.chance, one.chance, color=GREY, alpha=0.18, lw=0, zorder=0)
        axis.axhline(0, color="black", lw=0.6, zorder=0)
        axis.set_xlim(0, 1)
        axis.set_ylim(-1.08 * reach, 1.08 * reach)
        axis.set_title(f"ranks − uniform, {one.effective:,.0f} effective draws", fontsize=8)
    caption = "grey: 95 % of chains\nwith as many effective draws"
    axes[-1].set_xlabel(f"rank / number of draws\n{caption}", fontsize=8)
