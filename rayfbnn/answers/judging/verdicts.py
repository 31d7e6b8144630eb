"""The verdicts on the chains of a run, on its predictions and on its hyperparameters, and their modes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import scipy.special

from rayfbnn.answers.judging.chain_average import MAX_ERROR, MIN_CHAINS, AverageError
from rayfbnn.answers.judging.words import (
    RHAT_IN_REACH,
    as_json,
    beyond,
    chains_advice,
    listed,
    mode_advice,
    numbered,
    resume_advice,
    stepsize_advice,
)
from rayfbnn.arrays import Array
from rayfbnn.numerals import compared
from rayfbnn.output.facts import Answer, Badge, Judgement
from rayfbnn.reduce.effective import MIN_DRAWS, Convergence, convergence, mcse_mean
from rayfbnn.spec import RunSpec

if TYPE_CHECKING:
    import pandas as pd


_FALSE_ALARM_RATE = 0.01
# Two normal densities of equal spread and weight have two peaks if their means differ by more than this.
_LEAST_GAP = 2.0  # standard deviations within a chain
_MOST_COMPARED = 100  # chains; the range of more is hardly larger
_PRECISION = 1e-9
_CHAINS = 64  # enough to estimate the standard error of a chain's mean


@dataclass(frozen=True)
class Mode:
    """A group of chains with similar log likelihoods, separated from those of all other chains.

    Attributes
    ----------
    chains
        Numbers of the chains, from 0.
    log_likelihood
        Mean over the draws of these chains.
    """

    chains: tuple[int, ...]
    log_likelihood: float


def modes(log_likelihood: Array, numbers: Sequence[int] | None = None) -> tuple[Mode, ...]:
    """Group the chains by gaps between their mean log likelihoods; the draws are (n_chains, n_draws).

    numbers  the numbers that the chains have; 0, 1, ... unless given

    The largest mode comes first. The result is empty if there are fewer than two chains, too few draws, or
    values that are not finite.

    Neighbouring means belong to different modes if they differ by more than two standard deviations within
    chains, and by more than chance allows: among C chains with one mean, no two means differ by more than the
    studentised range times a mean's standard error, with a probability of 99 %. A chain's standard error
    allows for its autocorrelation. Modes of equal log likelihood are not distinguished.
    """
    n_chains, n_draws = log_likelihood.shape
    if n_chains < 2 or n_draws < MIN_DRAWS or not np.isfinite(log_likelihood).all():
        return ()
    means = log_likelihood.mean(axis=1)
    within = math.sqrt(float(log_likelihood.var(axis=1, ddof=1).mean()))
    some = log_likelihood[:: -(-n_chains // _CHAINS)]
    errors = np.array([float(mcse_mean(chain[None])) for chain in some])
    # A chain that never changes has no standard error; its mean is exact.
    error = math.sqrt(float(np.square(np.nan_to_num(errors)).mean()))
    order = np.argsort(means)
    least_gap = max(_LEAST_GAP * within, _studentized_range(n_chains) * error)
    splits = np.flatnonzero(np.diff(means[order]) > least_gap) + 1
    groups = [np.sort(group) for group in np.split(order, splits)]
    names = range(n_chains) if numbers is None else numbers
    by_likelihood = [
        Mode(tuple(names[chain] for chain in group), float(means[group].mean())) for group in groups
    ]
    return tuple(sorted(by_likelihood, key=lambda mode: (-len(mode.chains), -mode.log_likelihood)))


@cache
def _studentized_range(n_chains: int) -> float:
    """Return the 99 % quantile of the range of `n_chains` standard normal variables.

    The range is at most q with probability n * integral of phi(z) (Phi(z) - Phi(z - q))**(n - 1) over the
    largest value z. SciPy takes a second to import its function, and longer to compute it.
    """
    n = min(n_chains, _MOST_COMPARED)
    z, step = np.linspace(-9, 9, 2001, retstep=True)
    density, below = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi), scipy.special.ndtr(z)

    def probability(q: float) -> float:
        return float(n * step * (density * (below - scipy.special.ndtr(z - q)) ** (n - 1)).sum())

    low, high = 0.0, 18.0
    while high - low > _PRECISION:
        middle = (low + high) / 2
        low, high = (middle, high) if probability(middle) < 1 - _FALSE_ALARM_RATE else (low, middle)
    return high


def mode_sentences(of_chains: tuple[Mode, ...], word: str = "chain") -> list[str]:
    """Return a sentence for each mode except the largest, with the numbers of its chains or ladders."""
    if len(of_chains) < 2:
        return []
    largest, *others = of_chains
    return [
        f"{numbered(mode.chains, word)} sit{'s' if len(mode.chains) == 1 else ''} in a mode of"
        f" {'lower' if mode.log_likelihood < largest.log_likelihood else 'higher'} log likelihood"
        f" ({mode.log_likelihood:.4g} against {largest.log_likelihood:.4g})"
        for mode in sorted(others, key=lambda mode: mode.log_likelihood)
    ]


@dataclass(frozen=True)
class Summary:
    """The facts about quantities that verdicts keep after reading their values.

    table       one row for each quantity: mean, sd, rhat, ess_bulk, ess_tail and mcse of the mean
    not_finite  names of the quantities with values that are not finite
    stuck       the chains in which a quantity never changes, by the name of the quantity
    """

    table: pd.DataFrame
    not_finite: tuple[str, ...]
    stuck: dict[str, list[int]]

    def of(self, names: Sequence[str]) -> Summary:
        """Return what is known of some quantities, in their order."""
        return Summary(
            self.table.loc[list(names)],
            tuple(name for name in names if name in self.not_finite),
            {name: self.stuck[name] for name in names if name in self.stuck},
        )


def summarize(judged: Iterable[tuple[str, Array]]) -> Summary:
    """Return the summary of quantities, given by name and values (n_chains, n_draws)."""
    import pandas as pd

    rows, not_finite, stuck = {}, [], {}
    unknown = Convergence(math.nan, math.nan, math.nan, math.nan)
    for name, values in judged:
        is_finite = bool(np.isfinite(values).all())
        if not is_finite:
            not_finite.append(name)
        with np.errstate(invalid="ignore"):  # values may be infinite
            sd = float(values.std(ddof=1)) if values.size > 1 else math.nan
            row = {"mean": float(values.mean()), "sd": sd}
            constant = np.flatnonzero(np.ptp(values, axis=1) == 0)
        if len(constant):
            stuck[name] = constant.tolist()
        is_usable = is_finite and values.shape[1] >= MIN_DRAWS and np.ptp(values) > 0
        rows[name] = row | (convergence(values) if is_usable else unknown)._asdict()
    return Summary(pd.DataFrame.from_dict(rows, orient="index"), tuple(not_finite), stuck)


Grade = Literal["converged", "usable", "not usable", "not converged", "no misfit", "misfit", "cannot tell"]
Subject = Literal["predictions", "hyperparameters", "fit", "ladders"]
Decisive = Literal["all", "predictions", "fit"]
_LATER = "make the run longer (`resume`), and leave out the draws of its beginning (skip)"
_NOT_FOR_PREDICTIONS = (
    "do not interpret these quantities; predictions do not need them and are judged separately"
)


@dataclass(frozen=True)
class Verdict(Answer):
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

    def facts(self) -> list[Judgement]:
        """Return the verdict as a fact."""
        return [Judgement(self.subject, Badge(self.grade, self.ok), self.sentences, self.advice)]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON, with None for unknown numbers."""
        names = ("grade", "ok", "reasons", "remarks", "advice", "iterations")
        document = {name: as_json(getattr(self, name)) for name in names}
        return document if self.error is None else document | {"error": as_json(self.error)}


