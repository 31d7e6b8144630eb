"""The verdict on fit: whether the predictive distributions describe the targets."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from rayfbnn.answers.judging.fit_evidence import FitEvidence, JudgedTarget, evidence_at, evidence_left_out
from rayfbnn.answers.judging.fit_tests import (
    LEVELS,
    MEAN,
    PREDICTED_VALUE,
    VARIATION,
    NumberCases,
    Test,
    calibrated,
    joint_p,
)
from rayfbnn.answers.judging.fit_words import coverage_sentence, feature_of, mean_remedy, misfit, sentences
from rayfbnn.answers.judging.verdicts import Verdict
from rayfbnn.answers.judging.words import as_json
from rayfbnn.arrays import Array
from rayfbnn.draws.view import Draws
from rayfbnn.model.likelihood.data_model import DataModel
from rayfbnn.numerals import compared
from rayfbnn.reduce.passes import TaskExecutor

FALSE_ALARMS = 0.05  # of all tests together
LEAST_CASES = 20  # fewer show only the grossest misfit
_MOST_LARGE_K = 0.2  # share of the cases with unreliable weights; above 0.3 false alarms were seen
_NAMED = 3  # targets whose coverage is stated
_FEATURES = 3  # that the mean of a target misses and that are named
_BESIDE = 0.1  # of the level, for other faults if the mean misses something
_WEAK = 0.1  # p-value of features that the mean may miss as well


@dataclass(frozen=True)
class FitVerdict(Verdict):
    """The verdict on whether predictive distributions describe the targets.

    The grade is "no misfit", "misfit", or "cannot tell" if there are too few cases, if the chains do not
    agree, or if too many training cases cannot be left out.

    Attributes
    ----------
    p_value
        Probability of evidence as strong against the model if the model is true, all tests together.
    coverage
        Share of the cases in central intervals, by where the cases are from ("training cases", each predicted
        without itself, or "data"), by target, and by the probability of the interval. Labels have none.
    cases
        Number of cases that were used, by where they are from.
    """

    p_value: float = float("nan")
    coverage: dict[str, dict[str, dict[str, float]]] | None = None
    cases: dict[str, int] | None = None

    @property
    def grade_and_p(self) -> str:
        """The grade and the p-value, if there is one."""
        (p_value,), _ = compared([self.p_value], FALSE_ALARMS, ".2g")
        return self.grade if math.isnan(self.p_value) else f"{self.grade} (p = {p_value})"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON, with None for unknown numbers."""
        fields = super().to_dict()
        del fields["iterations"]
        return fields | {
            "p_value": as_json(self.p_value),
            "coverage": self.coverage or {},
            "cases": self.cases or {},
        }


