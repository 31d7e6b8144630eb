"""Warns that the chains of a run do not agree well enough, in terms of an estimator."""

from __future__ import annotations

import warnings

from sklearn.exceptions import ConvergenceWarning

from rayfbnn.answers.judging.chain_average import MIN_CHAINS
from rayfbnn.answers.judging.verdicts import Verdict


def warn_unless_ok(verdict: Verdict, estimator: str, *, iterations: int, stacklevel: int) -> None:
    """Issue a ConvergenceWarning with advice if the predictions are not usable.

    estimator   the estimator's name, for the message
    iterations  length of the run's last phase
    stacklevel  stacklevel of `warnings.warn`, counted from the caller
    """
    if not verdict.ok:
        message = f"{estimator}: {verdict.warning}. {what_to_do(verdict, iterations)}"
        warnings.warn(message, ConvergenceWarning, stacklevel=stacklevel + 1)


def what_to_do(verdict: Verdict, iterations: int) -> str:
    """Return the advice of a verdict in terms of an estimator's parameters."""
    if verdict.is_stuck:  # neither more chains nor more draws help
        return "What to do: fit again with other settings; verdict_.advice lists them."
    error = verdict.error
    steps = []
    if error is not None and error.chains < MIN_CHAINS:
        steps.append(f"set chains={MIN_CHAINS} or more, because fewer cannot be judged")
    elif verdict.grade == "not usable" and error is not None and not error.is_moving:
        enough = error.chains_that_would_do
        steps.append("use more chains" if enough is None else f"set chains={enough}")
    longer = verdict.iterations or 2 * iterations
    steps.append(f"set iterations={longer} (with warm_start=True the draws so far are kept)")
    return f"What to do: {'; or '.join(steps)}; verdict_ has the reasons and more advice."
