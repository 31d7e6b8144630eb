"""The verdicts on the chains of a run: one on its predictions, one on its hyperparameters."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from rayfbnn.answers.judging.chain_average import MAX_ERROR, MIN_CHAINS, AverageError
from rayfbnn.answers.judging.modes import Mode, mode_sentences
from rayfbnn.answers.judging.words import (
    RHAT_IN_REACH,
    chains_advice,
    known,
    listed,
    mode_advice,
    numbered,
    resume_advice,
    stepsize_advice,
)
from rayfbnn.numerals import compared
from rayfbnn.output import tables
from rayfbnn.reduce.effective import MIN_DRAWS

if TYPE_CHECKING:
    import pandas as pd

    from rayfbnn.answers.judging.modes import Summary
    from rayfbnn.spec import RunSpec

Grade = Literal["converged", "usable", "not usable", "not converged", "no misfit", "misfit", "cannot tell"]
Subject = Literal["predictions", "hyperparameters", "fit", "ladders"]
Decisive = Literal["all", "predictions", "fit"]
_LATER = "make the run longer (`resume`), and leave out the draws of its beginning (skip)"
_NOT_FOR_PREDICTIONS = (
    "do not interpret these quantities; predictions do not need them and are judged separately"
)


@dataclass(frozen=True)
class Thresholds:
    """The thresholds of a diagnosis; see `diagnose`."""

    max_rhat: float = 1.01
    min_ess: float = 400


@dataclass(frozen=True)
class Verdict:
    """A verdict on the predictions, the hyperparameters, the fit or the ladders of a run.

    Attributes
    ----------
    subject
        "predictions": functions, log likelihood and noise; "hyperparameters": everything else; "fit": the
        targets and their predictive distributions; "ladders": the levels of ladders and their evidence.
    grade
        "converged"; for predictions also "usable" and "not usable", for hyperparameters "not converged";
        "cannot tell" if there are too few chains or draws, or the predicted moments are not finite. For fit
        "no misfit", "misfit" or "cannot tell".
    reasons
        One sentence for each convergence check that fails.
    remarks
        Further findings: the error of the average over chains, movement of the chains, and modes.
    advice
        Sentences that say what to do.
    iterations
        Length of the last phase that would be enough; None if none is needed or none can be promised.
    error
        The error of the average over chains; None for hyperparameters.
    decided_by
        The sentence among `reasons` and `remarks` that rules out the results; "" if they can be used.
    resume
        The sentence among `advice` that says how much longer the run should be; "" if there is none.
    is_stuck
        True if the results cannot be used because a chain never moved.
    """

    subject: Subject
    grade: Grade
    reasons: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    iterations: int | None = None
    error: AverageError | None = None
    decided_by: str = ""
    resume: str = ""
    is_stuck: bool = False

    @property
    def ok(self) -> bool:
        """True if the results can be used."""
        return self.grade in ("converged", "usable", "no misfit")

    @property
    def warning(self) -> str:
        """One line that says why the results cannot be used, "" if they can."""
        if self.ok:
            return ""
        unknown = self.grade == "cannot tell"
        words = f"cannot judge the {self.subject}" if unknown else f"{self.subject} are {self.grade}"
        if self.subject == "fit" and not unknown:
            words = "the predictive distributions do not fit the targets"
        return f"{words}: {self.sentences[0]}"

    @property
    def sentences(self) -> tuple[str, ...]:
        """All sentences on the grade: first the deciding one, then the other remarks and reasons."""
        first = (self.decided_by,) if self.decided_by else ()
        return tuple(dict.fromkeys((*first, *self.remarks, *self.reasons)))

    def _repr_html_(self) -> str:
        """Return the verdict as HTML, for notebooks and the report."""
        return tables.verdict(
            self.subject,
            self.grade,
            is_ok=self.ok,
            sentences=self.sentences,
            advice=self.advice,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON, with None for unknown numbers."""
        fields_of_verdict: dict[str, Any] = {
            "grade": self.grade,
            "ok": self.ok,
            "reasons": list(self.reasons),
            "remarks": list(self.remarks),
            "advice": list(self.advice),
            "iterations": self.iterations,
        }
        if self.error is not None:
            values = {field.name: getattr(self.error, field.name) for field in fields(self.error)}
            fields_of_verdict["error"] = {
                name: known(value) if isinstance(value, float) else value for name, value in values.items()
            }
        return fields_of_verdict


