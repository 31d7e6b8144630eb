"""Pictures of the chains: convergence, traces and ranks, autocorrelation, and the quantities to show."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.answers.judging.verdicts import summarize
from rayfbnn.answers.mixing import Autocorrelations, Ranks, autocorrelations, ranks_of_chains
from rayfbnn.arrays import Array
from rayfbnn.draws import subsets
from rayfbnn.draws.quantities import adjustments, sigmas, weight_sizes
from rayfbnn.draws.view import Draws
from rayfbnn.model.architecture import group_in_words
from rayfbnn.output.lines import shortened
from rayfbnn.pictures.figures import BLUE, GREY, RED, SKY, Axes, Panel, arrange, chain_style
from rayfbnn.pictures.panels import logarithmic, name_rows

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
    if name.startswith("adjustment_ah"):
        return f"{name}: adjustments of hidden layer {name.removeprefix('adjustment_ah')}, geometric mean"
    if name.startswith("adjustment_ao"):
        return f"{name}: adjustment of one output"
    match = re.fullmatch(r"(?:sigma|rms)_([a-z0-9]+?)(_unit|_common)?(\[.*\])?", name)
    if match is None:
        return name
    group, level, which = match.groups()
    detail = ", those of one unit" if level == "_unit" else ", one target" if which else ""
    return f"{name}: {group_in_words(group)}{detail}"


_MAX_BARS = 40


def rhat_and_ess(diagnosis: Diagnosis, path: str | Path) -> Path:
    """Plot R-hat and effective sample sizes of each quantity as bars, with the thresholds."""
    table = diagnosis.quantities.sort_values("rhat", ascending=False).head(_MAX_BARS)
    height = 1.3 + 0.24 * len(table)
    panels = [
        Panel(draw, (table, diagnosis.thresholds[limit]), size=(4.1, height))
        for draw, limit in ((_draw_rhat, "max_rhat"), (_draw_ess, "min_ess"))
    ]
    heading = _heading(len(table), len(diagnosis.quantities))
    return arrange(path, panels, columns=2, heading=heading, sharey="row")


def _heading(n_shown: int, n_all: int) -> str:
    return f"The {n_shown} of {n_all} quantities with the largest R-hat" if n_shown < n_all else ""


def _draw_rhat(axis: Axes, table: pd.DataFrame, threshold: float) -> None:
    """Draw R-hat as bars from 1, largest on top; bars above the threshold have another colour."""
    values = table["rhat"].to_numpy()
    colours = [RED if value > threshold else BLUE for value in values]
    places = name_rows(axis, list(table.index))
    axis.barh(places, np.nan_to_num(values - 1), left=1.0, height=0.62, color=colours)
    _draw_threshold(axis, threshold)
    known = values[np.isfinite(values)]
    axis.set_xlim(1.0, max(2 * threshold - 1, 1 + 1.08 * (known.max() - 1) if known.size else 0))
    axis.locator_params(axis="x", nbins=3)
    axis.set_xlabel("R-hat")


def _draw_ess(axis: Axes, table: pd.DataFrame, threshold: float) -> None:
    """Draw bulk and tail effective sample sizes as paired bars."""
    places = name_rows(axis, list(table.index))
    for column, colour, shift, label in (("ess_bulk", BLUE, 0.19, "bulk"), ("ess_tail", SKY, -0.19, "tail")):
        axis.barh(places + shift, np.nan_to_num(table[column]), height=0.34, color=colour, label=label)
    _draw_threshold(axis, threshold)
    axis.set_xlabel("effective draws")
    largest = np.nanmax([threshold, table["ess_bulk"].max(), table["ess_tail"].max()])
    axis.set_xlim(0, 1.05 * largest)
    axis.locator_params(axis="x", nbins=3)
    axis.xaxis.set_major_formatter("{x:,.0f}")
    look = {"borderaxespad": 0.1, "handlelength": 1.0, "columnspacing": 1.0}
    axis.legend(loc="lower right", bbox_to_anchor=(1, 1.05), ncols=2, **look)


def _draw_threshold(axis: Axes, threshold: float) -> None:
    axis.axvline(threshold, color="black", lw=0.8, ls="--")
    look = {"ha": "center", "va": "bottom", "fontsize": 8}
    at = {"xycoords": ("data", "axes fraction"), "xytext": (0, 2), "textcoords": "offset points"}
    axis.annotate(f"{threshold:g}", (threshold, 1), **at, **look)


_MAX_ROWS = 12
_POINTS, _LEAST_POINTS = 2400, 100  # of one trace, for all chains together and for each
_WINDOWS, _LEAST_IN_WINDOW = 30, 20  # of the band, and values of all chains in each
_MANY_CHAINS = 4  # more hide each other, and have thinner lines
_NAMED = 6  # outlying chains in a legend
_TITLE, _TITLE_OF_TWO = 70, 56  # characters that fit above a trace, and above one of two panels


def traces_and_ranks(run: Draws, path: str | Path) -> Path:
    """Plot hyperparameters and log densities by draw and chain, and the ranks of each chain's draws."""
    candidates = sigmas(run) | adjustments(run) | log_densities(run)
    chosen = least_converged(candidates, _MAX_ROWS)
    panels = trace_panels({name: candidates[name] for name in chosen}, run.chain_numbers)
    return arrange(path, panels, columns=2, heading=_heading(len(chosen), len(candidates)), sharex="col")