@dataclass(frozen=True)
class VerdictEvidence:
    """The evidence for a verdict.

    summary     of the quantities of the subject; its table also has the column `iterations`
    n_chains, n_draws   number of chains, and of draws of each
    divergences a sentence if too many updates diverged, else ""
    modes       of all chains
    spec, path  of the run
    word        what its chains are called in sentences: "chain" or "ladder"
    max_rhat, min_ess  the limits; see `diagnose`
    """

    summary: Summary
    n_chains: int
    n_draws: int
    divergences: str
    modes: tuple[Mode, ...]
    spec: RunSpec
    path: str
    word: str = "chain"
    max_rhat: float = 1.01
    min_ess: float = 400


def judge_hyperparameters(evidence: VerdictEvidence) -> Verdict:
    """Judge the quantities that predictions do not depend on."""
    verdict, _ = _convergence(evidence, "hyperparameters")
    return replace(verdict, remarks=(_NOT_FOR_PREDICTIONS,)) if verdict.grade == "not converged" else verdict


def judge_predictions(evidence: VerdictEvidence, error: AverageError) -> Verdict:
    """Judge the functions, the log likelihood and the noise.

    Predictions of chains that still travel are not usable, whatever R-hat says. If they have not converged,
    the predictions are still usable if the error of the average over chains is small, the chains no longer
    travel, and no chain has stayed in one place.
    """
    verdict, stuck = _convergence(evidence, "predictions")
    is_unknown, word = verdict.grade == "cannot tell", evidence.word
    remarks = [_error_sentence(error, word)] if math.isfinite(error.mean) and not is_unknown else []
    if verdict.ok:
        if not (error.is_known and error.is_moving):
            return replace(verdict, remarks=tuple(remarks), error=error)
        # A slow drift that all chains share below fast noise, which neither R-hat nor ESS sees.
        verdict = replace(verdict, reasons=(_movement(error, word),), advice=(_LATER,))
    advice = list(verdict.advice)
    if error.is_moving:
        remarks.append(_movement(error, word))
    grade: Grade = "not usable"
    if is_unknown:
        grade, decided_by = "cannot tell", verdict.decided_by
    elif stuck:
        decided_by = stuck
    elif not error.is_known:
        grade, decided_by = "cannot tell", _unknown_sentence(error, word)
        remarks.insert(0, decided_by)
    elif error.is_small:
        grade, decided_by = "usable", ""
    elif error.is_moving:  # chains that drift together agree, so that their error is small
        decided_by = remarks[-1]
    else:
        decided_by = remarks[0]
        advice.append(chains_advice(evidence.spec, error.chains, error.chains_that_would_do))
    return replace(
        verdict,
        grade=grade,
        remarks=(*remarks, *_disagreement(evidence)),
        advice=tuple(advice),
        error=error,
        decided_by=decided_by,
        is_stuck=bool(stuck) and decided_by == stuck,
    )


