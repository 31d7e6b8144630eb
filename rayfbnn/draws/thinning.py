"""A store of which every so many draws are read, for answers that need not look at all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.draws.draws import Draws

if TYPE_CHECKING:
    from rayfbnn.store.store import Store

_ALL = slice(None)
_BLOCKS = 16  # that are read of a batch, however long the run is
_DRAWS = 50  # of a block, if a chunk has as many


def thinned(run: Draws, at_most: int) -> Draws:
    """Return at most so many draws of each chain, evenly spaced in at most 16 evenly spaced blocks."""
    numbers = _draw_numbers(run.n_draws, _per_block(run.store), at_most)
    if len(numbers) == run.n_draws:
        return run
    return Draws(with_draws(run.store, numbers), run.n_chains, len(numbers))


def with_draws(store: Store, numbers: Array) -> Store:
    """Return the store as if only the draws of each chain with these increasing numbers had been kept."""
    return cast("Store", _Thinned(store, numbers))


def _per_block(store: Store) -> int:
    return min(_DRAWS, store.draws_per_chunk)


def _draw_numbers(n_draws: int, per_block: int, at_most: int) -> Array:
    """Return the numbers of the draws that are read, in order; the last draw is among them."""
    blocks = evenly_spaced(-(-n_draws // per_block), _BLOCKS)
    numbers = (blocks[:, None] * per_block + np.arange(per_block)).reshape(-1)
    numbers = numbers[numbers < n_draws]
    step = -(-len(numbers) // at_most)
    return numbers[::-1][::step][::-1]


def evenly_spaced(n: int, at_most: int) -> Array:
    """Return at most so many of the numbers below n, evenly spaced from the first to the last."""
    return np.unique(np.linspace(0, n - 1, min(at_most, n)).round().astype(int))


class _Thinned:
    """Reads of draws take those with the given numbers; everything else is the store's."""

    def __init__(self, store: Store, numbers: Array) -> None:
        self._store, self._numbers = store, numbers
        self.committed_draws = len(numbers)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def read_positions(self, draws: slice = _ALL, chains: slice = _ALL) -> Array:
        return self._read(lambda some: self._store.read_positions(some, chains), draws)

    def read_precisions(self, draws: slice = _ALL, chains: slice = _ALL) -> Array:
        return self._read(lambda some: self._store.read_precisions(some, chains), draws)

    def read_starts(self, draws: slice = _ALL, chains: slice = _ALL) -> Array:
        return self._read(lambda some: self._store.read_starts(some, chains), draws)

    def read_stat(self, name: str, draws: slice = _ALL) -> Array:
        return self._read(lambda some: self._store.read_stat(name, some), draws)

    def _read(self, read: Callable[[slice], Array], draws: slice) -> Array:
        """Read a block of the store at a time, so that no more is in memory besides the result."""
        numbers = self._numbers[draws]
        splits = np.flatnonzero(np.diff(numbers // _per_block(self._store))) + 1
        pieces = [
            read(slice(int(some[0]), int(some[-1]) + 1))[:, some - some[0]]
            for some in np.split(numbers, splits)
        ]
        return np.concatenate(pieces, axis=1)
