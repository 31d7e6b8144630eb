"""The store of a run: a plain Zarr hierarchy. Each block of draws is added whole or not at all.

docs/store.md describes the format, and appending.py adds a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.data import Dataset
from rayfbnn.errors import StoreMismatchError, StoreOvertakenError, at_most_ten
from rayfbnn.mcmc.trajectories import last_stepsizes
from rayfbnn.model.layout import ParameterLayout, PrecisionLayout
from rayfbnn.spec import RunSpec, differences
from rayfbnn.state import ChainState
from rayfbnn.store import creation, locking, opened
from rayfbnn.store.appending import append, gather
from rayfbnn.store.catalogue import Kind, StateShapes
from rayfbnn.store.creation import new_header
from rayfbnn.store.hierarchy import Hierarchy
from rayfbnn.store.locking import VerdictLog, locked
from rayfbnn.store.log import CommitLog
from rayfbnn.store.opened import OpenStore
from rayfbnn.store.records import (
    SECONDS,
    BatchProgress,
    Block,
    Record,
    RunUpdates,
    Section,
    VerifyReport,
)
from rayfbnn.store.repair import repair
from rayfbnn.store.root import Root
from rayfbnn.store.rounds import word_of_run
from rayfbnn.store.storage import storage_of
from rayfbnn.store.storage.places import Place, place_of
from rayfbnn.store.storage.protocol import Result, Storage
from rayfbnn.store.tuning_log import TuningLog
from rayfbnn.store.verify import verify
from rayfbnn.streams import Purpose, Streams

if TYPE_CHECKING:
    import xarray as xr

_ALL = slice(None)


class Store:
    """An open store. Reading changes nothing; workers call `commit`, and the rest is for the lock's holder.

    opened  the contents of its metadata files; replaced when the length of the run changes
    """

    def __init__(self, opened: OpenStore) -> None:
        """Keep the contents of the metadata files; call `open` or `create` to get a Store."""
        self.opened = opened
        self._is_locked = False

    @staticmethod
    def create(
        path: str | Place,
        *,
        spec: RunSpec,
        data: Dataset,
        kernel: str,
        kind: Kind = "mcmc",
        n_draws: int,
        n_warmup_draws: int = 0,
        chains: int,
        chains_per_batch: int,
        draws_per_block: int | None,
        draws_per_chunk: int | None = None,
        cases_per_chunk: int | None = None,
        blocks: Iterable[Block] = (),
        fs: Storage | None = None,
        fit_state: StateShapes | None = None,
    ) -> Store:
        """Create a store at `path`; StoreExistsError if anything is there.

        It is built in a hidden folder next to `path` and then renamed, so a crash leaves nothing at `path`.

        kernel           name of the code that will run the leapfrog steps; workers on other machines use it
        draws_per_block  maximum number of draws in a block; None for blocks that end after some seconds
        draws_per_chunk  draws in a chunk; None for about 32 MiB
        cases_per_chunk  training cases in a chunk; None for at most 4 MiB
        blocks           blocks of the first batch, which are committed before the store is renamed
        fit_state        names and shapes of the arrays in the state of a fit
        """
        path = place_of(path)
        fs = storage_of(path) if fs is None else fs
        header = new_header(
            spec,
            kind=kind,
            n_draws=n_draws,
            n_warmup_draws=n_warmup_draws,
            chains=chains,
            chains_per_batch=chains_per_batch,
            draws_per_block=draws_per_block,
            draws_per_chunk=draws_per_chunk,
            cases_per_chunk=cases_per_chunk,
            n_cases=data.n_cases,
            data_hash=data.hash,
            fit_state=fit_state,
        )

        def fill(place: Place) -> None:
            store = Store.open(place, fs=fs)
            for block in blocks:
                store.commit(0, block)
                gather(store.opened, 0)
            gather(store.opened, 0, everything=True)

        creation.create(fs, path, header, spec, data, kernel, fill)
        return Store.open(path, fs=fs)

    @staticmethod
    def for_run(
        path: str | Place,
        spec: RunSpec,
        data: Dataset,
        *,
        kernel: str,
        draws_per_chunk: int | None = None,
        cases_per_chunk: int | None = None,
        fs: Storage | None = None,
    ) -> Store:
        """Create a store at `path` for the draws of the specification's phases."""
        return Store.create(
            path,
            spec=spec,
            data=data,
            kernel=kernel,
            n_draws=spec.kept_draws,
            n_warmup_draws=spec.warmup_draws,
            chains=spec.chains,
            chains_per_batch=spec.chains_per_batch,
            draws_per_block=spec.draws_per_block,
            draws_per_chunk=draws_per_chunk,
            cases_per_chunk=cases_per_chunk,
            fs=fs,
        )

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
        store = Store(OpenStore.from_files(fs, path, headers_only=headers_only))
        if check_records:
            store.opened.rows.refresh_all()
        return store

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the place of the store, which the process that unpickles it opens."""
        return Store.open, (self.path,)

    # Properties of the run.

    @property
    def path(self) -> Place:
        """The store's folder, as an absolute path."""
        return self.opened.path

    @property
    def fs(self) -> Storage:
        """The storage that all bytes of the store pass through."""
        return self.opened.fs

    @property
    def root(self) -> Root:
        """The root metadata: identity, version, kernel, header."""
        return self.opened.root

    @property
    def spec(self) -> RunSpec:
        """The specification of the run, with its present length."""
        return self.opened.spec

    @property
    def kind(self) -> Kind:
        """Kind of the draws: from Markov chains, exact by rejection, from the prior, or approximate."""
        return self.opened.header.kind

    @property
    def n_chains(self) -> int:
        """Number of chains of the run."""
        return self.opened.header.chains

    @property
    def n_batches(self) -> int:
        """Number of batches."""
        return self.opened.header.n_batches

    @property
    def chains_per_batch(self) -> int:
        """Number of chains in every batch but the last, which may have fewer."""
        return self.opened.header.chains_per_batch

    @property
    def draws_per_chunk(self) -> int:
        """Number of draws of a chain in a chunk, which is also the maximum in a block."""
        return self.opened.header.draws_per_chunk

    @property
    def parameter_layout(self) -> ParameterLayout:
        """Columns of `read_positions`."""
        return self.opened.parameter_layout

    @property
    def precision_layout(self) -> PrecisionLayout:
        """Columns of `read_precisions`."""
        return self.opened.precision_layout

    @property
    def hierarchy(self) -> Hierarchy:
        """The Zarr arrays."""
        return self.opened.hierarchy

    @property
    def commits(self) -> CommitLog:
        """The commit records."""
        return self.opened.commits

    @property
    def tuning(self) -> TuningLog:
        """The records of the rounds that find automatic settings."""
        return self.opened.tuning

    @property
    def verdicts(self) -> VerdictLog:
        """The verdicts on a run that was extended until it was ok."""
        return VerdictLog(self.fs, self.path, self.root.identity)

    @cached_property
    def data(self) -> Dataset:
        """The training cases; StoreCorruptError if they are not those of the run."""
        return opened.training_data(self.opened)

    @property
    def targets(self) -> Array:
        """The targets of the training cases as on file, (n_cases, n_targets); the inputs are not read."""
        return self.opened.hierarchy.read("observed_data/targets")

    def standardized_cases(self) -> tuple[Iterator[Array], Array]:
        """Return the standardised training cases: inputs in pieces, and the targets.

        Workers use this, because `data` holds all inputs in float64.
        """
        return opened.standardized_cases(self.opened)

    def batch_chains(self, batch: int) -> range:
        """Return the numbers of the chains in a batch."""
        return self.opened.header.batch_chains(batch)

    def progress(self, batch: int) -> BatchProgress:
        """Return the progress of a batch. This reads at most one folder and two small files."""
        return self.opened.commits.progress(batch)

    def all_progress(self) -> list[BatchProgress]:
        """Return the progress of every batch; a bucket is asked for all of them at once."""
        return self.opened.commits.progress_of(range(self.n_batches))

    @property
    def seconds(self) -> float | None:
        """The wall-clock time of all workers for all blocks so far; None if blocks have no times.

        Work lost in a kill does not count. Two workers at once take two seconds each second.
        """
        totals = [progress.totals for progress in self.all_progress() if progress.blocks]
        is_known = all(SECONDS in summary for summary in totals)
        return sum(summary[SECONDS] for summary in totals) if is_known else None

    @property
    def committed_draws(self) -> int:
        """Number of draws from the posterior that every chain has."""
        return self.opened.committed("posterior")

    @property
    def committed_warmup_draws(self) -> int:
        """Number of draws of warm-up phases, kept apart, that every chain has."""
        return self.opened.committed("warmup")

    def commit(self, batch: int, block: Block) -> BatchProgress:
        """Add a block to a batch, whole and durable, and return the progress of the batch.

        Committing the same block again succeeds and changes nothing. StoreCorruptError if the block is
        committed with other values, StoreError if it does not follow the last block of the batch.
        """
        return append(self.opened, batch, block)

    # Reading of committed draws; nothing else in the files is ever returned.

    def last_record(self, batch: int) -> Record | None:
        """Return the last commit record of a batch; None before its first block.

        Take progress and state from the same record, because another worker may commit between two calls.
        """
        return self.opened.commits.last(batch)

    def updates_until(self, last: Record | None) -> RunUpdates:
        """Return acceptances and divergences of a batch up to its record `last`, kept and warm-up apart."""
        return self.opened.commits.updates_until(last)

    def updates(self) -> RunUpdates:
        """Return acceptances and divergences of all batches so far, kept and warm-up apart."""
        lasts = self.opened.commits.lasts(range(self.n_batches))
        return sum(map(self.updates_until, lasts), RunUpdates())

    def state_after(self, record: Record) -> ChainState | None:
        """Read the state after a block; None if the block has no state (exact draws)."""
        return self.opened.commits.state_after(record)

    def named_state_after(self, record: Record) -> dict[str, Array]:
        """Read the state of a fit or of ladders after a block: arrays (n_chains, ...) by name, in float64."""
        return self.opened.commits.named_state_after(record)

    def load_state(self, batch: int) -> tuple[ChainState, int] | None:
        """Read the state after a batch's last block and its iteration; None before the first block."""
        record, state = self._after_last(batch, self.state_after)
        return None if record is None or state is None else (state, record.progress.iteration)

    def load_named_state(self, batch: int) -> dict[str, Array] | None:
        """Read the state of a fit or of ladders after a batch's last block; None before the first block."""
        return self._after_last(batch, self.named_state_after)[1]

    def _after_last(
        self, batch: int, read: Callable[[Record], Result]
    ) -> tuple[Record | None, Result | None]:
        """Return the last record of a batch and the state after it, which a worker may just be replacing."""
        record = self.last_record(batch)
        if record is None:
            return None, None
        try:
            return record, read(record)
        except StoreOvertakenError:
            record = self.last_record(batch) or record
            return record, read(record)

    def read_positions(
        self,
        draws: slice = _ALL,
        chains: slice = _ALL,
        *,
        section: Section = "posterior",
        committed: int | None = None,
    ) -> Array:
        """Return parameters, (n_chains, n_draws, n_parameters); chains and draws are slices of step 1.

        committed  number of draws that are known to be committed; None asks the records of every batch
        """
        return opened.read_positions(self.opened, draws, chains, section, committed)

    def read_precisions(
        self,
        draws: slice = _ALL,
        chains: slice = _ALL,
        *,
        section: Section = "posterior",
        committed: int | None = None,
    ) -> Array:
        """Return precisions, sigma**-2, (n_chains, n_draws, n_precisions); arguments as above."""
        return opened.read_precisions(self.opened, draws, chains, section, committed)

    def read_stat(
        self,
        name: str,
        draws: slice = _ALL,
        chains: slice = _ALL,
        *,
        section: Section = "posterior",
        committed: int | None = None,
    ) -> Array:
        """Return one of catalogue.STATS, (n_chains, n_draws) float64; other arguments as above."""
        return opened.read_stat(self.opened, name, draws, chains, section, committed)

    def read_ladder(
        self, name: str, draws: slice = _ALL, chains: slice = _ALL, *, committed: int | None = None
    ) -> Array:
        """Return one of the arrays of catalogue.LADDER, (n_chains, n_draws, ...) float32."""
        return opened.read_ladder(self.opened, name, draws, chains, committed)

    def read_predictive(self, name: str, draws: slice = _ALL) -> Array:
        """Return one of catalogue.PREDICTIVE, (n_chains, n_draws, n_cases, ...), of draws from the prior."""
        return opened.read_predictive(self.opened, name, draws)

    def datatree(self) -> xr.DataTree:
        """Return posterior, sample_stats and data as ArviZ expects them; values are read when needed."""
        return opened.datatree(self.opened)

    # For the process that runs the store.

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Make this process the only one that runs the store; StoreBusyError names another one that does.

        On entry, work that a crash interrupted is finished.
        """
        with locked(self.fs, self.path):
            self._is_locked = True
            try:
                self.opened = locking.finish(self.opened)
                yield
            finally:
                self._is_locked = False

    def gather(self, batch: int, *, everything: bool = False) -> None:
        """Gather the blocks of a batch into segments if their chunks are complete.

        With `everything`, the blocks of an incomplete chunk are gathered too.
        """
        with self._locked():
            gather(self.opened, batch, everything=everything)

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
            locking.check_longer(self.fs, self.path, self.root, spec, n_draws)
            locking.publish_extension(self.fs, self.path, self.root, spec, n_draws)
            self.opened = locking.finish_extension(self.opened)

    def verify(self) -> VerifyReport:
        """Check every file against its checksum and its record; problems are listed, not raised."""
        return verify(self.path, fs=self.fs)

    def repair(self, *, dry_run: bool = False) -> VerifyReport:
        """Set aside damaged blocks and the blocks after them, which resume computes again.

        With `dry_run` nothing changes, and the report says what would.
        """
        if dry_run:
            return repair(self.opened, dry_run=True)
        with self._locked():
            return repair(self.opened)

    def _locked(self) -> AbstractContextManager[None]:
        return nullcontext() if self._is_locked else self.lock()


if TYPE_CHECKING:
    from rayfbnn.store.store import Store

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
    """Return streams with a row for each chain and iteration, chain after chain."""
    numbers = np.arange(chains.start, chains.stop, dtype=np.uint64)
    return _Rows(
        seed,
        np.repeat(numbers, len(iterations)),
        iterations=np.tile(iterations.astype(np.uint64), len(numbers)),
    )


def word_for_chains(store: Store) -> str:
    """Return "ladders" for a run of ladders, whose chains these are, and "chains" for any other store."""
    return word_of_run(store.spec) if store.kind == "mcmc" else "chains"
