"""An open store, and the checked reading of its draws, statistics and training cases."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.data import Dataset
from rayfbnn.data.dataset import CasesDigest
from rayfbnn.data.transforms import TargetUnits, is_log_of
from rayfbnn.errors import StoreCorruptError
from rayfbnn.memory import bytes_text, memory_of_machine
from rayfbnn.model.cases import pieces_of
from rayfbnn.model.layout import ParameterLayout, PrecisionLayout
from rayfbnn.spec import RunSpec
from rayfbnn.store.catalogue import LADDER, STATISTIC, STATISTICS, ArrayPlan, Header, array_plans, sigma_plans
from rayfbnn.store.hierarchy import ADVICE, Hierarchy, text_chunk
from rayfbnn.store.log import CommitLog
from rayfbnn.store.payload import PayloadLayout
from rayfbnn.store.records import SEAL, Section
from rayfbnn.store.root import (
    Root,
    check_fixed_chunks,
    check_layout,
    is_draw_coordinate,
    read_metadata,
    read_root,
)
from rayfbnn.store.rows import CommittedRows, RowDigests, Tail
from rayfbnn.store.storage.places import Place
from rayfbnn.store.storage.protocol import Storage
from rayfbnn.store.tuning_log import TuningLog


class ChunkCheck:
    """A comparison of a chunk file with the digests in the root metadata and in the commit records."""

    def __init__(
        self, root: Place, header: Header, fixed_chunks: Mapping[str, str], rows: RowDigests
    ) -> None:
        """Keep the store's folder, the digests of chunks written at creation, and the digests of draws."""
        self._root, self._header, self._fixed, self._rows = root, header, fixed_chunks, rows

    def __call__(self, plan: ArrayPlan, file: str, raw: bytes) -> None:
        """Raise StoreCorruptError, naming file, batch and block, if a chunk is damaged.

        raw  content of the whole chunk file, which has the size of a chunk of `plan`
        """
        if file in self._fixed:
            # Zarr decodes text, so it must only see the bytes that follow from the configuration.
            if plan.is_text and raw != text_chunk(plan):
                raise StoreCorruptError(f"{self._root / file}: damaged: its names are not those of the run")
            if hashlib.sha256(raw).hexdigest() != self._fixed[file]:
                raise StoreCorruptError(f"{self._root / file}: damaged: its content is not what was written")
        elif is_draw_coordinate(plan):
            self._check_numbers(plan, file, raw)
        elif plan.dims[:2] == ("chain", "draw"):
            self._check_draws(plan, file, raw)
        else:
            raise StoreCorruptError(f"{self._root / file}: the store has no digest of it")

    def _check_numbers(self, plan: ArrayPlan, file: str, raw: bytes) -> None:
        """Check the numbers of the draws; an extension may have written more of them than are planned."""
        first = _index(file)[0] * plan.chunks[0]
        values = np.frombuffer(raw, "<i8", count=plan.chunks[0])[: plan.shape[0] - first]
        if (values != np.arange(first, first + len(values))).any():
            raise StoreCorruptError(
                f"{self._root / file}: damaged: its values are not the numbers of the draws"
            )

    def _check_draws(self, plan: ArrayPlan, file: str, raw: bytes) -> None:
        """Check the committed draws in a chunk; the others are never used."""
        batch, number = _index(file)[:2]
        dtype = np.dtype(plan.dtype).newbyteorder("<")
        values = np.frombuffer(raw, dtype, count=math.prod(plan.chunks)).reshape(plan.chunks)
        values = values[: len(self._header.batch_chains(batch))]  # the last batch may fill less than a chunk
        committed = self._committed(plan, batch, number)
        if not committed:
            raise StoreCorruptError(f"{self._root / file}: no commit of batch {batch} names its draws")
        for part in committed:
            rows = np.ascontiguousarray(values[:, part.rows])
            if hashlib.sha256(rows.data).digest() != part.digest(plan.path):
                raise StoreCorruptError(
                    f"{self._root / file}: damaged: not the values that block {part.block} of batch {batch}"
                    f" committed{ADVICE}"
                )

    def _committed(self, plan: ArrayPlan, batch: int, number: int) -> list[CommittedRows]:
        """Return the committed draws in a chunk; read new records if the chunk may hold more draws."""
        section: Section = "warmup" if plan.path.startswith("warmup_") else "posterior"
        size = self._header.draws_per_chunk
        committed = self._rows.of_chunk(batch, section, number)
        if not committed or committed[-1].rows.stop < min(size, plan.shape[1] - number * size):
            self._rows.refresh(batch)
            committed = self._rows.of_chunk(batch, section, number)
        return committed


