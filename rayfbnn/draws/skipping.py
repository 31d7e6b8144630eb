"""A store without the first draws of each chain, for every function that reads draws."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from rayfbnn.arrays import Array
from rayfbnn.errors import ConfigError

if TYPE_CHECKING:
    from rayfbnn.store.store import Store

_ALL = slice(None)


def without_first(store: Store, skip: int) -> Store:
    """Return the store as if the first `skip` draws of each chain had not been kept."""
    if skip < 0:
        raise ConfigError(f"skip: must be 0 or more, got {skip}")
    if skip == 0:
        return store
    if skip >= store.committed_draws:
        raise ConfigError(
            f"skip: must be below {store.committed_draws}, the draws of a chain in {store.path}, got {skip}"
        )
    return cast("Store", _Later(store, skip))


class _Later:
    """A store whose reads of draws are moved by `skip`; everything else is the store's."""

    def __init__(self, store: Store, skip: int) -> None:
        self._store, self._skip = store, skip

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @property
    def committed_draws(self) -> int:
        return self._store.committed_draws - self._skip

    def read_positions(self, draws: slice = _ALL, chains: slice = _ALL) -> Array:
        return self._store.read_positions(self._moved(draws), chains)

    def read_precisions(self, draws: slice = _ALL, chains: slice = _ALL) -> Array:
        return self._store.read_precisions(self._moved(draws), chains)

    def read_starts(self, draws: slice = _ALL, chains: slice = _ALL) -> Array:
        return self._store.read_starts(self._moved(draws), chains)

    def read_stat(self, name: str, draws: slice = _ALL) -> Array:
        return self._store.read_stat(name, self._moved(draws))

    def _moved(self, draws: slice) -> slice:
        start, stop, _ = draws.indices(self.committed_draws)
        return slice(start + self._skip, stop + self._skip)
