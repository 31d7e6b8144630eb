"""The approximation that a store holds, read from the state that each batch's last block left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.approximate.laplace import member_weights
from rayfbnn.arrays import Array
from rayfbnn.errors import StoreError
from rayfbnn.spec.methods import LaplaceKeys, MapKeys

if TYPE_CHECKING:
    from rayfbnn.store.store import Store


@dataclass(frozen=True)
class FitSummary:
    """The approximations of all starts, after their last committed blocks.

    state         the arrays of the fit's state by name, (n_starts, ...); its parameters and precisions
    objective     (n_starts, n_bins) means over equal shares of the steps, NaN after a fit that ended early
    log_evidence  (n_starts,) or its lower bound, for the targets on the scale of the data file, in nats; NaN
                  where the method has none. The state has that of the standardised targets.
    weight        (n_starts,) share of each start in predictions
    """

    state: Mapping[str, Array]
    objective: Array
    log_evidence: Array
    weight: Array


def fit_summary(store: Store) -> FitSummary:
    """Return the approximation of a store; StoreError before its first block."""
    records = [store.last_record(batch) for batch in range(store.n_batches)]
    states = [store.fit_after(record) for record in records if record is not None]
    if len(states) < store.n_batches:
        raise StoreError(f"{store.path}: no step is committed yet; run `resume` on it first")
    state = {name: np.concatenate([one[name] for one in states]) for name in states[0]}
    log_evidence = state["log_evidence"] - store.data.log_scale
    return FitSummary(state, state["objective"], log_evidence, _weights(store, state))


def _weights(store: Store, state: Mapping[str, Array]) -> Array:
    """Return the weights of starts: those of the members of the greatest evidence, or all equal."""
    keys, log_evidence = store.spec.fit, state["log_evidence"]
    n_starts = len(log_evidence)
    is_usable = np.isfinite(log_evidence)
    if not isinstance(keys, LaplaceKeys):
        if isinstance(keys, MapKeys) or keys is None or keys.members is None or not is_usable.any():
            return np.full(n_starts, 1 / n_starts)
        return member_weights(log_evidence, np.zeros(n_starts), min(keys.members, int(is_usable.sum())))
    if not is_usable.any():
        raise StoreError(
            f"{store.path}: at no start is the curvature positive definite, so that there is no Gaussian"
            " approximation; fit again with other priors or more starts"
        )
    n_members = min(keys.members or n_starts, int(is_usable.sum()))
    usable = np.flatnonzero(is_usable)
    weights = np.zeros(n_starts)
    weights[usable] = member_weights(
        log_evidence[usable], state["least_eigenvalue"][usable], n_members, keys.weights
    )
    return weights
