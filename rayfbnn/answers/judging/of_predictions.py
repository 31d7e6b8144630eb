"""The verdict on predictions at new cases, from a bounded number of draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rayfbnn.answers.judging.chain_average import average_error
from rayfbnn.answers.judging.modes import modes
from rayfbnn.answers.judging.summary import summarize
from rayfbnn.answers.judging.verdicts import Evidence, Thresholds, Verdict, judge_predictions
from rayfbnn.answers.ladder.pooled import verdict_on_pooled_ladders
from rayfbnn.answers.ladder.verdict import overruled, verdict_on_ladders
from rayfbnn.arrays import Array
from rayfbnn.draws.quantities import is_of_predictions, quantities
from rayfbnn.draws.subsets import thinned
from rayfbnn.draws.view import Draws

_CASES = 10
_DRAWS, _LEAST_DRAWS = 4_000, 100  # of all chains together, and of each: enough for an ESS of 400


@np.errstate(over="ignore", invalid="ignore")  # a case may be far outside the training cases
def verdict_on_predictions(runs: Sequence[Draws], inputs: Array) -> Verdict | None:
    """Judge predictions that average over one or several runs.

    The result is None unless all draws are of Markov chains from the posterior. Draws of an earlier phase are
    not judged, because they are not from the posterior.

    At most 50 cases, 16 blocks of each batch and about 4,000 draws are used, so the time does not grow with
    the runs or the cases. Divergences are not counted, and no number of iterations is given.

    inputs  (n_cases, n_inputs) as in the data file
    """
    if any(run.kind != "mcmc" or run.early_phase is not None for run in runs):
        return None
    at_most = max(_LEAST_DRAWS, _DRAWS // sum(run.n_chains for run in runs))
    some = [thinned(run, at_most) for run in runs]
    by_name = _together([_of_run(run, inputs) for run in some])
    summary = summarize(by_name.items())
    n_chains, n_draws = by_name["log_likelihood"].shape
    evidence = Evidence(
        replace(summary, table=summary.table.assign(iterations=math.nan)),
        n_chains,
        n_draws,
        divergences="",
        modes=modes(by_name["log_likelihood"], runs[0].chain_numbers if len(runs) == 1 else None),
        spec=runs[0].spec,
        path=str(runs[0].path),
        thresholds=Thresholds(),
    )
    verdict = judge_predictions(evidence, average_error(some, inputs=inputs))
    for run in runs:
        verdict = overruled(verdict, verdict_on_ladders(run))
    return overruled(verdict, verdict_on_pooled_ladders(runs)) if len(runs) > 1 else verdict


def _of_run(run: Draws, inputs: Array) -> dict[str, Array]:
    """Return the quantities that predictions depend on, (n_chains, n_draws) each."""
    every = quantities(run, cases=_CASES, inputs=inputs)
    return {name: values for name, values in every.items() if is_of_predictions(name)}


def _together(of_runs: list[dict[str, Array]]) -> dict[str, Array]:
    """Return the chains of all runs, each cut to its last draws, as many as the shortest run has."""
    n_draws = min(values.shape[1] for of_run in of_runs for values in of_run.values())
    return {name: np.concatenate([of_run[name][:, -n_draws:] for of_run in of_runs]) for name in of_runs[0]}
