"""Auxiliary precisions that make targets, and parameters that feed the outputs, Gaussian."""

from __future__ import annotations

import math

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.model import prior
from rayfbnn.model.likelihood.target_records import GaussianTargets
from rayfbnn.model.marginal.output_layer import feeds_outputs
from rayfbnn.model.network import Buffers, forward
from rayfbnn.model.posterior import Posterior
from rayfbnn.model.updates import gibbs
from rayfbnn.state import ChainState
from rayfbnn.streams import Purpose, Streams


def gaussian_targets(posterior: Posterior, state: ChainState, streams: Streams) -> GaussianTargets:
    """Draw Gaussian targets given the state. The likelihood is a mixture over these."""
    return posterior.data_model.gaussian_targets(
        lambda: _outputs(posterior, state),
        posterior.targets if posterior.targets.ndim == 3 else posterior.targets[None],
        prior.noise_precisions(state.precisions, posterior.precision_layout),
        _case_weights(posterior),
        streams,
    )


def _outputs(posterior: Posterior, state: ChainState) -> Array:
    """Return the outputs at the training cases, (n_chains, n_outputs, n_cases) float64."""
    activity = forward(state.position, posterior.inputs, posterior.wiring, buffers=Buffers())
    return activity.outputs.astype(array_namespace(state.position).float64)


def _case_weights(posterior: Posterior) -> Array:
    """Return each target's power, which is b, or 0 if it is missing.

    The result broadcasts to (n_chains, n_targets, n_cases).
    """
    xp = array_namespace(posterior.targets)
    b = xp.reshape(xp.asarray(posterior.inverse_temperature, dtype=xp.float64), (-1, 1, 1))
    return b if posterior.observed is None else b * posterior.observed


def output_precisions(posterior: Posterior, state: ChainState, streams: Streams) -> Array:
    """Return each parameter's precision, (n_chains, n_parameters).

    For output parameters with a t prior it is drawn.
    """
    xp = array_namespace(state.position)
    layout = posterior.precision_layout
    precisions = prior.parameter_precisions(state.precisions, layout)
    for number, group in enumerate(layout.groups):
        alpha = group.prior.alphas[2]
        if feeds_outputs(group.name) and math.isfinite(alpha):
            part = posterior.parameter_layout.slices[group.name]
            precisions[:, part] = gibbs.draw_value_precisions(
                state.position[:, part].astype(xp.float64) ** 2,
                precisions[:, part],
                alpha,
                1.0,
                streams,
                index=number,
                purpose=Purpose.PRECISION_PARAMETER,
            )
    return precisions
