"""Chosen draws of a store, held in memory, for every function that reads draws."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.draws.linear import is_linear
from rayfbnn.draws.thinning import evenly_spaced, with_draws

if TYPE_CHECKING:
    from rayfbnn.store.store import Store

_ALL = slice(None)
_CHAINS_AT_ONCE = 16


def spread(n_draws: int, n_wanted: int) -> Array:
    """Return the numbers of `n_wanted` of `n_draws` draws, evenly spaced, the last draw among them."""
    return (n_draws - 1 - evenly_spaced(n_draws, n_wanted))[::-1]


def hold(store: Store, numbers: Array, *, dtype: str | None = None) -> Store:
    """Return the store as if only some draws had been kept, with these draws in memory.

    numbers  of the committed draws of each chain that are held, increasing
    dtype    of the networks' evaluation; that of the run if it is None
    """
    return cast("Store", _Held(with_draws(store, numbers), dtype or store.spec.dtype))


class _Held:
    """Reads of draws are answered from memory; everything else is the store's."""

    def __init__(self, store: Store, dtype: str) -> None:
        self._store = store
        self.spec = store.spec.model_copy(update={"dtype": dtype})
        self._positions = store.read_positions()  # (n_chains, n_draws, n_parameters)
        self._precisions = store.read_precisions()  # (n_chains, n_draws, n_precisions)
        self._starts: Array = store.read_starts() if is_linear(store) else np.empty((0, 0))
        # How many are evaluated at once, where memory allows: none is read in parts.
        self.chains_per_batch = min(store.n_chains, _CHAINS_AT_ONCE)
        self.draws_per_chunk = store.committed_draws

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def read_positions(self, draws: slice = _ALL, chains: slice = _ALL) -> Array:
        return self._positions[chains, draws]

    def read_precisions(self, draws: slice = _ALL, chains: slice = _ALL) -> Array:
        return self._precisions[chains, draws]

    def read_starts(self, draws: slice = _ALL, chains: slice = _ALL) -> Array:
        return self._starts[chains, draws]
