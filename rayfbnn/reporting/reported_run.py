"""A run as the report needs it: its store, some draws in memory, the cases, and the predictions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.answers.diagnostics import Diagnosis, diagnose_draws
from rayfbnn.answers.judging.fit import FitVerdict, fit_evidence, judge
from rayfbnn.answers.judging.ladder_verdict import weighed_by_evidence
from rayfbnn.answers.judging.words import BESIDE
from rayfbnn.answers.measures import Places, places
from rayfbnn.answers.predict import Prediction, predict_from_draws
from rayfbnn.answers.predictor import thin
from rayfbnn.arrays import Array
from rayfbnn.draws.subsets import evenly_spaced, hold, spread, thinned
from rayfbnn.draws.view import early_warning

if TYPE_CHECKING:
    from rayfbnn.draws.view import Draws

_DRAWS = 1000  # of all chains together; their Monte Carlo error is invisible in a picture
_FEW_DRAWS, _FEWEST_DRAWS = 96, 32  # for evaluations at many points, and at very many
_MOST_BYTES = 100e6  # of the draws in memory
_CASES = 2000
_SOME_CASES, _FEW_CASES = 300, 100
Tell = Callable[[str], None]  # called with a description of each step
_NOTES = {
    "prior": "These are draws from the prior. The network has not learnt from any case, so the predictions"
    " are those of the prior, and convergence does not apply.",
    "exact": "These are exact and independent draws by rejection, so convergence does not apply.",
    "approximate": "These are independent draws of an approximation. They do not show how far it is from the"
    " posterior; use rayfbnn compare to compare it with draws of the posterior.",
}


@dataclass(frozen=True)
class ReportedCases:
    """The cases for comparisons of predictions with actual targets.

    inputs, targets  (n_cases, ...) as in the data file, at most 2,000, evenly spaced
    rows             their numbers among all cases, from 1
    n_all            number of cases before the choice
    source           their origin, in words
    is_held_out      False for the training cases
    """

    inputs: Array
    targets: Array
    rows: Array
    n_all: int
    source: str
    is_held_out: bool

    @staticmethod
    def chosen_from(inputs: Array, targets: Array, source: str, *, is_held_out: bool) -> ReportedCases:
        """Return the cases, limited to 2,000 evenly spaced ones."""
        chosen = evenly_spaced(len(inputs), _CASES)
        return ReportedCases(inputs[chosen], targets[chosen], chosen + 1, len(inputs), source, is_held_out)

    @property
    def some(self) -> Array:
        """The inputs of at most 300 cases."""
        return np.asarray(self.inputs[evenly_spaced(len(self.inputs), _SOME_CASES)])

    @property
    def some_targets(self) -> Array:
        """The targets of the cases of `some`."""
        return np.asarray(self.targets[evenly_spaced(len(self.inputs), _SOME_CASES)])

    @property
    def few(self) -> Array:
        """The inputs of at most 100 cases, for evaluations at many points for each case."""
        return np.asarray(self.inputs[evenly_spaced(len(self.inputs), _FEW_CASES)])


@dataclass(frozen=True)
class ReportedRun:
    """One run of a report.

    label       its name on the page
    draws       all its draws, for its verdicts
    held        some of them in memory, for everything else: about 1,000 unless others were asked for; where
                phases of ladders remain, ladders count by their evidence
    few, fewest about 100 and about 30 of these
    prediction  the prediction at the cases
    diagnosis   None unless the draws are of Markov chains from the posterior
    fit         the verdict on fit; None for the prior and for an earlier phase
    left_out    the places of the training cases within the predictive distributions that leave them out, by
                target; none for labels
    weighing    says how ladders are weighed; "" if all chains count alike
    """

    label: str
    draws: Draws
    held: Draws
    few: Draws
    fewest: Draws
    cases: ReportedCases
    prediction: Prediction
    diagnosis: Diagnosis | None
    fit: FitVerdict | None
    left_out: Mapping[str, Places]
    weighing: str

    @property
    def note(self) -> str:
        """The reason why the draws have no verdict, "" if they have one."""
        early = early_warning(self.draws) if self.draws.early_phase is not None else ""
        return _NOTES.get(self.draws.kind, early)

    @property
    def progress(self) -> str:
        """The progress of an unfinished run, "" for any other."""
        if self.draws.kind != "mcmc":
            return ""
        total, done = self.draws.spec.total_iterations, self.draws.store.done
        return "" if done >= total else f"The run is not finished: iteration {done:,} of {total:,}."

    @cached_property
    def places(self) -> Places | None:
        """The places of the targets in their predictive distributions; None if targets are labels."""
        if self.draws.spec.data_model.has_labels:
            return None
        return places([self.held], self.cases.inputs, self.cases.targets)


def read_run(
    label: str,
    run: Draws,
    cases: ReportedCases,
    tell: Tell,
    *,
    draws: int | None = None,
    max_mcse: float = 0.0,
) -> ReportedRun:
    """Read some of the draws into memory, predict the cases, and judge the run.

    draws     how many of all chains together; about 1,000 unless given
    max_mcse  if not 0, as many as keep the Monte Carlo error of predictive means below it (see `thin`)
    """
    diagnosis = None
    if run.kind == "mcmc" and run.early_phase is None:
        tell(f"{label}: judging {run.total:,} draws")
        diagnosis = diagnose_draws(run)
    weighed, weighing = run, ""
    if diagnosis is not None and diagnosis.ladders is not None:
        weighed, weighing = weighed_by_evidence(run, diagnosis.ladders)
    tell(f"{label}: reading draws")
    held = _held(weighed, draws, max_mcse)
    few, fewest = (
        hold(held, spread(held.n_draws, max(1, n_draws // held.n_chains)))
        for n_draws in (_FEW_DRAWS, _FEWEST_DRAWS)
    )
    tell(f"{label}: predicting {len(cases.inputs):,} cases")
    prediction = predict_from_draws([held], cases.inputs, cases.targets)
    if weighed is not run:
        equal = predict_from_draws([_held(run, draws, max_mcse)], cases.inputs, cases.targets)
        prediction = replace(prediction, equal_weights=equal)
        weighing = f"{weighing}{BESIDE}"
    fit, left_out = None, dict[str, Places]()
    if run.kind != "prior" and run.early_phase is None:
        tell(f"{label}: judging the fit")
        held_out = (cases.inputs, cases.targets) if cases.is_held_out else (None, None)
        evidences = fit_evidence([weighed], *held_out)
        fit = judge(run, evidences, predictions=None if diagnosis is None else diagnosis.predictions)
        left_out = dict(evidences[0].places)
    return ReportedRun(label, run, held, few, fewest, cases, prediction, diagnosis, fit, left_out, weighing)


def _held(run: Draws, draws: int | None, max_mcse: float) -> Draws:
    """Return some draws in memory; the arguments are those of `read_run`."""
    if draws is not None or max_mcse != 0:
        return hold(run, thin(run, draws=draws, max_mcse=max_mcse).numbers)
    at_most = min(_DRAWS, int(_MOST_BYTES / (8 * run.spec.network.n_parameters)))
    some = thinned(run, max(4, at_most // run.n_chains))
    return hold(some, np.arange(some.n_draws))


def labels_of(draws: Draws, target: str) -> tuple[str, ...]:
    """Return the labels of a target in order, () if it is a number."""
    encoding = draws.spec.encoding
    return () if encoding is None else encoding.labels.get(target, ())
