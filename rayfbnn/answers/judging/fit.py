"""The verdict on fit: whether the predictive distributions describe the targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.special

from rayfbnn.answers.judging.fit_evidence import FitEvidence, JudgedTarget
from rayfbnn.answers.judging.fit_tests import (
    CONFIDENCE,
    COVERAGE,
    LEVELS,
    OUTLIERS,
    RATE,
    UNIFORMITY,
    VARIATION,
    NumberCases,
    Test,
    joint_p,
    limits_of_share,
)
from rayfbnn.answers.judging.verdicts import Verdict
from rayfbnn.answers.wording import known
from rayfbnn.arrays import Array
from rayfbnn.model.likelihood.data_model import DataModel
from rayfbnn.model.likelihood.target_records import Misfit

FALSE_ALARMS = 0.05  # of all tests together
LEAST_CASES = 20  # fewer show only the grossest misfit
_MOST_LARGE_K = 0.25  # share of the cases with unreliable weights
_NAMED = 3  # targets whose coverage is stated
# What the advice depends on; the verdict does not.
_NARROW = 1.05  # spread of places, relative to that of uniform ones
_SKEWED = 3.0  # standard errors of the skewness of normal scores
_HEAVY = 4.0  # fourth moment of normal scores; 3 if predictions are right
_OUT, _MAX_SCORE = 2.5, 8.0


@dataclass(frozen=True)
class FitVerdict(Verdict):
    """The verdict on whether predictive distributions describe the targets.

    Attributes
    ----------
    p_value
        Probability of evidence as strong against the model if the model is true, all tests together.
    coverage
        For each target that is a number, the share of its cases in central intervals by their probability.
    cases
        Number of cases that were used, by where they are from.
    """

    p_value: float = float("nan")
    coverage: dict[str, dict[str, float]] | None = None
    cases: dict[str, int] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON, with None for unknown numbers."""
        fields = super().to_dict()
        del fields["iterations"]
        return fields | {
            "p_value": known(self.p_value),
            "coverage": self.coverage or {},
            "cases": self.cases or {},
        }


@dataclass(frozen=True)
class _Finding:
    """A target with its tests, each with the share that is left to it of the whole level."""

    evidence: FitEvidence
    target: JudgedTarget
    tests: list[Test]

    def failed(self) -> list[Test]:
        """Return the tests that fall short alone, those with the strongest evidence first."""
        tests = [test for test in self.tests if test.weighted[0] <= FALSE_ALARMS]
        return sorted(tests, key=lambda test: float(test.weighted[0]))

    @property
    def smallest(self) -> float:
        """The smallest weighted p-value."""
        return min(float(test.weighted[0]) for test in self.tests)


def judge_fit(
    evidences: Sequence[FitEvidence],
    model: DataModel,
    *,
    is_positive: dict[str, bool],
    predictions: Verdict | None = None,
) -> FitVerdict:
    """Judge the targets of some groups of cases, such as training cases left out and held-out cases.

    is_positive  whether all training targets are above zero, by target
    predictions  the verdict on the predictions; if these cannot be used, a misfit could be that of the chains
    """
    groups = [_findings(evidence, len(evidences)) for evidence in evidences]
    groups = [findings for findings in groups if findings]
    cases = {_source(evidence): evidence.n_used for evidence in evidences}
    if not groups:
        most = max((target.n_cases for one in evidences for target in one.targets), default=0)
        reason = f"only {most} cases have a known target; at least {LEAST_CASES} are needed"
        return FitVerdict("fit", "cannot tell", (reason,), decided_by=reason, cases=cases)
    p_value = min(1.0, len(groups) * min(joint_p(_all_tests(findings)) for findings in groups))
    every = [finding for findings in groups for finding in findings]
    verdict = FitVerdict(
        "fit",
        "no misfit",
        remarks=(*_coverages(every), *(_choice(evidence) for evidence in evidences if _choice(evidence))),
        p_value=p_value,
        coverage=_coverage_by_target(every),
        cases=cases,
    )
    doubt = _doubt(evidences, predictions)
    if doubt:
        return replace(verdict, grade="cannot tell", reasons=(doubt,), decided_by=doubt)
    if p_value > FALSE_ALARMS:
        return verdict
    worst = sorted(every, key=lambda finding: finding.smallest)
    failing = [finding for finding in worst if finding.failed()] or worst[:1]
    reasons = [sentence for finding in failing for sentence in _sentences(finding)]
    advice = [way for finding in failing for way in _remedies(finding, model, is_positive)]
    return replace(
        verdict,
        grade="misfit",
        reasons=tuple(dict.fromkeys(reasons)),
        advice=tuple(dict.fromkeys(advice)),
        decided_by=reasons[0],
    )


