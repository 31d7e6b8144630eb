"""The view of draws that every answer takes, fixed when it is made, and states of an earlier phase."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.errors import StoreError, StoreOvertakenError
from rayfbnn.store.catalogue import LADDER
from rayfbnn.store.store import STEPSIZE, stepsizes_of_draws

if TYPE_CHECKING:
    from rayfbnn.data import Dataset
    from rayfbnn.model.layout import ParameterLayout, PrecisionLayout
    from rayfbnn.spec import RunSpec
    from rayfbnn.state import ChainState
    from rayfbnn.store.catalogue import Kind, Section
    from rayfbnn.store.storage.places import Place
    from rayfbnn.store.store import Store


_ALL = slice(None)
POSITIONS, PRECISIONS, STARTS = "positions", "precisions", "starts"


class Source(Protocol):
    """A reader of draws, which may choose, join or hold draws of another source."""

    def read(self, name: str, chains: slice, draws: slice) -> Array:
        """Return POSITIONS, PRECISIONS, STARTS, STEPSIZE, a statistic, or an array of ladders.

        The result is (n_chains, n_draws, ...).

        chains, draws  slices of step 1 with both ends, within the source
        """


@dataclass(frozen=True, eq=False)
class Draws:
    """The draws that an answer uses.

    The number of committed draws is read once, when the view is made. The run may continue to write.

    store             the store with the training cases, layouts and records
    source            the reader of the chosen draws
    spec              the store's configuration; its dtype is used to evaluate networks
    n_chains          number of chains
    n_draws           number of draws of each chain
    chains_per_batch  number of chains that are read together
    draws_per_chunk   number of draws of a chain that are stored together
    early_phase       number of the phase, from 1, if these are states of an earlier phase and not draws from
                      the posterior
    skipped           number of draws that are left out at the start of each chain
    """

    store: Store
    source: Source
    spec: RunSpec
    n_chains: int
    n_draws: int
    chains_per_batch: int
    draws_per_chunk: int
    early_phase: int | None = None
    skipped: int = 0

    @property
    def data(self) -> Dataset:
        """The training cases."""
        return self.store.data

    @property
    def path(self) -> Place:
        """The store's folder."""
        return self.store.path

    @property
    def kind(self) -> Kind:
        """Kind of the draws: from Markov chains, exact by rejection, from the prior, or approximate."""
        return self.store.kind

    @property
    def is_of_ladders(self) -> bool:
        """True for draws of a run of ladders, and not of an earlier phase."""
        return self.kind == "mcmc" and self.spec.ladder is not None and self.early_phase is None

    @property
    def is_linear(self) -> bool:
        """True if the outputs of the draws are linear about the modes of their starts."""
        fit = self.spec.fit if self.kind == "approximate" else None
        return fit is not None and fit.linear_about is not None

    @property
    def parameter_layout(self) -> ParameterLayout:
        """Columns of `positions`."""
        return self.store.parameter_layout

    @property
    def precision_layout(self) -> PrecisionLayout:
        """Columns of `precisions`."""
        return self.store.precision_layout

    @property
    def total(self) -> int:
        """Number of draws of all chains together."""
        return self.n_chains * self.n_draws

    def positions(self, chains: slice = _ALL, draws: slice = _ALL) -> Array:
        """Return parameters, (n_chains, n_draws, n_parameters), in the dtype of the run."""
        return self._read(POSITIONS, chains, draws)

    def precisions(self, chains: slice = _ALL, draws: slice = _ALL) -> Array:
        """Return precisions, sigma**-2, (n_chains, n_draws, n_precisions) float64."""
        return self._read(PRECISIONS, chains, draws)

    def starts(self, chains: slice = _ALL, draws: slice = _ALL) -> Array:
        """Return the number of the store's chain that each draw is from, (n_chains, n_draws)."""
        return self._read(STARTS, chains, draws)

    @property
    def chain_numbers(self) -> tuple[int, ...]:
        """The numbers that the chains have in the store."""
        return tuple(self.starts(draws=slice(0, 1))[:, 0].tolist())

    def stat(self, name: str, chains: slice = _ALL, draws: slice = _ALL) -> Array:
        """Return one of catalogue.STATS, or STEPSIZE (store/store.py), (n_chains, n_draws) float64."""
        return self._read(name, chains, draws)

    def of_ladder(self, name: str) -> Array:
        """Return an array of the group catalogue.LADDER, (n_chains, n_draws, ...) float32."""
        return self._read(f"{LADDER}/{name}", _ALL, _ALL)

    def _read(self, name: str, chains: slice, draws: slice) -> Array:
        return self.source.read(name, _span(chains, self.n_chains), _span(draws, self.n_draws))

    def blocks_in_memory(self, n_values: int, memory_bytes: float) -> Iterator[tuple[slice, slice]]:
        """Yield blocks of chains and draws that fill about half of the memory, `n_values` numbers a draw.

        The blocks are whole chunks of the store if more than one fits.
        """
        of_a_draw = 8 * n_values * min(self.chains_per_batch, self.n_chains)
        draws_at_once = max(1, int(memory_bytes / 2 / of_a_draw))
        if draws_at_once > self.draws_per_chunk:
            draws_at_once -= draws_at_once % self.draws_per_chunk
        return self._blocks(draws_at_once)

    def chunks(self) -> Iterator[tuple[slice, slice]]:
        """Yield the chains and draws of each chunk of the store, batch by batch."""
        return self._blocks(self.draws_per_chunk)

    def _blocks(self, draws_at_once: int) -> Iterator[tuple[slice, slice]]:
        chains_at_once = min(self.chains_per_batch, self.n_chains)
        for chain in range(0, self.n_chains, chains_at_once):
            for draw in range(0, self.n_draws, draws_at_once):
                yield (
                    slice(chain, min(chain + chains_at_once, self.n_chains)),
                    slice(draw, min(draw + draws_at_once, self.n_draws)),
                )


