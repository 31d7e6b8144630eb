"""Stored draws turned into network outputs, a bounded number of draws at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.draws.linear import is_linear, modes, outputs_about_modes
from rayfbnn.errors import StoreError, StoreMismatchError
from rayfbnn.model.posterior import Posterior

if TYPE_CHECKING:
    from rayfbnn.data import Dataset
    from rayfbnn.model.architecture import NetworkSpec
    from rayfbnn.spec import RunSpec
    from rayfbnn.store.store import Store

_CACHE_BYTES = 4e6  # activations evaluated at once; larger ones only wait for memory
_COPIES = 8  # of a block's outputs, in float64, that there are at once when the density is taken
_POSTERIORS: WeakKeyDictionary[Store, tuple[RunSpec, Dataset, Posterior]] = WeakKeyDictionary()
_SAME = ("data.standardize", "model", "network", "temperature")  # what makes the posterior, besides the data


@dataclass(frozen=True)
class Draws:
    """The draws that a store had when it was first looked at; a run may continue to write meanwhile."""

    store: Store
    n_chains: int
    n_draws: int

    @property
    def total(self) -> int:
        """Number of draws of all chains together."""
        return self.n_chains * self.n_draws

    def blocks(self, draws_at_once: int) -> Iterator[slice]:
        """Yield slices of successive draws; whole chunks of the store where more than one fits."""
        per_chunk = self.store.draws_per_chunk
        if draws_at_once > per_chunk:
            draws_at_once -= draws_at_once % per_chunk
        for first in range(0, self.n_draws, draws_at_once):
            yield slice(first, min(first + draws_at_once, self.n_draws))

    def blocks_in_memory(self, n_values: int, memory_bytes: float) -> Iterator[tuple[slice, slice]]:
        """Yield chains and draws whose `n_values` numbers each take about half of the memory."""
        chains_at_once = min(self.store.chains_per_batch, self.n_chains)
        draws_at_once = max(1, int(memory_bytes / 2 / (8 * n_values * chains_at_once)))
        for first in range(0, self.n_chains, chains_at_once):
            for draws in self.blocks(draws_at_once):
                yield slice(first, min(first + chains_at_once, self.n_chains)), draws

    def chunks(self) -> Iterator[tuple[slice, slice]]:
        """Yield the chains and draws of each chunk of the store, batch by batch."""
        at_once = min(self.store.chains_per_batch, self.n_chains)
        for first in range(0, self.n_chains, at_once):
            for draws in self.blocks(self.store.draws_per_chunk):
                yield slice(first, min(first + at_once, self.n_chains)), draws


def committed(store: Store) -> Draws:
    """Return the draws that are committed now; StoreError if there are none."""
    draws = Draws(store, store.n_chains, store.committed_draws)
    if draws.n_draws == 0:
        early = "; `predict` and `load` can use its earlier phases" if store.kind == "mcmc" else ""
        raise StoreError(f"{store.path}: no draws are committed yet; run `resume` on it first{early}")
    return draws


def output_blocks(
    run: Draws, inputs: Array, *, memory_bytes: float
) -> Iterator[tuple[slice, slice, Array, Array]]:
    """Yield outputs of every draw at `inputs`: (chains, draws, outputs, precisions), a block at a time.

    Parameters
    ----------
    inputs : (n_cases, n_inputs)   standardised, as the network sees them
    memory_bytes : float           about what may be used while a block is made and while its density is taken

    `outputs` is (n_chains, n_draws, n_cases, n_outputs) in the run's dtype and on the network's scale, for a
    hazard of pieces (n_chains, n_draws, n_cases, n_pieces); `precisions` (n_chains, n_draws, n_precisions).
    """
    store = run.store
    posterior = posterior_of(store)
    at_modes = modes(store) if is_linear(store) else None
    n_cases = len(inputs)
    model = posterior.data_model
    inputs = model.cell_inputs(inputs)
    n_values = 2 * (posterior.n_parameters + posterior.n_precisions)
    n_values += _COPIES * len(inputs) * posterior.network.outputs
    for chains, draws in run.blocks_in_memory(n_values, memory_bytes):
        positions = store.read_positions(draws, chains)
        if at_modes is None:
            outputs = _outputs(posterior, positions, inputs, memory_bytes / 2)
        else:
            starts = store.read_starts(draws, chains)
            outputs = outputs_about_modes(posterior, at_modes, starts, positions, inputs)
        if model.n_cells > 1:
            outputs = outputs.reshape(*outputs.shape[:2], n_cases, -1)
        yield chains, draws, outputs, store.read_precisions(draws, chains)


def outputs_by_case(run: Draws, inputs: Array, *, memory_bytes: float) -> Array:
    """Return the outputs of every draw, (n_cases, n_outputs, n_chains, n_draws) in the run's dtype.

    The parameters are those of `output_blocks`; the memory of the result itself comes on top.
    """
    values: Array = None
    for chains, draws, outputs, _ in output_blocks(run, inputs, memory_bytes=memory_bytes):
        if values is None:
            values = np.empty((*outputs.shape[2:], run.n_chains, run.n_draws), dtype=outputs.dtype)
        values[:, :, chains, draws] = np.moveaxis(outputs, (0, 1), (2, 3))
    return values


def activation_bytes(network: NetworkSpec, dtype: str) -> int:
    """Return about how many bytes the layers of one network take for one case during its evaluation."""
    units = network.inputs + sum(layer.units for layer in network.hidden) + network.outputs
    return 2 * units * np.dtype(dtype).itemsize


def networks_at_once(bytes_of_one: int, memory_bytes: float) -> int:
    """Return how many networks are evaluated together, each of which takes so many bytes."""
    return max(1, int(min(memory_bytes, _CACHE_BYTES) / bytes_of_one))


def posterior_of(store: Store) -> Posterior:
    """Return the posterior that the store's draws are from, on the host; made once for each open store."""
    spec, data = store.spec, store.data
    known = _POSTERIORS.get(store)
    if known is not None and known[0] is spec and known[1] is data:
        return known[2]
    posterior = Posterior.from_pieces(
        spec.network,
        spec.model,
        data.standardized_pieces(),
        data.standardized_targets,
        dtype=spec.dtype,
    )
    _POSTERIORS[store] = spec, data, posterior
    return posterior