@dataclass(frozen=True)
class VerdictEvidence:
    """The evidence for a verdict.

    summary     of the quantities of the subject; its table also has the column `iterations`
    n_chains, n_draws   number of chains, and of draws of each
    divergences a sentence if too many updates diverged, else ""
    modes       of all chains
    spec, path  of the run
    word        what its chains are called in sentences: "chain" or "ladder"
    """

    summary: Summary
    n_chains: int
    n_draws: int
    divergences: str
    modes: tuple[Mode, ...]
    spec: RunSpec
    path: str
    thresholds: Thresholds
    word: str = "chain"


@dataclass(frozen=True)
class _Convergence:
    """The findings of the convergence checks of some quantities.

    reasons     one sentence for each check that fails
    advice      what to do
    iterations  the length of the last phase that would be enough; None if none can be promised
    resume      the sentence among `advice` that gives this length, or ""
    is_unknown  True if there are too few chains or draws for the checks
    stuck       the sentence among `reasons` on quantities that never change, or ""
    """

    reasons: list[str]
    advice: list[str]
    iterations: int | None
    resume: str
    is_unknown: bool
    stuck: str


def judge_hyperparameters(evidence: VerdictEvidence) -> Verdict:
    """Judge the quantities that predictions do not depend on."""
    checks = _convergence(evidence)
    if not checks.reasons:
        return Verdict("hyperparameters", "converged")
    decided_by = checks.reasons[0]
    return Verdict(
        "hyperparameters",
        "cannot tell" if checks.is_unknown else "not converged",
        tuple(checks.reasons),
        () if checks.is_unknown else (_NOT_FOR_PREDICTIONS,),
        advice=tuple(checks.advice),
        iterations=checks.iterations,
        decided_by=decided_by,
        resume=checks.resume,
        is_stuck=decided_by == checks.stuck,
    )


def judge_predictions(evidence: VerdictEvidence, error: AverageError) -> Verdict:
    """Judge the functions, the log likelihood and the noise.

    Predictions of chains that still travel are not usable, whatever R-hat says. If they have not converged,
    the predictions are still usable if the error of the average over chains is small, the chains no longer
    travel, and no chain has stayed in one place.
    """
    checks, word = _convergence(evidence), evidence.word
    reasons, recommended = checks.reasons, checks.advice
    remarks = [_error_sentence(error, word)] if math.isfinite(error.mean) and not checks.is_unknown else []
    if not reasons:
        if not (error.is_known and error.is_moving):
            return Verdict("predictions", "converged", remarks=tuple(remarks), error=error)
        # A slow drift that all chains share below fast noise, which neither R-hat nor ESS sees.
        reasons = [_movement(error, word)]
        recommended = [_LATER]
    if error.is_moving:
        remarks.append(_movement(error, word))
    grade: Grade = "not usable"
    if checks.is_unknown:
        grade, decided_by = "cannot tell", reasons[0]
    elif checks.stuck:
        decided_by = checks.stuck
    elif not error.is_known:
        grade, decided_by = "cannot tell", _unknown_sentence(error, word)
        remarks.insert(0, decided_by)
    elif error.is_small:
        grade, decided_by = "usable", ""
    else:
        # Chains that drift together agree, so their error is small: the drift is reported first.
        decided_by = remarks[-1] if error.is_moving else remarks[0]
        if not error.is_moving:
            enough = error.chains_that_would_do
            recommended.append(chains_advice(evidence.spec, error.chains, enough))
    return Verdict(
        "predictions",
        grade,
        tuple(reasons),
        (*remarks, *_disagreement(evidence)),
        tuple(recommended),
        checks.iterations,
        error,
        decided_by,
        checks.resume,
        is_stuck=bool(decided_by) and decided_by == checks.stuck,
    )


def _movement(error: AverageError, word: str) -> str:
    """Say that the chains are still moving."""
    if error.has_drift:
        return (
            f"the predictions still move: their mean changes by {error.drift:.2g} predictive standard"
            " deviations from the first half of the draws to the second"
        )
    return (
        f"the {word}s are still moving away from where they started, so their agreement does not show where"
        " they will end"
    )


def _unknown_sentence(error: AverageError, word: str) -> str:
    """Say why the error of the average over chains is unknown."""
    if error.chains < MIN_CHAINS:
        return (
            f"{error.chains} {word}s are too few to estimate the error of their average; use at least"
            f" {MIN_CHAINS}"
        )
    return f"the means or variances predicted by the {error.chains} {word}s are not all finite"


