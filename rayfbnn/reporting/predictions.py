"""The sections on predictions: calibration, residuals, relevance of inputs, and averaged effects."""

from __future__ import annotations

from functools import partial

import numpy as np

from rayfbnn.answers.calibration import LEVELS, Places, labelled, reliability, share_limits
from rayfbnn.answers.effects import (
    Dependence,
    columns_of,
    partial_dependence,
    permutation_shares,
    value_names,
)
from rayfbnn.arrays import Array
from rayfbnn.data.encoding import InputColumn
from rayfbnn.draws.quantities import sigmas
from rayfbnn.numerals import in_range
from rayfbnn.output import tables
from rayfbnn.output.lines import all_shortened, shortened
from rayfbnn.pictures.along_input import largest, of_inputs, relevance_groups
from rayfbnn.pictures.figures import BLUE, GREY, series_colour
from rayfbnn.pictures.panels import Axes, draw_relevance, draw_survival, set_log_scale
from rayfbnn.pictures.predicted import (
    curves_by_draw,
    draw_actual,
    draw_coverage,
    draw_pit,
    draw_probability_histogram,
    draw_reliability,
    draw_scores,
    has_survival_curves,
)
from rayfbnn.reporting.page import beside, picture
from rayfbnn.reporting.reported_run import ReportedRun, labels_of

_TIMES = 60  # number of times for a survival curve


def calibration_section(run: ReportedRun) -> str:
    """Return the errors, and coverage with PIT histograms for numbers, reliability for labels."""
    about = tables.paragraph(_cases_in_words(run))
    measures = run.prediction.measures_html()
    if run.places is None:
        return about + measures + _labels(run)
    return about + measures + _numbers(run, run.places)


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


def _numbers(run: ReportedRun, places: Places) -> str:
    names = run.draws.data.target_names
    every = [places.of_target(target) for target in range(len(names))]
    rows = [(f"{level:.0%}", *(_share_in_words(of_target, level) for of_target in every)) for level in LEVELS]
    header = ("central interval", *(f"cases of {name} inside" for name in names))
    pictures = []
    for name, of_target in zip(names, every, strict=True):
        if len(of_target.low) == 0:
            continue
        pictures += [
            picture(
                partial(draw_pit, places=of_target),
                alt=f"Histogram of the places of {name} in its predictive distributions",
                caption=f"{name}: if predictions are calibrated, 95 % of the bars end in the grey band. A"
                " valley in the middle means that intervals are too narrow, a hill that they are too wide,"
                " and a slope that predictions are too low or too high.",
            ),
            picture(
                partial(draw_coverage, places=of_target),
                alt=f"Share of cases of {name} in central intervals by their probability",
                caption=f"{name}: the share of cases in central intervals. Below the line, intervals are too"
                " narrow; above it, they are too wide.",
            ),
        ]
    if has_survival_curves(run.draws):
        pictures += _survival(run)
    return tables.table(header, rows) + tables.paragraph(_spread_in_words(run)) + beside(pictures)


def _survival(run: ReportedRun) -> list[str]:
    targets = run.cases.some_targets[:, 0]
    is_known = ~np.isnan(targets)
    if not is_known.any():
        return []
    times = np.linspace(0, np.abs(targets[is_known]).max(), _TIMES)
    curves = curves_by_draw(run.few, run.cases.some[is_known], times).mean(axis=1)
    name = run.draws.data.target_names[0]
    return [
        picture(
            partial(_draw_survival, times=times, curves=curves, targets=targets[is_known], name=name),
            alt=f"Share of cases that survive, by {name}",
            caption=f"The share of {is_known.sum():,} cases that survive: the average of the model's curves,"
            " and Kaplan and Meier's estimate from the times of the cases.",
        )
    ]


def _draw_survival(axis: Axes, times: Array, curves: Array, targets: Array, name: str) -> None:
    draw_survival(axis, times, curves, targets, label="model", colour=BLUE, explain=True)
    axis.set(xlabel=shortened(name), ylabel="share surviving", xlim=(0, times[-1]), ylim=(-0.02, 1.02))
    axis.legend(loc="best")


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


def _labels(run: ReportedRun) -> str:
    by_label = labelled(run.draws, run.prediction.table, run.cases.targets)
    if not any(len(probability) for probability, _ in by_label.values()):
        return ""
    rows = []
    for words, (probability, happened) in by_label.items():
        if len(probability) == 0:
            continue
        bins = reliability(probability, happened)
        gap = np.average(np.abs(bins["predicted"] - bins["observed"]), weights=bins["cases"])
        rows.append((words, float(probability.mean()), float(happened.mean()), float(gap)))
    header = ("label", "mean probability", "share of cases", "mean gap between the two, by bin")
    pictures = [
        picture(
            partial(draw_reliability, by_label=by_label),
            alt="Share of cases with a label by its predicted probability",
            caption="The share of cases that have a label, by its predicted probability. If predictions are"
            " calibrated, 95 % of the points lie within the bars.",
        ),
        picture(
            partial(draw_probability_histogram, by_label=by_label),
            alt="Histogram of predicted probabilities",
            caption="The number of predictions by their probability.",
        ),
    ]
    return tables.table(header, rows) + beside(pictures)


