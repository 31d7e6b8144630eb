"""The verdict on fit for a run and for predictions: which cases are judged, by which draws."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rayfbnn.answers.judging.fit import FitVerdict, judge_fit
from rayfbnn.answers.judging.fit_evidence import FitEvidence, evidence_at, evidence_left_out
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
) -> FitVerdict:
    """Judge the training cases, each predicted without itself, and other cases if their targets are known.

    inputs, targets  (n_cases, ...) as in the data file
    predictions      the verdict on predictions; the fit cannot be judged if they cannot be used
    """
    return judge(run, fit_evidence(run, inputs, targets), predictions=predictions)


@np.errstate(over="ignore", invalid="ignore")  # cases at which networks are not finite are left out
def fit_evidence(run: Draws, inputs: Array | None = None, targets: Array | None = None) -> list[FitEvidence]:
    """Return the evidence of the training cases, and of other cases if their targets are known."""
    evidences = [evidence_left_out([run])]
    if inputs is not None and targets is not None and _can_judge(run, inputs, targets):
        evidences.append(evidence_at([run], inputs, targets))
    return evidences


@np.errstate(over="ignore", invalid="ignore")
def verdict_on_fit_left_out(runs: Sequence[Draws], *, predictions: Verdict | None = None) -> FitVerdict:
    """Judge the training cases by the draws of several runs of one posterior, each case without itself."""
    return judge(runs[0], [evidence_left_out(runs)], predictions=predictions)


@np.errstate(over="ignore", invalid="ignore")
def verdict_on_fit_at(
    runs: Sequence[Draws],
    inputs: Array,
    targets: Array | None,
    *,
    predictions: Verdict | None = None,
    executor: Executor | None = None,
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
    """Return whether some targets are known, and the cases are not the training cases."""
    if np.isnan(targets).all():
        return False
    cases, training = np.column_stack([inputs, targets]), np.column_stack([run.data.inputs, run.data.targets])
    if cases.shape != training.shape:
        return True
    return not np.array_equal(_in_order(cases), _in_order(training), equal_nan=True)


def _in_order(rows: Array) -> Array:
    """Return the rows in an order that depends on their values alone."""
    return np.asarray(rows[np.lexsort(rows.T)])