def _index(file: str) -> list[int]:
    return [int(part) for part in file.rpartition("/")[2].split(".")[1:]]


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


if TYPE_CHECKING:
    import xarray as xr


def training_data(store: OpenStore) -> Dataset:
    """Read the training cases; StoreCorruptError if they are not those of the run."""
    _check_memory(store, np.dtype(np.float64), share=1)
    read = store.hierarchy.read
    data = Dataset(
        inputs=read("constant_data/inputs"),
        targets=read("observed_data/targets"),
        input_names=store.spec.input_names,
        target_names=tuple(store.spec.data.targets),
        input_center=read("constant_data/input_center"),
        input_scale=read("constant_data/input_scale"),
        target_center=read("constant_data/target_center"),
        target_scale=read("constant_data/target_scale"),
        log_targets=tuple(store.spec.data.transform or ()),
    )
    _check_digest(store, data.hash)
    return data


def standardized_cases(store: OpenStore) -> tuple[Iterator[Array], Array]:
    """Return the standardised training cases, without holding all inputs in memory.

    Returns
    -------
    pieces   yields the inputs of some cases at a time, (n, n_inputs) float64; raises StoreCorruptError at
             the end if these are not the cases of the run, because only then all of them have been read
    targets  (n_cases, n_targets) float64
    """
    _check_memory(store, np.dtype(store.spec.dtype), share=1 / store.spec.n_parts)
    read = store.hierarchy.read
    targets = read("observed_data/targets")
    center, scale = read("constant_data/input_center"), read("constant_data/input_scale")

    def pieces() -> Iterator[Array]:
        digest = CasesDigest(store.spec.input_names, store.spec.data.targets, store.header.n_cases)
        for chunk in store.hierarchy.chunks("constant_data/inputs"):
            for piece in pieces_of(chunk):
                digest.add(piece)
                yield (piece - center) / scale
        digest.add(targets)
        _check_digest(store, digest.hexdigest())

    target_center, target_scale = read("constant_data/target_center"), read("constant_data/target_scale")
    is_log = is_log_of(store.spec.data.targets, store.spec.data.transform)
    return pieces(), TargetUnits(target_center, target_scale, is_log).to_network(targets)


def _check_memory(store: OpenStore, dtype: np.dtype[Any], *, share: float) -> None:
    """Raise StoreCorruptError if a share of the inputs does not fit into memory.

    A store may claim any number of cases.
    """
    needed = share * math.prod(store.hierarchy.plans["constant_data/inputs"].shape) * dtype.itemsize
    memory = memory_of_machine()
    if needed > memory:
        raise StoreCorruptError(
            f"{store.path / 'constant_data/inputs'}: the training cases take {bytes_text(needed)}, more than"
            f" the memory of this machine ({bytes_text(memory)})"
        )


def _check_digest(store: OpenStore, digest: str) -> None:
    if digest != store.header.data_hash:
        raise StoreCorruptError(f"{store.path}: the training cases do not match the run's data hash")


def read_positions(
    store: OpenStore, draws: slice, chains: slice, section: Section, committed: int | None
) -> Array:
    """Read committed parameters, (n_chains, n_draws, n_parameters) in the run's dtype.

    committed  number of draws that the caller knows to be committed; None finds it out, which takes a listing
               and two small reads for each batch

    This and the following functions raise ValueError if a slice has a step, and StoreCorruptError if a file
    is missing or damaged.
    """
    chains, draws = _selection(store, chains, draws, section, committed)
    shape = (chains.stop - chains.start, draws.stop - draws.start, store.parameter_layout.n_parameters)
    positions = np.empty(shape, dtype=store.spec.dtype)
    for name, columns in store.parameter_layout.slices.items():
        values = store.hierarchy.read(f"{_prefix(section)}posterior/{name}", chains, draws)
        positions[..., columns] = values.reshape(*shape[:2], columns.stop - columns.start)
    return positions


