"""The section on the verdicts: whether results can be used, whether the model fits, and what to do."""

from __future__ import annotations

from functools import partial

from rayfbnn.answers.fit_diagnosis import diagnose_fit
from rayfbnn.output import tables
from rayfbnn.pictures.objective import draw_objective
from rayfbnn.pictures.predicted import draw_pit
from rayfbnn.reporting.ladders import ladders_part
from rayfbnn.reporting.page import beside, picture
from rayfbnn.reporting.reported_run import ReportedRun
from rayfbnn.store.ladder_words import word_for_chains

_ROWS = 15


def verdicts_section(run: ReportedRun) -> str:
    """Return the verdicts with their advice, and the table of quantities behind them."""
    if run.draws.kind == "approximate":
        return _of_approximation(run)
    if run.diagnosis is None:
        return tables.paragraph(run.note) + _fit(run)
    diagnosis = run.diagnosis
    word = word_for_chains(run.draws.store)
    counts = tables.pairs(
        {
            word: run.draws.n_chains,
            f"draws of each {word[:-1]}": run.draws.n_draws,
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
            ladders_part(run),
            diagnosis.predictions._repr_html_(),
            diagnosis.hyperparameters._repr_html_(),
            _fit(run),
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
    return tables.paragraph(run.note) + diagnose_fit(run.draws)._repr_html_() + objective + _fit(run)


def _fit(run: ReportedRun) -> str:
    """Return the verdict on fit, with the places of the training cases that are left out; "" without one."""
    if run.fit is None:
        return ""
    pictures = [
        picture(
            partial(draw_pit, places=places),
            alt=f"Histogram of the places of {name} in the predictive distributions of all other cases",
            caption=f"{name} at the training cases, each predicted without itself. If the model is right,"
            " 95 % of the bars end in the grey band. A valley in the middle means that intervals are too"
            " narrow, a hill that they are too wide, and a slope that predictions are too low or too high.",
        )
        for name, places in run.left_out.items()
        if len(places.low)
    ]
    return run.fit._repr_html_() + beside(pictures)
