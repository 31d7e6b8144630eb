"""An open store, and the checked reading of its draws, statistics and training cases."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.data import Dataset
from rayfbnn.data.dataset import CasesDigest, TargetUnits, is_log_of
from rayfbnn.errors import StoreCorruptError
from rayfbnn.memory import bytes_text, memory_of_machine
from rayfbnn.model.cases import pieces_of
from rayfbnn.store.catalogue import (
    LADDER,
    STATISTIC,
    STATISTICS,
    Section,
    array_plans,
    layouts,
    sigma_plans,
)
from rayfbnn.store.hierarchy import Hierarchy
from rayfbnn.store.log import CommitLog
from rayfbnn.store.records import SEAL
from rayfbnn.store.root import check_fixed_chunks, check_layout, read_metadata, read_root, verdict_log
from rayfbnn.store.rows import CommittedDraws
from rayfbnn.store.storage.places import Place
from rayfbnn.store.storage.protocol import Storage
from rayfbnn.store.tuning_log import TuningLog

if TYPE_CHECKING:
    import xarray as xr

_ALL = slice(None)


class OpenStore:
    """The contents of the metadata files of a store, with the objects that read its arrays and records.

    fs          the storage that all bytes of the store pass through
    path        the store's folder, as an absolute path
    root        the root metadata, with the extensions applied; `header` has its sizes, `spec` its run
    kind        kind of the draws: from Markov chains, exact by rejection, from the prior, or approximate
    hierarchy   the Zarr arrays; their chunks are checked as they are read
    commits     the commit records
    rows        the committed draws by their chunks, from the commit records
    tuning      the records of the rounds that find automatic settings
    verdicts    the verdicts on a run that was extended until it was ok
    parameter_layout, precision_layout    columns of the positions and of the precisions
    is_pending  whether an extension was published, but some arrays are not lengthened yet
    """

    def __init__(self, fs: Storage, path: Place, *, headers_only: bool = False) -> None:
        """Read and check every metadata file of the store at `path`, but no commit record.

        headers_only  as in BlockFiles

        Raises StoreMissingError without a store, StoreFormatError if it has another format, and
        StoreCorruptError if one of the files is damaged.
        """
        self.fs, self.path, self._headers_only = fs, path, headers_only
        self._identity = ""  # of the store that `commits` and `rows` have read
        self.reload()

    def reload(self) -> None:
        """Read the metadata files again; the commit records that were read before are kept."""
        self.root = root = read_root(self.fs, self.path)
        self.header, self.spec, self.kind = root.header, root.spec, root.header.kind
        self.n_chains, self.n_batches = root.header.chains, root.header.n_batches
        plans = array_plans(root.header, root.spec)
        check_layout(self.fs, self.path, plans)
        check_fixed_chunks(self.path, root.fixed_chunks, plans)
        metadata, self.is_pending = read_metadata(self.fs, self.path, plans)
        if self._identity != root.identity:
            self.commits = CommitLog(self.fs, self.path, root, plans, headers_only=self._headers_only)
            self.rows = CommittedDraws(self.path, self.commits)
            self._identity = root.identity
        self.rows.set_sizes(root.header, plans, root.fixed_chunks)
        self.hierarchy = Hierarchy(self.fs, self.path, plans, metadata, self.rows)
        self.tuning = TuningLog(self.fs, self.path, root, self.commits)
        self.verdicts = verdict_log(self.fs, self.path, root.identity)
        self.parameter_layout, self.precision_layout = layouts(root.spec)

    @property
    def committed_draws(self) -> int:
        """Number of draws from the posterior that every chain has."""
        return self.committed("posterior")

    def committed(self, section: Section) -> int:
        """Return the number of draws of a section that every chain has."""
        batches = self.commits.progress_of(range(self.header.n_batches))
        return min(batch.draws_of(section) for batch in batches)

    @cached_property
    def data(self) -> Dataset:
        """The training cases; StoreCorruptError if they are not those of the run."""
        self._check_memory(np.dtype(np.float64), share=1)
        read = self.hierarchy.read
        data = Dataset(
            inputs=read("constant_data/inputs"),
            targets=read("observed_data/targets"),
            input_names=self.spec.input_names,
            target_names=tuple(self.spec.data.targets),
            input_center=read("constant_data/input_center"),
            input_scale=read("constant_data/input_scale"),
            target_center=read("constant_data/target_center"),
            target_scale=read("constant_data/target_scale"),
            log_targets=tuple(self.spec.data.transform or ()),
        )
        self._check_digest(data.hash)
        return data

    @property
    def targets(self) -> Array:
        """The targets of the training cases as on file, (n_cases, n_targets); the inputs are not read."""
        return self.hierarchy.read("observed_data/targets")

    def standardized_cases(self) -> tuple[Iterator[Array], Array]:
        """Return the standardised training cases, without holding all inputs in memory.

        Returns
        -------
        pieces   yields the inputs of some cases at a time, (n, n_inputs) float64; raises StoreCorruptError at
                 the end if these are not the cases of the run, because only then all of them have been read
        targets  (n_cases, n_targets) float64
        """
        self._check_memory(np.dtype(self.spec.dtype), share=1 / self.spec.n_parts)
        read = self.hierarchy.read
        targets = read("observed_data/targets")
        center, scale = read("constant_data/input_center"), read("constant_data/input_scale")

        def pieces() -> Iterator[Array]:
            digest = CasesDigest(self.spec.input_names, self.spec.data.targets, self.header.n_cases)
            for chunk in self.hierarchy.chunks("constant_data/inputs"):
                for piece in pieces_of(chunk):
                    digest.add(piece)
                    yield (piece - center) / scale
            digest.add(targets)
            self._check_digest(digest.hexdigest())

        target_center, target_scale = read("constant_data/target_center"), read("constant_data/target_scale")
        is_log = is_log_of(self.spec.data.targets, self.spec.data.transform)
        return pieces(), TargetUnits(target_center, target_scale, is_log).to_network(targets)

    def _check_memory(self, dtype: np.dtype[Any], *, share: float) -> None:
        """Raise StoreCorruptError if a share of the inputs does not fit into memory.

        A store may claim any number of cases.
        """
        needed = share * math.prod(self.hierarchy.plans["constant_data/inputs"].shape) * dtype.itemsize
        memory = memory_of_machine()
        if needed > memory:
            raise StoreCorruptError(
                f"{self.path / 'constant_data/inputs'}: the training cases take {bytes_text(needed)},"
                f" more than the memory of this machine ({bytes_text(memory)})"
            )

    def _check_digest(self, digest: str) -> None:
        if digest != self.header.data_hash:
            raise StoreCorruptError(f"{self.path}: the training cases do not match the run's data hash")

    def read_positions(
        self,
        draws: slice = _ALL,
        chains: slice = _ALL,
        *,
        section: Section = "posterior",
        committed: int | None = None,
    ) -> Array:
        """Return committed parameters, (n_chains, n_draws, n_parameters) in the run's dtype.

        chains, draws  slices of step 1
        committed      number of draws that are known to be committed; None asks the records of every batch

        This and the following methods raise ValueError if a slice has a step, and StoreCorruptError if a file
        is missing or damaged.
        """
        chains, draws = self._selection(chains, draws, section, committed)
        shape = (chains.stop - chains.start, draws.stop - draws.start, self.parameter_layout.n_parameters)
        positions = np.empty(shape, dtype=self.spec.dtype)
        for name, columns in self.parameter_layout.slices.items():
            values = self.hierarchy.read(f"{_prefix(section)}posterior/{name}", chains, draws)
            positions[..., columns] = values.reshape(*shape[:2], columns.stop - columns.start)
        return positions

    def read_precisions(
        self,
        draws: slice = _ALL,
        chains: slice = _ALL,
        *,
        section: Section = "posterior",
        committed: int | None = None,
    ) -> Array:
        """Return precisions, sigma**-2, (n_chains, n_draws, n_precisions) float64; the store has sigma."""
        chains, draws = self._selection(chains, draws, section, committed)
        shape = (chains.stop - chains.start, draws.stop - draws.start, self.precision_layout.n_precisions)
        precisions = np.empty(shape)
        for sigma in sigma_plans(self.precision_layout):
            values = self.hierarchy.read(f"{_prefix(section)}posterior/{sigma.name}", chains, draws)
            precisions[..., sigma.columns] = 1 / (values * values)
        return precisions

    def read_stat(
        self,
        name: str,
        draws: slice = _ALL,
        chains: slice = _ALL,
        *,
        section: Section = "posterior",
        committed: int | None = None,
    ) -> Array:
        """Return one of catalogue.STATS, (n_chains, n_draws) float64."""
        chains, draws = self._selection(chains, draws, section, committed)
        number = self.header.statistics.index(name)
        only = slice(number, number + 1)
        return self.hierarchy.read(f"{_prefix(section)}sample_stats/{STATISTICS}", chains, draws, only)[
            ..., 0
        ]

    def read_ladder(
        self, name: str, draws: slice = _ALL, chains: slice = _ALL, *, committed: int | None = None
    ) -> Array:
        """Return one of the arrays of catalogue.LADDER, (n_chains, n_draws, ...) float32."""
        return self.hierarchy.read(
            f"{LADDER}/{name}", *self._selection(chains, draws, "posterior", committed)
        )

    def datatree(self) -> xr.DataTree:
        """Return the groups of the store, read lazily, with only the draws that every chain has."""
        import xarray as xr

        zarr_store: Any = self.hierarchy.zarr_store()  # xarray accepts it, though its types do not say so
        whole = xr.open_datatree(zarr_store, engine="zarr", consolidated=False)
        parts = {}
        planned = [path.split("/") for path in self.hierarchy.plans if "/" in path]
        # In the order of the plans, because Zarr lists arrays in any order.
        for name in dict.fromkeys(group for group, _ in planned):
            n_draws = self.committed("warmup" if name.startswith("warmup_") else "posterior")
            part = whole[name].to_dataset().isel(draw=slice(n_draws), missing_dims="ignore")
            for attributes in (part.attrs, *(variable.attrs for variable in part.variables.values())):
                attributes.pop(SEAL, None)
            parts[name] = _with_named_statistics(part[[array for group, array in planned if group == name]])
        return xr.DataTree.from_dict(parts, name=self.path.name)

    def _selection(
        self, chains: slice, draws: slice, section: Section, committed: int | None
    ) -> tuple[slice, slice]:
        """Return slices with step 1 and both ends, limited to committed draws."""
        limits = (self.header.chains, self.committed(section) if committed is None else committed)
        spans = [range(*part.indices(n)) for part, n in zip((chains, draws), limits, strict=True)]
        if any(span.step != 1 for span in spans):
            raise ValueError(f"chains, draws: must be slices of step 1, got {chains} and {draws}")
        first, second = (slice(span.start, max(span.start, span.stop)) for span in spans)
        return first, second


def _with_named_statistics(part: xr.Dataset) -> xr.Dataset:
    """Return a group with a variable for each statistic instead of one array for all."""
    if STATISTICS not in part:
        return part
    names, together = part[STATISTIC].values, part[STATISTICS]
    single = {str(name): together.isel({STATISTIC: i}, drop=True) for i, name in enumerate(names)}
    return part.drop_vars([STATISTICS, STATISTIC]).assign(single)


def _prefix(section: Section) -> str:
    return "warmup_" if section == "warmup" else ""