_SURPRISES = 8
_MAX_CLASSES = 12


def residuals_section(run: ReportedRun) -> str:
    """Return pictures for numbers or tables of confusions for labels, and then the least probable cases."""
    if run.places is None:
        return _confusion(run) + _surprises(run)
    return _residuals_of_numbers(run, run.places) + _surprises(run)


def _residuals_of_numbers(run: ReportedRun, places: Places) -> str:
    are_times = run.draws.spec.data_model.are_times
    pictures = []
    for target, name in enumerate(run.draws.data.target_names):
        actual = run.cases.targets[:, target]
        is_known = ~np.isnan(actual)
        if not is_known.any():
            continue
        median = run.prediction.table[f"{name}_median"].to_numpy()[is_known]
        predicted = f"predicted {shortened(name)} (median)"
        pictures += [
            picture(
                partial(draw_actual, median=median, actual=actual[is_known], name=name, are_times=are_times),
                alt=f"Actual against predicted {name}",
                xlabel=predicted,
            ),
            picture(
                partial(draw_scores, median=median, places=places.of_target(target), are_times=are_times),
                alt=f"Normal scores of {name} by its predicted value",
                xlabel=predicted,
            ),
        ]
    words = (
        "The normal score of a target is the standard normal quantile of its place in the predictive"
        " distribution. It is a residual in appropriate units: 95 % should lie in the band, without any"
        " pattern."
    )
    return tables.paragraph(words) + beside(pictures)


def _confusion(run: ReportedRun) -> str:
    """Return a table of cases by actual and most probable label, if there are not too many labels."""
    draws, targets = run.draws, run.cases.targets
    model, names = draws.spec.data_model, draws.data.target_names
    p = run.prediction.table[model.probability_columns(names)].to_numpy()
    html = []
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
        rows = [(label, *map(int, row)) for label, row in zip(labels, counts, strict=True)]
        header = (f"actual {name}", *(f"predicted {label}" for label in labels))
        html.append(tables.table(header, rows))
    return "".join(html)


def _surprises(run: ReportedRun) -> str:
    """Return the cases with the smallest log probabilities."""
    table = run.prediction.table
    if "log_probability" not in table or table["log_probability"].notna().sum() == 0:
        return ""
    worst = table["log_probability"].sort_values(kind="stable").index[:_SURPRISES]
    names, model = run.draws.data.target_names, run.draws.spec.data_model
    shown = (model.probability_columns(names) or [f"{name}_median" for name in names])[:_MAX_CLASSES]
    rows = [
        (
            int(run.cases.rows[case]),
            *(_target_text(run, name, run.cases.targets[case, n]) for n, name in enumerate(names)),
            *(float(table[column].iloc[case]) for column in shown),
            float(table["log_probability"].iloc[case]),
        )
        for case in worst
    ]
    header = ("case", *(f"actual {name}" for name in names), *shown, "log probability")
    return tables.table(header, rows, caption="The cases that the model finds least probable")


def _target_text(run: ReportedRun, name: str, value: float) -> tables.Cell:
    if np.isnan(value):
        return None
    labels = labels_of(run.draws, name)
    return labels[int(value)] if labels else float(value)


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


def relevance_section(run: ReportedRun, ranked: list[tuple[InputColumn, float]]) -> str:
    """Return a picture of the shares, and one of the sigmas of inputs for each group that has them."""
    shown = ranked[:_MAX_BARS]
    names, shares = [column.name for column, _ in shown], np.array([share for _, share in shown])
    left_out = len(columns_of(run.draws)) - len(ranked)
    pictures = [
        picture(
            partial(_draw_shares, names=names, shares=shares),
            alt="Change of the predictions when each column is permuted: "
            + ", ".join(f"{name} {share:.2f}" for name, share in zip(names[:5], shares, strict=False)),
            caption="Change of the predictions when a column is permuted among the cases, as a share of their"
            " variance (Sobol's total effect, if inputs are independent).",
            height=0.9 + 0.24 * len(names),
        ),
        *_sigma_pictures(run),
    ]
    words = (
        "Two measures show how much an input matters. One is the change of the predictions when a column is"
        " permuted among the cases. The other, if the prior gives each input its own sigma, is that sigma:"
        " the size of the weights from the input."
    )
    if left_out:
        which = "with the largest sigmas" if relevance_groups(run.draws) else "that come first"
        words += f" Only the {_MAX_COLUMNS} columns {which} are permuted; {left_out:,} are left out."
    return tables.paragraph(words) + beside(pictures)


