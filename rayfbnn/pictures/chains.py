"""Pictures of the chains: convergence, traces and ranks, autocorrelation, and the quantities to show."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.answers.judging.modes import summarize
from rayfbnn.answers.mixing import Autocorrelations, Ranks, autocorrelations, ranks_of_chains
from rayfbnn.arrays import Array
from rayfbnn.draws import subsets
from rayfbnn.draws.quantities import adjustments, sigmas, weight_sizes
from rayfbnn.draws.view import Draws
from rayfbnn.output.lines import all_shortened, shortened
from rayfbnn.pictures.figures import BLUE, GREY, RED, SKY, chain_style, figure_with_axes, save, styled
from rayfbnn.pictures.panels import Axes, logarithmic

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


_N_COLUMNS, _MAX_PANELS = 2, 12
_TITLE_OF_TWO = 56  # characters that fit above a panel
_LEAST_LAGS = 20
# Limits on what the picture reads, from the last draws: values of each quantity, and bytes of all parameters.
_MOST_VALUES, _MOST_BYTES = 400_000, 1e9


@styled
def autocorrelation_by_lag(run: Draws, path: str | Path) -> Path:
    """Plot autocorrelations of the log posterior density, and of the sizes of weights and their sigmas.

    Neal (1996) fig. 3.6. At most 400,000 draws and 1 GB of them are read, the last of each chain.
    """
    some = _last_draws(run)
    log_posterior = some.stat("log_prior") + some.stat("log_likelihood") / run.spec.temperature
    candidates = {"log_posterior": log_posterior} | weight_sizes(some) | sigmas(some)
    names = least_converged(candidates, _MAX_PANELS)
    by_name = {name: autocorrelations(candidates[name]) for name in names}
    n_rows = -(-len(names) // _N_COLUMNS)
    figure, axes = figure_with_axes(
        n_rows, _N_COLUMNS, width=8.2, height=1.35 * n_rows + 0.6, sharex=True, sharey=True
    )
    panels = axes.ravel()
    for axis, (name, values) in zip(panels, by_name.items(), strict=False):
        _draw_autocorrelation(axis, values, some.chain_numbers)
        axis.set_title(describe_quantity(name, _TITLE_OF_TWO))
    for axis in panels[len(names) :]:
        axis.set_axis_off()
    longest = max(values.first_within_chance for values in by_name.values())
    most = max(1, some.n_draws // 2)
    panels[0].set_xlim(0, min(most, max(_LEAST_LAGS, 1.5 * longest)))
    panels[0].locator_params(axis="x", integer=True)
    panels[0].set_ylim(-0.35, 1.05)
    for axis in panels[max(0, len(names) - _N_COLUMNS) : len(names)]:  # the lowest of each column
        axis.set_xlabel(f"lag in draws ({some.n_chains} chains of {some.n_draws:,} draws)")
        axis.tick_params(labelbottom=True)
    return save(figure, path)


def _last_draws(run: Draws) -> Draws:
    """Return as many of the last draws of each chain as are read for a picture."""
    draw_bytes = run.parameter_layout.n_parameters * np.dtype(run.spec.dtype).itemsize
    most = int(min(_MOST_VALUES, _MOST_BYTES / draw_bytes)) // run.n_chains
    return subsets.chosen(run, last=min(run.n_draws, max(2, most)))


def _draw_autocorrelation(axis: Axes, values: Autocorrelations, numbers: Sequence[int]) -> None:
    """Draw each chain in its colour, all together in black, and what chance allows both as bands."""
    for chance, opacity in ((values.of_chain, 0.15), (values.of_all, 0.35)):
        axis.axhspan(-chance, chance, color=GREY, alpha=opacity, lw=0, zorder=0)
    for number, of_chain in zip(numbers, values.chains, strict=True):
        axis.plot(of_chain, **chain_style(number), lw=0.6, alpha=0.6)
    axis.plot(values.together, color="black", lw=1.3)


def log_densities(run: Draws) -> dict[str, Array]:
    """Return log likelihood and log prior by name, (n_chains, n_draws) each."""
    return {name: run.stat(name) for name in ("log_likelihood", "log_prior")}


def least_converged(candidates: dict[str, Array], at_most: int) -> list[str]:
    """Return the names in order, limited to the `at_most` with the largest R-hat."""
    if len(candidates) <= at_most:
        return list(candidates)
    worst = set(summarize(candidates.items()).table["rhat"].sort_values(ascending=False).index[:at_most])
    return [name for name in candidates if name in worst]


def worst_of_each(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with the worst values for the functions of each target and the sigmas of units."""
    import pandas as pd

    kinds = pd.Index([re.sub(r"\[(.*)\]$", "", name) for name in table.index])
    counts = kinds.value_counts()
    labels = [f"{kind}, worst of {counts[kind]}" if counts[kind] > 1 else kind for kind in kinds]
    grouped = table.groupby(pd.Index(labels), sort=False)
    return pd.DataFrame(
        {
            "rhat": grouped["rhat"].max(),
            "ess_bulk": grouped["ess_bulk"].min(),
            "ess_tail": grouped["ess_tail"].min(),
        }
    )
