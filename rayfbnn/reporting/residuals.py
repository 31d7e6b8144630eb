"""The section on residuals: actual by predicted values, normal scores, and the least probable cases."""

from __future__ import annotations

from functools import partial

import numpy as np

from rayfbnn.answers.calibration import Places
from rayfbnn.arrays import Array
from rayfbnn.output import tables
from rayfbnn.output.lines import shortened
from rayfbnn.pictures.panels import Axes
from rayfbnn.pictures.predicted import draw_actual, draw_scores
from rayfbnn.reporting.page import beside, picture
from rayfbnn.reporting.reported_run import ReportedRun, labels_of

_SURPRISES = 8
_MAX_CLASSES = 12


def residuals_section(run: ReportedRun) -> str:
    """Return pictures for numbers or tables of confusions for labels, and then the least probable cases."""
    if run.places is None:
        return _confusion(run) + _surprises(run)
    return _numbers(run, run.places) + _surprises(run)


def _numbers(run: ReportedRun, places: Places) -> str:
    are_times = run.draws.spec.data_model.are_times
    pictures = []
    for target, name in enumerate(run.draws.data.target_names):
        actual = run.cases.targets[:, target]
        is_known = ~np.isnan(actual)
        if not is_known.any():
            continue
        median = run.prediction.table[f"{name}_median"].to_numpy()[is_known]
        pictures += [
            picture(
                partial(_draw_actual, median=median, actual=actual[is_known], name=name, are_times=are_times),
                alt=f"Actual against predicted {name}",
            ),
            picture(
                partial(
                    _draw_scores,
                    median=median,
                    places=places.of_target(target),
                    name=name,
                    are_times=are_times,
                ),
                alt=f"Normal scores of {name} by its predicted value",
            ),
        ]
    words = (
        "The normal score of a target is the standard normal quantile of its place in the predictive"
        " distribution. It is a residual in appropriate units: 95 % should lie in the band, without any"
        " pattern."
    )
    return tables.paragraph(words) + beside(pictures)


def _draw_actual(axis: Axes, median: Array, actual: Array, name: str, are_times: bool) -> None:
    draw_actual(axis, median, actual, name, are_times=are_times)
    axis.set_xlabel(f"predicted {shortened(name)} (median)")


def _draw_scores(axis: Axes, median: Array, places: Places, name: str, are_times: bool) -> None:
    draw_scores(axis, median, places, are_times=are_times)
    axis.set_xlabel(f"predicted {shortened(name)} (median)")


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
