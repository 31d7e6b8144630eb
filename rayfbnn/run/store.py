"""A run's draws on disk: a plain Zarr hierarchy to which a block of draws is added whole or not at all.

A block is committed in this order: its chunks are written beside the files they replace, synced and renamed;
the folders are synced; then the record is published under a name that must be free. A crash before that leaves
files that no record names. docs/store.md describes the format.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.errors import (
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    StoreExistsError,
    StoreFullError,
    StoreMismatchError,
)
from rayfbnn.model.layout import ParameterLayout, PrecisionLayout
from rayfbnn.run import root as roots
from rayfbnn.run.catalogue import COMMITS, STATE, Header, array_plans, sigma_plans
from rayfbnn.run.commits import CommitLog
from rayfbnn.run.filesystem import FileSystem
from rayfbnn.run.hierarchy import Hierarchy
from rayfbnn.run.records import (
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
from rayfbnn.run.writing import prepare
from rayfbnn.state import ChainState

if TYPE_CHECKING:
    import xarray as xr

    from rayfbnn.run.data import Dataset
    from rayfbnn.spec import RunSpec

__all__ = ["BatchProgress", "Block", "Problem", "Store", "VerifyReport"]

_ALL = slice(None)


class Store:
    """An open store. Reading never changes it; a batch is committed by one worker, the rest is for the lock's holder.

    path, spec, kind                      what the run is; `data` is the training cases, read when first asked for
    n_chains, n_batches, chains_per_batch, draws_per_block
    parameter_layout, precision_layout    where each group is in a row of read_positions, read_precisions
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
        kind: Literal["mcmc", "exact"] = "mcmc",
        n_draws: int,
        n_warmup_draws: int = 0,
        chains: int,
        chains_per_batch: int,
        draws_per_block: int,
        fs: FileSystem | None = None,
    ) -> Store:
        """A new store at `path`, with nothing committed; StoreExistsError if anything is there.

        It is built in a hidden folder beside and then renamed, so that a crash leaves nothing at `path`.
        """
        fs, path = FileSystem() if fs is None else fs, Path(path).absolute()
        if fs.exists(path):
            raise StoreExistsError(f"{path}: is there already; choose another path, or resume it")
        header = Header(
            kind=kind,
            chains=chains,
            chains_per_batch=min(chains_per_batch, chains),
            draws_per_block=min(draws_per_block, max(n_draws, n_warmup_draws)),
            n_draws=n_draws,
            n_warmup_draws=n_warmup_draws,
            n_blocks=max(spec.total_iterations, n_draws),
            n_cases=data.n_cases,
            coordinate_chunk=max(draws_per_block, n_draws, n_warmup_draws),
            data_hash=data.hash,
        )
        building = path.parent / f".{path.name}.creating"
        fs.mkdir(building)
        fs.mkdir(building / COMMITS)
        with fs.lock(building / COMMITS / roots.LOCK):
            roots.clear(fs, building)
            try:
                roots.build(fs, building, header, spec, data)
                fs.rename_new(building, path)
            except StoreError:
                with suppress(StoreError):  # the first error is the one to report
                    fs.remove_tree(building)
                raise
        return Store.open(path, fs=fs)

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
        from rayfbnn.run.data import Dataset

        def read(path: str) -> Array:
            return self.hierarchy.read(path)

        for file, expected in self.root.fixed_chunks.items():
            roots.read_fixed(self.fs, self.path / file, expected)
        data = Dataset(
            inputs=read("constant_data/inputs"),
            targets=read("observed_data/targets"),
            input_names=tuple(self.spec.data.inputs),
            target_names=tuple(self.spec.data.targets),
            input_center=read("constant_data/input_center"),
            input_scale=read("constant_data/input_scale"),
            target_center=read("constant_data/target_center"),
            target_scale=read("constant_data/target_scale"),
        )
        if data.hash != self.root.header.data_hash:
            raise StoreCorruptError(f"{self.path}: the training cases do not match the run's data hash")
        return data

    def batch_chains(self, batch: int) -> range:
        return self.root.header.batch_chains(batch)

    def progress(self, batch: int) -> BatchProgress:
        """How far a batch is: one directory listing and one small file, cheap enough to ask every second."""
        return self.commits.progress(batch)

    @property
    def committed_draws(self) -> int:
        """Draws of the posterior that every chain has."""
        return self._committed("posterior")

    def _committed(self, section: Section) -> int:
        every = [self.progress(batch) for batch in range(self.n_batches)]
        return min(each.draws if section == "posterior" else each.warmup_draws for each in every)

    def require_same(self, spec: RunSpec, data: Dataset) -> None:
        """Raise StoreMismatchError, naming every difference, unless the run is of this spec and this data."""
        from rayfbnn.run.data import first_difference
        from rayfbnn.spec import differences

        found = differences(self.spec, spec)
        if data.hash != self.root.header.data_hash:
            found.append(f"data: {first_difference(self.data, data)}")
        if found:
            raise StoreMismatchError(f"{self.path}: made by another run:\n  " + "\n  ".join(found))

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
        for number in range(n_blocks):
            old = self.commits.read(batch, number)
            if old.first_iteration == block.first_iteration:
                previous = self.commits.read(batch, number - 1) if number else None
                if prepare(self, batch, block, previous, encode=False)[0].same_block(old):
                    self.fs.fsync_dir(
                        self.commits.folder(batch)
                    )  # the first attempt may have failed just here
                    return self.progress(batch)
                break
        raise StoreCorruptError(
            f"{self.path}: batch {batch}: iterations {block.first_iteration} to"
            f" {block.first_iteration + block.n_iterations - 1} are committed with other values"
        )

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

    # Reading.

    def load_state(self, batch: int) -> tuple[ChainState, int] | None:
        """The state after a batch's last block, and the iteration it is of; None before the first block."""
        record = self.commits.last(batch)
        if record is None or not record.state:
            return None
        chains = self.batch_chains(batch)
        arrays = {}
        for name in STATE:
            values = self.hierarchy.read(
                f"state/{name}", slice(record.block, record.block + 1), slice(chains.start, chains.stop)
            )
            file = self.hierarchy.plans[f"state/{name}"].chunk_file(record.block, batch)
            if (
                hashlib.sha256(np.ascontiguousarray(values, "<f8").tobytes()).hexdigest()
                != record.state[file]
            ):
                raise StoreCorruptError(
                    f"{self.path / file}: damaged: not the state that block {record.block} of batch {batch}"
                    " left; repair drops the block, and resume computes it again"
                )
            arrays[name] = np.ascontiguousarray(
                values[0], dtype="float64" if name == "precisions" else self.spec.dtype
            )
        return ChainState(**arrays), record.progress.iteration

    def read_positions(
        self, draws: slice = _ALL, chains: slice = _ALL, *, section: Section = "posterior"
    ) -> Array:
        """Parameters (n_chains, n_draws, n_parameters), of committed draws only."""
        chains, draws = self._selection(chains, draws, section)
        shape = (chains.stop - chains.start, draws.stop - draws.start, self.parameter_layout.n_parameters)
        positions = np.empty(shape, dtype=self.spec.dtype)
        for name, view in self.parameter_layout.views(positions).items():
            part = self.hierarchy.read(f"{_prefix(section)}posterior/{name}", chains, draws)
            positions[..., self.parameter_layout.slices[name]] = part.reshape(*shape[:2], -1)
            del view
        return positions

    def read_precisions(
        self, draws: slice = _ALL, chains: slice = _ALL, *, section: Section = "posterior"
    ) -> Array:
        """Precisions (n_chains, n_draws, n_precisions) = sigma**-2, of committed draws only."""
        chains, draws = self._selection(chains, draws, section)
        shape = (chains.stop - chains.start, draws.stop - draws.start, self.precision_layout.n_precisions)
        precisions = np.empty(shape)
        for sigma in sigma_plans(self.precision_layout):
            values = self.hierarchy.read(f"{_prefix(section)}posterior/{sigma.name}", chains, draws)
            precisions[..., sigma.columns] = 1 / (values * values)
        return precisions

    def read_stat(
        self, name: str, draws: slice = _ALL, chains: slice = _ALL, *, section: Section = "posterior"
    ) -> Array:
        """One of STATS, (n_chains, n_draws), of committed draws only."""
        chains, draws = self._selection(chains, draws, section)
        return self.hierarchy.read(f"{_prefix(section)}sample_stats/{name}", chains, draws)

    def _selection(self, chains: slice, draws: slice, section: Section) -> tuple[slice, slice]:
        """Slices of step 1 with both ends, cut to what is committed."""
        limits = (self.n_chains, self._committed(section))
        spans = [range(*part.indices(n)) for part, n in zip((chains, draws), limits, strict=True)]
        if any(span.step != 1 for span in spans):
            raise ValueError("chains and draws are read in steps of 1")
        first, second = (slice(span.start, max(span.start, span.stop)) for span in spans)
        return first, second

    def datatree(self) -> xr.DataTree:
        """The committed draws as ArviZ takes them, read when looked at: posterior, sample_stats, the data."""
        import xarray as xr

        zarr_store: Any = self.hierarchy.zarr_store()  # which xarray takes, though its types do not say so
        whole = xr.open_datatree(zarr_store, engine="zarr", consolidated=False)
        parts = {}
        for name, node in whole.children.items():
            if name != "state":
                n_draws = self._committed("warmup" if name.startswith("warmup_") else "posterior")
                part = node.to_dataset().isel(draw=slice(n_draws), missing_dims="ignore")
                for attributes in (part.attrs, *(variable.attrs for variable in part.variables.values())):
                    attributes.pop(SEAL, None)
                # In the order of the plans; Zarr lists them in no order.
                parts[name] = part[
                    [path.partition("/")[2] for path in self.hierarchy.plans if path.startswith(f"{name}/")]
                ]
        return xr.DataTree.from_dict(parts, name=self.path.name)

    # For the one who runs it.

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Be the only one to run this store; StoreBusyError names who else does.

        Finishes what a crash interrupted: half-written files go, an extension is carried through.
        """
        holder = self.path / COMMITS / roots.HOLDER
        try:
            held = self.fs.lock(self.path / COMMITS / roots.LOCK)
            held.__enter__()
        except StoreBusyError as exc:
            raise StoreBusyError(f"{self.path}: is in use by {self._holder()}; nothing was changed") from exc
        try:
            self._is_locked = True
            self._sweep()
            self._read_root()
            self._carry_through()
            who = {"host": socket.gethostname(), "pid": os.getpid(), SEAL: NO_SEAL}
            self.fs.write_atomic(holder, seal(who))
            yield
        finally:
            self._is_locked = False
            self.fs.unlink(holder)
            held.__exit__(None, None, None)

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

    def verify(self) -> VerifyReport:
        """Every file against its checksum and its record; problems are listed, not raised."""
        from rayfbnn.run.verify import verify

        return verify(self.path, fs=self.fs)

    def repair(self) -> VerifyReport:
        """Set aside the records of damaged blocks and of those after them: resume computes them again."""
        from rayfbnn.run.verify import repair

        with self._locked():
            return repair(self)


def _prefix(section: Section) -> str:
    return "warmup_" if section == "warmup" else ""