def _error_sentence(error: AverageError, word: str) -> str:
    """State the errors of the predictive mean and standard deviation, with one that is too large first."""
    (mean_bound,), most = compared([error.mean_bound], MAX_ERROR, ".1%", ".0%")
    mean = (
        f"{error.mean:.1%} of the predictive standard deviation at {error.cases} cases"
        f" (below {mean_bound} with 95 % confidence; the limit is {most})"
    )
    if not math.isfinite(error.sd):
        return f"the standard error of the average over {error.chains} {word}s is {mean}"
    limit = MAX_ERROR / math.sqrt(2)
    (sd_bound,), most = compared([error.sd_bound], limit, ".1%", ".0%")
    if error.mean_bound <= MAX_ERROR and error.sd_bound > limit:
        return (
            f"the standard error of the predictive standard deviation over {error.chains} {word}s is"
            f" {error.sd:.1%} of that deviation (below {sd_bound} with 95 % confidence; the limit"
            f" is {most}), and the standard error of the average is {mean}"
        )
    spread = (
        f"and the relative standard error of this deviation is {error.sd:.1%}"
        f" (below {sd_bound}; the limit is {most})"
    )
    return f"the standard error of the average over {error.chains} {word}s is {mean}, {spread}"


def _disagreement(evidence: VerdictEvidence) -> list[str]:
    """Say that the chains disagree, and list the chains in each mode."""
    high = (evidence.summary.table["rhat"] > RHAT_IN_REACH).any()
    sentences = mode_sentences(evidence.modes, evidence.word)
    if not sentences and not high:
        return []
    where = "sit in different modes" if sentences else "sit in different modes or mix slowly"
    weight = f"the average gives all {evidence.word}s equal weight"
    return [f"the {evidence.word}s {where}; {weight}", *sentences]


def _convergence(evidence: VerdictEvidence) -> _Convergence:
    table, limits, word = evidence.summary.table, evidence.thresholds, evidence.word
    n_chains, n_draws = (evidence.n_chains, evidence.n_draws) if len(table) else (2, MIN_DRAWS)
    reasons, recommended, is_unknown = [], [], n_draws < MIN_DRAWS or n_chains < 2
    if n_draws < MIN_DRAWS:
        reasons.append(f"only {n_draws} draws in each {word}; at least {MIN_DRAWS} are needed")
        recommended.append("resume with more iterations")
    if n_chains < 2:
        reasons.append(f"only one {word}; R-hat needs at least 2")
        recommended.append(f"sample with {MIN_CHAINS} chains or more")
    if evidence.summary.not_finite:
        reasons.append(f"values that are not finite: {listed(evidence.summary.not_finite)}")
    frozen = evidence.summary.stuck if n_draws >= 2 else {}
    stuck = ""
    if frozen:
        name = next(iter(frozen))
        stuck = f"quantities that never change in {numbered(frozen[name], word)}: {listed(list(frozen))}"
        reasons.append(stuck)
    if evidence.divergences:
        reasons.append(evidence.divergences)
    if frozen or evidence.divergences:
        recommended.append(stepsize_advice(evidence.spec))
    reasons += short_of(table, limits)
    unknown = table.index[table[["rhat", "ess_bulk", "ess_tail"]].isna().any(axis=1)]
    if not reasons and len(unknown):
        reasons.append(f"R-hat or ESS is not known: {listed(list(unknown))}")
    iterations, resume = None, ""
    needed = table["iterations"].dropna()
    if (table["rhat"] > RHAT_IN_REACH).any():
        recommended.append(mode_advice(evidence.spec))
    elif len(needed):
        iterations = int(needed.max())
        resume = resume_advice(evidence.path, iterations)
        recommended.append(resume)
    return _Convergence(reasons, recommended, iterations, resume, is_unknown, stuck)


def short_of(table: pd.DataFrame, limits: Thresholds) -> list[str]:
    """Return one sentence each for R-hat, bulk ESS and tail ESS if any quantity misses the limit."""
    reasons = []
    high = table["rhat"][table["rhat"] > limits.max_rhat].sort_values(ascending=False)
    if len(high):
        texts, most = compared(list(high), limits.max_rhat, ".3f")
        reasons.append(f"R-hat above {most}: {_named(high, texts)}")
    for column, what in (("ess_bulk", "bulk"), ("ess_tail", "tail")):
        low = table[column][table[column] < limits.min_ess].sort_values()
        if len(low):
            texts, least = compared(list(low), limits.min_ess, ".0f")
            reasons.append(f"{what} ESS below {least}: {_named(low, texts)}")
    return reasons


def _named(values: pd.Series, texts: list[str]) -> str:
    return listed([f"{name} {text}" for name, text in zip(values.index, texts, strict=True)])
