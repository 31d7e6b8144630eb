"""Checked reading of draws, statistics and training cases."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.data import Dataset
from rayfbnn.data.dataset import CasesDigest
from rayfbnn.data.transforms import TargetUnits, is_log_of
from rayfbnn.errors import StoreCorruptError
from rayfbnn.memory import bytes_text, memory_of_machine
from rayfbnn.model.cases import pieces_of
from rayfbnn.store.catalogue import LADDER, STATISTIC, STATISTICS, sigma_plans
from rayfbnn.store.opened import OpenStore
from rayfbnn.store.records import SEAL, Section

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