def _findings(evidence: FitEvidence, n_groups: int) -> list[_Finding]:
    """Return the targets that have enough cases, with their tests; the level is divided among all."""
    judged = [target for target in evidence.targets if target.n_cases >= LEAST_CASES]
    part = 1 / (n_groups * max(len(judged), 1))
    return [
        _Finding(evidence, target, [replace(test, share=test.share * part) for test in target.cases.tests()])
        for target in judged
    ]


def _all_tests(findings: list[_Finding]) -> list[Test]:
    return [test for finding in findings for test in finding.tests]


def _doubt(evidences: Sequence[FitEvidence], predictions: Verdict | None) -> str:
    """Return why the fit cannot be judged, or ""."""
    if predictions is not None and not predictions.ok:
        return f"the chains do not agree, so a misfit could be theirs: {predictions.sentences[0]}"
    for evidence in evidences:
        if evidence.n_large_k > _MOST_LARGE_K * evidence.n_used and len(evidences) == 1:
            return (
                f"{evidence.n_large_k} of {evidence.n_used} training cases cannot be left out by importance"
                " weights (Pareto k above 0.7); give cases with known targets by --data"
            )
    return ""


def _source(evidence: FitEvidence) -> str:
    return "training cases left out" if evidence.is_left_out else "other cases"


def _choice(evidence: FitEvidence) -> str:
    """Say which cases were used, if not all were, and what is known of censored ones."""
    words = []
    if evidence.n_used < evidence.n_all:
        words.append(f"{evidence.n_used:,} of {evidence.n_all:,} cases were used, chosen by the seed")
    if evidence.n_censored:
        words.append(
            f"{evidence.n_censored} censored times are placed at random between the end of their observation"
            " and infinity, so they show little"
        )
    return "; ".join(words)


def _coverage_by_target(findings: list[_Finding]) -> dict[str, dict[str, float]]:
    return {
        finding.target.name: {f"{level:g}": float(cases.coverage(level)[0]) for level in LEVELS}
        for finding in findings
        if isinstance(cases := finding.target.cases, NumberCases)
    }


def _coverages(findings: list[_Finding]) -> Iterator[str]:
    """Say how many targets the central intervals hold."""
    for finding in findings[:_NAMED]:
        if isinstance(finding.target.cases, NumberCases):
            yield _coverage_sentence(finding)


def _coverage_sentence(finding: _Finding) -> str:
    cases, n = finding.target.cases, finding.target.n_cases
    assert isinstance(cases, NumberCases)
    held = _series([f"{cases.coverage(level)[0]:.0%}".rstrip("%") for level in LEVELS])
    limits = [limits_of_share(n, level) for level in LEVELS]
    allowed = _series([f"{low * 100:.0f} to {high * 100:.0f}" for low, high in limits])
    of = "targets" if not finding.evidence.is_left_out else "targets, each predicted without itself"
    return (
        f"the 50, 80 and 95 % intervals of {finding.target.name} hold {held} % of {n:,} {of}"
        f" (chance allows {allowed} %)"
    )


def _series(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}"


def _sentences(finding: _Finding) -> list[str]:
    """Return a sentence for each test that falls short, and one at least."""
    failed = finding.failed() or [min(finding.tests, key=lambda test: float(test.weighted[0]))]
    varying = [test for test in failed if test.kind == VARIATION]
    sentences = []
    for test in failed:
        if any(test is other for other in varying[1:]):  # what the spread varies with most is enough
            continue
        if test.kind == COVERAGE:
            sentences.append(_coverage_sentence(finding))
        elif isinstance(finding.target.cases, NumberCases):
            sentences.append(_number_sentence(finding.target.name, finding.target.cases, test))
        else:
            sentences.append(_label_sentence(finding.target, test))
    return sentences


