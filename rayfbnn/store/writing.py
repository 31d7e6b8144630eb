"""Turns a block of draws into the bytes of its chunk files and the commit record with their digests."""

from __future__ import annotations

import hashlib
import math

import numpy as np

from rayfbnn.arrays import Array, to_host
from rayfbnn.errors import StoreError
from rayfbnn.store.catalogue import STATE, STATS, ArrayPlan, chunk_rows, sigma_plans, stat_array
from rayfbnn.store.opened import OpenStore
from rayfbnn.store.records import BatchProgress, Block, Record
from rayfbnn.store.storage.places import Place, key_below


def prepare(
    store: OpenStore, batch: int, block: Block, last: Record | None, *, encode: bool = True
) -> tuple[Record, dict[str, bytes]]:
    """Make the record of a block and the content of its chunk files; without `encode` only the record."""
    files: dict[str, bytes] = {}
    number = 0 if last is None else last.block + 1
    progress = BatchProgress() if last is None else last.progress
    chunks = _prepare_draws(store, batch, block, files if encode else None) if block.n_draws else {}
    state = {}
    if block.state is not None:
        for name in STATE:
            values = np.ascontiguousarray(to_host(getattr(block.state, name)), dtype="<f8")[None]
            file = store.hierarchy.plans[f"state/{name}"].chunk_file(number, batch)
            state[file] = hashlib.sha256(values.tobytes()).hexdigest()
            if encode:
                files[file] = store.hierarchy.encode(f"state/{name}", (number, batch), values)[1]
    is_warmup = block.section == "warmup"
    totals = {
        name: progress.totals.get(name, 0.0) + value
        for name, value in {**dict.fromkeys(progress.totals, 0.0), **block.summary}.items()
    }
    record = Record(
        store=store.root.identity,
        batch=batch,
        block=number,
        previous="" if last is None else last.digest,
        first_iteration=block.first_iteration,
        n_iterations=block.n_iterations,
        section=block.section,
        first_draw=block.first_draw,
        n_draws=block.n_draws,
        chunks=chunks,
        state=state,
        progress=BatchProgress(
            iteration=block.last_iteration,
            draws=progress.draws + (0 if is_warmup else block.n_draws),
            warmup_draws=progress.warmup_draws + (block.n_draws if is_warmup else 0),
            blocks=number + 1,
            totals=totals,
            last=dict(block.summary),
        ),
        tuning=block.tuning,
    )
    return record, files


def _prepare_draws(
    store: OpenStore, batch: int, block: Block, files: dict[str, bytes] | None
) -> dict[str, str]:
    """Return the digests of the block's values in each chunk it touches; put the chunks into `files`."""
    digests = {}
    chains = store.header.batch_chains(batch)
    for path, values in _arrays_of(store, block).items():
        plan = store.hierarchy.plans[path]
        if values.shape[0] != len(chains):
            raise StoreError(
                f"{store.path}: batch {batch} has {len(chains)} chains, but its block has {values.shape[0]}"
            )
        values = np.ascontiguousarray(values, dtype=np.dtype(plan.dtype).newbyteorder("<"))
        for number, rows, inside in chunk_rows(block.first_draw, block.n_draws, store.header.draws_per_block):
            file = plan.chunk_file(batch, number)
            digests[file] = hashlib.sha256(values[:, rows].tobytes()).hexdigest()
            if files is not None:
                whole = _whole_chunk(store, plan, chains, number, values[:, rows], inside)
                files[file] = store.hierarchy.encode(path, (batch, number), whole)[1]
    return digests


def _whole_chunk(
    store: OpenStore, plan: ArrayPlan, chains: range, number: int, values: Array, inside: slice
) -> Array:
    """Return a chunk with `values` at the draws `inside` it, earlier draws as committed, later ones NaN."""
    first = number * store.header.draws_per_block
    n_draws = min(store.header.draws_per_block, plan.shape[1] - first)
    if inside == slice(0, n_draws):
        return values
    whole = np.full((len(chains), n_draws, *plan.shape[2:]), np.nan, dtype=plan.dtype)
    if inside.start:
        committed = slice(first, first + inside.start)
        whole[:, : inside.start] = store.hierarchy.read(
            plan.path, slice(chains.start, chains.stop), committed
        )
    whole[:, inside] = values
    return whole


def holds_block(store: OpenStore, block: Block, place: Place, content: bytes, existing: bytes) -> bool:
    """Return True if a chunk file has all that `content` has of the block and of the draws before it.

    It may have later draws too: those of a worker that went further.

    content   what is to be written at `place`
    existing  what is there
    """
    path, _, name = key_below(place, store.path).rpartition("/")
    plan = store.hierarchy.plans[path]
    if existing == content or len(existing) != len(content) or plan.dims[0] == "block":
        return existing == content
    number = int(name.split(".")[2])
    n_draws = block.first_draw + block.n_draws - number * store.header.draws_per_block
    dtype, n_values = np.dtype(plan.dtype), math.prod(plan.chunks)
    ours, theirs = (
        np.frombuffer(raw, dtype, n_values).reshape(plan.chunks)[:, :n_draws].tobytes()
        for raw in (content, existing)
    )
    return ours == theirs


def _arrays_of(store: OpenStore, block: Block) -> dict[str, Array]:
    """Return the block's values by the path of their array, (n_chains, n_draws, ...) each."""
    prefix = "warmup_" if block.section == "warmup" else ""
    positions, precisions = to_host(block.positions), to_host(block.precisions)
    arrays = {
        f"{prefix}posterior/{name}": values
        for name, values in store.parameter_layout.views(positions).items()
    }
    for sigma in sigma_plans(store.precision_layout):
        arrays[f"{prefix}posterior/{sigma.name}"] = 1 / np.sqrt(precisions[..., sigma.columns])
    for name in STATS:
        values = block.stats.get(name)
        absent = np.full(positions.shape[:2], np.nan)
        path = f"{prefix}sample_stats/{stat_array(store.header, name)}"
        arrays[path] = absent if values is None else to_host(values)
    for name, values in block.predictive.items():
        arrays[f"prior_predictive/{name}"] = to_host(values)
    return arrays


def digest(values: Array) -> str:
    """Return the SHA-256 of the values, little-endian, in C order."""
    return hashlib.sha256(
        np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"), copy=False).tobytes()
    ).hexdigest()