@dataclass(frozen=True)
class _Tested:
    """A target at some group of cases, with its tests.

    n_targets  number of targets that share the level of the group
    level      the false-alarm rate of the group
    """

    target: JudgedTarget
    is_left_out: bool
    n_targets: int
    level: float

    @cached_property
    def tests(self) -> list[Test]:
        """The tests, each with its share of the level of the group."""
        tests = map(calibrated, self.target.cases.tests())
        return [replace(test, share=test.share / self.n_targets) for test in tests]

    def failed(self) -> list[Test]:
        """Return the tests that fall short alone, those with the strongest evidence first."""
        tests = [test for test in self.tests if test.strength() <= self.level]
        return sorted(tests, key=Test.strength)

    @property
    def strongest(self) -> Test:
        """The test with the strongest evidence against the model."""
        return min(self.tests, key=Test.strength)

    def faults(self) -> tuple[list[Test], list[Test], JudgedTarget]:
        """Return tests of the mean, other tests that fall short, and the target without faults of the mean.

        A mean that misses something also makes the spread vary and the tails heavy. The missed
        features are removed from the places, one by one. Other tests are of the rest after features with
        weak evidence are removed as well. If the mean misses something, labels have no other fault.
        """
        failed = self.failed() or [self.strongest]
        named = [test for test in failed if test.kind == MEAN][:1]
        if not named:
            return [], failed, self.target
        if not isinstance(self.target.cases, NumberCases):
            return named, [], self.target
        while True:
            rest = self._without(named)
            missed = [test for test in rest.failed() if test.kind == MEAN and PREDICTED_VALUE not in test.of]
            if not missed or len(named) == _FEATURES:
                break
            named.append(missed[0])
        weak = [test for test in rest.tests if test.kind == MEAN and test.p[0] <= _WEAK]
        rest = self._without([*named, *weak])
        others = [test for test in rest.failed() if test.kind != MEAN]
        return named, [test for test in others if test.strength() <= _BESIDE * self.level], rest.target

    def _without(self, tests: list[Test]) -> _Tested:
        assert isinstance(cases := self.target.cases, NumberCases)
        without = cases.without(test.of for test in tests)
        return replace(self, target=replace(self.target, cases=without))


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
    level, every = FALSE_ALARMS / len(evidences), []
    tests_of_groups = []
    for evidence in evidences:
        judged = [target for target in evidence.targets if target.n_cases >= LEAST_CASES]
        group = [_Tested(target, evidence.is_left_out, len(judged), level) for target in judged]
        every += group
        if group:
            tests_of_groups.append([test for tested in group for test in tested.tests])
    coverages = [
        coverage_sentence(tested.target, is_left_out=tested.is_left_out)
        for tested in every[:_NAMED]
        if isinstance(tested.target.cases, NumberCases)
    ]
    verdict = FitVerdict(
        "fit",
        "no misfit",
        remarks=(*coverages, *_choices(evidences)),
        p_value=min([1.0, *(len(tests_of_groups) * joint_p(tests) for tests in tests_of_groups)]),
        coverage=_coverage_by_source(every),
        cases={_source(evidence.is_left_out): evidence.n_used for evidence in evidences},
    )
    if doubt := _doubt(evidences, every):
        return replace(verdict, grade="cannot tell", reasons=(doubt,), decided_by=doubt)
    if verdict.p_value <= FALSE_ALARMS:
        verdict = _with_reasons(verdict, every, model, is_positive)
    if predictions is not None and not predictions.ok:
        return _of_chains_in_doubt(verdict, predictions)
    return verdict


def _of_chains_in_doubt(verdict: FitVerdict, predictions: Verdict) -> FitVerdict:
    grade = "cannot be judged yet" if predictions.grade == "cannot tell" else f"are {predictions.grade}"
    doubt = f"a misfit could be that of the chains, whose predictions {grade}"
    return replace(
        verdict,
        grade="cannot tell",
        reasons=(doubt,),
        remarks=tuple(dict.fromkeys((*verdict.reasons, *verdict.remarks))),
        advice=tuple(f"if longer runs do not help: {advice}" for advice in verdict.advice),
        decided_by=doubt,
    )


def _with_reasons(
    verdict: FitVerdict, every: list[_Tested], model: DataModel, is_positive: dict[str, bool]
) -> FitVerdict:
    ordered = sorted(every, key=lambda tested: tested.strongest.strength())
    failing = [tested for tested in ordered if tested.failed()] or ordered[:1]
    reasons, advice = [], []
    for tested in failing:
        for of_fault, remedies in _faults_in_words(tested, model, is_positive.get(tested.target.name, False)):
            reasons += of_fault
            advice += remedies
    return replace(
        verdict,
        grade="misfit",
        reasons=tuple(dict.fromkeys(reasons)),
        advice=tuple(dict.fromkeys(advice)),
        decided_by=reasons[0],
    )


def _faults_in_words(
    tested: _Tested, model: DataModel, is_positive: bool
) -> list[tuple[list[str], list[str]]]:
    """Return sentences and remedies of each fault, the most important first.

    A spread that varies comes after a mean that misses something, and other faults in the order of evidence.
    """
    target, (means, others, rest) = tested.target, tested.faults()
    words = []
    for test in means:
        remedy = mean_remedy(feature_of(target, test), target.name, sign=test.sign, is_positive=is_positive)
        words.append((sentences(target, [test], is_left_out=tested.is_left_out), [remedy]))
    if others:
        remedies = model.remedies(misfit(rest, others), target.name, is_positive=is_positive)
        is_first = others[0].kind != VARIATION and others[0].strength() < min(
            map(Test.strength, means), default=0
        )
        of_others = sentences(target, others, is_left_out=tested.is_left_out), remedies
        words.insert(0 if is_first else len(words), of_others)
    return words


