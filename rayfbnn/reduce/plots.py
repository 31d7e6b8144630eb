"""Pictures of a run: predictions, traces and ranks, R-hat and effective sample sizes; each a PNG file."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.errors import ConfigError
from rayfbnn.reduce.diagnostics import summarize
from rayfbnn.reduce.draws import committed
from rayfbnn.reduce.predict import predict
from rayfbnn.reduce.quantities import sigmas

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from rayfbnn.reduce.diagnostics import Diagnosis
    from rayfbnn.reduce.predict import Prediction
    from rayfbnn.run.store import Store

# Okabe and Ito's palette, told apart with any colour vision; black is kept for text and reference lines.
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, YELLOW, GREY = "#CC79A7", "#56B4E9", "#B8A900", "#666666"
CHAIN_COLOURS = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY, YELLOW, GREY)
STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.titlepad": 6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.2,
}
_DPI = 160
_MAX_ROWS = 12  # of traces
_MAX_BARS = 40
_KOLMOGOROV_95 = 1.358  # 95 % of the largest distance of n uniforms' distribution function, times sqrt(n)


P = ParamSpec("P")


def _styled(draw: Callable[P, Path]) -> Callable[P, Path]:
    """The function with STYLE in force while it draws."""

    @functools.wraps(draw)
    def styled(*args: P.args, **kwargs: P.kwargs) -> Path:
        import matplotlib

        with matplotlib.rc_context(STYLE):
            return draw(*args, **kwargs)

    return styled


# Each figure, for a file.


@_styled
def predictive_bands(
    stores: Sequence[Store], path: str | Path, *, input_name: str | None = None, n_points: int = 200
) -> Path:
    """Predictive median and intervals along one input, the others held at their medians; data as points.

    Real targets: median, central 80 % and 98 %, noise included. Binary: P(y = 1). Class: P of each class.
    """
    data, kind = stores[0].data, stores[0].spec.model.kind
    name = data.input_names[0] if input_name is None else input_name
    if name not in data.input_names:
        raise ConfigError(f"input_name: no such input, got {name}; there are {', '.join(data.input_names)}")
    column = data.input_names.index(name)
    x = data.inputs[:, column]
    margin = 0.15 * (np.ptp(x) or 1.0)
    inputs = np.tile(np.median(data.inputs, axis=0), (n_points, 1))
    inputs[:, column] = np.linspace(x.min() - margin, x.max() + margin, n_points)
    table = predict(stores, inputs).table
    n_panels = data.n_targets if kind == "real" else 1
    figure, axes = _figure(n_panels, 1, width=6.4, height=3.4 * n_panels)
    for target, axis in enumerate(axes[:, 0] if kind == "real" else []):
        _draw_band(axis, inputs[:, column], table, data.target_names[target])
        is_only = data.n_inputs == 1
        points: dict[str, Any] = {"marker": "o", "ls": "", "ms": 3, "mew": 0, "alpha": _alpha(len(x))}
        points |= {"color": "black" if is_only else GREY, "zorder": 3 if is_only else 0}
        label = "data" if is_only else "data, whatever the other inputs"
        axis.plot(x, data.targets[:, target], label=label, **points)
        axis.set_ylabel(data.target_names[target])
    if kind != "real":
        _draw_probabilities(axes[0, 0], inputs[:, column], table, x, data.targets, kind)
    for axis in axes[:, 0]:
        axis.set_xlabel(name)
        axis.set_xlim(inputs[0, column], inputs[-1, column])
        axis.legend(loc="best")
    axes[0, 0].set_title(f"Prediction along {name}{_others_held(data.input_names, name)}")
    return _save(figure, path)


@_styled
def predicted_against_actual(
    prediction: Prediction, targets: Array, path: str | Path, *, target_names: Sequence[str]
) -> Path:
    """Real targets: predictive medians against actual values, and what is left over against its intervals."""
    n = len(target_names)
    figure, axes = _figure(2, n, width=3.6 * n, height=4.8, height_ratios=(3, 1.3), sharex="col")
    for target, name in enumerate(target_names):
        _draw_predicted(axes[:, target], prediction.table, targets[:, target], name)
    return _save(figure, path)


@_styled
def traces_and_ranks(store: Store, path: str | Path) -> Path:
    """Hyperparameters and log densities by draw and chain, and whether each chain's ranks are uniform."""
    run = committed(store)
    found = sigmas(run)
    for name in ("log_likelihood", "log_prior"):
        found[name] = np.asarray(store.read_stat(name, slice(0, run.n_draws)))
    chosen = _least_converged(found, _MAX_ROWS)
    figure, axes = _figure(
        len(chosen), 2, width=8.2, height=1.35 * len(chosen) + 0.7, width_ratios=(2.2, 1), sharex="col"
    )
    _draw_traces(axes, {name: found[name] for name in chosen})
    if len(chosen) < len(found):
        figure.suptitle(f"The {len(chosen)} of {len(found)} quantities with the largest R-hat", fontsize=9)
    return _save(figure, path)


