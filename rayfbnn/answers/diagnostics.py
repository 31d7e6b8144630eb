"""Diagnostics of a run: R-hat, effective sample sizes, acceptance, divergences, and the verdicts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rayfbnn.answers.judging.chain_average import MAX_ERROR, MIN_CHAINS, average_error
from rayfbnn.answers.judging.fit import FitVerdict, verdict_on_fit
from rayfbnn.answers.judging.verdicts import (
    Decisive,
    Mode,
    Verdict,
    VerdictEvidence,
    judge_hyperparameters,
    judge_predictions,
    modes,
    summarize,
)
from rayfbnn.answers.judging.words import as_json, iterations_that_would_do, ladder_hint, word_of_chains
from rayfbnn.arrays import Array
from rayfbnn.draws.quantities import Quantities, is_of_predictions
from rayfbnn.draws.view import Draws
from rayfbnn.numerals import compared
from rayfbnn.output.facts import Answer, Badge, Fact, Paragraph, TableFact, limits, updates_text
from rayfbnn.reduce.effective import MIN_DRAWS
from rayfbnn.store.storage.places import as_typed

if TYPE_CHECKING:
    import pandas as pd

    from rayfbnn.answers.judging.ladder_verdict import LadderVerdict

MAX_DIVERGED = 0.01  # share of iterations
_MOST_DIVERGED = 2**31  # updates in an iteration; a forged store may have more


@dataclass(frozen=True)
class Diagnosis(Answer):
    """The diagnostics of a run, their thresholds, and the verdicts.

    Attributes
    ----------
    quantities
        One row for each quantity: mean, sd, rhat (rank-normalised, split), ess_bulk, ess_tail and mcse of the
        mean, NaN if there are too few draws. For a quantity that falls short, `iterations` is the length of
        the last phase that would be enough; it is NaN if none is needed or none can be promised.
    acceptance
        Mean share of accepted updates over these draws and all chains; None if nothing was accepted or
        rejected (exact draws).
    divergences
        Number of updates at these draws with an energy that was not finite; each was rejected.
    warmup_acceptance, warmup_divergences
        Acceptance and divergences of all iterations that are not kept for the posterior.
    predictions, hyperparameters
        The verdicts on whether the chains agree.
    fit
        The verdict on whether the predictive distributions describe the targets; None if not asked for.
    ladders
        The verdict on the ladders of a run; None for a run without. No other verdict on the chains is better.
    modes
        Groups of chains with separate log likelihoods, the largest first; a single group if all are alike.
    thresholds
        The limits of R-hat, ESS, draws, chains, the share of iterations with divergences, and the error.
    decisive
        What decides `ok`: "predictions", "fit", or "all" if everything must have converged.
    """

    quantities: pd.DataFrame
    acceptance: float | None
    warmup_acceptance: float | None
    divergences: int
    warmup_divergences: int
    predictions: Verdict
    hyperparameters: Verdict
    modes: tuple[Mode, ...]
    thresholds: dict[str, float]
    decisive: Decisive = "all"
    fit: FitVerdict | None = None
    ladders: LadderVerdict | None = None

    @property
    def ok(self) -> bool:
        """True if everything has converged; if one verdict decides, True if it is ok."""
        if self.decisive == "fit":
            return self.fit is not None and self.fit.ok
        return self.predictions.ok if self.decisive == "predictions" else not self.reasons

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdicts that there are, in the order of output."""
        every = self.ladders, self.predictions, self.hyperparameters, self.fit
        return tuple(verdict for verdict in every if verdict is not None)

    @property
    def reasons(self) -> tuple[str, ...]:
        """One sentence for each convergence check that fails, those on predictions first."""
        of_ladders = () if self.ladders is None else self.ladders.reasons
        every = (*self.predictions.reasons, *self.hyperparameters.reasons, *of_ladders)
        return tuple(dict.fromkeys(every))

    @property
    def decided_by(self) -> str:
        """The sentence that decides against the run, "" if it is ok."""
        if self.ok:
            return ""
        if self.decisive == "fit":
            return "" if self.fit is None else self.fit.decided_by
        return self.predictions.decided_by or self.reasons[0]

    def facts(self) -> list[Fact]:
        """Return the table of quantities, acceptance, the thresholds, and the verdicts with their advice."""
        counts = self.acceptance, self.warmup_acceptance, self.divergences, self.warmup_divergences
        return [
            TableFact.from_frame(self.quantities, "quantity"),
            Paragraph(updates_text(*counts)),
            limits(self.thresholds),
            *(fact for verdict in self.verdicts for fact in verdict.facts()),
            Paragraph(Badge("ok" if self.ok else f"not ok: {self._why_not_ok()}", self.ok)),
        ]

    def _why_not_ok(self) -> str:
        words = {
            "cannot tell": "may not have converged",
            "not usable": "are not usable",
            "usable": "are usable but have not converged",
        }
        if self.decisive == "fit":
            known = self.fit is not None and self.fit.grade == "misfit"
            words_of_fit = "do not describe the targets" if known else "cannot be compared with the targets"
            return f"the predictive distributions {words_of_fit} (docs/not_ok.md)"
        of_parameters = self.hyperparameters if self.decisive == "all" else None
        short = [
            f"the {verdict.subject} {words.get(verdict.grade, 'have not converged')}"
            for verdict in (self.ladders, self.predictions, of_parameters)
            if verdict is not None and verdict.grade != "converged"
        ]
        return f"{', and '.join(short)} (docs/not_ok.md)"

    def to_json(self) -> str:
        """Return one JSON object; unknown values are null."""
        document: dict[str, Any] = {
            "quantities": self.quantities.to_dict("index"),
            "acceptance": self.acceptance,
            "warmup_acceptance": self.warmup_acceptance,
            "divergences": self.divergences,
            "warmup_divergences": self.warmup_divergences,
            "predictions": self.predictions.to_dict(),
            "hyperparameters": self.hyperparameters.to_dict(),
            "modes": self.modes,
            "decisive": self.decisive,
            "ok": self.ok,
            "reasons": list(self.reasons),
            "thresholds": self.thresholds,
        }
        if self.fit is not None:
            document["fit"] = self.fit.to_dict()
        if self.ladders is not None:
            document["ladders"] = self.ladders.to_dict()
        return json.dumps(as_json(document))


