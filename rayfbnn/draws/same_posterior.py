"""Checks that runs belong together: draws of one posterior, from different random numbers."""

from __future__ import annotations

from collections.abc import Sequence

from rayfbnn.draws.view import Draws
from rayfbnn.errors import StoreMismatchError
from rayfbnn.spec import differences

_SAME = ("data.standardize", "model", "network", "temperature")  # the posterior, apart from the data


def check_same_posterior(
    runs: Sequence[Draws], *, is_prior_allowed: bool = False, is_approximation_allowed: bool = False
) -> None:
    """Raise StoreMismatchError unless all runs have draws of one posterior.

    If allowed, some may be from its prior, or from approximations of it.
    """
    first = runs[0]
    for other in runs[1:]:
        reasons = [
            difference for difference in differences(first.spec, other.spec) if difference.startswith(_SAME)
        ]
        if (first.kind == "prior") != (other.kind == "prior") and not is_prior_allowed:
            reasons.append(f"kind: {first.kind} and {other.kind} draws, of the prior and of the posterior")
        is_mixed = (first.kind == "approximate") != (other.kind == "approximate")
        if is_mixed and not is_approximation_allowed:
            reasons.append(
                f"kind: {first.kind} and {other.kind} draws; use `compare` to compare an approximation"
                " with the posterior"
            )
        if _labels(first) != _labels(other):
            reasons.append("data: the labels of the targets differ")
        if first.data.hash != other.data.hash:
            reasons.append("data: the training cases differ")
        if reasons:
            raise StoreMismatchError(
                f"{other.path}: is not from the posterior of {first.path}: {'; '.join(reasons)}"
            )


def _labels(run: Draws) -> dict[str, tuple[str, ...]]:
    return {} if run.spec.encoding is None else run.spec.encoding.labels


def check_independent(runs: Sequence[Draws]) -> None:
    """Raise StoreMismatchError if two of the runs were sampled with the same random numbers."""
    seen: dict[tuple[str, int], Draws] = {}
    for run in runs:
        key = (run.kind, run.spec.seed)
        if key in seen:
            raise StoreMismatchError(
                f"{run.path}: has the same seed ({run.spec.seed}) as {seen[key].path}, so their draws are not"
                " independent and cannot be pooled; sample one of the two with another seed"
            )
        seen[key] = run