@_styled
def rhat_and_ess(diagnosis: Diagnosis, path: str | Path) -> Path:
    """R-hat and effective sample sizes of each quantity as bars, with the thresholds."""
    table = diagnosis.quantities.sort_values("rhat", ascending=False).head(_MAX_BARS)
    figure, axes = _figure(1, 2, width=8.2, height=1.3 + 0.24 * len(table), sharey="row")
    _draw_rhat(axes[0, 0], table, diagnosis.thresholds["max_rhat"])
    _draw_ess(axes[0, 1], table, diagnosis.thresholds["min_ess"])
    if len(table) < len(diagnosis.quantities):
        figure.suptitle(
            f"The {len(table)} of {len(diagnosis.quantities)} quantities with the largest R-hat", fontsize=9
        )
    return _save(figure, path)


@_styled
def overview(
    store: Store,
    diagnosis: Diagnosis,
    prediction: Prediction,
    targets: Array,
    path: str | Path,
    *,
    title: str = "",
) -> Path:
    """One page for real targets: predictions, traces and ranks of the common sigmas, convergence."""
    from matplotlib.figure import Figure

    run = committed(store)
    names = store.data.target_names
    found = {name: values for name, values in sigmas(run).items() if "[" not in name}
    rows = _least_converged(found, 5)
    figure = Figure(figsize=(11.5, 3.9 + 1.25 * len(rows) + 0.6), layout="constrained", dpi=_DPI)
    halves = figure.add_gridspec(2, 1, height_ratios=(3.9, 1.25 * len(rows) + 0.6), hspace=0.03)
    top, bottom = figure.add_subfigure(halves[0]), figure.add_subfigure(halves[1])
    sides = top.add_gridspec(1, 2, width_ratios=(1.6, 1))
    predictions, bars = top.add_subfigure(sides[0]), top.add_subfigure(sides[1])
    axes = predictions.subplots(2, len(names), sharex="col", height_ratios=(3, 1.2), squeeze=False)
    for target, name in enumerate(names):
        _draw_predicted(axes[:, target], prediction.table, targets[:, target], name)
    axes = bars.subplots(1, 2, sharey=True, squeeze=False)
    table = _worst_of_each(diagnosis.quantities)
    _draw_rhat(axes[0, 0], table, diagnosis.thresholds["max_rhat"])
    _draw_ess(axes[0, 1], table, diagnosis.thresholds["min_ess"])
    axes = bottom.subplots(len(rows), 2, sharex="col", width_ratios=(2.4, 1), squeeze=False)
    _draw_traces(axes, {name: found[name] for name in rows})
    summary = prediction.summary
    errors = ", ".join(
        f"{name.replace('_', ' ')} {_with_error(summary[name], summary.get(f'{name}_se', math.nan))}"
        for name in ("squared_error", "log_probability")
    )
    heading = f"{title + ': ' if title else ''}{run.n_chains} chains of {run.n_draws} draws; {errors} on "
    heading += f"{len(targets):,} test cases"
    figure.suptitle(heading, x=0.01, ha="left", fontsize=11)
    return _save(figure, path)


# What figures are made of.


