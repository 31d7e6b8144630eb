"""The section on the verdicts: whether predictions and hyperparameters can be used, and what to do."""

from __future__ import annotations

from functools import partial

from rayfbnn.answers.fit_diagnosis import diagnose_fit
from rayfbnn.markup import tables
from rayfbnn.pictures.objective import draw_objective
from rayfbnn.reporting.page import picture
from rayfbnn.reporting.reported_run import ReportedRun

_ROWS = 15


def verdicts_section(run: ReportedRun) -> str:
    """Return both verdicts with their advice, and the table of quantities behind them."""
    if run.draws.kind == "approximate":
        return _of_approximation(run)
    if run.diagnosis is None:
        return tables.paragraph(run.note)
    diagnosis = run.diagnosis
    counts = tables.pairs(
        {
            "chains": run.draws.n_chains,
            "draws of each chain": run.draws.n_draws,
            "share of updates accepted": diagnosis.acceptance,
            "updates that diverged": diagnosis.divergences,
            "updates that diverged in the warm-up": diagnosis.warmup_divergences,
        }
    )
    n_all = len(diagnosis.quantities)
    shown = f"The {_ROWS} of {n_all} quantities with the largest R-hat" if n_all > _ROWS else ""
    every = ""
    if n_all > _ROWS:
        every = f"<details><summary>All {n_all} quantities</summary>{diagnosis.quantities_html()}</details>"
    return "".join(
        [
            tables.paragraph(run.progress),
            diagnosis.predictions._repr_html_(),
            diagnosis.hyperparameters._repr_html_(),
            counts,
            tables.paragraph(shown),
            diagnosis.quantities_html(at_most=_ROWS),
            every,
        ]
    )


def _of_approximation(run: ReportedRun) -> str:
    """Return the diagnosis of an approximation, with the picture of its objective."""
    objective = picture(
        partial(draw_objective, run=run.draws),
        alt="The objective of each start by step",
        caption="The objective of each start by step; thin lines are starts without weight in predictions",
        width=4.6,
        height=2.7,
    )
    return tables.paragraph(run.note) + diagnose_fit(run.draws)._repr_html_() + objective
