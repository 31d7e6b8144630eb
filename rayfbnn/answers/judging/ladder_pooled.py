"""Ladders whose phases weigh by their evidence: those of one run, and those of several stores together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rayfbnn.answers.judging.ladder_evidence import LadderEvidence, common_level, ladder_evidence, phases_of
from rayfbnn.answers.judging.ladder_verdict import (
    LadderVerdict,
    judge_ladders,
    phase_sentences,
    verdict_on_ladders,
)
from rayfbnn.answers.judging.modes import modes
from rayfbnn.draws.fits import weighed
from rayfbnn.draws.ladders import is_of_ladders, ladder_draws
from rayfbnn.draws.same_posterior import stacked
from rayfbnn.draws.view import Draws
from rayfbnn.numerals import plain
from rayfbnn.reduce.effective import MIN_DRAWS, rhat


def verdict_on_pooled_ladders(runs: Sequence[Draws]) -> LadderVerdict | None:
    """Judge the ladders of several runs of one posterior together; None if there is nothing to judge.

    Ladders are numbered through the stores. Log Z of two stores can be compared if both count it from the
    same noise (or power), which a fixed `ladder.hot` achieves. Its hottest level and the posterior are then
    judged over all ladders. Otherwise the grade is "cannot tell" if the ladders of all stores are in separate
    groups of log likelihoods. If they are not, no weights are needed, and the verdict is None.
    """
    if not any(map(is_of_ladders, runs)):
        return None
    if len(runs) == 1:
        return verdict_on_ladders(runs[0])
    if min(run.n_draws for run in runs) < MIN_DRAWS:
        return None  # each run has a verdict of its own, which says so
    pool = stacked(runs)
    every = [ladder_evidence(run) for run in runs if is_of_ladders(run)]
    reason, advice = _why_not_comparable(runs, every)
    if not reason:
        return judge_ladders(_pooled_evidence(runs, every, pool))
    if len(modes(pool.stat("log_likelihood"))) < 2:
        return None
    reason = f"phases remain in these stores, and {reason}"
    return LadderVerdict("ladders", "cannot tell", (reason,), advice=advice, decided_by=reason)


def _why_not_comparable(
    runs: Sequence[Draws], every: Sequence[LadderEvidence]
) -> tuple[str, tuple[str, ...]]:
    """Return the reason that log Z of the stores cannot be compared, and advice; ("", ()) if it can."""
    if len(every) < len(runs):
        return "not all of them have ladders, so that log Z of the phases is not known", ()
    starts = [(_held_at_start(one), _multipliers(run)) for run, one in zip(runs, every, strict=True)]
    if len(set(starts)) == 1:
        return "", ()
    values = sorted({held for held, _ in starts})
    reason = "log Z of their ladders is counted from different levels, so that it cannot be compared"
    if len(values) == 1:
        way = (
            "sample all ladders in one store, because each store finds its own ratios of the noise of targets"
        )
        return f"{reason}: the ratios of the noise of the targets differ", (way,)
    kind = runs[0].spec.ladder_ends.kind
    name, first, last = "noise" if kind == "noise" else "power", plain(values[0], 2), plain(values[-1], 2)
    hottest = last if kind == "noise" else first
    way = f"sample with the same ladder.hot in all of them, such as ladder.hot={hottest}"
    return f"{reason}: {name} {first} to {last}", (way,)


def _held_at_start(evidence: LadderEvidence) -> float:
    """Return the noise, or the power, of the level that log Z is counted from."""
    return evidence.held[evidence.common or 0]


def _multipliers(run: Draws) -> tuple[float, ...]:
    """Return the noise precisions of the targets relative to each other, which all levels share."""
    return run.store.tuning.latest_ladder_rounds()[-1].settings.multipliers


def _pooled_evidence(runs: Sequence[Draws], every: Sequence[LadderEvidence], pool: Draws) -> LadderEvidence:
    """Return the evidence of all ladders as if they had two levels: that where log Z starts, and the top."""
    measures = []
    for run, one in zip(runs, every, strict=True):
        measure = ladder_draws(run).measure[:, -pool.n_draws :].astype(float)
        measures.append(measure[:, :, [one.common or 0, -1]])
    of_levels = tuple(float(rhat(values)) for values in np.moveaxis(np.concatenate(measures), 2, 0))
    log_z = tuple(z for one in every for z in one.log_z)
    return LadderEvidence(
        kind=every[0].kind,
        held=(_held_at_start(every[0]),),
        ladders=pool.chain_numbers,
        measured=every[0].measured,
        rhat=of_levels,
        rejection=(max(value for one in every for value in one.rejection),),
        common=common_level(of_levels),
        log_z=log_z,
        errors=tuple(error for one in every for error in one.errors),
        families=tuple(family for one in every for family in one.families),
        trips=tuple(trips for one in every for trips in one.trips),
        phases=phases_of(pool, np.array(log_z)),
    )


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