def describe_quantity(name: str) -> str:
    """A quantity's name with what it is: "sigma_ih0: weights, inputs to hidden layer 0"."""
    if name in ("log_likelihood", "log_prior"):
        return name
    match = re.fullmatch(r"sigma_([a-z0-9]+?)(_unit|_common)?(\[.*\])?", name)
    if match is None:
        return name
    group, level, which = match.groups()
    words = _group_in_words(group)
    detail = " of one source" if level == "_unit" else " of one target" if which else ""
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


def _with_error(value: float, error: float) -> str:
    """The value to the second digit of its standard error, if there is one."""
    if not (math.isfinite(error) and error > 0):
        return f"{value:.3g}"
    decimals = max(0, 1 - math.floor(math.log10(error)))
    return f"{value:.{decimals}f} ± {error:.{decimals}f}"


def _others_held(names: Sequence[str], name: str) -> str:
    others = [other for other in names if other != name]
    if not others:
        return ""
    if len(others) == 1:
        return f", with {others[0]} at its median"
    held = ", ".join(others) if len(others) <= 3 else f"the other {len(others)} inputs"
    return f", with {held} at their medians"


def _draw_band(axis: Axes, x: Array, table: pd.DataFrame, name: str) -> None:
    axis.fill_between(
        x, table[f"{name}_q01"], table[f"{name}_q99"], color=SKY, alpha=0.3, lw=0, label="98 % interval"
    )
    axis.fill_between(
        x, table[f"{name}_q10"], table[f"{name}_q90"], color=SKY, alpha=0.6, lw=0, label="80 % interval"
    )
    axis.plot(x, table[f"{name}_median"], color=BLUE, label="median")


def _draw_probabilities(
    axis: Axes, x: Array, table: pd.DataFrame, x_data: Array, targets: Array, kind: str
) -> None:
    """Probabilities as lines; cases as ticks in the colour of their label, below for label 0."""
    for number, column in enumerate(table.columns):
        colour = CHAIN_COLOURS[number % len(CHAIN_COLOURS)]
        label = (
            f"P({column.removesuffix('_p')} = 1)" if kind == "binary" else f"P({column.removeprefix('p_')})"
        )
        axis.plot(x, table[column], color=colour, label=label)
        of_one = targets[:, number] == 1 if kind == "binary" else targets[:, 0] == number
        axis.plot(x_data[of_one], np.full(of_one.sum(), 1.04), "|", color=colour, ms=6, alpha=0.7)
        if kind == "binary":
            axis.plot(x_data[~of_one], np.full((~of_one).sum(), -0.04), "|", color=colour, ms=6, alpha=0.7)
    axis.set_ylim(-0.08, 1.08)
    axis.set_ylabel("probability")


def _draw_predicted(axes: Array, table: pd.DataFrame, actual: Array, name: str) -> None:
    """Predicted against actual above; below, how far off, with the ends of the 80 % interval at -1 and 1."""
    above, below = axes
    median, low, high = (table[f"{name}_{column}"].to_numpy() for column in ("median", "q10", "q90"))
    ends = [min(actual.min(), median.min()), max(actual.max(), median.max())]
    above.plot(ends, ends, color="black", lw=0.8, zorder=1)
    points: dict[str, Any] = {"marker": "o", "ls": "", "mew": 0, "color": BLUE, "alpha": _alpha(len(actual))}
    above.plot(median, actual, ms=3.2, zorder=2, **points)
    off = (actual - median) / np.where(actual > median, high - median, median - low)
    below.axhspan(-1, 1, color=SKY, alpha=0.35, lw=0, zorder=0)
    below.axhline(0, color="black", lw=0.6, zorder=1)
    below.plot(median, off, ms=2.6, zorder=2, **points)
    reach = 1.08 * max(2.0, float(np.abs(off).max()))
    below.set_ylim(-reach, reach)
    inside = np.mean(np.abs(off) <= 1)
    above.set_title(f"{name}: {100 * inside:.0f} % of {len(actual):,} cases in their 80 % interval")
    above.set_ylabel(f"actual {name}")
    below.set_ylabel("place in the\n80 % interval")
    below.set_xlabel(f"predicted {name} (median)")


