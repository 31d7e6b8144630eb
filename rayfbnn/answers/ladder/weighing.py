"""Weighs the draws of ladders by their evidence if phases remain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.answers.ladder.pooled import verdict_on_pooled_ladders
from rayfbnn.answers.ladder.verdict import LadderVerdict, phase_sentences, verdict_on_ladders
from rayfbnn.draws.stacked import stacked
from rayfbnn.draws.weighted_starts import weighed

if TYPE_CHECKING:
    from rayfbnn.answers.ladder.evidence import LadderEvidence
    from rayfbnn.draws.view import Draws


BESIDE = "; the same with equal weights is given beside it"  # where both are


def weighed_by_evidence(run: Draws, verdict: LadderVerdict | None) -> tuple[Draws, str]:
    """Weigh ladders by exp(log Z); return the weighed draws, and a sentence that names the phases.

    The run itself and "" are returned if all ladders count alike: there are none, no phases remain, or log Z
    of different ladders cannot be compared.

    verdict  on the ladders of the run; None for a run without
    """
    if verdict is None or verdict.evidence is None or not verdict.has_phases:
        return run, ""
    if not verdict.evidence.is_known:
        return run, ""
    sentence = f"phases remain, so its ladders count by exp(log Z): {_phases(verdict.evidence)}"
    return weighed(run, np.array(verdict.evidence.weights)), sentence


def _phases(evidence: LadderEvidence) -> str:
    return "; ".join(phase_sentences(evidence))


def note_on_equal_weights(run: Draws) -> str:
    """Say that an answer counts all ladders alike, although `predict` weighs them; "" if it does not."""
    verdict = verdict_on_ladders(run)
    weighed, _ = weighed_by_evidence(run, verdict)
    if weighed is run or verdict is None or verdict.evidence is None:
        return ""
    return (
        "phases remain, and all ladders count alike here, while `predict` weighs them by exp(log Z):"
        f" {_phases(verdict.evidence)}"
    )


def pooled_by_evidence(runs: Sequence[Draws]) -> tuple[list[Draws], str]:
    """Weigh the ladders of several stores by exp(log Z); return their draws, and a sentence about it.

    If phases remain and log Z of the stores can be compared, all ladders together are a single chain.
    Otherwise the runs themselves are returned, and all ladders count alike. The sentence then gives the
    reason; it is "" if no phases remain.
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