def read_precisions(
    store: OpenStore, draws: slice, chains: slice, section: Section, committed: int | None
) -> Array:
    """Read precisions, (n_chains, n_draws, n_precisions) float64; the store has sigma = precision**-1/2."""
    chains, draws = _selection(store, chains, draws, section, committed)
    shape = (chains.stop - chains.start, draws.stop - draws.start, store.precision_layout.n_precisions)
    precisions = np.empty(shape)
    for sigma in sigma_plans(store.precision_layout):
        values = store.hierarchy.read(f"{_prefix(section)}posterior/{sigma.name}", chains, draws)
        precisions[..., sigma.columns] = 1 / (values * values)
    return precisions


def read_stat(
    store: OpenStore, name: str, draws: slice, chains: slice, section: Section, committed: int | None
) -> Array:
    """Read one of catalogue.STATS, (n_chains, n_draws) float64."""
    chains, draws = _selection(store, chains, draws, section, committed)
    number = store.header.statistics.index(name)
    only = slice(number, number + 1)
    return store.hierarchy.read(f"{_prefix(section)}sample_stats/{STATISTICS}", chains, draws, only)[..., 0]


def read_ladder(store: OpenStore, name: str, draws: slice, chains: slice, committed: int | None) -> Array:
    """Read one of the arrays of ladders, (n_chains, n_draws, ...) float32."""
    return store.hierarchy.read(f"{LADDER}/{name}", *_selection(store, chains, draws, "posterior", committed))


def read_predictive(store: OpenStore, name: str, draws: slice) -> Array:
    """Read one of catalogue.PREDICTIVE, (n_chains, n_draws, n_cases, ...), from a store of prior draws."""
    return store.hierarchy.read(
        f"prior_predictive/{name}", *_selection(store, slice(None), draws, "posterior", None)
    )


def datatree(store: OpenStore) -> xr.DataTree:
    """Return the groups of the store, read lazily, with only the draws that every chain has."""
    import xarray as xr

    zarr_store: Any = store.hierarchy.zarr_store()  # xarray accepts it, though its types do not say so
    whole = xr.open_datatree(zarr_store, engine="zarr", consolidated=False)
    parts = {}
    planned = [path.split("/") for path in store.hierarchy.plans if "/" in path]
    # In the order of the plans, because Zarr lists arrays in any order.
    for name in dict.fromkeys(group for group, _ in planned):
        n_draws = store.committed("warmup" if name.startswith("warmup_") else "posterior")
        part = whole[name].to_dataset().isel(draw=slice(n_draws), missing_dims="ignore")
        for attributes in (part.attrs, *(variable.attrs for variable in part.variables.values())):
            attributes.pop(SEAL, None)
        parts[name] = _with_named_statistics(part[[array for group, array in planned if group == name]])
    return xr.DataTree.from_dict(parts, name=store.path.name)


def _with_named_statistics(part: xr.Dataset) -> xr.Dataset:
    """Return a group with a variable for each statistic instead of one array for all."""
    if STATISTICS not in part:
        return part
    names, together = part[STATISTIC].values, part[STATISTICS]
    single = {str(name): together.isel({STATISTIC: i}, drop=True) for i, name in enumerate(names)}
    return part.drop_vars([STATISTICS, STATISTIC]).assign(single)


def _selection(
    store: OpenStore, chains: slice, draws: slice, section: Section, committed: int | None
) -> tuple[slice, slice]:
    """Return slices with step 1 and both ends, limited to committed draws."""
    limits = (store.header.chains, store.committed(section) if committed is None else committed)
    spans = [range(*part.indices(n)) for part, n in zip((chains, draws), limits, strict=True)]
    if any(span.step != 1 for span in spans):
        raise ValueError(f"chains, draws: must be slices of step 1, got {chains} and {draws}")
    first, second = (slice(span.start, max(span.start, span.stop)) for span in spans)
    return first, second


def _prefix(section: Section) -> str:
    return "warmup_" if section == "warmup" else ""
