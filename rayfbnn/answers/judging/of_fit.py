"""The verdict on fit for a run and for predictions: which cases are judged, and which draws."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rayfbnn.answers.judging.fit import FitVerdict, judge_fit
from rayfbnn.answers.judging.fit_evidence import evidence_at, evidence_left_out
from rayfbnn.answers.judging.verdicts import Verdict
from rayfbnn.arrays import Array
from rayfbnn.draws.view import Draws
from rayfbnn.reduce.executors import Executor


def verdict_on_fit(
    run: Draws,
    inputs: Array | None = None,
    targets: Array | None = None,
    *,
    predictions: Verdict | None = None,
    executor: Executor | None = None,
) -> FitVerdict:
    """Judge the training cases, each predicted without itself, and other cases if their targets are known.

    inputs, targets  (n_cases, ...) as in the data file
    predictions      the verdict on predictions; the fit cannot be judged if they cannot be used
    """
    evidences = [evidence_left_out(run, executor=executor)]
    if inputs is not None and has_targets(targets):
        evidences.append(evidence_at([run], inputs, np.asarray(targets), executor=executor))
    return judge_fit(evidences, run.spec.data_model, is_positive=_is_positive(run), predictions=predictions)


def verdict_on_fit_at(
    runs: Sequence[Draws],
    inputs: Array,
    targets: Array | None,
    *,
    predictions: Verdict | None = None,
    executor: Executor | None = None,
) -> FitVerdict | None:
    """Judge the targets of predicted cases; None if none is known, or without draws from the posterior."""
    first = runs[0]
    if first.kind == "prior" or first.early_phase is not None or not has_targets(targets):
        return None
    evidence = evidence_at(runs, inputs, np.asarray(targets), executor=executor)
    return judge_fit(
        [evidence], first.spec.data_model, is_positive=_is_positive(first), predictions=predictions
    )


def has_targets(targets: Array | None) -> bool:
    """Return whether any target is known."""
    return targets is not None and not bool(np.isnan(targets).all())


def _is_positive(run: Draws) -> dict[str, bool]:
    """Return whether all training targets are above zero, by target."""
    known = np.nan_to_num(run.data.targets, nan=1.0)
    return dict(zip(run.data.target_names, (known > 0).all(axis=0).tolist(), strict=True))
