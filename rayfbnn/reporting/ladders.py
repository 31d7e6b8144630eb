"""The verdict on ladders in the report, with tables of their evidence and pictures of their levels."""

from __future__ import annotations

from functools import partial

from rayfbnn.answers.judging.ladder_verdict import ladders_named
from rayfbnn.draws.ladders import ladder_draws
from rayfbnn.output import tables
from rayfbnn.pictures.ladder import draw_evidence, draw_measures, draw_rejection, draw_replicas
from rayfbnn.reporting.page import beside, picture
from rayfbnn.reporting.reported_run import ReportedRun

_MOST_LISTED = 32
_WIDTH, _HEIGHT = 4.4, 2.8  # inches


def ladders_part(run: ReportedRun) -> str:
    """Return the verdict on ladders with tables of ladders and phases, and pictures; "" for other runs."""
    verdict = None if run.diagnosis is None else run.diagnosis.ladders
    if verdict is None:
        return ""
    if verdict.evidence is None:
        return verdict._repr_html_()
    evidence, levels = verdict.evidence, ladder_draws(run.draws)
    ladders = tables.table(
        ("ladder", "from", "log Z", "standard error", "round trips", "weight"),
        [
            (str(number), *values)
            for number, *values in zip(
                evidence.ladders,
                evidence.families,
                evidence.log_z,
                evidence.errors,
                evidence.trips,
                evidence.weights,
                strict=True,
            )
        ][:_MOST_LISTED],
    )
    more = len(evidence.ladders) - _MOST_LISTED
    if more > 0:
        ladders += tables.paragraph(f"and {more} more ladders")
    phases = tables.table(
        ("phase", "log likelihood", "noise", "log Z", "gap"),
        [
            (ladders_named(one.ladders), one.log_likelihood, one.noise, one.log_z, one.gap)
            for one in evidence.phases
        ],
    )
    pictures = [
        picture(draw, alt=caption, caption=caption, width=_WIDTH, height=_HEIGHT)
        for draw, caption in (
            (partial(draw_rejection, levels=levels), "Rejection of exchanges between neighbouring levels"),
            (partial(draw_measures, levels=levels), "How the ladders of both sides fit at each level"),
            (partial(draw_replicas, levels=levels), "The replica at the posterior, and round trips"),
            (partial(draw_evidence, evidence=evidence), "Log Z of each ladder, with two standard errors"),
        )
    ]
    return verdict._repr_html_() + ladders + phases + beside(pictures)
