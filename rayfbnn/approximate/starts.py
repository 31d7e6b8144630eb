"""Approximations that choose among their starts by log evidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from rayfbnn.approximate.approximation import LOG_EVIDENCE, Approximation, State
from rayfbnn.approximate.keys import COUNT, Limits, key
from rayfbnn.arrays import Array, array_namespace

_MEMBERS = Limits(
    "a whole number of at least 1 and at most starts, or left out for all", COUNT.least, COUNT.most
)


@dataclass(frozen=True)
class WithMembers(Approximation):
    """An approximation that estimates a log evidence for each start.

    members  number of starts that predictions use: those of the greatest log evidence; None for all
    """

    members: int | None = key(None, _MEMBERS)

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        if self.members is not None and self.members > self.starts:
            raise self.wrong(
                "members", f"must be at most {self.starts}, the number of starts, got {self.members}"
            )

    def shares(self, state: State) -> Array:
        """Return equal shares of the members, or of all starts if no log evidence is known."""
        log_evidence = state[LOG_EVIDENCE]
        n_usable = int(np.isfinite(log_evidence).sum())
        if self.members is None or n_usable == 0:
            return super().shares(state)
        return member_weights(log_evidence, np.zeros(len(log_evidence)), min(self.members, n_usable))


def member_weights(
    log_evidence: Array,
    least_eigenvalue: Array,
    members: int,
    how: Literal["equal", "evidence"] = "equal",
) -> Array:
    """Return the weight of each start, (n_starts,): zero except for the members of the greatest evidence.

    Starts with a negative eigenvalue of the exact Hessian come after all others, because they are no modes.

    log_evidence, least_eigenvalue  (n_starts,)
    members                         number of starts with a weight
    how                             "equal", or "evidence" for weights in proportion to the evidence
    """
    xp = array_namespace(log_evidence)
    is_mode = least_eigenvalue >= 0
    lowest = xp.where(xp.isfinite(log_evidence), log_evidence, -1e300).min()
    rank = xp.lexsort(xp.stack([-log_evidence, ~is_mode]))
    chosen = xp.zeros(len(rank), dtype=bool)
    chosen[rank[:members]] = True
    if how == "equal":
        return chosen / chosen.sum()
    shifted = xp.where(chosen, log_evidence, lowest)
    weights = xp.where(chosen, xp.exp(shifted - shifted[chosen].max()), 0.0)
    return weights / weights.sum()
