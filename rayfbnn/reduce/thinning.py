"""A store of which every so many draws are read, for answers that need not look at all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.reduce.draws import Draws

if TYPE_CHECKING:
    from rayfbnn.store.store import Store

_ALL = slice(None)


def thinned(run: Draws, at_most: int) -> Draws:
    """Return at most so many draws of each chain, evenly spaced up to the last one."""
    step = -(-run.n_draws // at_most)
    if step == 1:
        return run
    store = cast("Store", _Thinned(run.store, run.n_draws, step))
    return Draws(store, run.n_chains, store.committed_draws)


class _Thinned:
    """Reads of draws take every step-th one; everything else is the store's."""

    def __init__(self, store: Store, n_draws: int, step: int) -> None:
        self._store, self._step = store, step
        self.committed_draws = n_draws // step
        self._first = n_draws - self.committed_draws * step + step - 1  # so that the last draw is among them
        self.draws_per_block = max(1, store.draws_per_block // step)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def read_positions(self, draws: slice = _ALL, chains: slice = _ALL) -> Array:
        return self._read(lambda some: self._store.read_positions(some, chains), draws)

    def read_precisions(self, draws: slice = _ALL, chains: slice = _ALL) -> Array:
        return self._read(lambda some: self._store.read_precisions(some, chains), draws)

    def read_stat(self, name: str, draws: slice = _ALL) -> Array:
        return self._read(lambda some: self._store.read_stat(name, some), draws)

    def _read(self, read: Callable[[slice], Array], draws: slice) -> Array:
        """Read a block's draws at a time, so that no more than a block is in memory besides the result."""
        start, stop, _ = draws.indices(self.committed_draws)
        pieces = []
        for first in range(start, stop, self.draws_per_block):
            last = min(first + self.draws_per_block, stop) - 1
            some = slice(self._first + first * self._step, self._first + last * self._step + 1)
            pieces.append(read(some)[:, :: self._step])
        return np.concatenate(pieces, axis=1)
