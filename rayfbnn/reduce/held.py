"""Chosen draws of a store, held in memory, for whatever reads draws."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.errors import ConfigError
from rayfbnn.reduce.draws import committed

if TYPE_CHECKING:
    from rayfbnn.store.store import Store

_ALL = slice(None)
_CHAINS_AT_ONCE = 16


def evenly_spaced(n_draws: int, n_wanted: int) -> Array:
    """Return the numbers of `n_wanted` of `n_draws` draws, evenly spaced, the last draw among them."""
    steps = np.arange(n_wanted, 0, -1, dtype=np.int64)
    return n_draws - 1 - (steps - 1) * n_draws // n_wanted


def hold(store: Store, numbers: Array) -> Store:
    """Return the store as it would be read had only some draws been kept, with these draws in memory.

    numbers  of the draws of each chain that are held, increasing; ConfigError if one is not committed
    """
    n_draws = committed(store).n_draws
    if len(numbers) == 0 or numbers[0] < 0 or numbers[-1] >= n_draws:
        raise ConfigError(f"draws: must be among the {n_draws} of each chain of {store.path}, got {numbers}")
    return cast("Store", _Held(store, numbers))


class _Held:
    """Reads of draws are answered from memory; everything else is the store's."""

    def __init__(self, store: Store, numbers: Array) -> None:
        self._store, self.numbers = store, numbers
        self.committed_draws = len(numbers)
        # How many are evaluated at once, where memory allows: none is read in parts.
        self.chains_per_batch, self.draws_per_block = min(store.n_chains, _CHAINS_AT_ONCE), len(numbers)
        positions, precisions = [], []
        for first in range(0, int(numbers[-1]) + 1, store.draws_per_block):
            end = first + store.draws_per_block
            inside = numbers[(numbers >= first) & (numbers < end)]
            if len(inside):
                draws = slice(int(inside[0]), int(inside[-1]) + 1)
                positions.append(store.read_positions(draws)[:, inside - draws.start])
                precisions.append(store.read_precisions(draws)[:, inside - draws.start])
        self._positions = np.concatenate(positions, axis=1)  # (n_chains, n_draws, n_parameters)
        self._precisions = np.concatenate(precisions, axis=1)  # (n_chains, n_draws, n_precisions)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def read_positions(self, draws: slice = _ALL, chains: slice = _ALL) -> Array:
        return self._positions[chains, draws]

    def read_precisions(self, draws: slice = _ALL, chains: slice = _ALL) -> Array:
        return self._precisions[chains, draws]

    def read_stat(self, name: str, draws: slice = _ALL) -> Array:
        return self._store.read_stat(name)[:, self.numbers[draws]]
