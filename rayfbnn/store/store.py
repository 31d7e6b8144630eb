"""The store of a run: a plain Zarr hierarchy. Each block of draws is added whole or not at all.

docs/store.md describes the format, and appending.py adds a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.data import Dataset
from rayfbnn.errors import StoreMismatchError, StoreOvertakenError, at_most_ten
from rayfbnn.mcmc.operation import last_stepsizes
from rayfbnn.spec import RunSpec, differences
from rayfbnn.state import ChainState
from rayfbnn.store import creation, locking
from rayfbnn.store.appending import append, gather
from rayfbnn.store.opened import OpenStore
from rayfbnn.store.records import SECONDS, BatchProgress, Block, Record, RunUpdates, VerifyReport
from rayfbnn.store.repair import repair
from rayfbnn.store.rounds import word_of_run
from rayfbnn.store.storage import storage_of
from rayfbnn.store.storage.places import Place, place_of
from rayfbnn.store.storage.protocol import Result, Storage
from rayfbnn.store.verify import verify
from rayfbnn.streams import Purpose, Streams


class Store(OpenStore):
    """An open store. Reading changes nothing; workers call `commit`, and the rest is for the lock's holder.

    Call `open` or `create` to get one.
    """

    _is_locked = False

    @staticmethod
    def create(
        path: str | Place,
        spec: RunSpec,
        data: Dataset,
        *,
        kernel: str,
        blocks: Iterable[Block] = (),
        fs: Storage | None = None,
        **sizes: Any,
    ) -> Store:
        """Create a store at `path`; StoreExistsError if anything is there.

        It is built in a hidden folder next to `path` and then renamed, so a crash leaves nothing at `path`.

        kernel  name of the code that will run the leapfrog steps; workers on other machines use it
        blocks  blocks of the first batch, which are committed before the store is renamed
        sizes   those that do not follow from the specification, as in `creation.new_header`
        """
        path = place_of(path)
        fs = storage_of(path) if fs is None else fs
        header = creation.new_header(spec, n_cases=data.n_cases, data_hash=data.hash, **sizes)
        with creation.created(fs, path, header, spec, data, kernel) as building:
            store = Store.open(building, fs=fs)
            for block in blocks:
                append(store, 0, block)
                gather(store, 0)
            gather(store, 0, everything=True)
        return Store.open(path, fs=fs)

    @staticmethod
    def open(
        path: str | Place,
        *,
        fs: Storage | None = None,
        check_records: bool = True,
        headers_only: bool = False,
    ) -> Store:
        """Open the store at `path`, and check every metadata file and commit record against its checksum.

        Without `check_records` a store with damaged records opens too, for `verify` and `repair`. With
        `headers_only` the draws and states in the files of blocks are read and checked only when they are
        asked for; the records alone tell how far a run is.
        """
        path = place_of(path)
        fs = storage_of(path) if fs is None else fs
        store = Store(fs, path, headers_only=headers_only)
        if check_records:
            store.rows.refresh_all()
        return store

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the place of the store, which the process that unpickles it opens."""
        return Store.open, (self.path,)

    def progress(self, batch: int) -> BatchProgress:
        """Return the progress of a batch. This reads at most one folder and two small files."""
        return self.commits.progress_of([batch])[0]

    def all_progress(self) -> list[BatchProgress]:
        """Return the progress of every batch; a bucket is asked for all of them at once."""
        return self.commits.progress_of(range(self.n_batches))

    @property
    def done(self) -> int:
        """The number of iterations that every chain has committed."""
        return min(progress.iteration for progress in self.all_progress())

    @property
    def seconds(self) -> float | None:
        """The wall-clock time of all workers for all blocks so far; None if blocks have no times.

        Work lost in a kill does not count. Two workers at once take two seconds each second.
        """
        totals = [progress.totals for progress in self.all_progress() if progress.blocks]
        is_known = all(SECONDS in summary for summary in totals)
        return sum(summary[SECONDS] for summary in totals) if is_known else None

    def commit(self, batch: int, block: Block) -> BatchProgress:
        """Add a block to a batch, whole and durable, and return the progress of the batch.

        Committing the same block again succeeds and changes nothing. StoreCorruptError if the block is
        committed with other values, StoreError if it does not follow the last block of the batch.
        """
        return append(self, batch, block)

    def updates(self) -> RunUpdates:
        """Return acceptances and divergences of all batches so far, kept and warm-up apart."""
        lasts = self.commits.lasts(range(self.n_batches))
        return sum(map(self.commits.updates_until, lasts), RunUpdates())

    def load_state(self, batch: int) -> tuple[ChainState, int] | None:
        """Read the state after a batch's last block and its iteration; None before the first block."""
        record, state = self._after_last(batch, self.commits.state_after)
        return None if record is None or state is None else (state, record.progress.iteration)

    def load_named_state(self, batch: int) -> dict[str, Array] | None:
        """Read the state of a fit or of ladders after a batch's last block; None before the first block."""
        return self._after_last(batch, self.commits.named_state_after)[1]

    def _after_last(
        self, batch: int, read: Callable[[Record], Result]
    ) -> tuple[Record | None, Result | None]:
        """Return the last record of a batch and the state after it, which a worker may just be replacing."""
        record = self.commits.last(batch)
        if record is None:
            return None, None
        try:
            return record, read(record)
        except StoreOvertakenError:
            record = self.commits.last(batch) or record
            return record, read(record)

    # For the process that runs the store.

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Make this process the only one that runs the store; StoreBusyError names another one that does.

        On entry, work that a crash interrupted is finished.
        """
        with locking.locked(self.fs, self.path):
            self._is_locked = True
            try:
                locking.finish(self)
                yield
            finally:
                self._is_locked = False

    def gather(self, batch: int, *, everything: bool = False) -> None:
        """Gather the blocks of a batch into segments if their chunks are complete.

        With `everything`, the blocks of an incomplete chunk are gathered too.
        """
        with self._locked():
            gather(self, batch, everything=everything)

    def extend(self, spec: RunSpec, n_draws: int) -> None:
        """Change the length of the run to `n_draws` draws in all; only the last phase of `spec` may differ.

        The run may become shorter if no batch has sampled more. A record is published first. If this process
        dies before it has changed the arrays, the next holder of the lock changes them. Nothing changes if
        `spec` differs in anything else (StoreMismatchError), or if a run of this length does not fit into
        memory or onto the disk (ConfigError).
        """
        with self._locked():
            problems = differences(self.spec.with_iterations(spec.phase[-1].iterations), spec)
            sampled = max(progress.iteration for progress in self.all_progress())
            if spec.total_iterations < sampled:
                problems.append(
                    f"draws: {sampled} iterations are sampled, but {n_draws} draws would be fewer"
                )
            if problems:
                raise StoreMismatchError(
                    f"{self.path}: cannot be extended:\n  " + "\n  ".join(at_most_ten(problems))
                )
            if n_draws == self.root.header.n_draws and spec == self.spec:
                return
            locking.extend(self, spec, n_draws)

    def verify(self) -> VerifyReport:
        """Check every file against its checksum and its record; problems are listed, not raised."""
        return verify(self.path, fs=self.fs)

    def repair(self, *, dry_run: bool = False) -> VerifyReport:
        """Set aside damaged blocks and the blocks after them, which resume computes again.

        With `dry_run` nothing changes, and the report says what would.
        """
        if dry_run:
            return repair(self, dry_run=True)
        with self._locked():
            return repair(self)

    def _locked(self) -> AbstractContextManager[None]:
        return nullcontext() if self._is_locked else self.lock()


STEPSIZE = "stepsize"  # the name that views of draws read these stepsizes by
_AT_ONCE = 50_000  # numbers of chains times draws


@dataclass(frozen=True)
class _Rows(Streams):
    """Streams whose rows are chains at iterations of their own.

    iterations  (n_rows,) uint64
    """

    iterations: Array = None

    def of_some(self, rows: Array) -> Streams:
        """Return some of the rows."""
        return replace(self, chains=self.chains[rows], iterations=self.iterations[rows])

    def _counter(
        self, purpose: Purpose, index: int, attempt: int, *, blocks: range
    ) -> tuple[Array, Array, Array, Array]:
        block, use, operation, _ = super()._counter(purpose, index, attempt, blocks=blocks)
        return block, use, operation, self.iterations[:, None]


def stepsizes_of_draws(store: Store, chains: slice, draws: slice) -> Array:
    """Return the stepsize behind the `energy_change` of each draw, (n_chains, n_draws) float64.

    It is the factor on the heuristic stepsizes, with its jitter (trajectories.last_stepsizes), and NaN for
    draws without one, and for those of ladders. Nothing is read but the settings that tuning has found.

    chains, draws  slices of step 1 with both ends
    """
    values = np.full((chains.stop - chains.start, draws.stop - draws.start), np.nan)
    first_iteration, first_draw = 1, 0
    for phase in store.spec.phase if store.kind == "mcmc" and store.spec.ladder is None else ():
        end = first_draw + phase.iterations if phase.keep is True else first_draw
        low, high = max(first_draw, draws.start), min(end, draws.stop)
        at_once = max(1, _AT_ONCE // max(1, len(values)))
        for first in range(low, high, at_once):
            some = np.arange(first, min(first + at_once, high))
            streams = _rows(store.spec.seed, chains, some - first_draw + first_iteration)
            factors = last_stepsizes(phase.operations, store.tuning.at(first_iteration), streams)
            if factors is not None:
                values[:, some - draws.start] = factors.reshape(len(values), -1)
        first_iteration, first_draw = first_iteration + phase.iterations, end
    return values


def _rows(seed: int, chains: slice, iterations: Array) -> Streams:
    numbers = np.arange(chains.start, chains.stop, dtype=np.uint64)
    return _Rows(
        seed,
        np.repeat(numbers, len(iterations)),
        iterations=np.tile(iterations.astype(np.uint64), len(numbers)),
    )


def word_for_chains(store: Store) -> str:
    """Return "ladders" for a run of ladders, whose chains these are, and "chains" for any other store."""
    return word_of_run(store.spec) if store.kind == "mcmc" else "chains"
