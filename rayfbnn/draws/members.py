"""The draws of an approximation that count: of each start as many as its weight says."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.draws.fits import fit_summary

if TYPE_CHECKING:
    from rayfbnn.store.store import Store

_ALL = slice(None)


def with_members(store: Store) -> Store:
    """Return the store as if it had kept only the draws that count, which are then those of one chain.

    Of start c these are its first n_c draws, n_c being in proportion to its weight; the start of the largest
    weight has all of its draws. A store whose starts count alike is returned as it is, and so is one that
    holds no approximation, or no draws yet.
    """
    if store.kind != "approximate" or store.committed_draws == 0:
        return store
    weight = fit_summary(store).weight
    counts = np.floor(store.committed_draws * weight / weight.max() + 1e-9).astype(int)
    if (counts == store.committed_draws).all():
        return store
    return cast("Store", _Members(store, counts))


class _Members:
    """A store of one chain, in which the first draws of one start follow those of another.

    counts  number of draws of each start
    """

    def __init__(self, store: Store, counts: Array) -> None:
        self._store = store
        self._ends = np.cumsum(counts)
        self.n_chains, self.chains_per_batch = 1, 1
        self.committed_draws = int(self._ends[-1])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def read_positions(self, draws: slice = _ALL, chains: slice = _ALL) -> Array:
        return self._read(self._store.read_positions, draws)[chains]

    def read_precisions(self, draws: slice = _ALL, chains: slice = _ALL) -> Array:
        return self._read(self._store.read_precisions, draws)[chains]

    def read_starts(self, draws: slice = _ALL, chains: slice = _ALL) -> Array:
        return self._read(self._store.read_starts, draws)[chains]

    def read_stat(self, name: str, draws: slice = _ALL) -> Array:
        return self._read(lambda some, chains: self._store.read_stat(name, some)[chains], draws)

    def _read(self, read: Callable[[slice, slice], Array], draws: slice) -> Array:
        """Return the draws of each start that are among those wanted, one start after the other."""
        first, last, _ = draws.indices(self.committed_draws)
        pieces = []
        for start, end in enumerate(self._ends):
            begin = self._ends[start - 1] if start else 0
            low, high = max(first, begin), min(last, end)
            if low < high:
                pieces.append(read(slice(low - begin, high - begin), slice(start, start + 1)))
        return np.concatenate(pieces, axis=1)
