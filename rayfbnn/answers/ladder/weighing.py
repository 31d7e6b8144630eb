"""Weighs the draws of ladders by their evidence where phases remain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.answers.ladder.pooled import verdict_on_pooled_ladders
from rayfbnn.answers.ladder.verdict import LadderVerdict, phase_sentences
from rayfbnn.draws.stacked import stacked
from rayfbnn.draws.weighted_starts import weighed

if TYPE_CHECKING:
    from rayfbnn.draws.view import Draws


def weighed_by_evidence(run: Draws, verdict: LadderVerdict | None) -> tuple[Draws, str]:
    """Return draws in which ladders count by exp(log Z), and a sentence about it with the phases.

    The run itself and "" are returned if all ladders count alike: there are none, no phases remain, or log Z
    of different ladders cannot be compared.

    verdict  on the ladders of the run; None for a run without
    """
    if verdict is None or verdict.evidence is None or not verdict.has_phases:
        return run, ""
    if not verdict.evidence.is_known:
        return run, ""
    sentence = (
        "phases remain, so these predictions weigh its ladders by exp(log Z):"
        f" {'; '.join(phase_sentences(verdict.evidence))}; the same with equal weights is given beside them"
    )
    return weighed(run, np.array(verdict.evidence.weights)), sentence


def pooled_by_evidence(runs: Sequence[Draws]) -> tuple[list[Draws], str]:
    """Return the draws of several stores in which ladders count by exp(log Z), and a sentence about it.

    If phases remain and log Z of the stores can be compared, all ladders together are a single chain.
    Otherwise the runs themselves are returned, so that all ladders count alike; the sentence then gives the
    reason, and is "" if no phases remain.
    """
    verdict = verdict_on_pooled_ladders(runs)
    if verdict is None:
        return list(runs), ""
    if verdict.evidence is None:
        return list(runs), f"{verdict.decided_by}; all ladders count alike" if len(runs) > 1 else ""
    pool = runs[0] if len(runs) == 1 else stacked(runs)
    changed, sentence = weighed_by_evidence(pool, verdict)
    if not sentence:
        return list(runs), ""
    through = "; ladders are numbered through all stores" if len(runs) > 1 else ""
    return [changed], f"{sentence}{through}"
