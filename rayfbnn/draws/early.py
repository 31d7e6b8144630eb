"""States of an earlier phase, which are read as draws as long as a run has kept none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.draws.view import (
    POSITIONS,
    PRECISIONS,
    STARTS,
    Draws,
    chain_numbers,
    committed,
    of_source,
    of_store,
)
from rayfbnn.errors import StoreError

if TYPE_CHECKING:
    from rayfbnn.state import ChainState
    from rayfbnn.store.records import Record
    from rayfbnn.store.store import Store

_ATTRIBUTES = {POSITIONS: "position", PRECISIONS: "precisions"}


@dataclass(frozen=True, eq=False)
class States:
    """The states of a store at the ends of some blocks, the same number for each batch."""

    store: Store
    records: Sequence[Sequence[Record]]  # of each batch

    def read(self, name: str, chains: slice, draws: slice) -> Array:
        """Return a part of the states, which are read only once; StoreError for a statistic."""
        if name == STARTS:
            return chain_numbers(chains, draws)
        if name not in _ATTRIBUTES:
            raise StoreError(f"{self.store.path}: states of an earlier phase have no {name}")
        by_batch = [
            np.stack([getattr(state, _ATTRIBUTES[name]) for state in states], axis=1)
            for states in self._states
        ]
        return np.concatenate(by_batch)[chains, draws]

    @cached_property
    def _states(self) -> list[list[ChainState]]:
        states = [[self.store.state_after(record) for record in some] for some in self.records]
        return [[state for state in some if state is not None] for some in states]


def committed_or_early(store: Store) -> Draws:
    """Return the committed draws or, if a run has none yet, states of the latest earlier phase.

    A run stores a state at the end of each block of iterations, to resume from there. The result has the
    states of the later half of the blocks, in the latest phase with a committed block of every batch. In
    these phases the chains move towards the posterior and the settings change. The states are therefore not
    draws from the posterior, and `early_phase` of the result is the phase's number. StoreError if the run has
    no such states either, and for ladders, most of whose levels are far from the posterior.
    """
    n_draws = store.committed_draws
    if n_draws > 0:
        return of_store(store, n_draws)
    if store.kind != "mcmc" or store.spec.ladder is not None:
        return committed(store)
    records = [store.commits.all(batch) for batch in range(store.n_batches)]
    ends = np.cumsum([phase.iterations for phase in store.spec.phase])
    phases = [[int(np.searchsorted(ends, record.first_iteration)) for record in some] for some in records]
    if not all(phases):
        return committed(store)
    latest = min(some[-1] for some in phases)
    of_phase = [
        [record for record, phase in zip(some, numbers, strict=True) if phase == latest]
        for some, numbers in zip(records, phases, strict=True)
    ]
    n_states = -(-min(len(some) for some in of_phase) // 2)
    source = States(store, [some[-n_states:] for some in of_phase])
    return of_source(store, source, n_states, early_phase=latest + 1)


def early_warning(run: Draws) -> str:
    """Return a warning that early draws are not from the posterior, with their number and phase."""
    spec, store = run.spec, run.store
    iteration = min(store.progress(batch).iteration for batch in range(store.n_batches))
    states = f"{run.n_draws} state{'s' if run.n_draws > 1 else ''}"
    return (
        f"{run.path}: NOT FROM THE POSTERIOR: no draws are kept yet (iteration {iteration} of"
        f" {spec.total_iterations}), so these are {states} of each chain from phase {run.early_phase} of"
        f" {len(spec.phase)}, before the chains reach the posterior; means may be useful, but do not trust"
        " intervals yet. Use `resume` to continue to the posterior"
    )
