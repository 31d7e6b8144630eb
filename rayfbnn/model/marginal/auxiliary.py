"""Auxiliary precisions, given which targets and the parameters that feed the outputs are Gaussian."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.model import prior
from rayfbnn.model.likelihood import models as likelihood
from rayfbnn.model.marginal.output_layer import feeds_outputs
from rayfbnn.model.marginal.polya_gamma import polya_gamma
from rayfbnn.model.network import Buffers, forward
from rayfbnn.model.updates import gibbs
from rayfbnn.state import ChainState
from rayfbnn.streams import Purpose, Streams

if TYPE_CHECKING:
    from rayfbnn.model.posterior import Posterior


@dataclass(frozen=True)
class GaussianTargets:
    """Targets with Gaussian noise in place of the data, given auxiliary variables; missing ones have T = 0.

    precisions  T (n_chains, n_targets, n_cases, or 1 if all cases are alike)
    targets     y (n_chains or 1, n_targets, n_cases), finite everywhere
    """

    precisions: Array
    targets: Array


def gaussian_targets(posterior: Posterior, state: ChainState, streams: Streams) -> GaussianTargets:
    """Gaussian targets of which the likelihood is a mixture, given the state; b is the inverse temperature.

    Gaussian noise  T = b tau, y as it is
    t noise         T is a case's own precision, Gamma given the residual (gibbs.draw_value_precisions)
    binary targets  T = omega ~ PG(1, output), y replaced by (y - 1/2)/omega (polya_gamma.py)
    """
    xp = array_namespace(state.position)
    targets = posterior.targets if posterior.targets.ndim == 3 else posterior.targets[None]
    if posterior.model.kind == "binary":
        omega = polya_gamma(_outputs(posterior, state), streams, purpose=Purpose.POLYA_GAMMA)
        return GaussianTargets(_case_weights(posterior) * omega, (targets - 0.5) / omega)
    assert posterior.model.noise is not None
    tau = likelihood.noise_precision(state.precisions, posterior.precision_layout)[:, :, None]
    alpha = posterior.model.noise.alphas[2]
    if math.isinf(alpha):
        return GaussianTargets(_case_weights(posterior) * tau, targets)
    squares = (targets - _outputs(posterior, state)) ** 2
    weights = xp.broadcast_to(_case_weights(posterior), squares.shape)
    drawn = gibbs.draw_value_precisions(
        squares, tau, alpha, weights, streams, index=0, purpose=Purpose.NOISE_CASE
    )
    return GaussianTargets(xp.where(weights > 0, drawn, 0.0), targets)


def _outputs(posterior: Posterior, state: ChainState) -> Array:
    """Outputs at the training cases, (n_chains, n_outputs, n_cases) float64."""
    activity = forward(state.position, posterior.inputs, posterior.wiring, buffers=Buffers())
    return activity.outputs.astype(array_namespace(state.position).float64)


def _case_weights(posterior: Posterior) -> Array:
    """Power of each target's density, that broadcasts to (n_chains, n_targets, n_cases): b, 0 if missing."""
    xp = array_namespace(posterior.targets)
    b = xp.reshape(xp.asarray(posterior.inverse_temperature, dtype=xp.float64), (-1, 1, 1))
    return b if posterior.observed is None else b * posterior.observed


def output_precisions(posterior: Posterior, state: ChainState, streams: Streams) -> Array:
    """Each parameter's precision, (n_chains, n_parameters); drawn where t parameters feed the outputs."""
    xp = array_namespace(state.position)
    layout = posterior.precision_layout
    found = prior.parameter_precisions(state.precisions, layout)
    for number, group in enumerate(layout.groups):
        alpha = group.prior.alphas[2]
        if feeds_outputs(group.name) and math.isfinite(alpha):
            part = posterior.parameter_layout.slices[group.name]
            found[:, part] = gibbs.draw_value_precisions(
                state.position[:, part].astype(xp.float64) ** 2,
                found[:, part],
                alpha,
                1.0,
                streams,
                index=number,
                purpose=Purpose.PRECISION_PARAMETER,
            )
    return found
