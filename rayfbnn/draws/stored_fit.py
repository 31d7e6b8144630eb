"""The approximation in a store, read from the state after the last block of each batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.approximate.approximation import LOG_EVIDENCE, OBJECTIVE, Approximation
from rayfbnn.arrays import Array
from rayfbnn.errors import StoreError

if TYPE_CHECKING:
    from rayfbnn.store.store import Store


@dataclass(frozen=True)
class FitSummary:
    """The approximations of all starts after their last committed blocks.

    approximation  the approximation with its settings
    state          the arrays of the fit's state by name, (n_starts, ...)
    objective      (n_starts, n_bins) means over equal shares of the steps; NaN for steps that were not taken
    log_evidence   (n_starts,) log evidence, or a lower bound on it, for the targets on the scale of the data
                   file, in nats; NaN if the method has none. The state has the log evidence for the
                   standardised targets.
    weight         (n_starts,) share of each start in predictions
    """

    approximation: Approximation
    state: Mapping[str, Array]
    objective: Array
    log_evidence: Array
    weight: Array


def fit_summary(store: Store) -> FitSummary:
    """Return the approximation of a store; StoreError if it has none, or no block yet."""
    last = [store.load_named_state(batch) for batch in range(store.n_batches)]
    states = [state for state in last if state is not None]
    if len(states) < store.n_batches:
        raise StoreError(f"{store.path}: no step is committed yet; run `resume` on it first")
    state = {name: np.concatenate([one[name] for one in states]) for name in states[0]}
    approximation = store.spec.fit
    assert approximation is not None
    if reason := approximation.why_unusable(state):
        raise StoreError(f"{store.path}: {reason}")
    log_evidence = state[LOG_EVIDENCE] - store.data.log_scale
    return FitSummary(approximation, state, state[OBJECTIVE], log_evidence, approximation.shares(state))
