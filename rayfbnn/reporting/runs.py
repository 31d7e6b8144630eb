"""A run as the report looks at it: its store, some draws in memory, the cases, and what is predicted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.answers.calibration import Places, places
from rayfbnn.answers.diagnostics import Diagnosis, diagnose
from rayfbnn.answers.predict import Prediction, predict
from rayfbnn.arrays import Array
from rayfbnn.draws.choosing import evenly_spaced, spread, thinned
from rayfbnn.draws.early import early_warning
from rayfbnn.draws.held import hold

if TYPE_CHECKING:
    from rayfbnn.draws.view import Draws

_DRAWS = 1000  # of all chains together: their Monte Carlo error cannot be seen in a picture
_FEW_DRAWS, _FEWEST_DRAWS = 96, 32  # where the networks are evaluated at many points, or at very many
_MOST_BYTES = 100e6  # of the draws that are held
_CASES = 2000
_SOME_CASES, _FEW_CASES = 300, 100
Tell = Callable[[str], None]  # is told what is computed


@dataclass(frozen=True)
class Cases:
    """The cases at which predictions are compared with what happened.

    inputs, targets  (n_cases, ...) as on file, at most 2,000, evenly spaced
    rows             their numbers among all cases, from 1
    n_all            how many there are in all
    source           where they are from, in words
    is_held_out      False for the training cases
    """

    inputs: Array
    targets: Array
    rows: Array
    n_all: int
    source: str
    is_held_out: bool

    @staticmethod
    def chosen_from(inputs: Array, targets: Array, source: str, *, is_held_out: bool) -> Cases:
        """Return the cases, evenly spaced ones if there are many."""
        chosen = evenly_spaced(len(inputs), _CASES)
        return Cases(inputs[chosen], targets[chosen], chosen + 1, len(inputs), source, is_held_out)

    @property
    def some(self) -> Array:
        """The inputs of at most 300 cases."""
        return np.asarray(self.inputs[evenly_spaced(len(self.inputs), _SOME_CASES)])

    @property
    def some_targets(self) -> Array:
        """The targets of these cases."""
        return np.asarray(self.targets[evenly_spaced(len(self.inputs), _SOME_CASES)])

    @property
    def few(self) -> Array:
        """The inputs of at most 100 cases, where networks are evaluated at many points for each."""
        return np.asarray(self.inputs[evenly_spaced(len(self.inputs), _FEW_CASES)])


@dataclass(frozen=True)
class ReportedRun:
    """One run of a report.

    label       its name on the page
    draws       all its draws, from which its verdicts are made
    held        at most about 1,000 of them in memory, which all else is from
    few, fewest about 100 and about 30 of these
    prediction  at the cases
    diagnosis   None where there are no draws of Markov chains from the posterior
    """

    label: str
    draws: Draws
    held: Draws
    few: Draws
    fewest: Draws
    cases: Cases
    prediction: Prediction
    diagnosis: Diagnosis | None

    @property
    def note(self) -> str:
        """Why there is no verdict on the draws, "" if there is one."""
        if self.draws.kind == "prior":
            return (
                "These are draws from the prior. No case has been learnt from, so that the predictions say"
                " what the prior says, and there is nothing that could converge."
            )
        if self.draws.kind == "exact":
            return "These are exact and independent draws by rejection, so that there is nothing to converge."
        if self.draws.kind == "approximate":
            return (
                "These are independent draws of an approximation. No number of draws shows how far it is from"
                " the posterior: rayfbnn compare holds it against the posterior itself."
            )
        return early_warning(self.draws) if self.draws.early_phase is not None else ""

    @property
    def progress(self) -> str:
        """How far a run that is not finished has come, "" for any other."""
        spec = self.draws.spec
        if self.draws.kind != "mcmc":
            return ""
        store = self.draws.store
        done = min(store.progress(batch).iteration for batch in range(store.n_batches))
        if done >= spec.total_iterations:
            return ""
        return f"The run is not finished: iteration {done:,} of {spec.total_iterations:,}."

    @cached_property
    def places(self) -> Places | None:
        """The places of the targets in their predictive distributions; None where targets are labels."""
        if self.draws.spec.data_model.has_labels:
            return None
        return places([self.held], self.cases.inputs, self.cases.targets)

    @property
    def n_held(self) -> int:
        """Number of draws in memory, of all chains."""
        return self.held.total

    @property
    def n_draws(self) -> int:
        """Number of draws of all chains."""
        return self.draws.total


def read_run(label: str, run: Draws, cases: Cases, tell: Tell) -> ReportedRun:
    """Read some of the draws into memory, predict the cases, and judge the run."""
    tell(f"{label}: reading draws")
    at_most = min(_DRAWS, int(_MOST_BYTES / (8 * run.spec.network.n_parameters)))
    some = thinned(run, max(4, at_most // run.n_chains))
    held = hold(some, np.arange(some.n_draws))
    few, fewest = (
        hold(held, spread(some.n_draws, max(1, n_draws // run.n_chains)))
        for n_draws in (_FEW_DRAWS, _FEWEST_DRAWS)
    )
    tell(f"{label}: predicting {len(cases.inputs):,} cases")
    prediction = predict([held], cases.inputs, cases.targets)
    diagnosis = None
    if run.kind == "mcmc" and run.early_phase is None:
        tell(f"{label}: judging {run.total:,} draws")
        diagnosis = diagnose(run)
    return ReportedRun(label, run, held, few, fewest, cases, prediction, diagnosis)


def labels_of(draws: Draws, target: str) -> tuple[str, ...]:
    """Return the labels of a target in the order of their numbers, () if it is a number."""
    encoding = draws.spec.encoding
    return () if encoding is None else encoding.labels.get(target, ())
