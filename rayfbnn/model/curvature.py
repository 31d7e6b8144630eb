"""Derivatives of a network's outputs by its parameters, and curvatures of the posterior."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.model import prior
from rayfbnn.model.network import Buffers, backward, forward
from rayfbnn.model.posterior import Posterior

_MOST_NUMBERS = 4_000_000  # numbers in one piece of a Jacobian: 32 MB
_DIFFERENCE = 1e-4


def jacobian_pieces(
    posterior: Posterior, position: Array, rows: Array
) -> Iterator[tuple[slice, Array, Array]]:
    """Yield pieces of cases: a slice of the cases, their outputs, and the derivatives by all parameters.

    rows  inputs from `network.input_rows`, (n_inputs + 1, n_cases)

    Each piece has outputs (n_chains, n_outputs, n) and derivatives (n_chains, n_outputs, n, n_parameters).
    Each case gets its own backward pass, and therefore all kinds of layers and connections are covered.
    """
    xp, wiring = array_namespace(position), posterior.wiring
    n_chains, n_parameters = position.shape
    n_outputs, n_cases = wiring.units[-1], rows.shape[1]
    size = max(1, _MOST_NUMBERS // (n_chains * n_outputs * n_parameters))
    for first in range(0, n_cases, size):
        part = slice(first, min(first + size, n_cases))
        n = part.stop - part.start
        one_case_each = xp.tile(xp.ascontiguousarray(rows[:, part].T)[:, :, None], (n_chains, 1, 1))
        networks = xp.repeat(position, n, axis=0)
        buffers = Buffers()
        activity = forward(networks, one_case_each, wiring, buffers=buffers)
        derivatives = xp.empty((n_chains, n_outputs, n, n_parameters))
        for output in range(n_outputs):
            chosen = xp.zeros((n_chains * n, n_outputs, 1), dtype=position.dtype)
            chosen[:, output] = 1
            gradient = backward(networks, activity, chosen, wiring, buffers=buffers)
            derivatives[:, output] = gradient.reshape(n_chains, n, n_parameters)
        outputs = activity.outputs[:, :, 0].reshape(n_chains, n, n_outputs).swapaxes(1, 2)
        yield part, xp.ascontiguousarray(outputs), derivatives


def gauss_newton(posterior: Posterior, position: Array, precisions: Array) -> Array:
    """Return the likelihood's curvature by target, without second derivatives of the outputs.

        G = sum over cases of J' Lambda J ,  J = d outputs/dw ,  Lambda = -d2 log likelihood/d outputs2

    The result is (n_chains, n_parts, n_parameters, n_parameters); the parts sum to G. If targets have
    separate noise precisions, each target is a part. Otherwise there is one part.
    """
    xp, model = array_namespace(position), posterior.data_model
    noise = prior.noise_precisions(precisions, posterior.precision_layout)
    columns = set(np.asarray(posterior.precision_layout.noise_columns.tolist()))
    n_parts = posterior.n_targets if len(columns) > 1 else 1
    n_chains, n_parameters = position.shape
    total = xp.zeros((n_chains, n_parts, n_parameters, n_parameters))
    power = posterior.inverse_temperatures(n_axes=3)
    with np.errstate(all="ignore"):
        for part, outputs, derivatives in jacobian_pieces(posterior, position, posterior.inputs):
            curvature = model.output_curvature(outputs, posterior.targets[..., part], noise)
            assert curvature is not None
            mixed = curvature.ndim == 4
            weights = xp.asarray(
                power if posterior.observed is None else power * posterior.observed[..., part]
            )
            curvature = curvature * (weights[..., None, :] if mixed and weights.ndim else weights)
            if mixed:
                scaled = xp.einsum("coqn,cqnp->conp", curvature, derivatives)
            else:
                scaled = curvature[..., None] * derivatives
            shape = (n_chains, n_parts, -1, n_parameters)
            left = derivatives.reshape(shape).swapaxes(2, 3)
            total += xp.matmul(left, scaled.reshape(shape))
    return total


def hessian(posterior: Posterior, position: Array, precisions: Array) -> Array:
    """Return the Hessian of the potential by central differences of its gradient, (n_chains, P, P).

    All displaced positions of a chain are evaluated as the chains of one call. The steps of 1e-4 need
    float64.
    """
    xp = array_namespace(position)
    n_chains, n = position.shape
    displaced = position[:, None] + _DIFFERENCE * xp.concatenate([xp.eye(n), -xp.eye(n)])
    result = xp.empty((n_chains, n, n))
    for chain in range(n_chains):
        _, gradient = posterior.potential_and_gradient(
            displaced[chain], xp.repeat(precisions[chain : chain + 1], 2 * n, axis=0)
        )
        result[chain] = (gradient[:n] - gradient[n:]) / (2 * _DIFFERENCE)
    return (result + result.swapaxes(1, 2)) / 2


def linear_outputs(posterior: Posterior, mode: Array, draws: Array, rows: Array) -> Array:
    """Return the outputs of draws with the network linearised about the mode.

        f(x; w) = f(x; mode) + J(x) (w - mode)

    mode (n_chains, n_parameters), draws (n_chains, n_draws, n_parameters), rows as in `jacobian_pieces`. The
    result is (n_chains, n_draws, n_outputs, n_cases).
    """
    xp = array_namespace(mode)
    moved = (draws - mode[:, None]).swapaxes(1, 2)  # (n_chains, n_parameters, n_draws)
    pieces = []
    for _, outputs, derivatives in jacobian_pieces(posterior, mode, rows):
        n_chains, n_outputs, n, n_parameters = derivatives.shape
        change = xp.matmul(derivatives.reshape(n_chains, -1, n_parameters), moved)
        change = xp.moveaxis(change.reshape(n_chains, n_outputs, n, -1), -1, 1)
        pieces.append(outputs[:, None] + change)
    return xp.concatenate(pieces, axis=3)
