"""Two stores with half of a store's draws each, so that a posterior can be compared with itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.draws.thinning import with_draws
from rayfbnn.errors import StoreError

if TYPE_CHECKING:
    from rayfbnn.store.store import Store

_ALL = slice(None)


def halves(store: Store) -> tuple[Store, Store]:
    """Return the store as if it had only the first half of its chains, and as if it had only the others.

    A store with one chain is split between its draws. StoreError if there is a single draw.
    """
    n_chains, n_draws = store.n_chains, store.committed_draws
    if n_chains > 1:
        middle = n_chains // 2
        return _of_chains(store, 0, middle), _of_chains(store, middle, n_chains)
    if n_draws < 2:
        raise StoreError(f"{store.path}: has {n_draws} draws; a comparison needs at least 2")
    first, second = np.array_split(np.arange(n_draws), 2)
    return with_draws(store, first), with_draws(store, second)


def _of_chains(store: Store, first: int, end: int) -> Store:
    return cast("Store", _SomeChains(store, first, end))


class _SomeChains:
    """A store whose chains are those from `first` up to `end`; everything else is the store's."""

    def __init__(self, store: Store, first: int, end: int) -> None:
        self._store, self._first = store, first
        self.n_chains = end - first

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def read_positions(self, draws: slice = _ALL, chains: slice = _ALL) -> Array:
        return self._store.read_positions(draws, self._moved(chains))

    def read_precisions(self, draws: slice = _ALL, chains: slice = _ALL) -> Array:
        return self._store.read_precisions(draws, self._moved(chains))

    def read_starts(self, draws: slice = _ALL, chains: slice = _ALL) -> Array:
        return self._store.read_starts(draws, self._moved(chains))

    def _moved(self, chains: slice) -> slice:
        start, stop, _ = chains.indices(self.n_chains)
        return slice(start + self._first, stop + self._first)
