"""The report on one or several runs: its sections in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rayfbnn.reporting.calibration import calibration_section
from rayfbnn.reporting.data import data_section
from rayfbnn.reporting.dependence import dependence_section
from rayfbnn.reporting.glance import glance_section
from rayfbnn.reporting.model import model_section
from rayfbnn.reporting.page import Section, page
from rayfbnn.reporting.relevance import by_relevance, relevance_section
from rayfbnn.reporting.repeating import repeating_section
from rayfbnn.reporting.reported_run import ReportedRun, Tell
from rayfbnn.reporting.residuals import residuals_section
from rayfbnn.reporting.traces import traces_section
from rayfbnn.reporting.verdicts import verdicts_section

_MAX_COLUMNS = 6  # columns with pictures of their effects


def report_html(runs: Sequence[ReportedRun], tell: Tell) -> str:
    """Return the page on the runs, with several runs side by side in each section.

    tell  called with a description of each step
    """
    ranked = {}
    for run in runs:
        tell(f"{run.label}: relevance of inputs")
        ranked[run.label] = by_relevance(run)
    # All runs have pictures of the same columns, the most relevant ones of the first run.
    first = [column.name for column, _ in ranked[runs[0].label]]

    def dependence(run: ReportedRun) -> str:
        of_run = {column.name: column for column, _ in ranked[run.label]}
        chosen = [of_run[name] for name in [*first, *of_run] if name in of_run]
        return dependence_section(run, list(dict.fromkeys(chosen))[:_MAX_COLUMNS])

    parts: tuple[tuple[str, str, Callable[[ReportedRun], str]], ...] = (
        ("data", "Data", data_section),
        ("model", "Model", model_section),
        ("verdicts", "Verdicts", verdicts_section),
        ("predictions", "Predictions and their calibration", calibration_section),
        ("residuals", "Residuals", residuals_section),
        ("inputs", "Relevance of inputs", lambda run: relevance_section(run, ranked[run.label])),
        ("effects", "Averaged effects of inputs", dependence),
        ("traces", "Traces", traces_section),
        ("repeat", "How to repeat and cite", repeating_section),
    )
    sections = [Section("glance", "At a glance", (("", glance_section(runs)),))]
    for key, title, section_of in parts:
        tell(title)
        panels = tuple((run.label, section_of(run)) for run in runs)
        if any(html for _, html in panels):
            sections.append(Section(key, title, panels))
    labels = ", ".join(run.label for run in runs)
    return page(f"Report on {labels}", _subtitle(runs), sections)


def _subtitle(runs: Sequence[ReportedRun]) -> str:
    cases = runs[0].cases
    at = f"{cases.n_all:,} held-out cases" if cases.is_held_out else "the training cases"
    return f"Draws of Bayesian neural networks. Predictions are compared with the targets of {at}."