def _movement(error: AverageError, word: str) -> str:
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
    high = (evidence.summary.table["rhat"] > RHAT_IN_REACH).any()
    sentences = mode_sentences(evidence.modes, evidence.word)
    if not sentences and not high:
        return []
    where = "sit in different modes" if sentences else "sit in different modes or mix slowly"
    weight = f"the average gives all {evidence.word}s equal weight"
    return [f"the {evidence.word}s {where}; {weight}", *sentences]


def _convergence(evidence: VerdictEvidence, subject: Subject) -> tuple[Verdict, str]:
    """Return a verdict by the convergence checks, and the reason on quantities that never change, or ""."""
    table, word = evidence.summary.table, evidence.word
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
    reasons += short_of(table, evidence.max_rhat, evidence.min_ess)
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
    if not reasons:
        return Verdict(subject, "converged"), ""
    verdict = Verdict(
        subject,
        "cannot tell" if is_unknown else "not converged",
        tuple(reasons),
        advice=tuple(recommended),
        iterations=iterations,
        decided_by=reasons[0],
        resume=resume,
        is_stuck=reasons[0] == stuck,
    )
    return verdict, stuck


def short_of(table: pd.DataFrame, max_rhat: float, min_ess: float) -> list[str]:
    """Return one sentence each for R-hat, bulk ESS and tail ESS if any quantity misses the limit."""
    reasons = []
    high = table["rhat"][table["rhat"] > max_rhat].sort_values(ascending=False)
    if len(high):
        named, most = beyond(high, max_rhat, ".3f")
        reasons.append(f"R-hat above {most}: {named}")
    for column, what in (("ess_bulk", "bulk"), ("ess_tail", "tail")):
        low = table[column][table[column] < min_ess].sort_values()
        if len(low):
            named, least = beyond(low, min_ess, ".0f")
            reasons.append(f"{what} ESS below {least}: {named}")
    return reasons
