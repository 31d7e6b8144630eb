"""Draws the book's figures from the kept results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from comparing import Results
from matplotlib.figure import Figure

from rayfbnn.pictures.panels import logarithmic, set_log_scale

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#666666")
_STYLES = ("-", ":", "--")
_STYLE = {
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.facecolor": "white",
    "legend.edgecolor": "none",
    "legend.framealpha": 0.7,
    "legend.fontsize": 8,
    "lines.linewidth": 1.2,
}
_GROUPS = {"ih0": "input weights", "bh0": "hidden biases", "ho0": "output weights"}


def draw_all(results: Results, folder: Path) -> list[Path]:
    """Draw every picture whose rows are kept, as book_<figure>.png, and return the files."""
    drawn = []
    with matplotlib.rc_context(_STYLE):
        for figure, draw in PICTURES.items():
            try:
                picture = draw(results)
            except KeyError:  # rows of this figure are not there
                continue
            path = folder / f"book_{figure.replace('.', '_')}.png"
            picture.savefig(path, dpi=130, metadata={"Software": None})
            drawn.append(path)
    return drawn


def _panels(
    n: int, *, width: float = 2.9, height: float = 2.5, same_y: bool = True
) -> tuple[Figure, list[Any]]:
    figure = Figure(figsize=(width * n, height), layout="constrained")
    return figure, list(np.atleast_1d(figure.subplots(1, n, sharey=same_y)))


def _points(results: Results) -> Figure:
    figure, axes = _panels(2)
    cases = pd.read_csv(Path(__file__).parent / "data/six_points.csv").to_numpy()
    for axis, name, title in zip(
        axes, ("1.2-prior", "1.2-exact"), ("ten draws of the prior", "of the posterior"), strict=True
    ):
        line = results[name]
        axis.plot(line["grid"], np.array(line["functions"]).T, color=COLOURS[0], linewidth=0.8)
        axis.set(title=title, xlabel="x", ylim=(-3, 3))
    axes[1].plot(*cases.T, "o", color=COLOURS[5], markersize=4)
    return figure


def _progress(results: Results) -> Figure:
    figure, (axis,) = _panels(1, width=5)
    for colour, steps in zip(COLOURS, (1024, 256, 64, 16, 4), strict=False):
        errors = np.array(results[f"3.2-L{steps}"]["training_errors"]).T
        numbers = np.arange(1, len(errors) + 1)
        axis.plot(numbers, errors, color=colour, linewidth=1)
        axis.plot([], [], color=colour, label=f"L = {steps}")
    set_log_scale(axis, "y")
    axis.set(xlabel="super-transitions of 1,024 leapfrog steps", ylabel="squared error, training cases")
    axis.legend()
    return figure


def _stepsizes(names: Sequence[str], titles: Sequence[str], most: float) -> Callable[[Results], Figure]:
    """Return the picture of energy errors: medians with quartiles, larger ones at the edge."""

    def draw(results: Results) -> Figure:
        figure, axes = _panels(len(names), width=4.5 if len(names) == 1 else 2.9)
        for axis, name, title in zip(axes, names, titles, strict=True):
            line = results[name]
            low, median, high = np.clip(np.array(line["quartiles"]).T, -most, most)
            axis.errorbar(
                line["stepsizes"],
                median,
                yerr=(median - low, high - median),
                fmt="o",
                markersize=3,
                linewidth=1,
                color=COLOURS[0],
            )
            axis.axhline(0, color=COLOURS[6], linewidth=0.6)
            axis.set(xscale="log", title=title, xlabel="stepsize factor η", ylim=(-0.15 * most, 1.05 * most))
            ticks = [0.1, 0.2, 0.5, 1, 2] if min(line["stepsizes"]) < 0.15 else [0.2, 0.5, 1]
            axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axis.minorticks_off()
        axes[0].set_ylabel("change of energy")
        return figure

    return draw


def _trajectory(results: Results) -> Figure:
    line = results["3.4"]
    figure, (left, right) = _panels(2, width=3.6, same_y=False)
    steps = 100 * np.arange(1, len(line["output"]) + 1)
    left.plot(steps, line["output"], color=COLOURS[0])
    left.set(title="an output", xlabel="leapfrog steps")
    for colour, style, (group, words) in zip(COLOURS, _STYLES, _GROUPS.items(), strict=False):
        right.plot(steps, line[group], style, color=colour, label=words)
    logarithmic(right, np.array([line[group] for group in _GROUPS]))
    right.set(title="root mean squares", xlabel="leapfrog steps")
    right.legend()
    return figure


def _sampling(results: Results) -> Figure:
    figure, axes = _panels(3)
    for axis, steps in zip(axes, (125, 2000, 32000), strict=True):
        for colour, style, (group, words) in zip(COLOURS, _STYLES, _GROUPS.items(), strict=False):
            series = results[f"3.6-L{steps}"][f"{group}_series"]
            axis.plot(np.arange(1, len(series) + 1), series, style, color=colour, label=words)
        set_log_scale(axis, "y")
        axis.set(title=f"L = {steps:,}", xlabel="super-transitions")
    axes[0].set_ylabel("root mean square")
    axes[-1].legend()
    return figure


def _autocorrelations(results: Results) -> Figure:
    figure, axes = _panels(3)
    for axis, (group, words) in zip(axes, _GROUPS.items(), strict=True):
        for colour, steps in zip(COLOURS, (125, 500, 2000, 8000, 32000), strict=False):
            values = results[f"3.6-L{steps}"][f"{group}_autocorrelations"]
            axis.plot(range(1, len(values) + 1), values, color=colour, label=f"L = {steps:,}")
        axis.axhline(0, color=COLOURS[6], linewidth=0.6)
        axis.set(title=words, xlabel="lag, super-transitions")
    axes[0].set_ylabel("autocorrelation")
    axes[-1].legend()
    return figure


def _predictive(results: Results) -> Figure:
    line = results["3.6-L8000"]
    figure, axes = _panels(2, width=3)
    for axis, name, title in zip(
        axes, ("outputs_at_point", "targets_at_point"), ("outputs", "with noise"), strict=True
    ):
        axis.plot(*np.array(line[name]).T, ".", color=COLOURS[0], markersize=3)
        axis.plot([1.177], [-2.847], "+", color=COLOURS[5], markersize=9)
        axis.set(title=title, xlabel="y1", xlim=(1.0, 1.36), ylim=(-3.03, -2.67))
    axes[0].set_ylabel("y2")
    return figure


def _random_walks(results: Results) -> Figure:
    figure, axes = _panels(3, same_y=False)
    for axis, method in zip(axes, ("metropolis", "langevin"), strict=False):
        for colour, style, eta in zip(COLOURS, _STYLES, (0.1, 0.3, 0.9), strict=False):
            axis.plot(results[f"3.9-{method}-{eta}"]["series"], style, color=colour, label=f"η = {eta}")
        axis.set(title=method.capitalize(), xlabel="super-transitions")
        axis.legend()
        for eta in (0.1, 0.3, 0.9):
            axes[2].plot(results[f"3.9-{method}-{eta}"]["series"], color=COLOURS[6], linewidth=0.8)
    axes[2].plot(results["3.9-hybrid-0.3"]["series"], color=COLOURS[5])
    axes[2].set(title="these, and hybrid Monte Carlo", xlabel="super-transitions")
    axes[0].set_ylabel("root mean square of output weights")
    return figure


def _sizes(results: Results) -> Figure:
    figure, axes = _panels(2, width=3.6, same_y=False)
    units = (6, 8, 16, 32)
    for axis, measure in zip(axes, ("squared_error", "absolute_error"), strict=True):
        for colour, cases in zip(COLOURS, "ABC", strict=False):
            for style, prior in (("-", "gaussian"), (":", "cauchy")):
                names = [f"4.2-{cases}-{number}-{prior}" for number in units]
                errors = [results[name][measure] if name in results else np.nan for name in names]
                axis.plot(range(len(units)), errors, "o" + style, color=colour, markersize=3)
            axis.plot([], [], color=colour, label=f"set {cases}")
        axis.set_xticks(range(len(units)), [str(number) for number in units])
        axis.set(title=measure.replace("_", " "), xlabel="hidden units")
    axes[1].legend()
    return figure


def _clouds(results: Results) -> Figure:
    figure, axes = _panels(4, width=2.2)
    for axis, units in zip(axes, (6, 8, 16, 32), strict=True):
        points = np.array(results[f"4.2-A-{units}-gaussian"]["cloud"])
        axis.plot(*points.T, ".", color=COLOURS[0], markersize=3)
        axis.set(title=f"{units} hidden units", xlabel="y1")
        axis.sharex(axes[0])
    axes[0].set_ylabel("y2")
    return figure


def _maximum_likelihood(results: Results) -> Figure:
    """Return the picture of errors on training and test cases, of the start with the least training error."""
    figure, axes = _panels(3)
    for axis, units in zip(axes, (6, 8, 16), strict=True):
        line = results[f"4.4-{units}"]
        best = int(np.argmin(np.array(line["train_errors"])[:, -1]))
        for cases, words, width in (("train", "training", 2.4), ("test", "test", 0.9)):
            errors = line[f"{cases}_errors"][best]
            axis.plot(line["looks"], errors, color=COLOURS[0], linewidth=width, label=f"{words} cases")
        bayes = results[f"4.2-A-{units}-gaussian"]["squared_error"]
        axis.axhline(bayes, color=COLOURS[5], linestyle=":", label="test cases, posterior")
        set_log_scale(axis, "x")
        axis.set(title=f"{units} hidden units", xlabel="iterations")
    set_log_scale(axes[0], "y")
    axes[0].set_ylabel("squared error")
    axes[0].legend()
    return figure


def _segments(results: Results) -> Figure:
    figure, axes = _panels(2, width=3.6)
    for axis, prior, title in zip(axes, ("no", "ard"), ("without ARD", "with ARD"), strict=True):
        series = results[f"4.6-1-24-0-{prior}"]["input_series"]
        for number, values in enumerate(series, start=1):
            axis.plot(
                [number] * len(values), values, ".", color=COLOURS[0 if number <= 7 else 1], markersize=2
            )
        set_log_scale(axis, "y")
        axis.set(title=title, xlabel="input")
    axes[0].set_ylabel("root mean square of its weights")
    return figure


def _useless(results: Results) -> Figure:
    figure, axes = _panels(3)
    names = {"none": "without ARD", "one": "one level", "two": "two levels"}
    kinds = ("x1, x2", "noisy copies", "noise alone")
    for axis, (name, title) in zip(axes, names.items(), strict=True):
        for number, values in enumerate(results[f"4.8-{name}"]["input_series"]):
            kind, at = number // 2, np.arange(1, len(values) + 1)
            axis.plot(at, values, _STYLES[kind], color=COLOURS[kind], linewidth=0.9)
        set_log_scale(axis, "y")
        axis.set(title=title, xlabel="super-transitions")
    for kind, words in enumerate(kinds):
        axes[-1].plot([], [], _STYLES[kind], color=COLOURS[kind], label=words)
    axes[0].set_ylabel("root mean square of weights")
    axes[-1].legend()
    return figure


def _vague(results: Results) -> Figure:
    figure, axes = _panels(2, width=3.6)
    for axis, name, title in zip(
        axes, ("4.13-6-ard", "4.13-6-vaguer"), ("informative priors", "vaguer priors"), strict=True
    ):
        line = results[name]
        numbers = np.arange(1, len(line["entropy"]) + 1)
        axis.plot(numbers, line["entropy"], color=COLOURS[0], label="entropy of targets")
        axis.plot(numbers, line["ho0_sizes"], ":", color=COLOURS[1], label="size of output weights")
        set_log_scale(axis, "y")
        axis.set(title=title, xlabel="super-transitions")
    axes[1].legend()
    return figure


_PARTITIONS = (1, 4, 16)
PICTURES: dict[str, Callable[[Results], Figure]] = {
    "1.2": _points,
    "3.2": _progress,
    "3.3": _stepsizes(["3.3"], ["trajectories of 100 steps"], 10),
    "3.4": _trajectory,
    "3.5": _sampling,
    "3.6": _autocorrelations,
    "3.7": _predictive,
    "3.9": _random_walks,
    "3.10": _stepsizes([f"3.10-K{k}" for k in _PARTITIONS], [f"K = {k}" for k in _PARTITIONS], 30),
    "3.11": _stepsizes(
        [f"3.11-K{k}" for k in _PARTITIONS], [f"K = {k}, windows of 20" for k in _PARTITIONS], 30
    ),
    "4.2": _sizes,
    "4.3": _clouds,
    "4.4": _maximum_likelihood,
    "4.7": _segments,
    "4.8": _useless,
    "4.14": _vague,
}
