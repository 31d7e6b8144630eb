"""The verdict on ladders, of one store or several, and draws whose phases weigh by their evidence.

R-hat and round trips are necessary, but neither makes a verdict good (docs/ladder.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import fdtri, stdtrit

from rayfbnn.answers.judging.ladder_evidence import (
    AGREES,
    LadderEvidence,
    common_level,
    ladder_evidence,
    lasting_obstacle,
    phases_of,
)
from rayfbnn.answers.judging.verdicts import Grade, Verdict, modes
from rayfbnn.answers.judging.words import MOST_NUMBERED, as_json, numbered, resume_advice, rounded_up
from rayfbnn.draws.ladders import ladder_draws
from rayfbnn.draws.subsets import stacked, weighed
from rayfbnn.draws.view import Draws
from rayfbnn.numerals import compared, plain
from rayfbnn.reduce.effective import MIN_DRAWS, rhat
from rayfbnn.store.catalogue import FAMILIES
from rayfbnn.store.rounds import MEASURES
from rayfbnn.store.storage.places import as_typed

MAX_SPREAD = 0.3  # nats, within families and between them
_LARGE_SPREAD = 1.0  # nats; ladders that have not run long enough may differ by less
_CHANCE = 0.01  # the probability of such a spread in a family, or of such a difference of both, by chance
_MOST_VALUES, _MOST_PHASES = 16, 6  # that are listed one by one
_SHORT = 0.5  # span of the coordinate; the adaptation leaves 1 or more, a given ladder.hot any
_HIGH_REJECTION = 0.8  # beyond it neighbours hardly exchange; the adaptation aims at 0.6

_OTHER_LEVELS = "sample again with more ladder.levels, ladder.annealing or ladder.adaptation"


@dataclass(frozen=True)
class LadderVerdict(Verdict):
    """The verdict on whether the ladders of a run have found the whole posterior.

    The grade is "converged", "not converged", or "cannot tell" if the evidence is too imprecise.

    Attributes
    ----------
    evidence
        Log Z of the ladders, agreement of the levels, and phases; None without enough draws.
    is_sound
        True if the evidence of both families agrees. No part of the posterior is then known to be missing.
    obstacle
        The reason that more iterations cannot make the verdict good; "" if they may.
    """

    evidence: LadderEvidence | None = None
    is_sound: bool = False
    obstacle: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON, with None for unknown numbers."""
        document = super().to_dict()
        if self.evidence is not None:
            document["is_sound"] = self.is_sound
            document["obstacle"] = self.obstacle
            document["evidence"] = as_json(self.evidence) | {
                "within": as_json(self.evidence.within),
                "between": as_json(self.evidence.between),
                "weights": list(self.evidence.weights),
            }
        return document


def verdict_on_ladders(run: Draws, *, max_rhat: float = 1.01) -> LadderVerdict:
    """Judge the ladders of a run; `max_rhat` is the limit of R-hat at every level."""
    if run.n_draws < MIN_DRAWS:
        reason = f"only {run.n_draws} draws in each ladder; at least {MIN_DRAWS} are needed"
        return LadderVerdict("ladders", "cannot tell", (reason,), decided_by=reason)
    evidence = ladder_evidence(run)
    verdict = judge_ladders(evidence, max_rhat=max_rhat)
    if verdict.ok:
        return verdict
    if obstacle := _too_short(evidence) or lasting_obstacle(ladder_draws(run)):
        why = f"more iterations would not help, because {obstacle}"
        return replace(verdict, obstacle=obstacle, advice=(why, *(verdict.advice or (_OTHER_LEVELS,))))
    way = resume_advice(as_typed(run.path), rounded_up(2 * run.spec.phase[-1].iterations))
    return replace(verdict, advice=(*verdict.advice, way))


def judge_ladders(evidence: LadderEvidence, *, max_rhat: float = 1.01) -> LadderVerdict:
    """Judge ladders by their evidence; `max_rhat` is the limit of R-hat at every level."""
    disagreement, unknown = _disagreement(evidence), _unknown(evidence)
    of_levels = _high_rhat(evidence, max_rhat), _no_trips(evidence)
    reasons = tuple(reason for reason in (disagreement, unknown, *of_levels) if reason)
    remarks = (
        _agreement_sentence(evidence, max_rhat),
        _evidence_sentence(evidence),
        *phase_sentences(evidence),
    )
    if not reasons:
        return LadderVerdict("ladders", "converged", remarks=remarks, evidence=evidence, is_sound=True)
    return LadderVerdict(
        "ladders",
        "cannot tell" if unknown and not disagreement else "not converged",
        reasons,
        remarks,
        tuple(_advice(evidence, disagreement=bool(disagreement))),
        decided_by=reasons[0],
        evidence=evidence,
        is_sound=not (disagreement or unknown),
    )