def trace_panels(drawn: dict[str, Array], numbers: Sequence[int]) -> list[Panel]:
    """Return two panels for each quantity: its values by draw, and the ranks of its chains on one scale.

    drawn    (n_chains, n_draws) by quantity
    numbers  the numbers that the chains have
    """
    ranks = {name: ranks_of_chains(values) for name, values in drawn.items()}
    reach = max(max(one.chance, float(np.abs(one.differences).max())) for one in ranks.values()) or 1
    panels = []
    for name, values in drawn.items():
        words, of_name = describe_quantity(name), ranks[name]
        panels += [
            Panel(
                draw_trace,
                (values, name, of_name.outlying, numbers),
                title=describe_quantity(name, _TITLE),
                caption=words,
                size=(5.6, 1.6),
            ),
            Panel(
                _draw_ranks,
                (of_name, reach, numbers),
                title=f"ranks, {of_name.effective:,.0f} effective draws",
                caption=f"Ranks; a chain is worth {of_name.effective:,.0f} independent draws.",
                size=(2.6, 1.6),
            ),
        ]
    return panels


def points_of_each(n_chains: int) -> int:
    """Return how many draws of each chain a trace has at most."""
    return max(_LEAST_POINTS, _POINTS // n_chains)


def draw_trace(axis: Axes, values: Array, name: str, outlying: Sequence[int], numbers: Sequence[int]) -> None:
    """Draw the thinned values of each chain by draw, on a logarithmic scale for sigmas.

    The grey band has 80 % of the draws of all chains about each draw. A legend names outlying chains only.

    outlying  places of chains, as in `Ranks`
    numbers   the numbers that the chains have
    """
    n_chains, n_draws = values.shape
    step = -(-n_draws // points_of_each(n_chains))
    width, alpha = (0.7, 0.8) if n_chains <= _MANY_CHAINS else (0.5, 0.55)
    for chain, trace in enumerate(values):
        style = chain_style(numbers[chain]) | {"lw": width, "alpha": alpha}
        if chain in outlying[:_NAMED]:
            style |= {"lw": 1.0, "alpha": 1.0, "label": f"chain {numbers[chain]}", "zorder": 3}
        axis.plot(np.arange(0, n_draws, step), trace[::step], **style)
    _draw_band(axis, values)
    axis.set_xlim(0, max(1, n_draws - 1))
    if name.startswith(("sigma_", "adjustment_")):
        logarithmic(axis, values)
    axis.margins(y=0.05)
    _name_outlying(axis, len(outlying))
    shown = f", one draw of {step} shown" if step > 1 else ""
    axis.set_xlabel(f"draw ({n_chains} chains{shown})\ngrey: 80 % of the draws of all chains")


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
    look = {"fontsize": 7, "borderaxespad": 0.1, "handlelength": 1.2, "columnspacing": 1.0}
    axis.legend(loc="upper right", ncols=_NAMED, title=more, **look)


def _draw_ranks(axis: Axes, ranks: Ranks, reach: float, numbers: Sequence[int]) -> None:
    """Draw the distribution function of each chain's ranks minus the uniform one.

    The grey band contains a chain of as many effective draws with a probability of 95 %.
    """
    pairs = zip(ranks.fractions, ranks.differences, strict=True)
    for chain, (fractions, difference) in enumerate(pairs):
        style = chain_style(numbers[chain]) | {"lw": 0.8, "alpha": 0.8}
        if chain in ranks.outlying[:_NAMED]:
            style |= {"lw": 1.3, "alpha": 1.0, "zorder": 3}
        axis.plot(fractions, difference, **style)
    axis.axhspan(-ranks.chance, ranks.chance, color=GREY, alpha=0.18, lw=0, zorder=0)
    axis.axhline(0, color="black", lw=0.6, zorder=0)
    axis.set(xlim=(0, 1), ylim=(-1.08 * reach, 1.08 * reach))
    caption = "grey: 95 % of chains\nwith as many effective draws"
    axis.set_xlabel(f"rank / number of draws\n{caption}", fontsize=8)


_MAX_PANELS, _LEAST_LAGS = 12, 20
# Limits on what the picture reads, from the last draws: values of each quantity, and bytes of all parameters.
_MOST_VALUES, _MOST_BYTES = 400_000, 1e9


def autocorrelation_by_lag(run: Draws, path: str | Path) -> Path:
    """Plot autocorrelations of the log posterior density, and of the sizes of weights and their sigmas.

    Neal (1996) fig. 3.6. At most 400,000 draws and 1 GB of them are read, the last of each chain.
    """
    some = _last_draws(run)
    log_posterior = some.stat("log_prior") + some.stat("log_likelihood") / run.spec.temperature
    candidates = {"log_posterior": log_posterior} | weight_sizes(some) | sigmas(some)
    names = least_converged(candidates, _MAX_PANELS)
    by_name = {name: autocorrelations(candidates[name]) for name in names}
    longest = max(values.first_within_chance for values in by_name.values())
    reach = min(max(1, some.n_draws // 2), max(_LEAST_LAGS, 1.5 * longest))
    panels = [
        Panel(
            _draw_autocorrelation,
            (values, reach, some),
            title=describe_quantity(name, _TITLE_OF_TWO),
            size=(4.1, 1.45),
        )
        for name, values in by_name.items()
    ]
    return arrange(path, panels, columns=2, sharex=True, sharey=True)


def _last_draws(run: Draws) -> Draws:
    draw_bytes = run.parameter_layout.n_parameters * np.dtype(run.spec.dtype).itemsize
    most = int(min(_MOST_VALUES, _MOST_BYTES / draw_bytes)) // run.n_chains
    return subsets.chosen(run, last=min(run.n_draws, max(2, most)))


def _draw_autocorrelation(axis: Axes, values: Autocorrelations, reach: float, run: Draws) -> None:
    """Draw each chain in its colour, all together in black, and what chance allows both as bands."""
    for chance, opacity in ((values.of_chain, 0.15), (values.of_all, 0.35)):
        axis.axhspan(-chance, chance, color=GREY, alpha=opacity, lw=0, zorder=0)
    for number, of_chain in zip(run.chain_numbers, values.chains, strict=True):
        axis.plot(of_chain, **chain_style(number), lw=0.6, alpha=0.6)
    axis.plot(values.together, color="black", lw=1.3)
    axis.set(xlim=(0, reach), ylim=(-0.35, 1.05))
    axis.locator_params(axis="x", integer=True)
    axis.set_xlabel(f"lag in draws ({run.n_chains} chains of {run.n_draws:,} draws)")


def log_densities(run: Draws) -> dict[str, Array]:
    """Return log likelihood and log prior by name, (n_chains, n_draws) each."""
    return {name: run.stat(name) for name in ("log_likelihood", "log_prior")}


def least_converged(candidates: dict[str, Array], at_most: int) -> list[str]:
    """Return the names in order, limited to the `at_most` with the largest R-hat."""
    if len(candidates) <= at_most:
        return list(candidates)
    worst = set(summarize(candidates.items()).table["rhat"].sort_values(ascending=False).index[:at_most])
    return [name for name in candidates if name in worst]
