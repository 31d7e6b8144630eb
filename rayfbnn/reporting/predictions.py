"""The sections on predictions: calibration, residuals, relevance of inputs, and averaged effects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from rayfbnn.answers.effects import (
    Dependence,
    columns_of,
    partial_dependence,
    permutation_shares,
    value_names,
)
from rayfbnn.answers.measures import LEVELS, Places, labelled, reliability, share_limits
from rayfbnn.arrays import Array
from rayfbnn.data.encoding import InputColumn
from rayfbnn.draws.quantities import sigmas
from rayfbnn.numerals import in_range
from rayfbnn.output.facts import Fact, Paragraph, TableFact, cell_text
from rayfbnn.output.lines import all_shortened, shortened
from rayfbnn.pictures.along_input import of_inputs, relevance_groups, relevance_panels
from rayfbnn.pictures.figures import BLUE, GREY, Axes, Panel, series_colour
from rayfbnn.pictures.panels import name_rows, set_log_scale
from rayfbnn.pictures.predicted import (
    coverage_panel,
    curves_by_draw,
    has_survival_curves,
    pit_panel,
    reliability_panels,
    residual_panels,
    survival_panel,
)
from rayfbnn.reporting.page import beside
from rayfbnn.reporting.reported_run import ReportedRun, labels_of

_TIMES = 60  # number of times for a survival curve


def calibration_section(run: ReportedRun) -> Iterator[Fact]:
    """Yield coverage and PIT histograms for numbers, reliability for labels."""
    yield Paragraph(_cases_in_words(run))
    yield from _labels(run) if run.places is None else _numbers(run, run.places)


def _cases_in_words(run: ReportedRun) -> str:
    cases = run.cases
    words = f"At {cases.n_all:,} {'held-out' if cases.is_held_out else 'training'} cases"
    if len(cases.rows) < cases.n_all:
        words += f", of which {len(cases.rows):,} evenly spaced ones are used"
    words += f", from {run.held.total:,} of {run.draws.total:,} draws."
    if not cases.is_held_out and run.draws.kind != "prior":
        words += (
            " The network has learnt from these cases, so errors are smaller and intervals fit better than"
            " for new cases; give held-out cases with --data for a fair assessment."
        )
    return words


def _numbers(run: ReportedRun, places: Places) -> Iterator[Fact]:
    names = run.draws.data.target_names
    every = [places.of_target(target) for target in range(len(names))]
    rows = [(f"{level:.0%}", *(_share_in_words(of_target, level) for of_target in every)) for level in LEVELS]
    header = ("central interval", *(f"cases of {name} inside" for name in names))
    yield TableFact(header, rows)
    yield Paragraph(_spread_in_words(run))
    pictures = [
        panel
        for name, of_target in zip(names, every, strict=True)
        if len(of_target.low)
        for panel in (
            pit_panel(
                of_target, f"{name}: if predictions are calibrated, 95 % of the bars end in the grey band."
            ),
            coverage_panel(of_target, name),
        )
    ]
    if has_survival_curves(run.draws):
        pictures += _survival(run)
    yield beside(pictures)


def _survival(run: ReportedRun) -> list[Panel]:
    targets = run.cases.some_targets[:, 0]
    is_known = ~np.isnan(targets)
    if not is_known.any():
        return []
    times = np.linspace(0, np.abs(targets[is_known]).max(), _TIMES)
    curves = curves_by_draw(run.few, run.cases.some[is_known], times).mean(axis=1)
    return [survival_panel(times, curves, targets[is_known], run.draws.data.target_names[0])]


def _spread_in_words(run: ReportedRun) -> str:
    if run.draws.spec.data_model.are_times:
        return (
            "A censored time is spread evenly over the part of its predictive distribution beyond it,"
            " because nothing more is known about it."
        )
    if run.places is not None and (run.places.high > run.places.low).any():
        return "A count is spread evenly over its probability, so calibrated shares can be met exactly."
    return ""


def _share_in_words(places: Places, level: float) -> str:
    n = len(places.low)
    if n == 0:
        return "-"
    share = float(places.coverage([level])[0])
    text, (least, most) = in_range(share, share_limits(n, level), ".1%", ".0%")
    return f"{text} (calibrated: {least} to {most})"


def _labels(run: ReportedRun) -> Iterator[Fact]:
    by_label = labelled(run.draws, run.prediction.table, run.cases.targets)
    if not any(len(probability) for probability, _ in by_label.values()):
        return
    rows = []
    for words, (probability, happened) in by_label.items():
        if len(probability) == 0:
            continue
        bins = reliability(probability, happened)
        gap = np.average(np.abs(bins["predicted"] - bins["observed"]), weights=bins["cases"])
        rows.append((words, float(probability.mean()), float(happened.mean()), float(gap)))
    header = ("label", "mean probability", "share of cases", "mean gap between the two, by bin")
    yield TableFact(header, rows)
    yield beside(reliability_panels(by_label))


_SURPRISES = 8
_MAX_CLASSES = 12


def residuals_section(run: ReportedRun) -> Iterator[Fact]:
    """Yield pictures for numbers or tables of confusions for labels, and then the least probable cases."""
    yield from _confusion(run) if run.places is None else _residuals_of_numbers(run, run.places)
    yield from _surprises(run)


def _residuals_of_numbers(run: ReportedRun, places: Places) -> Iterator[Fact]:
    panels = [
        panel
        for target, name in enumerate(run.draws.data.target_names)
        for panel in residual_panels(
            run.prediction.table,
            run.cases.targets[:, target],
            places.of_target(target),
            name,
            are_times=run.draws.spec.data_model.are_times,
        )
    ]
    yield Paragraph(
        "The normal score of a target is the standard normal quantile of its place in the predictive"
        " distribution. It is a residual in appropriate units: 95 % should lie in the band, without any"
        " pattern."
    )
    yield beside(panels)


def _confusion(run: ReportedRun) -> Iterator[Fact]:
    draws, targets = run.draws, run.cases.targets
    model, names = draws.spec.data_model, draws.data.target_names
    p = run.prediction.table[model.probability_columns(names)].to_numpy()
    for target, name in enumerate(names):
        is_known = ~np.isnan(targets[:, target])
        actual = targets[is_known, target].astype(int)
        if p.shape[1] == len(names):  # the probability of the second of two labels
            guess, n_labels = (p[is_known, target] > 0.5).astype(int), 2
        else:
            guess, n_labels = p[is_known].argmax(axis=1), p.shape[1]
        if n_labels > _MAX_CLASSES or len(actual) == 0:
            continue
        labels = labels_of(draws, name) or tuple(map(str, range(n_labels)))
        counts = np.zeros((n_labels, n_labels), dtype=int)
        np.add.at(counts, (actual, guess), 1)
        frame = pd.DataFrame(counts, index=labels, columns=[f"predicted {label}" for label in labels])
        yield TableFact.from_frame(frame, f"actual {name}")


def _surprises(run: ReportedRun) -> Iterator[Fact]:
    table = run.prediction.table
    known = table.get("log_probability", pd.Series(dtype=float)).dropna()
    worst = known.nsmallest(_SURPRISES).index
    if len(worst) == 0:
        return
    names, model = run.draws.data.target_names, run.draws.spec.data_model
    shown = (model.probability_columns(names) or [f"{name}_median" for name in names])[:_MAX_CLASSES]
    columns = {
        f"actual {name}": [_target_text(run, name, value) for value in run.cases.targets[worst, target]]
        for target, name in enumerate(names)
    }
    columns |= {name: table[name][worst].tolist() for name in (*shown, "log_probability")}
    yield Paragraph("The cases that the model finds least probable:")
    yield TableFact.from_frame(pd.DataFrame(columns, index=run.cases.rows[worst]), "case")


def _target_text(run: ReportedRun, name: str, value: float) -> str:
    labels = labels_of(run.draws, name)
    return labels[int(value)] if labels and not np.isnan(value) else cell_text(value)


_MAX_COLUMNS = 60
_MAX_BARS = 20


def by_relevance(run: ReportedRun) -> list[tuple[InputColumn, float]]:
    """Return the columns with their shares of the predictions' variance, the largest first.

    At most 60 columns are included: those with the largest sigmas, or the first ones if none has a sigma.
    """
    columns = _looked_at(run)
    shares = permutation_shares(run.fewest, run.cases.some, columns)
    order = np.argsort(-np.nan_to_num(shares), kind="stable")
    return [(columns[place], float(shares[place])) for place in order]


def _looked_at(run: ReportedRun) -> list[InputColumn]:
    columns = list(columns_of(run.draws))
    if len(columns) <= _MAX_COLUMNS:
        return columns
    by_name = sigmas(run.held)
    sizes: dict[str, float] = {}
    for group in relevance_groups(run.draws):
        for name, values in of_inputs(by_name, group).items():
            sizes[name] = max(sizes.get(name, 0.0), float(np.median(values)))
    of_columns = [max(sizes.get(name, 0.0) for name in column.input_names) for column in columns]
    order = np.argsort(-np.array(of_columns), kind="stable")[:_MAX_COLUMNS]
    return [columns[place] for place in order]


def relevance_section(run: ReportedRun, ranked: list[tuple[InputColumn, float]]) -> Iterator[Fact]:
    """Yield a picture of the shares, and one of the sigmas of inputs for each group that has them."""
    shown = {column.name: share for column, share in ranked[:_MAX_BARS]}
    left_out = len(columns_of(run.draws)) - len(ranked)
    largest = ", ".join(f"{name} {share:.2f}" for name, share in list(shown.items())[:5])
    permuted = Panel(
        _draw_shares,
        (shown,),
        alt=f"Change of the predictions when each column is permuted: {largest}",
        caption="Change of the predictions when a column is permuted among the cases, as a share of their"
        " variance (Sobol's total effect, if inputs are independent).",
        size=(3.6, 0.9 + 0.24 * len(shown)),
    )
    words = (
        "Two measures show how much an input matters. One is the change of the predictions when a column is"
        " permuted among the cases. The other, if the prior gives each input its own sigma, is that sigma:"
        " the size of the weights from the input."
    )
    if left_out:
        which = "with the largest sigmas" if relevance_groups(run.draws) else "that come first"
        words += f" Only the {_MAX_COLUMNS} columns {which} are permuted; {left_out:,} are left out."
    yield Paragraph(words)
    yield beside([permuted, *relevance_panels(run.held, _MAX_BARS)])


def _draw_shares(axis: Axes, shown: dict[str, float]) -> None:
    shares = np.nan_to_num(list(shown.values()))
    axis.barh(name_rows(axis, list(shown)), shares, height=0.62, color=BLUE)
    axis.set_xlim(0, max(1.0, 1.05 * float(shares.max(initial=0))))
    axis.set_xlabel("share of the variance of predictions")


_MAX_VALUES = 6
_MAX_TICKS = 60
_MAX_LETTERS = 24  # of all names of levels, if these are side by side


def dependence_section(run: ReportedRun, columns: list[InputColumn]) -> Iterator[Fact]:
    """Yield a picture for each of the columns."""
    names = value_names(run.draws)
    model = run.draws.spec.data_model
    # Targets that are numbers have different scales, so each has its own picture.
    panels = [list(range(len(names)))[:_MAX_VALUES]] if model.has_labels else [[n] for n in range(len(names))]
    dependences = [partial_dependence(run.few, run.cases.few, column) for column in columns]
    pictures = [
        Panel(
            _draw_dependence,
            (
                dependence,
                names,
                which,
                _reach(dependences, which, is_log=model.are_times),
                _ticks(run, column),
            ),
            alt=f"{', '.join(names[number] for number in which)} averaged over the cases, by {column.name}",
            size=(3.2, 2.5),
        )
        for column, dependence in zip(columns, dependences, strict=True)
        for which in panels[:_MAX_VALUES]
    ]
    words = (
        "Each picture sets one column to a value in all cases and averages the predictions over the cases,"
        " with the other columns unchanged. The band or bar contains 80 % of the posterior of that average,"
        " without noise. All pictures have the same scale. If columns depend on each other, some of these"
        " combinations do not occur."
    )
    if model.are_times:
        words += " Times are averaged on the logarithmic scale."
    yield Paragraph(words)
    yield beside(pictures)


def _ticks(run: ReportedRun, column: InputColumn) -> Array:
    """Return values of a column of numbers to mark the training cases; none for levels."""
    if column.kind != "number":
        return np.empty(0)
    values = run.draws.data.inputs[:, run.draws.data.input_names.index(column.name)]
    return np.quantile(values, np.linspace(0.02, 0.98, min(_MAX_TICKS, len(values))))


def _reach(dependences: list[Dependence], which: list[int], *, is_log: bool) -> tuple[float, float, bool]:
    """Return the ends of the scale that all columns share, and whether it is logarithmic."""
    low = min(float(one.low[:, which].min()) for one in dependences)
    high = max(float(one.high[:, which].max()) for one in dependences)
    margin = 0.06 * (high - low)
    return (low / 1.1, high * 1.1, True) if is_log else (low - margin, high + margin, False)


def _draw_dependence(
    axis: Axes,
    dependence: Dependence,
    names: Sequence[str],
    which: list[int],
    reach: tuple[float, float, bool],
    ticks: Array,
) -> None:
    labels = all_shortened(names)
    for number in which:
        _draw_value(axis, dependence, number, labels[number])
    if dependence.levels:
        levels = all_shortened(dependence.levels, _MAX_LETTERS)
        is_crowded = len("".join(levels)) > _MAX_LETTERS
        axis.set_xticks(dependence.points, levels, rotation=90 if is_crowded else 0)
        axis.margins(x=0.15)
    low, high, is_log = reach
    if is_log:
        set_log_scale(axis, "y")
    if np.isfinite([low, high]).all() and low < high:
        axis.set_ylim(low, high)
    if len(ticks):
        axis.plot(ticks, np.zeros(len(ticks)), "|", color=GREY, ms=5, transform=axis.get_xaxis_transform())
    axis.set_xlabel(shortened(dependence.column))
    axis.set_ylabel("probability" if len(which) > 1 else shortened(names[which[0]], _MAX_LETTERS))
    if len(which) > 1:
        axis.legend(loc="best")


def _draw_value(axis: Axes, dependence: Dependence, number: int, name: str) -> None:
    """Draw one of the predicted values: a line with its band, or points with bars for levels."""
    colour = series_colour(number)
    mean, low, high = (values[:, number] for values in (dependence.mean, dependence.low, dependence.high))
    if dependence.levels:
        bars = np.abs(np.stack([mean - low, high - mean]))
        axis.errorbar(dependence.points, mean, yerr=bars, fmt="o", color=colour, ms=4, label=name)
        return
    axis.fill_between(dependence.points, low, high, color=colour, alpha=0.22, lw=0)
    axis.plot(dependence.points, mean, color=colour, label=name)
