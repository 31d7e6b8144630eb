"""A run whose sampling phase has not begun, read as if it had kept states of its latest earlier phase."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from rayfbnn.arrays import Array

if TYPE_CHECKING:
    from rayfbnn.state import ChainState
    from rayfbnn.store.records import Record
    from rayfbnn.store.store import Store

_ALL = slice(None)


def with_early_draws(store: Store) -> Store:
    """Return the store as it is if it has draws or cannot have early ones, and else a view of early ones.

    The early draws are the states that a run stores where a block of iterations ends, so that it can be
    resumed. Those of the later half of the blocks are taken, in the latest phase in which every batch has
    committed a block. While a run is in these phases its chains move towards the posterior and its settings
    change: early draws are not draws from the posterior. `early_phase` says whether a store is such a view.
    """
    if store.kind != "mcmc" or store.committed_draws > 0:
        return store
    records = [_records_with_state(store, batch) for batch in range(store.n_batches)]
    ends = np.cumsum([phase.iterations for phase in store.spec.phase])
    phases = [[int(np.searchsorted(ends, record.first_iteration)) for record in some] for some in records]
    if not all(phases):
        return store
    latest = min(some[-1] for some in phases)
    of_phase = [
        [record for record, phase in zip(some, numbers, strict=True) if phase == latest]
        for some, numbers in zip(records, phases, strict=True)
    ]
    n_states = -(-min(len(some) for some in of_phase) // 2)
    taken = [some[-n_states:] for some in of_phase]
    return cast("Store", _EarlyDraws(store, latest + 1, taken))


def early_phase(store: Store) -> int | None:
    """Return the number of the phase that early draws are from, counted from 1; None for any other draws."""
    number: int | None = getattr(store, "early_phase", None)
    return number


def early_warning(store: Store) -> str:
    """Return the sentence that early draws are not from the posterior, and which ones they are."""
    spec, phase = store.spec, early_phase(store)
    iteration = min(store.progress(batch).iteration for batch in range(store.n_batches))
    states = f"{store.committed_draws} state{'s' if store.committed_draws > 1 else ''}"
    return (
        f"{store.path}: NOT FROM THE POSTERIOR: no draws are kept yet (iteration {iteration} of"
        f" {spec.total_iterations}), so these are {states} of each chain from phase {phase} of"
        f" {len(spec.phase)}, on their way there; means may be useful, but intervals are not yet to be"
        " trusted. `resume` goes on to the posterior"
    )


def _records_with_state(store: Store, batch: int) -> list[Record]:
    return [record for record in store.commits.all(batch) if record.state or record.payload]


class _EarlyDraws:
    """Reads of draws are answered by states at the ends of blocks; everything else is the store's.

    early_phase      the number of the phase that they are from, counted from 1
    committed_draws  the number of states of each chain
    """

    def __init__(self, store: Store, phase: int, records: list[list[Record]]) -> None:
        """Take the states after these blocks of each batch, as many for each."""
        self._store, self._records = store, records
        self.early_phase = phase
        self.committed_draws = len(records[0])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def read_positions(self, draws: slice = _ALL, chains: slice = _ALL) -> Array:
        return self._read("position")[chains, draws]

    def read_precisions(self, draws: slice = _ALL, chains: slice = _ALL) -> Array:
        return self._read("precisions")[chains, draws]

    def read_starts(self, draws: slice = _ALL, chains: slice = _ALL) -> Array:
        n_draws = len(range(*draws.indices(self.committed_draws)))
        return np.repeat(np.arange(self._store.n_chains)[chains, None], n_draws, axis=1)

    def _read(self, name: str) -> Array:
        """Return (n_chains, n_draws, ...)."""
        return np.concatenate(
            [np.stack([getattr(state, name) for state in states], axis=1) for states in self._states]
        )

    @cached_property
    def _states(self) -> list[list[ChainState]]:
        states = [[self._store.state_after(record) for record in some] for some in self._records]
        return cast("list[list[ChainState]]", states)