def _draw_traces(axes: Array, found: dict[str, Array]) -> None:
    """A row for each quantity: its values by draw on the left, the ranks of its chains on the right."""
    for row, (name, values) in enumerate(found.items()):
        _draw_trace(axes[row, 0], values, name)
        axes[row, 0].set_title(describe_quantity(name))
    _draw_ranks(axes[:, 1], list(found.values()))
    axes[-1, 0].set_xlabel(f"draw ({len(values)} chains)")


def _draw_trace(axis: Axes, values: Array, name: str) -> None:
    """Each chain's values by draw, on a logarithmic scale for sigmas."""
    for chain, trace in enumerate(values):
        axis.plot(trace, color=_chain_colour(chain), lw=0.7, alpha=0.8)
    axis.set_xlim(0, max(1, values.shape[1] - 1))
    if name.startswith("sigma_"):
        _logarithmic(axis, values)
    axis.margins(y=0.05)


def _logarithmic(axis: Axes, values: Array) -> None:
    """A logarithmic scale whose ticks are round numbers with their value written, also within one decade."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axis.set_yscale("log")
    low, high = float(values.min()), float(values.max())
    steps = (1,) if high / low > 1e3 else (1, 3) if high / low > 30 else (1, 2, 5)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [step * 10.0**decade for decade in decades for step in steps]
    inside = [tick for tick in ticks if low <= tick <= high]
    if len(inside) < 2:  # a narrow range: round numbers between the ends
        inside = [tick for tick in _round_numbers(low, high) if low <= tick <= high]
    axis.yaxis.set_major_locator(FixedLocator(inside))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _round_numbers(low: float, high: float) -> Array:
    from matplotlib.ticker import MaxNLocator

    return np.asarray(MaxNLocator(nbins=3).tick_values(low, high))


def _draw_ranks(axes: Sequence[Axes], found: Sequence[Array]) -> None:
    """Each chain's distribution function of ranks, less the uniform one, on one scale for all quantities.

    The grey band holds one chain of independent draws with probability 95 %.

    Säilynoja, Bürkner and Vehtari (2022), with the constant width of Kolmogorov's test.
    """
    n_chains, n_draws = found[0].shape
    # The ranks of one chain among all vary less than uniforms, by the share that the chain itself has.
    width = _KOLMOGOROV_95 * math.sqrt((1 - 1 / n_chains) / n_draws)
    reach = width
    for axis, values in zip(axes, found, strict=True):
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


def _draw_rhat(axis: Axes, table: pd.DataFrame, threshold: float) -> None:
    """R-hat as bars from 1, largest on top; bars above the threshold in another colour."""
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


def _draw_ess(axis: Axes, table: pd.DataFrame, threshold: float) -> None:
    """Bulk and tail effective sample sizes as paired bars."""
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


def _least_converged(found: dict[str, Array], at_most: int) -> list[str]:
    """Names in their order, but only those with the largest R-hat where there are too many."""
    if len(found) <= at_most:
        return list(found)
    worst = set(summarize(found)["rhat"].sort_values(ascending=False).index[:at_most])
    return [name for name in found if name in worst]


def _worst_of_each(table: pd.DataFrame) -> pd.DataFrame:
    """The table with the functions of each target, and sigmas of each unit, as one row: the worst of all."""
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


def _alpha(n_points: int) -> float:
    """Opacity of points, less where there are many."""
    return float(np.clip(30 / math.sqrt(max(n_points, 1)) / 3, 0.15, 0.85))


def _figure(
    n_rows: int, n_columns: int, *, width: float, height: float, **settings: Any
) -> tuple[Figure, Array]:
    """A figure and its axes (n_rows, n_columns), outside pyplot's global state."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", dpi=_DPI)
    return figure, figure.subplots(n_rows, n_columns, squeeze=False, **settings)


def _save(figure: Figure, path: str | Path) -> Path:
    path = Path(path)
    figure.savefig(path, format="png", dpi=_DPI)
    return path
