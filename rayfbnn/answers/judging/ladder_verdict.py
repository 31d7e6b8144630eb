"""The verdict on ladders: agreement of levels, evidence from two sides, and round trips.

R-hat and round trips are necessary, but neither makes a verdict good (docs/ladder.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from scipy.special import fdtri, stdtrit

from rayfbnn.answers.judging.ladder_evidence import AGREES, LadderEvidence, ladder_evidence
from rayfbnn.answers.judging.ladder_hint import lasting_obstacle
from rayfbnn.answers.judging.verdicts import Grade, Verdict
from rayfbnn.answers.judging.words import MOST_NUMBERED, known, numbered, resume_advice, rounded_up
from rayfbnn.draws.ladders import is_of_ladders, ladder_draws
from rayfbnn.draws.view import Draws
from rayfbnn.numerals import compared
from rayfbnn.reduce.effective import MIN_DRAWS
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
            document["evidence"] = _plain(self.evidence) | {
                "within": known(self.evidence.within),
                "between": known(self.evidence.between),
                "weights": list(self.evidence.weights),
            }
        return document

    @property
    def has_phases(self) -> bool:
        """True if phases with different weights remain."""
        return self.evidence is not None and len(self.evidence.phases) > 1


def _plain(record: Any) -> Any:
    """Return a record as dictionaries, lists and numbers, with None for numbers that are not finite."""
    if isinstance(record, tuple):
        return [_plain(one) for one in record]
    if hasattr(record, "__dataclass_fields__"):
        return {one.name: _plain(getattr(record, one.name)) for one in fields(record)}
    return known(record) if isinstance(record, float) else record


def verdict_on_ladders(run: Draws, *, max_rhat: float = 1.01) -> LadderVerdict | None:
    """Judge the ladders of a run; None for a run without.

    max_rhat  the limit of R-hat at every level
    """
    if not is_of_ladders(run):
        return None
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
    reasons = [
        *disagreement,
        *unknown,
        *_high_rhat(evidence, max_rhat),
        *_no_trips(evidence),
    ]
    remarks = (
        _agreement_sentence(evidence, max_rhat),
        _evidence_sentence(evidence),
        *phase_sentences(evidence),
    )
    if not reasons:
        return LadderVerdict("ladders", "converged", remarks=remarks, evidence=evidence, is_sound=True)
    is_unknown = bool(unknown) and not disagreement
    return LadderVerdict(
        "ladders",
        "cannot tell" if is_unknown else "not converged",
        tuple(reasons),
        remarks,
        _advice(evidence, disagreement=bool(disagreement)),
        decided_by=reasons[0],
        evidence=evidence,
        is_sound=not (disagreement or unknown),
    )


def _disagreement(evidence: LadderEvidence) -> list[str]:
    """Return why the evidence of the ladders contradicts itself, beyond the errors of log Z."""
    if not evidence.is_known:
        return []
    n_ladders, (first, second) = len(evidence.ladders), evidence.by_family()
    families = [one for one in (first, second) if len(one) > 1]
    spreads = [(float(np.std(one, ddof=1)), _largest_spread(len(one), n_ladders)) for one in families]
    if first and second:
        of_means = math.sqrt(1 / len(first) + 1 / len(second))
        spreads.append((evidence.between, of_means * float(stdtrit(n_ladders, 1 - _CHANCE / 2))))
    if not any(spread > max(MAX_SPREAD, limit * evidence.error) for spread, limit in spreads):
        return []
    missed = "may have missed" if max(evidence.within, evidence.between) < _LARGE_SPREAD else "have missed"
    (within, between), most = compared([evidence.within, evidence.between], MAX_SPREAD, ".2g")
    return [
        f"log Z of the ladders differs by {within} nats within families and {between} between them (at most"
        f" {most}), so that some ladders {missed} a part of the posterior"
    ]


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


def _unknown(evidence: LadderEvidence) -> list[str]:
    """Return why the evidence cannot decide."""
    if too_short := _too_short(evidence):
        return [too_short]
    if evidence.common is None:
        lowest = min(map(_or_infinite, evidence.rhat[: len(evidence.rhat) // 2]))
        (least,), most = compared([lowest], AGREES, ".2f")
        return [
            "the ladders have no level in common to compare log Z from: R-hat is at least"
            f" {least} at the hotter levels (at most {most})"
        ]
    if not evidence.is_known:
        return [
            f"log Z of {ladders_named(_unjoined(evidence))} is not known, because two neighbouring levels"
            " have hardly a draw in common"
        ]
    if math.isnan(evidence.between):
        return ["all these ladders started from one side; evidence needs both"]
    if max(evidence.within, evidence.between) > MAX_SPREAD and not _disagreement(evidence):
        return [
            f"log Z is known with a standard error of {evidence.error:.2g} nats only, which could hide a"
            f" difference of more than {MAX_SPREAD:g}"
        ]
    if evidence.error > MAX_SPREAD:
        (error,), most = compared([evidence.error], MAX_SPREAD, ".2g")
        return [f"the standard error of log Z is {error} nats (at most {most})"]
    return []


def _high_rhat(evidence: LadderEvidence, max_rhat: float) -> list[str]:
    high = [level for level, value in enumerate(evidence.rhat) if not value <= max_rhat]
    if not high:
        return []
    worst = max(high, key=lambda level: _or_infinite(evidence.rhat[level]))
    (largest,), most = compared([evidence.rhat[worst]], max_rhat, ".3f")
    return [
        f"R-hat of {_measured(evidence)} over the ladders above {most} at {len(high)} of"
        f" {len(evidence.rhat)} levels: {largest} at {evidence.name_of(worst)}"
    ]


def _no_trips(evidence: LadderEvidence) -> list[str]:
    none = [ladder for ladder, n in zip(evidence.ladders, evidence.trips, strict=True) if n == 0]
    if not none:
        return []
    return [f"no replica has made a round trip between both ends in {ladders_named(none)}"]


def _agreement_sentence(evidence: LadderEvidence, max_rhat: float) -> str:
    """Say down to which level the ladders agree."""
    agree = [value <= max_rhat for value in evidence.rhat]
    if all(agree):
        of_levels = f"all {len(agree)} levels (R-hat at most {max_rhat:g})"
        return f"the ladders agree in {_measured(evidence)} at {of_levels}"
    first = agree.index(False)
    if first == 0:
        levels = f"{sum(agree)} of {len(agree)} levels, but not at the hottest" if any(agree) else "no level"
        return f"the ladders agree in {_measured(evidence)} at {levels}"
    if evidence.kind == "noise":
        least = f"{evidence.held[first - 1]:.2g}"
        return f"converged for noise of {least} and more, in standard deviations of the targets"
    return f"converged for powers of the likelihood up to {evidence.held[first - 1]:.2g}"


def _evidence_sentence(evidence: LadderEvidence) -> str:
    """State log Z of each ladder, or of many its mean and standard deviation over either side."""
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


def _advice(evidence: LadderEvidence, *, disagreement: bool) -> tuple[str, ...]:
    advice = []
    hotter = "a larger ladder.hot" if evidence.kind == "noise" else "a smaller ladder.hot"
    if evidence.span < _SHORT:
        advice.append(f"sample again with {hotter}, or without one")
    elif evidence.common is None:
        advice.append(f"sample again with more ladder.annealing and ladder.adaptation, or with {hotter}")
    elif max(evidence.rejection) > _HIGH_REJECTION or not evidence.is_known:
        pair = max(range(len(evidence.rejection)), key=evidence.rejection.__getitem__)
        advice.append(
            f"neighbours exchange too seldom near {evidence.name_of(pair)} (rejection"
            f" {evidence.rejection[pair]:.2f}): sample again with more ladder.levels or ladder.adaptation"
        )
    if disagreement and len(evidence.phases) > 1:
        advice.append(
            "`predict` weighs the phases by their evidence, and gives the errors with equal weights too;"
            " networks with wider layers have fewer phases"
        )
    return tuple(advice)


def _measured(evidence: LadderEvidence) -> str:
    return MEASURES[evidence.measured]


def _or_infinite(value: float) -> float:
    return value if math.isfinite(value) else math.inf


def overruled(verdict: Verdict, ladders: LadderVerdict | None) -> Verdict:
    """Return the verdict on the last levels of ladders: it cannot be good unless their evidence is sound.

    The ladders alone say how long the run should be, if they say it.
    """
    if ladders is None:
        return verdict
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