def diagnose_draws(
    run: Draws,
    *,
    cases: int = 10,
    max_rhat: float = 1.01,
    min_ess: float = 400,
    inputs: Array | None = None,
    decisive: Decisive = "all",
    fit: bool = False,
    targets: Array | None = None,
    on_progress: Callable[[float], None] = lambda share: None,
) -> Diagnosis:
    """Judge a run by its hyperparameters, log densities and functions; never by its weights.

    R-hat and effective sample sizes are those of Vehtari et al. (2021), "Rank-normalization, folding, and
    localization: an improved R-hat". Sigmas that are fixed by the configuration are left out. Any other
    quantity that never changes counts as a failure, because chains that never move agree perfectly.
    docs/diagnostics.md derives the verdict on predictions.

    cases, inputs : functions are judged at `cases` evenly spaced rows of `inputs` (as in the data file), or
        of the training data
    max_rhat, min_ess : thresholds for every quantity; min_ess is for bulk and tail
    decisive : the verdict that decides `ok`
    fit : whether to judge the fit as well, at the training cases left out and at `inputs` with `targets`
    on_progress : called with the share of the quantities that are done
    """
    planned = Quantities.of_run(run, cases=cases, inputs=inputs)
    shape = run.n_chains, run.n_draws

    def judged() -> Iterator[tuple[str, Array]]:
        for number, (name, values) in enumerate(planned.each([run]), start=1):
            yield name, values.reshape(shape)
            on_progress(number / len(planned.origins))

    summary = summarize(judged()).of(list(planned.origins))
    needed = [
        iterations_that_would_do(row, run.spec, run.n_draws, max_rhat=max_rhat, min_ess=min_ess)
        for _, row in summary.table.iterrows()
    ]
    summary = replace(summary, table=summary.table.assign(iterations=needed))
    chain_modes = modes(run.stat("log_likelihood"), run.chain_numbers)
    acceptance, divergences, diverged_share = _updates(run)
    diverged = ""
    if diverged_share > MAX_DIVERGED:
        (share,), most = compared([diverged_share], MAX_DIVERGED, ".1%", ".0%")
        diverged = f"{divergences} updates diverged, in {share} of the iterations (at most {most})"
    path, word = as_typed(run.path), word_of_chains([run])
    every = VerdictEvidence(summary, *shape, diverged, chain_modes, run.spec, path, word, max_rhat, min_ess)
    of_predictions = summary.of([name for name in planned.origins if is_of_predictions(name)])
    of_others = summary.of([name for name in planned.origins if not is_of_predictions(name)])
    error = average_error([run], inputs=inputs)
    predictions = judge_predictions(replace(every, summary=of_predictions), error)
    others = judge_hyperparameters(replace(every, summary=of_others))
    ladders, weighed = None, run
    if run.is_of_ladders:
        from rayfbnn.answers.judging.ladder_verdict import overruled, verdict_on_ladders, weighed_by_evidence

        ladders = verdict_on_ladders(run, max_rhat=max_rhat)
        predictions, others = overruled(predictions, ladders), overruled(others, ladders)
        weighed, _ = weighed_by_evidence(run, ladders)
    elif not predictions.ok and (hint := ladder_hint(run, summary.table["rhat"]["log_likelihood"])):
        predictions = replace(predictions, advice=(*predictions.advice, hint))
    warmup = run.store.updates().warmup
    return Diagnosis(
        summary.table,
        acceptance,
        warmup.acceptance,
        divergences,
        warmup.divergences,
        predictions,
        others,
        chain_modes,
        {
            "max_rhat": max_rhat,
            "min_ess": min_ess,
            "min_draws": MIN_DRAWS,
            "max_diverged_share": MAX_DIVERGED,
            "max_error": MAX_ERROR,
            "min_chains": MIN_CHAINS,
        },
        decisive,
        verdict_on_fit([weighed], inputs, targets, predictions=predictions) if fit else None,
        ladders,
    )


def _updates(run: Draws) -> tuple[float | None, int, float]:
    """Return the mean acceptance, the number of diverged updates, and the share of iterations with any."""
    accepted, n_accepted, n_diverged, n_with_any = 0.0, 0, 0, 0
    for chains, draws in run.chunks():
        shares, diverged = run.stat("accepted", chains, draws), run.stat("diverged", chains, draws)
        is_known = np.isfinite(shares)
        accepted += float(shares[is_known].sum())
        n_accepted += int(is_known.sum())
        n_diverged += int(np.clip(np.nan_to_num(diverged), 0, _MOST_DIVERGED).sum())
        n_with_any += int((diverged > 0).sum())
    return accepted / n_accepted if n_accepted else None, n_diverged, n_with_any / run.total
