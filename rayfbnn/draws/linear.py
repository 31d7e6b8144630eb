"""Outputs of draws from a Gaussian approximation by a network that is linear about the mode."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.draws.fits import fit_summary
from rayfbnn.errors import StoreError
from rayfbnn.model.approximation.curvature import linear_outputs
from rayfbnn.model.network import input_rows

if TYPE_CHECKING:
    from rayfbnn.draws.view import Draws
    from rayfbnn.model.posterior import Posterior


def is_linear(run: Draws) -> bool:
    """Return True if the outputs of the draws are linear about the modes of its starts."""
    return run.kind == "approximate" and getattr(run.spec.fit, "prediction", "") == "linear"


def check_own_networks(run: Draws) -> None:
    """Raise StoreError if the draws are no networks to be evaluated one by one, since outputs are linear."""
    if is_linear(run):
        raise StoreError(
            f"{run.path}: its predictions are linear about the modes, so that its draws are no networks to"
            ' be evaluated one by one; fit again with methods.laplace.prediction = "sampled"'
        )


def modes(run: Draws) -> Array:
    """Return the modes of all starts, (n_starts, n_parameters)."""
    return fit_summary(run.store).state["position"]


def outputs_about_modes(
    posterior: Posterior, modes: Array, starts: Array, positions: Array, inputs: Array
) -> Array:
    """Return f(x; mode) + J(x) (w - mode) of each draw w, (n_chains, n_draws, n_cases, n_outputs).

    This is the linear prediction of MacKay, Neal (1996), sec. 1.2.5.

    modes      (n_starts, n_parameters)
    starts     (n_chains, n_draws) number of the start of each draw
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
