"""Stored draws turned into network outputs, and averages of functions of the outputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.draws.fits import check_own_networks, modes, outputs_about_modes
from rayfbnn.draws.subsets import first_draws
from rayfbnn.draws.view import Draws
from rayfbnn.errors import ConfigError, DataError
from rayfbnn.model.network import Buffers, forward, input_rows
from rayfbnn.model.posterior import Posterior

if TYPE_CHECKING:
    from rayfbnn.data import Dataset
    from rayfbnn.model.architecture import ModelSpec, NetworkSpec
    from rayfbnn.store.store import Store


_CACHE_BYTES = 4e6  # of activations at once; larger blocks only wait for memory
_COPIES = 8  # of a block's outputs, in float64, held at once when the density is computed
_Made: TypeAlias = tuple["Dataset", "NetworkSpec", "ModelSpec", Posterior]
_POSTERIORS: WeakKeyDictionary[Store, dict[str, _Made]] = WeakKeyDictionary()  # by dtype


def output_blocks(run: Draws, inputs: Array, *, memory_bytes: float) -> Iterator[tuple[slice, slice, Array]]:
    """Yield outputs of every draw at `inputs`, a block at a time: (chains, draws, outputs).

    `outputs` is (n_chains, n_draws, n_cases, n_outputs) in the run's dtype and on the network's scale. For a
    hazard of pieces it is (n_chains, n_draws, n_cases, n_pieces).

    Parameters
    ----------
    inputs : (n_cases, n_inputs)   standardised, as the network sees them
    memory_bytes : float           approximate memory to use for a block, and then for its density
    """
    posterior = posterior_of(run)
    at_modes = modes(run) if run.is_linear else None
    n_cases = len(inputs)
    model = posterior.data_model
    inputs = model.cell_inputs(inputs)
    n_values = 2 * (posterior.n_parameters + posterior.n_precisions)
    n_values += _COPIES * len(inputs) * posterior.network.outputs
    for chains, draws in run.blocks_in_memory(n_values, memory_bytes):
        positions = run.positions(chains, draws)
        if at_modes is None:
            outputs = network_outputs(posterior, positions, inputs, memory_bytes / 2)
        else:
            starts = run.starts(chains, draws)
            outputs = outputs_about_modes(posterior, at_modes, starts, positions, inputs)
        if model.n_cells > 1:
            outputs = outputs.reshape(*outputs.shape[:2], n_cases, -1)
        yield chains, draws, outputs


def outputs_by_case(run: Draws, inputs: Array, *, memory_bytes: float) -> Array:
    """Return the outputs of every draw, (n_cases, n_outputs, n_chains, n_draws) in the run's dtype.

    The parameters are those of `output_blocks`; the result itself takes additional memory.
    """
    values: Array = None
    for chains, draws, outputs in output_blocks(run, inputs, memory_bytes=memory_bytes):
        if values is None:
            values = np.empty((*outputs.shape[2:], run.n_chains, run.n_draws), dtype=outputs.dtype)
        values[:, :, chains, draws] = np.moveaxis(outputs, (0, 1), (2, 3))
    return values


def activation_bytes(network: NetworkSpec, dtype: str) -> int:
    """Return about the number of bytes that the layers of one network take for one case."""
    units = network.inputs + sum(layer.units for layer in network.hidden) + network.outputs
    return 2 * units * np.dtype(dtype).itemsize


def networks_at_once(bytes_of_one: int, memory_bytes: float) -> int:
    """Return the number of networks to evaluate together, of `bytes_of_one` bytes each."""
    return max(1, int(min(memory_bytes, _CACHE_BYTES) / bytes_of_one))


def posterior_of(run: Draws) -> Posterior:
    """Return the posterior that the draws are from, on the host; made once for each store and dtype."""
    spec, data = run.spec, run.data
    by_dtype = _POSTERIORS.setdefault(run.store, {})
    known = by_dtype.get(spec.dtype)
    if known is not None and known[0] is data and known[1] == spec.network and known[2] == spec.model:
        return known[3]
    posterior = Posterior.from_pieces(
        spec.network, spec.model, data.standardized_pieces(), data.standardized_targets, dtype=spec.dtype
    )
    by_dtype[spec.dtype] = data, spec.network, spec.model, posterior
    return posterior


def network_outputs(posterior: Posterior, positions: Array, inputs: Array, memory_bytes: float) -> Array:
    """Evaluate each draw like a chain, some at once: (n_chains, n_draws, n_cases, n_outputs).

    positions  (n_chains, n_draws, n_parameters)
    inputs     (n_cases, n_inputs), standardised
    """
    flat = np.ascontiguousarray(positions, dtype=posterior.dtype).reshape(-1, posterior.n_parameters)
    outputs = np.empty((len(flat), posterior.network.outputs, len(inputs)), dtype=posterior.dtype)
    bytes_of_one = activation_bytes(posterior.network, posterior.dtype) * len(inputs)
    at_once = networks_at_once(bytes_of_one, memory_bytes)
    for first in range(0, len(flat), at_once):
        some = slice(first, first + at_once)
        outputs[some] = posterior.outputs(flat[some], inputs).swapaxes(1, 2)  # units first, as allocated
    return outputs.reshape(*positions.shape[:2], *outputs.shape[1:]).swapaxes(-1, -2)


@dataclass(frozen=True)
class EstimatedMeans:
    """Means over draws and their standard errors, in arrays of the same shape."""

    value: Array
    standard_error: Array


def network_values(
    run: Draws, inputs: Array, *, draws: int | None = None, memory_bytes: float = 256e6
) -> Array:
    """Return outputs of every draw's network, (n_draws, n_points, n_outputs), chain after chain.

    inputs  (n_points, n_inputs) as in the data file; the outputs are on the network's scale, and for a hazard
            of several pieces they are the log hazard in each
    draws   number of draws of each chain to use, from the first; None uses all
    """
    run = run if draws is None else first_draws(run, draws)
    points = _standardized(run, inputs)
    network, model = run.spec.network, run.spec.data_model
    n_outputs = model.n_cells if model.n_cells > 1 else network.outputs
    values = np.empty((run.n_chains, run.n_draws, len(points), n_outputs))
    at_once = max(1, int(memory_bytes / 2 / activation_bytes(network, run.spec.dtype)))
    for first in range(0, len(points), at_once):
        some = slice(first, first + at_once)
        for chains, which, outputs in output_blocks(run, points[some], memory_bytes=memory_bytes):
            values[chains, which, some] = outputs
    return values.reshape(-1, *values.shape[2:])


def hidden_values(run: Draws, inputs: Array, layer: int) -> Array:
    """Return values of a hidden layer's units, offsets included, in every draw, (n_draws, n_points, n_units).

    Their covariance over units and draws is C(p, q) of Neal (1996) eq. 2.5, and their squared differences
    are D(p, q). A wide layer estimates both more precisely than the same number of functions.
    """
    n_layers = len(run.spec.network.hidden)
    if not 0 <= layer < n_layers:
        raise ConfigError(f"layer: must be from 0 to {n_layers - 1}, got {layer}")
    if run.spec.data_model.n_cells > 1:
        raise ConfigError(
            f"layer: hidden units also depend on time under a hazard of several pieces, got {layer};"
            " leave layer out to get the outputs"
        )
    check_own_networks(run)
    posterior = posterior_of(run)
    positions = run.positions().reshape(-1, posterior.n_parameters)
    rows = input_rows(_standardized(run, inputs), posterior.dtype)
    values = np.empty((len(positions), rows.shape[1], run.spec.network.hidden[layer].units))
    for draw in range(len(positions)):
        activity = forward(positions[draw : draw + 1], rows, posterior.wiring, buffers=Buffers())
        values[draw] = activity.sources[layer + 1][0, :-1].T  # without the row of ones
    return values


def covariance(values: Array) -> EstimatedMeans:
    """Estimate E[f(p) f(q)] of functions with mean zero, as under every prior here.

    values  (n_draws, n_points), rows independent; the result is (n_points, n_points)
    """
    n = len(values)
    mean = values.T @ values / n
    squares = values**2
    variance = np.maximum(squares.T @ squares / n - mean**2, 0.0)
    return EstimatedMeans(mean, np.sqrt(variance / n))


def straddling(at: Array, separations: Array, *, axis: int = 0) -> tuple[Array, Array]:
    """Return the points x - s/2 and x + s/2 for each s, (n_separations, n_inputs) each, along one input.

    at  (n_inputs,), the point x
    """
    half = np.zeros((len(separations), len(at)))
    half[:, axis] = np.asarray(separations) / 2
    return at - half, at + half


def variation(
    run: Draws, at: Array, separations: Array, *, axis: int = 0, output: int = 0, layer: int | None = None
) -> EstimatedMeans:
    """Estimate D(x - s/2, x + s/2) for each separation s, (n_separations,), Neal (1996) eqs. 2.5 to 2.15.

    D is that of an output of the networks or, with `layer`, of the units of that hidden layer. The standard
    error treats the units of one draw as independent, which they are if the sigmas into them are fixed and
    only inputs lead into the layer. D is proportional to s^2 for smooth functions, to s for Brownian ones,
    and to s^eta for fractional Brownian ones.

    at    (n_inputs,) as in the data file, the point x
    axis  number of the input in which the two points differ
    """
    at = np.asarray(at, dtype=np.float64)
    if not 0 <= axis < len(at):
        raise ConfigError(f"axis: must be the number of an input, from 0 to {len(at) - 1}, got {axis}")
    low, high = straddling(at, separations, axis=axis)
    n = len(low)
    points = np.concatenate([low, high])
    if layer is None:
        outputs = network_values(run, points)
        if not 0 <= output < outputs.shape[2]:
            raise ConfigError(f"output: must be from 0 to {outputs.shape[2] - 1}, got {output}")
        values = outputs[:, :, output]
    else:
        values = np.moveaxis(hidden_values(run, points, layer), 2, 1).reshape(-1, len(points))
    squares = (values[:, n:] - values[:, :n]) ** 2
    return EstimatedMeans(squares.mean(axis=0), squares.std(axis=0) / np.sqrt(len(squares)))


def _standardized(run: Draws, inputs: Array) -> Array:
    """Return inputs as the network sees them; DataError if they do not fit the run."""
    inputs = np.asarray(inputs, dtype=np.float64)
    if inputs.ndim != 2 or inputs.shape[1] != run.data.n_inputs or len(inputs) == 0:
        raise DataError(f"inputs: the shape must be (points, {run.data.n_inputs}), got {inputs.shape}")
    return (inputs - run.data.input_center) / run.data.input_scale