def _doubt(evidences: Sequence[FitEvidence], every: list[_Tested]) -> str:
    n_infinite = sum(evidence.n_infinite for evidence in evidences)
    if n_infinite:
        return f"outputs of networks are not finite at {n_infinite} cases"
    if not every:
        most = max((target.n_cases for one in evidences for target in one.targets), default=0)
        return f"only {most} cases have a known target; at least {LEAST_CASES} are needed"
    first = evidences[0]
    if len(evidences) == 1 and first.n_large_k > _MOST_LARGE_K * first.n_used:
        return (
            f"{first.n_large_k} of {first.n_used} training cases cannot be left out by importance weights"
            " (Pareto k above 0.7, or unknown); give other cases with known targets (data)"
        )
    return ""


def _source(is_left_out: bool) -> str:
    return "training cases" if is_left_out else "data"


def _choices(evidences: Sequence[FitEvidence]) -> Iterator[str]:
    for evidence in evidences:
        if evidence.n_used + evidence.n_infinite < evidence.n_all:
            yield f"{evidence.n_used:,} of {evidence.n_all:,} cases are used, which the seed chooses"
        if evidence.n_labels > len(evidence.targets):
            yield f"the {len(evidence.targets)} most frequent of {evidence.n_labels} labels are judged"
        if evidence.n_censored:
            yield (
                f"{evidence.n_censored} of {evidence.n_used:,} times are censored; they are placed at random"
                " beyond the end of their observation, so they show little"
            )


def _coverage_by_source(every: list[_Tested]) -> dict[str, dict[str, dict[str, float]]]:
    shares: dict[str, dict[str, dict[str, float]]] = {}
    for tested in every:
        if isinstance(cases := tested.target.cases, NumberCases):
            of_target = {f"{level:g}": float(cases.coverage(level)[0]) for level in LEVELS}
            shares.setdefault(_source(tested.is_left_out), {})[tested.target.name] = of_target
    return shares


def verdict_on_fit(
    runs: Sequence[Draws],
    inputs: Array | None = None,
    targets: Array | None = None,
    *,
    predictions: Verdict | None = None,
) -> FitVerdict:
    """Judge the training cases, each predicted without itself, and other cases if their targets are known.

    runs             of one posterior
    inputs, targets  (n_cases, ...) as in the data file
    predictions      the verdict on predictions; the fit cannot be judged if they cannot be used
    """
    return judge(runs[0], fit_evidence(runs, inputs, targets), predictions=predictions)


@np.errstate(over="ignore", invalid="ignore")  # cases at which networks are not finite are left out
def fit_evidence(
    runs: Sequence[Draws], inputs: Array | None = None, targets: Array | None = None
) -> list[FitEvidence]:
    """Return the evidence of the training cases, and of other cases if their targets are known."""
    evidences = [evidence_left_out(runs)]
    if inputs is not None and targets is not None and _can_judge(runs[0], inputs, targets):
        evidences.append(evidence_at(runs, inputs, targets))
    return evidences


@np.errstate(over="ignore", invalid="ignore")
def verdict_on_fit_at(
    runs: Sequence[Draws],
    inputs: Array,
    targets: Array | None,
    *,
    predictions: Verdict | None = None,
    executor: TaskExecutor | None = None,
) -> FitVerdict | None:
    """Judge the targets of predicted cases.

    The result is None if no target is known, without draws from the posterior, and for the training cases, to
    which the networks are closer than to others.
    """
    first = runs[0]
    if first.kind == "prior" or first.early_phase is not None or targets is None:
        return None
    if not _can_judge(first, inputs, targets):
        return None
    return judge(first, [evidence_at(runs, inputs, targets, executor=executor)], predictions=predictions)


def judge(run: Draws, evidences: Sequence[FitEvidence], *, predictions: Verdict | None = None) -> FitVerdict:
    """Judge the evidence; the targets of the training cases decide which advice is possible."""
    is_positive = (np.nan_to_num(run.data.targets, nan=1.0) > 0).all(axis=0)
    return judge_fit(
        evidences,
        run.spec.data_model,
        is_positive=dict(zip(run.data.target_names, is_positive.tolist(), strict=True)),
        predictions=predictions,
    )


def _can_judge(run: Draws, inputs: Array, targets: Array) -> bool:
    if np.isnan(targets).all():
        return False
    cases, training = np.column_stack([inputs, targets]), np.column_stack([run.data.inputs, run.data.targets])
    if cases.shape != training.shape:
        return True
    cases, training = (rows[np.lexsort(rows.T)] for rows in (cases, training))
    return not np.array_equal(cases, training, equal_nan=True)
