"""The section on predictions: their errors and their calibration."""

from __future__ import annotations

from functools import partial

import numpy as np

from rayfbnn.answers.calibration import LEVELS, Places, labelled, reliability, share_limits
from rayfbnn.arrays import Array
from rayfbnn.numerals import in_range
from rayfbnn.output import tables
from rayfbnn.output.lines import shortened
from rayfbnn.pictures.colours import BLUE
from rayfbnn.pictures.panels import Axes, draw_survival
from rayfbnn.pictures.predicted import (
    draw_coverage,
    draw_pit,
    draw_probability_histogram,
    draw_reliability,
)
from rayfbnn.pictures.survival import curves_by_draw, has_survival_curves
from rayfbnn.reporting.page import beside, picture
from rayfbnn.reporting.reported_run import ReportedRun

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
    words += f", from {run.n_held:,} of {run.n_draws:,} draws."
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
    """Return a picture of the survival of the cases, by the model and by the cases themselves."""
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