def _disagreement(evidence: LadderEvidence) -> str:
    """Say how log Z of the ladders contradicts itself, beyond its errors; "" if it does not."""
    if not evidence.is_known:
        return ""
    n_ladders, (first, second) = len(evidence.ladders), evidence.by_family()
    families = [one for one in (first, second) if len(one) > 1]
    spreads = [(float(np.std(one, ddof=1)), _largest_spread(len(one), n_ladders)) for one in families]
    if first and second:
        of_means = math.sqrt(1 / len(first) + 1 / len(second))
        spreads.append((evidence.between, of_means * float(stdtrit(n_ladders, 1 - _CHANCE / 2))))
    if not any(spread > max(MAX_SPREAD, limit * evidence.error) for spread, limit in spreads):
        return ""
    missed = "may have missed" if max(evidence.within, evidence.between) < _LARGE_SPREAD else "have missed"
    (within, between), most = compared([evidence.within, evidence.between], MAX_SPREAD, ".2g")
    return (
        f"log Z of the ladders differs by {within} nats within families and {between} between them (at most"
        f" {most}), so that some ladders {missed} a part of the posterior"
    )


def _largest_spread(n: int, n_ladders: int) -> float:
    """Return the ratio of the standard deviation of n normal values to their error that chance exceeds.

    The error is known from halves of `n_ladders` ladders, so that the squared ratio has an F distribution.
    """
    return math.sqrt(float(fdtri(n - 1, n_ladders, 1 - _CHANCE)))


def _too_short(evidence: LadderEvidence) -> str:
    """Say that there is hardly anything to climb, as a given ladder.hot may have it; "" if there is."""
    if evidence.span >= _SHORT:
        return ""
    return (
        f"the hottest level, {evidence.name_of(0)}, is hardly hotter than the coldest, so that ladders show"
        " no more than chains would"
    )


