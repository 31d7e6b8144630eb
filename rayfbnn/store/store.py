"""A run's draws on disk: a plain Zarr hierarchy to which a block of draws is added whole or not at all.

A block is committed in this order: its chunks are written beside the files they replace, synced and renamed;
the folders are synced; then the record is published under a name that must be free. A crash before that
leaves files that no record names. docs/store.md describes the format.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from rayfbnn.arrays import Array
from rayfbnn.errors import (
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreMismatchError,
)
from rayfbnn.model.layout import ParameterLayout, PrecisionLayout
from rayfbnn.state import ChainState
from rayfbnn.store import reading
from rayfbnn.store import root as roots
from rayfbnn.store.catalogue import COMMITS, Header, Kind, array_plans
from rayfbnn.store.commits import CommitLog
from rayfbnn.store.filesystem import FileSystem
from rayfbnn.store.hierarchy import Hierarchy
from rayfbnn.store.records import (
    NO_SEAL,
    SEAL,
    BatchProgress,
    Block,
    Problem,
    Section,
    VerifyReport,
    seal,
    unseal,
)
from rayfbnn.store.tuning_log import TuningLog
from rayfbnn.store.writing import prepare

if TYPE_CHECKING:
    import xarray as xr

    from rayfbnn.data import Dataset
    from rayfbnn.spec import RunSpec

__all__ = ["BatchProgress", "Block", "Problem", "Store", "VerifyReport"]

_ALL = slice(None)


class Store:
    """An open store. Reading changes nothing; `commit` is for a batch's worker, the rest for `lock`'s holder.

    path, spec, kind     what the run is; `data` is the training cases, read when first asked for
    n_chains, n_batches, chains_per_batch, draws_per_block
    parameter_layout, precision_layout    of the rows of read_positions and read_precisions
    """

    def __init__(self, path: Path, fs: FileSystem) -> None:
        """Reads and checks every metadata file; use `open`, which checks the commit records too."""
        self.path = path
        self.fs = fs
        self._is_locked = False
        self._read_root()

    def _read_root(self) -> None:
        self.root = roots.read_root(self.fs, self.path)
        header, spec = self.root.header, self.root.spec
        plans = array_plans(header, spec)
        metadata, self.is_pending = roots.read_metadata(self.fs, self.path, plans)
        self.hierarchy = Hierarchy(self.fs, self.path, plans, metadata)
        self.commits = CommitLog(self.fs, self.path, self.root.identity)
        self.tuning = TuningLog(self.fs, self.path, self.root.identity, spec, header.n_batches)
        self.spec = spec
        self.kind = header.kind
        self.n_chains = header.chains
        self.chains_per_batch = header.chains_per_batch
        self.draws_per_block = header.draws_per_block
        self.n_batches = header.n_batches
        network = spec.network_spec()
        self.parameter_layout = ParameterLayout.of(network)
        self.precision_layout = PrecisionLayout.of(network, spec.model_spec(), len(spec.data.targets))

    @staticmethod
    def create(
        path: str | Path,
        *,
        spec: RunSpec,
        data: Dataset,
        kernel: str,
        kind: Kind = "mcmc",
        n_draws: int,
        n_warmup_draws: int = 0,
        chains: int,
        chains_per_batch: int,
        draws_per_block: int,
        fs: FileSystem | None = None,
    ) -> Store:
        """Create a store at `path` with nothing committed; StoreExistsError if anything is there.

        It is built in a hidden folder beside `path` and then renamed, so that a crash leaves nothing at
        `path`. `kernel` is the name of the code that will run the leapfrog steps: the store records it, and
        workers on other machines keep to it.
        """
        fs, path = FileSystem() if fs is None else fs, Path(path).absolute()
        header = Header(
            kind=kind,
            chains=chains,
            chains_per_batch=min(chains_per_batch, chains),
            draws_per_block=draws_per_block,
            n_draws=n_draws,
            n_warmup_draws=n_warmup_draws,
            n_blocks=max(spec.total_iterations, n_draws),
            n_cases=data.n_cases,
            coordinate_chunk=max(draws_per_block, n_draws, n_warmup_draws),
            data_hash=data.hash,
        )
        roots.create(fs, path, header, spec, data, kernel)
        return Store.open(path, fs=fs)

    @staticmethod
    def for_run(
        path: str | Path, spec: RunSpec, data: Dataset, *, kernel: str, fs: FileSystem | None = None
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
            fs=fs,
        )

    @staticmethod
    def open(path: str | Path, *, fs: FileSystem | None = None, check_records: bool = True) -> Store:
        """The store at `path`, with every metadata file and commit record checked against its checksum.

        Without `check_records` a store whose records are damaged opens, for `verify` and `repair`.
        """
        fs, path = FileSystem() if fs is None else fs, Path(path).absolute()
        store = Store(path, fs)
        for batch in range(store.n_batches if check_records else 0):
            store.commits.all(batch)
        return store

    @cached_property
    def data(self) -> Dataset:
        """The training cases, rebuilt from the store; StoreCorruptError if they are not those of the run."""
        return reading.training_data(self)

    def batch_chains(self, batch: int) -> range:
        return self.root.header.batch_chains(batch)

    def progress(self, batch: int) -> BatchProgress:
        """How far a batch is: one directory listing and one small file, cheap enough to ask every second."""
        return self.commits.progress(batch)

    @property
    def committed_draws(self) -> int:
        """Draws of the posterior that every chain has."""
        return reading.committed(self, "posterior")

    # Committing.

    def commit(self, batch: int, block: Block) -> BatchProgress:
        """Add a block to a batch, whole and durable, and say how far the batch is then.

        The same block again is a success that changes nothing: a worker may die after its commit and before
        it could say so. Another block in its place is a StoreCorruptError.
        """
        with self.commits.lock(batch):
            records = self.commits.n_blocks(batch)
            last = self.commits.read(batch, records - 1) if records else None
            progress = BatchProgress() if last is None else last.progress
            if block.first_iteration <= progress.iteration:
                return self._recommit(batch, block, records)
            self._check_follows(batch, block, progress)
            record, files = prepare(self, batch, block, last)
            try:
                self._write(files)
                if not self.commits.publish(record):
                    return self._recommit(batch, block, records + 1)
            except StoreFullError as exc:
                raise StoreFullError(
                    f"{exc}; batch {batch} has {progress.draws} draws committed; free some space, then resume"
                ) from exc
            return record.progress

    def _recommit(self, batch: int, block: Block, n_blocks: int) -> BatchProgress:
        """Success if the block is there already, with these values."""
        what = f"{self.path}: batch {batch}: iterations {block.first_iteration} to {block.last_iteration}"
        for number in range(n_blocks):
            old = self.commits.read(batch, number)
            if (old.first_iteration, old.n_iterations) == (block.first_iteration, block.n_iterations):
                previous = self.commits.read(batch, number - 1) if number else None
                if not prepare(self, batch, block, previous, encode=False)[0].same_block(old):
                    raise StoreCorruptError(f"{what} are committed with other values")
                # The first attempt may have failed just before this.
                self.fs.fsync_dir(self.commits.folder(batch))
                return self.progress(batch)
        raise StoreError(f"{what}: another worker has gone on from there; load the state again")

    def _check_follows(self, batch: int, block: Block, progress: BatchProgress) -> None:
        first = progress.warmup_draws if block.section == "warmup" else progress.draws
        planned = self.root.header.n_warmup_draws if block.section == "warmup" else self.root.header.n_draws
        problem = ""
        if block.first_iteration != progress.iteration + 1:
            problem = f"starts at iteration {block.first_iteration}, expected {progress.iteration + 1}"
        elif block.n_draws and block.first_draw != first:
            problem = f"starts at draw {block.first_draw}, expected {first}"
        elif block.n_draws and first + block.n_draws > planned:
            problem = f"ends at draw {first + block.n_draws}, but {planned} are planned"
        if problem:
            raise StoreError(f"{self.path}: batch {batch}: the block {problem}")

    def _write(self, files: dict[str, bytes]) -> None:
        for file, content in files.items():
            self.fs.write_atomic(self.path / file, content)
        for folder in dict.fromkeys((self.path / file).parent for file in files):
            self.fs.fsync_dir(folder)

    # Reading: committed draws only, whatever the files hold.

    def load_state(self, batch: int) -> tuple[ChainState, int] | None:
        """The state after a batch's last block, and the iteration it is of; None before the first block."""
        return reading.load_state(self, batch)

    def read_positions(
        self, draws: slice = _ALL, chains: slice = _ALL, *, section: Section = "posterior"
    ) -> Array:
        """Parameters (n_chains, n_draws, n_parameters); chains and draws as slices of step 1."""
        return reading.read_positions(self, draws, chains, section)

    def read_precisions(
        self, draws: slice = _ALL, chains: slice = _ALL, *, section: Section = "posterior"
    ) -> Array:
        """Precisions (n_chains, n_draws, n_precisions) = sigma**-2."""
        return reading.read_precisions(self, draws, chains, section)

    def read_stat(
        self, name: str, draws: slice = _ALL, chains: slice = _ALL, *, section: Section = "posterior"
    ) -> Array:
        """One of catalogue.STATS, (n_chains, n_draws) float64."""
        return reading.read_stat(self, name, draws, chains, section)

    def read_predictive(self, name: str, draws: slice = _ALL) -> Array:
        """One of catalogue.PREDICTIVE, (n_chains, n_draws, n_cases, ...), of draws from the prior."""
        return reading.read_predictive(self, name, draws)

    def datatree(self) -> xr.DataTree:
        """The draws as ArviZ takes them, read when looked at: posterior, sample_stats, the data."""
        return reading.datatree(self)

    # For the one who runs it.

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Be the only one to run this store; StoreBusyError names who else does.

        Finishes what a crash interrupted: half-written files go, an extension is carried through.
        """
        holder = self.path / COMMITS / roots.HOLDER
        with ExitStack() as stack:
            try:
                stack.enter_context(self.fs.lock(self.path / COMMITS / roots.LOCK))
            except StoreBusyError as exc:
                raise StoreBusyError(
                    f"{self.path}: is in use by {self._holder()}; nothing was changed"
                ) from exc
            self._is_locked = True
            stack.callback(setattr, self, "_is_locked", False)
            self._sweep()
            self._read_root()
            self._carry_through()
            self.fs.write_atomic(
                holder, seal({"host": socket.gethostname(), "pid": os.getpid(), SEAL: NO_SEAL})
            )
            stack.callback(self.fs.unlink, holder)
            yield

    def _holder(self) -> str:
        path = self.path / COMMITS / roots.HOLDER
        try:
            who = unseal(self.fs.read(path), path)
        except (FileNotFoundError, StoreError):
            return "another process"
        return f"process {who.get('pid')} on {who.get('host')}"

    def extend(self, spec: RunSpec, n_draws: int) -> None:
        """Make the run longer: `spec` has more iterations in its last phase, and n_draws draws in all.

        A record is published first, and the arrays are lengthened by whoever locks the store next if this
        process does not live to do it.
        """
        from rayfbnn.spec import differences

        with self._locked():
            found = differences(self.spec.with_iterations(spec.phase[-1].iterations), spec)
            if spec.total_iterations < self.spec.total_iterations or n_draws < self.root.header.n_draws:
                found.append(f"draws: {self.root.header.n_draws} are planned, and {n_draws} would be fewer")
            if found:
                raise StoreMismatchError(f"{self.path}: cannot be extended:\n  " + "\n  ".join(found))
            if n_draws == self.root.header.n_draws and spec == self.spec:
                return
            roots.publish_extension(self.fs, self.path, self.root, spec, n_draws)
            self._read_root()
            self._carry_through()

    def _carry_through(self) -> None:
        if self.is_pending:
            roots.carry_through(self.fs, self.path, self.root)
            self._read_root()

    def _locked(self) -> AbstractContextManager[None]:
        return nullcontext() if self._is_locked else self.lock()

    def _sweep(self) -> None:
        folders = [self.path / path for path in self.hierarchy.plans]
        for folder in (*folders, *(self.commits.folder(batch) for batch in range(self.n_batches))):
            self.fs.sweep(folder)
        if self.tuning.rounds and self.fs.exists(self.tuning.folder):
            self.fs.sweep(self.tuning.folder)
            # Whoever made the last record may have died just before this.
            self.fs.fsync_dir(self.tuning.folder)

    def verify(self) -> VerifyReport:
        """Every file against its checksum and its record; problems are listed, not raised."""
        from rayfbnn.store.verify import verify

        return verify(self.path, fs=self.fs)

    def repair(self) -> VerifyReport:
        """Set aside the records of damaged blocks and of those after them: resume computes them again."""
        from rayfbnn.store.verify import repair

        with self._locked():
            return repair(self)