def _sigma_pictures(run: ReportedRun) -> list[str]:
    by_name = sigmas(run.held)
    pictures = []
    for group in relevance_groups(run.draws):
        all_inputs = of_inputs(by_name, group)
        shown = largest(all_inputs, _MAX_BARS)
        if not shown:
            continue
        where = "the outputs" if group == "io" else f"hidden layer {group[2:]}"
        more = f", the {len(shown)} largest of {len(all_inputs)}" if len(shown) < len(all_inputs) else ""
        pictures.append(
            picture(
                partial(draw_relevance, names=list(shown), values=np.stack(list(shown.values()))),
                alt=f"Posterior of the sigma of each input's weights to {where}",
                caption=f"Sigmas of the weights from each input to {where}{more}: median, 80 % and 98 %"
                " intervals; ticks are the medians of chains.",
                xlabel="sigma",
                height=0.9 + 0.27 * len(shown),
            )
        )
    return pictures


def _draw_shares(axis: Axes, names: list[str], shares: Array) -> None:
    places = np.arange(len(names))[::-1]
    axis.barh(places, np.nan_to_num(shares), height=0.62, color=BLUE)
    axis.set_yticks(places, all_shortened(names))
    axis.tick_params(axis="y", length=0)
    axis.set_ylim(-0.6, len(names) - 0.4)
    axis.set_xlim(0, max(1.0, 1.05 * float(np.nan_to_num(shares).max(initial=0))))
    axis.set_xlabel("share of the variance of predictions")


_MAX_VALUES = 6
_MAX_TICKS = 60
_MAX_LETTERS = 24  # of all names of levels, if these are side by side


def dependence_section(run: ReportedRun, columns: list[InputColumn]) -> str:
    """Return a picture for each of the columns."""
    names = value_names(run.draws)
    model = run.draws.spec.data_model
    # Targets that are numbers have different scales, so each has its own picture.
    panels = [list(range(len(names)))[:_MAX_VALUES]] if model.has_labels else [[n] for n in range(len(names))]
    pictures = []
    dependences = [partial_dependence(run.few, run.cases.few, column) for column in columns]
    for column, dependence in zip(columns, dependences, strict=True):
        for which in panels[:_MAX_VALUES]:
            draw = partial(
                _draw_dependence,
                dependence=dependence,
                names=names,
                which=which,
                reach=_reach(dependences, which),
                ticks=_ticks(run, column),
                is_log=model.are_times,
            )
            shown = ", ".join(names[number] for number in which)
            pictures.append(
                picture(draw, alt=f"{shown} averaged over the cases, by {column.name}", width=3.2, height=2.5)
            )
    words = (
        "Each picture sets one column to a value in all cases and averages the predictions over the cases,"
        " with the other columns unchanged. The band or bar contains 80 % of the posterior of that average,"
        " without noise. All pictures have the same scale. If columns depend on each other, some of these"
        " combinations do not occur."
    )
    if model.are_times:
        words += " Times are averaged on the logarithmic scale."
    return tables.paragraph(words) + beside(pictures)


def _ticks(run: ReportedRun, column: InputColumn) -> Array:
    """Return values of a column of numbers to mark the training cases; none for levels."""
    if column.kind != "number":
        return np.empty(0)
    values = run.draws.data.inputs[:, run.draws.data.input_names.index(column.name)]
    return np.quantile(values, np.linspace(0.02, 0.98, min(_MAX_TICKS, len(values))))


def _reach(dependences: list[Dependence], which: list[int]) -> tuple[float, float]:
    low = min(float(one.low[:, which].min()) for one in dependences)
    high = max(float(one.high[:, which].max()) for one in dependences)
    return low, high


def _draw_dependence(
    axis: Axes,
    dependence: Dependence,
    names: list[str],
    which: list[int],
    reach: tuple[float, float],
    ticks: Array,
    is_log: bool,
) -> None:
    labels = all_shortened(names)
    for number in which:
        _draw_value(axis, dependence, number, labels[number])
    if dependence.levels:
        levels = all_shortened(dependence.levels, _MAX_LETTERS)
        is_crowded = len("".join(levels)) > _MAX_LETTERS
        axis.set_xticks(dependence.points, levels, rotation=90 if is_crowded else 0)
        axis.margins(x=0.15)
    _set_reach(axis, reach, is_log=is_log)
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


def _set_reach(axis: Axes, reach: tuple[float, float], *, is_log: bool) -> None:
    """Set the common scale of all columns, if their values are finite."""
    low, high = reach
    if is_log:
        set_log_scale(axis, "y")
        low, high = low / 1.1, high * 1.1
    else:
        low, high = low - 0.06 * (high - low), high + 0.06 * (high - low)
    if np.isfinite([low, high]).all() and low < high:
        axis.set_ylim(low, high)