def _unknown(evidence: LadderEvidence) -> str:
    """Say why the evidence cannot decide; "" if it can."""
    if too_short := _too_short(evidence):
        return too_short
    if evidence.common is None:
        lowest = min(map(_or_infinite, evidence.rhat[: len(evidence.rhat) // 2]))
        (least,), most = compared([lowest], AGREES, ".2f")
        return (
            "the ladders have no level in common to compare log Z from: R-hat is at least"
            f" {least} at the hotter levels (at most {most})"
        )
    if not evidence.is_known:
        return (
            f"log Z of {ladders_named(_unjoined(evidence))} is not known, because two neighbouring levels"
            " have hardly a draw in common"
        )
    if math.isnan(evidence.between):
        return "all these ladders started from one side; evidence needs both"
    if max(evidence.within, evidence.between) > MAX_SPREAD and not _disagreement(evidence):
        return (
            f"log Z is known with a standard error of {evidence.error:.2g} nats only, which could hide a"
            f" difference of more than {MAX_SPREAD:g}"
        )
    if evidence.error > MAX_SPREAD:
        (error,), most = compared([evidence.error], MAX_SPREAD, ".2g")
        return f"the standard error of log Z is {error} nats (at most {most})"
    return ""


def _high_rhat(evidence: LadderEvidence, max_rhat: float) -> str:
    high = [level for level, value in enumerate(evidence.rhat) if not value <= max_rhat]
    if not high:
        return ""
    worst = max(high, key=lambda level: _or_infinite(evidence.rhat[level]))
    (largest,), most = compared([evidence.rhat[worst]], max_rhat, ".3f")
    return (
        f"R-hat of {MEASURES[evidence.measured]} over the ladders above {most} at {len(high)} of"
        f" {len(evidence.rhat)} levels: {largest} at {evidence.name_of(worst)}"
    )


def _no_trips(evidence: LadderEvidence) -> str:
    none = [ladder for ladder, n in zip(evidence.ladders, evidence.trips, strict=True) if n == 0]
    return f"no replica has made a round trip between both ends in {ladders_named(none)}" if none else ""


def _agreement_sentence(evidence: LadderEvidence, max_rhat: float) -> str:
    agree = [value <= max_rhat for value in evidence.rhat]
    if all(agree) or not agree[0]:
        levels = f"{sum(agree)} of {len(agree)} levels, but not at the hottest" if any(agree) else "no level"
        if all(agree):
            levels = f"all {len(agree)} levels (R-hat at most {max_rhat:g})"
        return f"the ladders agree in {MEASURES[evidence.measured]} at {levels}"
    first = agree.index(False)
    if evidence.kind == "noise":
        least = f"{evidence.held[first - 1]:.2g}"
        return f"converged for noise of {least} and more, in standard deviations of the targets"
    return f"converged for powers of the likelihood up to {evidence.held[first - 1]:.2g}"


def _evidence_sentence(evidence: LadderEvidence) -> str:
    common, unjoined = evidence.common or 0, _unjoined(evidence)
    error = (
        f"unknown in {ladders_named(unjoined)}" if unjoined else f"standard error of one {evidence.error:.2g}"
    )
    return (
        f"log Z from {evidence.name_of(common)} to the posterior: {_values_of_log_z(evidence)}; {error};"
        f" round trips {sum(evidence.trips)}"
    )


def _values_of_log_z(evidence: LadderEvidence) -> str:
    if len(evidence.log_z) <= _MOST_VALUES:
        pairs = zip(evidence.log_z, evidence.families, strict=True)
        return ", ".join(f"{z:.1f} ({family})" for z, family in pairs)
    return ", ".join(
        f"mean {np.mean(values):.1f} and standard deviation {np.std(values, ddof=1):.2g}"
        f" ({len(values)} ladders from {side})"
        for side, values in zip(("chains", "the prior"), evidence.by_family(), strict=True)
        if len(values) > 1
    )


def phase_sentences(evidence: LadderEvidence) -> list[str]:
    """Name the heaviest phases, with their log likelihood, noise and gap, and count the others."""
    if len(evidence.phases) < 2:
        return []
    sentences = []
    n_shown = len(evidence.phases) if len(evidence.phases) <= _MOST_PHASES + 1 else _MOST_PHASES
    shown, others = evidence.phases[:n_shown], evidence.phases[n_shown:]
    for phase in shown:
        noise = "" if math.isnan(phase.noise) else f", noise {phase.noise:.2g}"
        if not evidence.is_known:
            weight = "its weight is not known"
        elif phase.gap == 0:
            weight = "the heaviest phase"
        else:
            weight = f"lighter by {phase.gap:.3g} nats: exp(-{phase.gap:.3g}) of its weight"
        which = ladders_named(phase.ladders)
        sentences.append(f"{which}: log likelihood {phase.log_likelihood:.4g}{noise}, {weight}")
    if others:
        n_ladders = sum(len(phase.ladders) for phase in others)
        lighter = f", lighter by {others[0].gap:.3g} nats and more" if evidence.is_known else ""
        sentences.append(f"{len(others)} further phases with {n_ladders} ladders{lighter}")
    return sentences


def _unjoined(evidence: LadderEvidence) -> list[int]:
    """Return the ladders with neighbouring levels that hardly share a draw."""
    pairs = zip(evidence.ladders, evidence.errors, strict=True)
    return [ladder for ladder, error in pairs if not math.isfinite(error)]


def ladders_named(numbers: Sequence[int]) -> str:
    """Return "ladder 3", "ladders 3 and 7", or for many how many there are from either side."""
    if len(numbers) <= MOST_NUMBERED:
        return numbered(numbers, "ladder")
    of_prior = sum(number % 2 for number in numbers)
    return (
        f"{len(numbers)} ladders ({len(numbers) - of_prior} from {FAMILIES[0]},"
        f" {of_prior} from the {FAMILIES[1]})"
    )


def _advice(evidence: LadderEvidence, *, disagreement: bool) -> Iterator[str]:
    hotter = "a larger ladder.hot" if evidence.kind == "noise" else "a smaller ladder.hot"
    if evidence.span < _SHORT:
        yield f"sample again with {hotter}, or without one"
    elif evidence.common is None:
        yield f"sample again with more ladder.annealing and ladder.adaptation, or with {hotter}"
    elif max(evidence.rejection) > _HIGH_REJECTION or not evidence.is_known:
        pair = max(range(len(evidence.rejection)), key=evidence.rejection.__getitem__)
        yield (
            f"neighbours exchange too seldom near {evidence.name_of(pair)} (rejection"
            f" {evidence.rejection[pair]:.2f}): sample again with more ladder.levels or ladder.adaptation"
        )
    if disagreement and len(evidence.phases) > 1:
        yield (
            "`predict` weighs the phases by their evidence, and gives the errors with equal weights too;"
            " networks with wider layers have fewer phases"
        )


def _or_infinite(value: float) -> float:
    return value if math.isfinite(value) else math.inf


def overruled(verdict: Verdict, ladders: LadderVerdict) -> Verdict:
    """Return the verdict on the last levels of ladders: it cannot be good unless their evidence is sound.

    The ladders alone say how long the run should be, if they say it.
    """
    decide = bool(ladders.obstacle) or (verdict.ok and not ladders.is_sound)
    if decide and verdict.resume:
        others = tuple(one for one in verdict.advice if one != verdict.resume)
        verdict = replace(verdict, advice=others, resume="")
    if ladders.is_sound or not verdict.ok:
        return verdict
    grade: Grade = "not usable" if verdict.subject == "predictions" else "not converged"
    if ladders.grade != "not converged":
        grade = "cannot tell"
    sentence = f"the ladders say otherwise: {ladders.decided_by}"
    return replace(
        verdict,
        grade=grade,
        reasons=(sentence, *verdict.reasons),
        advice=(*verdict.advice, *ladders.advice),
        decided_by=sentence,
    )


def verdict_on_pooled_ladders(runs: Sequence[Draws]) -> LadderVerdict | None:
    """Judge the ladders of runs of one posterior together; None if there is nothing to judge.

    Ladders are numbered through the stores. Log Z of two stores can be compared if both count it from the
    same noise (or power), which a fixed `ladder.hot` achieves. Its hottest level and the posterior are then
    judged over all ladders. Otherwise the grade is "cannot tell" if the ladders of all stores are in separate
    groups of log likelihoods. If they are not, no weights are needed, and the verdict is None.
    """
    if len(runs) == 1:
        return verdict_on_ladders(runs[0])
    if min(run.n_draws for run in runs) < MIN_DRAWS:
        return None  # each run has a verdict of its own, which says so
    pool = stacked(runs)
    every = [ladder_evidence(run) for run in runs if run.is_of_ladders]
    reason, advice = _why_not_comparable(runs, every)
    if not reason:
        return judge_ladders(_pooled_evidence(runs, every, pool))
    if len(modes(pool.stat("log_likelihood"))) < 2:
        return None
    reason = f"phases remain in these stores, and {reason}"
    return LadderVerdict("ladders", "cannot tell", (reason,), advice=advice, decided_by=reason)


def overruled_by_ladders(verdict: Verdict, runs: Sequence[Draws]) -> Verdict:
    """Return a verdict on pooled runs that is no better than those on the ladders of each, and of all."""
    for run in runs:
        if run.is_of_ladders:
            verdict = overruled(verdict, verdict_on_ladders(run))
    pooled = verdict_on_pooled_ladders(runs) if len(runs) > 1 else None
    return verdict if pooled is None else overruled(verdict, pooled)


def _why_not_comparable(
    runs: Sequence[Draws], every: Sequence[LadderEvidence]
) -> tuple[str, tuple[str, ...]]:
    """Return the reason that log Z of the stores cannot be compared, and advice; ("", ()) if it can."""
    if len(every) < len(runs):
        return "not all of them have ladders, so that log Z of the phases is not known", ()
    # The noise precisions of the targets relative to each other, which all levels share.
    multipliers = [run.store.tuning.ladder_rounds()[-1].settings.multipliers for run in runs]
    starts = [(_held_at_start(one), ratios) for one, ratios in zip(every, multipliers, strict=True)]
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
    return evidence.held[evidence.common or 0]


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


def weighed_by_evidence(run: Draws, verdict: LadderVerdict) -> tuple[Draws, str]:
    """Weigh ladders by exp(log Z); return the weighed draws, and a sentence that names the phases.

    The run itself and "" are returned if all ladders count alike: no phases remain, or log Z of different
    ladders cannot be compared.
    """
    if not (phases := _weighty_phases(verdict)) or verdict.evidence is None:
        return run, ""
    sentence = f"phases remain, so its ladders count by exp(log Z): {phases}"
    return weighed(run, np.array(verdict.evidence.weights)), sentence


def note_on_equal_weights(run: Draws) -> str:
    """Say that an answer counts all ladders alike, although `predict` weighs them; "" if it does not."""
    phases = _weighty_phases(verdict_on_ladders(run))
    note = "phases remain, and all ladders count alike here, while `predict` weighs them by exp(log Z)"
    return f"{note}: {phases}" if phases else ""


def _weighty_phases(verdict: LadderVerdict) -> str:
    evidence = verdict.evidence
    return "; ".join(phase_sentences(evidence)) if evidence is not None and evidence.is_known else ""


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