def _outputs(posterior: Posterior, positions: Array, inputs: Array, memory_bytes: float) -> Array:
    """Evaluate each draw as if it were a chain, some at once: (n_chains, n_draws, n_cases, n_outputs)."""
    flat = np.ascontiguousarray(positions, dtype=posterior.dtype).reshape(-1, posterior.n_parameters)
    outputs = np.empty((len(flat), posterior.network.outputs, len(inputs)), dtype=posterior.dtype)
    bytes_of_one = activation_bytes(posterior.network, posterior.dtype) * len(inputs)
    at_once = networks_at_once(bytes_of_one, memory_bytes)
    for first in range(0, len(flat), at_once):
        some = slice(first, first + at_once)
        outputs[some] = posterior.outputs(flat[some], inputs).swapaxes(1, 2)  # units first, as it was made
    return outputs.reshape(*positions.shape[:2], *outputs.shape[1:]).swapaxes(-1, -2)


def sigmas_of_columns(run: Draws, columns: Array) -> Array:
    """Return standard deviations, precision**-1/2, of some columns, (n_columns, n_chains, n_draws)."""
    sigmas = np.empty((len(columns), run.n_chains, run.n_draws))
    for chains, draws in run.chunks():
        precisions = run.store.read_precisions(draws, chains)[:, :, columns]
        sigmas[:, chains, draws] = np.moveaxis(precisions, 2, 0) ** -0.5
    return sigmas


def check_same_posterior(
    stores: Sequence[Store], *, is_prior_allowed: bool = False, is_approximation_allowed: bool = False
) -> None:
    """Raise StoreMismatchError unless all stores hold draws of one posterior.

    Where it is allowed, some may be from its prior, or from approximations of it.
    """
    from rayfbnn.spec import differences

    first = stores[0]
    for other in stores[1:]:
        reasons = [
            difference for difference in differences(first.spec, other.spec) if difference.startswith(_SAME)
        ]
        if (first.kind == "prior") != (other.kind == "prior") and not is_prior_allowed:
            reasons.append(f"kind: {first.kind} and {other.kind} draws, of the prior and of the posterior")
        is_mixed = (first.kind == "approximate") != (other.kind == "approximate")
        if is_mixed and not is_approximation_allowed:
            reasons.append(
                f"kind: {first.kind} and {other.kind} draws; `compare` holds approximations against the"
                " posterior"
            )
        if _labels(first) != _labels(other):
            reasons.append("data: the labels of the targets differ")
        if first.data.hash != other.data.hash:
            reasons.append("data: the training cases differ")
        if reasons:
            raise StoreMismatchError(
                f"{other.path}: is not from the posterior of {first.path}: {'; '.join(reasons)}"
            )


def _labels(store: Store) -> dict[str, tuple[str, ...]]:
    return {} if store.spec.encoding is None else store.spec.encoding.labels


def check_independent(stores: Sequence[Store]) -> None:
    """Raise StoreMismatchError if two of the stores were sampled with the same random numbers."""
    seen: dict[tuple[str, int], Store] = {}
    for store in stores:
        key = (store.kind, store.spec.seed)
        if key in seen:
            raise StoreMismatchError(
                f"{store.path}: has seed {store.spec.seed} like {seen[key].path}: their draws are not"
                " independent, so they cannot be pooled; sample one of them with another seed"
            )
        seen[key] = store
