"""Weighs the draws of ladders by their evidence where phases remain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.answers.ladder.verdict import LadderVerdict, phase_sentences
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
