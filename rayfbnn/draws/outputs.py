"""Stored draws turned into network outputs, a bounded number of draws at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.draws.linear import is_linear, modes, outputs_about_modes
from rayfbnn.draws.view import Draws
from rayfbnn.model.posterior import Posterior

if TYPE_CHECKING:
    from rayfbnn.data import Dataset
    from rayfbnn.model.architecture import ModelSpec, NetworkSpec
    from rayfbnn.store.store import Store

_CACHE_BYTES = 4e6  # of activations at once; larger blocks only wait for memory
_COPIES = 8  # of a block's outputs, in float64, held at once when the density is computed
_Made: TypeAlias = tuple["Dataset", "NetworkSpec", "ModelSpec", Posterior]
_POSTERIORS: WeakKeyDictionary[Store, dict[str, _Made]] = WeakKeyDictionary()  # by dtype


def output_blocks(
    run: Draws, inputs: Array, *, memory_bytes: float
) -> Iterator[tuple[slice, slice, Array, Array]]:
    """Yield outputs of every draw at `inputs`: (chains, draws, outputs, precisions), a block at a time.

    Parameters
    ----------
    inputs : (n_cases, n_inputs)   standardised, as the network sees them
    memory_bytes : float           approximate memory to use for a block, and then for its density

    `outputs` is that of `outputs_alone`. `precisions` is (n_chains, n_draws, n_precisions).
    """
    for chains, draws, outputs in outputs_alone(run, inputs, memory_bytes=memory_bytes):
        yield chains, draws, outputs, run.precisions(chains, draws)


def outputs_alone(run: Draws, inputs: Array, *, memory_bytes: float) -> Iterator[tuple[slice, slice, Array]]:
    """Yield outputs of every draw as `output_blocks`, without reading precisions: (chains, draws, outputs).

    `outputs` is (n_chains, n_draws, n_cases, n_outputs) in the run's dtype and on the network's scale. For a
    hazard of pieces it is (n_chains, n_draws, n_cases, n_pieces).
    """
    posterior = posterior_of(run)
    at_modes = modes(run) if is_linear(run) else None
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
    for chains, draws, outputs in outputs_alone(run, inputs, memory_bytes=memory_bytes):
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
        spec.network,
        spec.model,
        data.standardized_pieces(),
        data.standardized_targets,
        dtype=spec.dtype,
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