def _number_sentence(name: str, cases: NumberCases, test: Test) -> str:
    if test.kind == VARIATION:
        low, high = _coverage_at_ends(cases, test.of)
        return (
            f"the spread of {name} varies with {test.of} more than predicted: the 80 % intervals hold"
            f" {low:.0%} of the third of cases where it is lowest, and {high:.0%} where it is highest"
        )
    places = cases.place[0]
    if test.kind == OUTLIERS:
        tail = max(2 * float(np.minimum(places, 1 - places).min()), 1e-15)
        return f"the most unusual target of {name} lies where one in {1 / tail:,.0f} is expected"
    spread = places.std() * np.sqrt(12)
    return (
        f"the places of {name} in its predictive distributions are not uniform: their mean is"
        f" {places.mean():.2f} (0.50 expected), and their spread is {spread:.2f} of that expected"
    )


def _coverage_at_ends(cases: NumberCases, covariate: str) -> tuple[float, float]:
    """Return the share in 80 % intervals of the third of cases with low values, and with high values."""
    values = cases.values_of(covariate)
    order = np.argsort(values, kind="stable")
    third = max(1, len(order) // 3)
    return tuple(float(cases.coverage(0.8, some)[0]) for some in (order[:third], order[-third:]))  # type: ignore[return-value]


def _label_sentence(target: JudgedTarget, test: Test) -> str:
    cases = target.cases
    assert not isinstance(cases, NumberCases)
    p, has_label = cases.probability, cases.has_label[0]
    if test.kind == RATE:
        return (
            f"{target.label} is {p.mean():.1%} on average, but {has_label.mean():.1%} of cases have the label"
        )
    if test.kind == CONFIDENCE:
        order = np.argsort(p, kind="stable")
        third = max(1, len(p) // 3)
        pairs = [(p[some].mean(), has_label[some].mean()) for some in (order[:third], order[-third:])]
        low, high = (f"{mean:.0%} on average where {share:.0%} have the label" for mean, share in pairs)
        extreme = "too extreme" if test.sign < 0 else "not extreme enough"
        return f"{target.label} is {extreme}: the lowest third is {low}, and the highest third {high}"
    return f"{target.label} does not match the share of cases with the label over its whole range"


def _remedies(finding: _Finding, model: DataModel, is_positive: dict[str, bool]) -> list[str]:
    target = finding.target
    return model.remedies(_misfit(finding), target.name, is_positive=is_positive.get(target.name, False))


def _misfit(finding: _Finding) -> Misfit:
    """Return the kind of the misfit, from what the tests that fall short have in common."""
    failed = finding.failed() or finding.tests
    kinds = {test.kind for test in failed}
    cases = finding.target.cases
    if not isinstance(cases, NumberCases):
        confidence = next((test.sign for test in failed if test.kind == CONFIDENCE), 0.0)
        return "too narrow" if confidence < 0 else "too wide" if confidence > 0 else "shifted"
    scores = np.clip(scipy.special.ndtri(cases.place[0]), -_MAX_SCORE, _MAX_SCORE)
    spread = places_spread(cases.place[0])
    has_shape = bool(kinds & {COVERAGE, UNIFORMITY, OUTLIERS})
    if has_shape and spread > _NARROW:
        return "too narrow"
    if VARIATION in kinds:
        return "varying"
    # Without the few targets that are farthest out, which have a large third moment too.
    if abs(_moment(np.clip(scores, -_OUT, _OUT), 3)) > _SKEWED * np.sqrt(6 / len(scores)):
        return "skewed"
    if OUTLIERS in kinds or (has_shape and _moment(scores, 4) > _HEAVY):
        return "outliers"
    return "too wide" if spread < 1 / _NARROW else "shifted"


def places_spread(places: Array) -> float:
    """Return the root mean square distance of places from the middle, divided by that of uniform ones."""
    return float(np.sqrt(12 * np.mean((places - 0.5) ** 2)))


def _moment(scores: Array, power: int) -> float:
    """Return a moment of scores about their mean, in units of their standard deviation."""
    z = (scores - scores.mean()) / max(scores.std(), 1e-12)
    return float((z**power).mean())