@dataclass(frozen=True)
class Committed:
    """The draws of all chains of a store that were committed when this object was made.

    section  whether they are from the posterior, or of warm-up phases that are kept apart
    """

    store: Store
    n_draws: int
    section: Section = "posterior"

    def read(self, name: str, chains: slice, draws: slice) -> Array:
        """Read from the store, which checks each chunk against its digest."""
        which: Any = {"section": self.section, "committed": self.n_draws}
        if name == POSITIONS:
            return self.store.read_positions(draws, chains, **which)
        if name == PRECISIONS:
            return self.store.read_precisions(draws, chains, **which)
        if name == STARTS:
            return chain_numbers(chains, draws)
        if name == STEPSIZE and self.section == "posterior":
            return stepsizes_of_draws(self.store, chains, draws)
        if name.startswith(f"{LADDER}/"):
            return self.store.read_ladder(
                name.removeprefix(f"{LADDER}/"), draws, chains, committed=self.n_draws
            )
        return self.store.read_stat(name, draws, chains, **which)


def committed(store: Store) -> Draws:
    """Return a view of the draws that are committed now; StoreError if there are none."""
    n_draws = store.committed_draws
    if n_draws == 0:
        has_early = store.kind == "mcmc" and store.spec.ladder is None
        early = "; `predict` and `load` can use its earlier phases" if has_early else ""
        raise StoreError(f"{store.path}: no draws are committed yet; run `resume` on it first{early}")
    return of_store(store, n_draws)


def of_store(store: Store, n_draws: int) -> Draws:
    """Return a view of the first `n_draws` draws of every chain; the caller knows that they are committed."""
    return of_source(store, Committed(store, n_draws), n_draws)


def of_source(store: Store, source: Source, n_draws: int, *, early_phase: int | None = None) -> Draws:
    """Return a view of `n_draws` draws of every chain of a store, read by the source."""
    return Draws(
        store,
        source,
        store.spec,
        store.n_chains,
        n_draws,
        store.header.chains_per_batch,
        store.header.draws_per_chunk,
        early_phase,
    )


def chain_numbers(chains: slice, draws: slice) -> Array:
    """Return the number of the chain of each draw, (n_chains, n_draws)."""
    rows = np.arange(chains.start, chains.stop)
    return np.repeat(rows[:, None], draws.stop - draws.start, axis=1)


def _span(part: slice, n: int) -> slice:
    start, stop, step = part.indices(n)
    if step != 1:
        raise ValueError(f"chains, draws: must be slices of step 1, got {part}")
    return slice(start, max(start, stop))


_ATTEMPTS = 5  # to read states while a driver gathers their blocks
_ATTRIBUTES = {POSITIONS: "position", PRECISIONS: "precisions"}


@dataclass(frozen=True, eq=False)
class States:
    """The states of a store at the ends of some blocks, the same number for each batch."""

    store: Store
    states: Sequence[Sequence[ChainState]]  # of each batch

    def read(self, name: str, chains: slice, draws: slice) -> Array:
        """Return a part of the states; StoreError for a statistic."""
        if name == STARTS:
            return chain_numbers(chains, draws)
        if name not in _ATTRIBUTES:
            raise StoreError(f"{self.store.path}: states of an earlier phase have no {name}")
        by_batch = [
            np.stack([getattr(state, _ATTRIBUTES[name]) for state in states], axis=1)
            for states in self.states
        ]
        return np.concatenate(by_batch)[chains, draws]


def committed_or_early(store: Store) -> Draws:
    """Return the committed draws or, if a run has none yet, states of the latest earlier phase.

    A run stores a state at the end of each block of iterations, to resume from there. The result has the
    states of the later half of the blocks, in the latest phase with a committed block of every batch. In
    these phases the chains move towards the posterior and the settings change. The states are therefore not
    draws from the posterior, and `early_phase` of the result is the phase's number. StoreError if the run has
    no such states either, and for ladders, most of whose levels are far from the posterior.
    """
    for _ in range(_ATTEMPTS - 1):
        # A driver that gathers blocks keeps only the last state of each segment.
        with suppress(StoreOvertakenError):
            return _committed_or_early(store)
    return _committed_or_early(store)


def _committed_or_early(store: Store) -> Draws:
    n_draws = store.committed_draws
    if n_draws > 0:
        return of_store(store, n_draws)
    if store.kind != "mcmc" or store.spec.ladder is not None:
        return committed(store)
    records = [store.commits.records(batch) for batch in range(store.n_batches)]
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
    states = [[store.commits.state_after(record) for record in some[-n_states:]] for some in of_phase]
    source = States(store, [[state for state in some if state is not None] for some in states])
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
