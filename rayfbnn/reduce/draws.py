"""Stored draws turned into network outputs, a bounded number of draws at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.errors import StoreError, StoreMismatchError
from rayfbnn.model.network import Wiring, forward, input_rows

if TYPE_CHECKING:
    from rayfbnn.architecture import NetworkSpec
    from rayfbnn.run.store import Store

_CACHE_BYTES = 4e6  # activations evaluated at once; larger ones only wait for memory
_COPIES = 8  # of a block's outputs, in float64, that there are at once when the density is taken
_SAME = ("data.standardize", "model", "network")  # what makes the posterior, besides the data


def output_blocks(
    store: Store, inputs: Array, *, memory_bytes: float
) -> Iterator[tuple[slice, slice, Array, Array]]:
    """Outputs of every committed draw at `inputs`: (chains, draws, outputs, precisions), a block at a time.

    Parameters
    ----------
    inputs : (n_cases, n_inputs)   standardised, as the network sees them
    memory_bytes : float           about what may be used while a block is made and while its density is taken

    `outputs` is (n_chains, n_draws, n_cases, n_outputs) in the run's dtype and on the network's scale,
    `precisions` (n_chains, n_draws, n_precisions).
    """
    network = store.spec.network_spec(store.data.n_targets)
    n_values = 2 * (store.parameter_layout.n_parameters + store.precision_layout.n_precisions)
    n_values += _COPIES * len(inputs) * network.outputs
    chains_at_once = min(store.chains_per_batch, store.n_chains)
    draws_at_once = max(1, int(memory_bytes / 2 / (8 * n_values * chains_at_once)))
    if draws_at_once > store.draws_per_block:  # whole chunks of the store
        draws_at_once -= draws_at_once % store.draws_per_block
    for first_chain in range(0, store.n_chains, chains_at_once):
        chains = slice(first_chain, min(first_chain + chains_at_once, store.n_chains))
        for first in range(0, store.committed_draws, draws_at_once):
            draws = slice(first, min(first + draws_at_once, store.committed_draws))
            positions = store.read_positions(draws, chains)
            outputs = _outputs(network, positions, inputs, store.spec.dtype, memory_bytes / 2)
            yield chains, draws, outputs, store.read_precisions(draws, chains)


def activation_bytes(network: NetworkSpec, dtype: str) -> int:
    """About what the layers of one network take for one case while it is evaluated."""
    units = network.inputs + sum(layer.units for layer in network.hidden) + network.outputs
    return 2 * units * np.dtype(dtype).itemsize


def _outputs(network: NetworkSpec, positions: Array, inputs: Array, dtype: str, memory_bytes: float) -> Array:
    """(n_chains, n_draws, n_cases, n_outputs): each draw evaluated as if it were a chain, some at once."""
    wiring, rows = Wiring.of(network), input_rows(inputs, dtype)
    flat = np.ascontiguousarray(positions, dtype=dtype).reshape(-1, positions.shape[-1])
    outputs = np.empty((len(flat), network.outputs, len(inputs)), dtype=dtype)
    budget = min(memory_bytes, _CACHE_BYTES)
    at_once = max(1, int(budget / (activation_bytes(network, dtype) * len(inputs))))
    for first in range(0, len(flat), at_once):
        some = slice(first, first + at_once)
        outputs[some] = forward(flat[some], rows, wiring).outputs
    return outputs.reshape(*positions.shape[:2], *outputs.shape[1:]).swapaxes(-1, -2)


def noise_sigmas(store: Store) -> Array:
    """Noise standard deviation of every draw, (n_targets, n_chains, n_draws), for standardised targets."""
    columns = store.precision_layout.noise_columns
    sigmas = np.empty((len(columns), store.n_chains, store.committed_draws))
    for first in range(0, store.committed_draws, store.draws_per_block):
        draws = slice(first, min(first + store.draws_per_block, store.committed_draws))
        sigmas[:, :, draws] = np.moveaxis(store.read_precisions(draws)[:, :, columns], 2, 0) ** -0.5
    return sigmas


def check_has_draws(store: Store) -> None:
    """Raise StoreError if there is nothing to reduce."""
    if store.committed_draws == 0:
        raise StoreError(f"{store.path}: no draws are committed yet; run `resume` on it first")


def check_same_posterior(stores: Sequence[Store]) -> None:
    """Raise StoreMismatchError unless all stores hold draws of one posterior."""
    from rayfbnn.spec import differences

    first = stores[0]
    for other in stores[1:]:
        found = [
            difference for difference in differences(first.spec, other.spec) if difference.startswith(_SAME)
        ]
        if first.data.hash != other.data.hash:
            found.append("data: the training cases differ")
        if found:
            raise StoreMismatchError(
                f"{other.path} is not from the posterior of {first.path}: {'; '.join(found)}"
            )


def check_independent(stores: Sequence[Store]) -> None:
    """Raise StoreMismatchError if two of the stores were sampled with the same random numbers."""
    seen: dict[tuple[str, int], Store] = {}
    for store in stores:
        key = (store.kind, store.spec.seed)
        if key in seen:
            raise StoreMismatchError(
                f"{store.path} and {seen[key].path} both have seed {store.spec.seed}: their draws are not"
                " independent, so they cannot be pooled; sample one of them with another seed"
            )
        seen[key] = store
