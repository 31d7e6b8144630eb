"""Stored approximations: summaries of fits, and networks linear about a mode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.approximate.approximation import LOG_EVIDENCE, OBJECTIVE, Approximation
from rayfbnn.arrays import Array
from rayfbnn.draws.view import Draws
from rayfbnn.errors import StoreError
from rayfbnn.model.curvature import linear_outputs
from rayfbnn.model.network import input_rows

if TYPE_CHECKING:
    from rayfbnn.model.posterior import Posterior
    from rayfbnn.store.store import Store


def check_own_networks(run: Draws) -> None:
    """Raise StoreError if outputs are linear, because draws must not be evaluated as networks then."""
    approximation = run.spec.fit if run.is_linear else None
    if approximation is not None:
        raise StoreError(
            f"{run.path}: its predictions are linear about the modes, so that its draws are no networks to"
            f" be evaluated one by one; fit again with {approximation.setting_for_networks}"
        )


def modes(run: Draws) -> Array:
    """Return the modes of all starts, (n_starts, n_parameters), of a run with linear outputs."""
    approximation = run.spec.fit if run.is_linear else None
    assert approximation is not None and approximation.linear_about is not None
    return fit_summary(run.store).state[approximation.linear_about]


def outputs_about_modes(
    posterior: Posterior, modes: Array, starts: Array, positions: Array, inputs: Array
) -> Array:
    """Return f(x; mode) + J(x) (w - mode) of each draw w, (n_chains, n_draws, n_cases, n_outputs).

    This is the linear prediction of MacKay, Neal (1996), sec. 1.2.5.

    modes      (n_starts, n_parameters)
    starts     (n_chains, n_draws), the number of the start of each draw
    positions  (n_chains, n_draws, n_parameters)
    inputs     (n_cases, n_inputs), standardised
    """
    rows = input_rows(np.asarray(inputs, dtype=np.float64), posterior.dtype)
    shape = (*starts.shape, len(inputs), posterior.network.outputs)
    outputs = np.empty(shape, dtype=posterior.dtype)
    for start in np.unique(starts):
        of_start = starts == start
        mode = modes[start : start + 1].astype(posterior.dtype)
        drawn = positions[of_start][None].astype(posterior.dtype)
        outputs[of_start] = linear_outputs(posterior, mode, drawn, rows)[0].swapaxes(1, 2)
    return outputs


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
