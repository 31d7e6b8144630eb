"""The record of an open store, an argument of the functions that read, write and repair it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rayfbnn.model.layout import ParameterLayout, PrecisionLayout
from rayfbnn.spec import RunSpec
from rayfbnn.store.catalogue import ArrayPlan, Header, array_plans
from rayfbnn.store.checking.chunks import ChunkCheck
from rayfbnn.store.checking.rows import RowDigests
from rayfbnn.store.hierarchy import Hierarchy
from rayfbnn.store.metadata import check_fixed_chunks, check_layout, read_metadata
from rayfbnn.store.records import Section
from rayfbnn.store.root import Root, read_root
from rayfbnn.store.segments.log import CommitLog
from rayfbnn.store.segments.payload import PayloadLayout
from rayfbnn.store.segments.tail import Tail
from rayfbnn.store.storage.places import Place
from rayfbnn.store.storage.protocol import Storage
from rayfbnn.store.tuning_log import TuningLog


def commit_log(
    fs: Storage, path: Place, root: Root, plans: Mapping[str, ArrayPlan], *, headers_only: bool = False
) -> CommitLog:
    """Return the log of the commits of a store; `headers_only` is that of BlockFiles."""
    layout = PayloadLayout.from_plans(root.header, root.spec, plans)
    return CommitLog(fs, path, root.identity, layout, headers_only=headers_only)


@dataclass(frozen=True, eq=False)
class OpenStore:
    """The contents of the metadata files of a store, with the objects that read its arrays and records.

    root        the root metadata, with the extensions applied
    hierarchy   the arrays; their chunks are checked as they are read
    commits     the commit records
    rows        the digests of the draws in the commit records
    tuning      the records of the tuning
    parameter_layout, precision_layout    columns of the positions and of the precisions
    is_pending  whether an extension was published, but some arrays are not lengthened yet
    """

    fs: Storage
    path: Place
    root: Root
    hierarchy: Hierarchy
    commits: CommitLog
    rows: RowDigests
    tuning: TuningLog
    parameter_layout: ParameterLayout
    precision_layout: PrecisionLayout
    is_pending: bool

    @staticmethod
    def from_files(
        fs: Storage, path: Place, before: OpenStore | None = None, *, headers_only: bool = False
    ) -> OpenStore:
        """Read and check every metadata file of the store at `path`, but no commit record.

        before        the same store as opened earlier; its commit records are not read again
        headers_only  as in BlockFiles

        Raises StoreMissingError without a store, StoreFormatError if it has another format, and
        StoreCorruptError if one of the files is damaged.
        """
        root = read_root(fs, path)
        header, spec = root.header, root.spec
        plans = array_plans(header, spec)
        check_layout(fs, path, plans)
        check_fixed_chunks(path, root.fixed_chunks, plans)
        metadata, is_pending = read_metadata(fs, path, plans)
        network = spec.network
        if before is not None and before.root.identity == root.identity:
            commits, rows = before.commits, before.rows
            rows.lengthen(header, plans)
        else:
            commits = commit_log(fs, path, root, plans, headers_only=headers_only)
            rows = RowDigests(header, plans, commits)
        check = ChunkCheck(path, header, root.fixed_chunks, rows)
        return OpenStore(
            fs,
            path,
            root,
            Hierarchy(fs, path, plans, metadata, check, Tail(header, commits, rows)),
            commits,
            rows,
            TuningLog(fs, path, root.identity, spec, header.n_batches, commits),
            ParameterLayout.from_network(network),
            PrecisionLayout.from_specs(network, spec.model, len(spec.data.targets)),
            is_pending,
        )

    @property
    def header(self) -> Header:
        """Sizes of the run."""
        return self.root.header

    @property
    def spec(self) -> RunSpec:
        """The specification of the run, with its present length."""
        return self.root.spec

    def committed(self, section: Section) -> int:
        """Return the number of draws of a section that every chain has."""
        batches = self.commits.progress_of(range(self.header.n_batches))
        return min(batch.draws if section == "posterior" else batch.warmup_draws for batch in batches)
