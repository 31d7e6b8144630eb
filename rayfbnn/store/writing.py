"""Turns a block of draws into arrays, a record and the bytes of chunk files."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

import numpy as np

from rayfbnn.arrays import Array, to_host
from rayfbnn.errors import StoreError
from rayfbnn.store.catalogue import STATISTICS, ArrayPlan, chunk_rows, sigma_plans
from rayfbnn.store.opened import OpenStore
from rayfbnn.store.records import BatchProgress, Block, Record
from rayfbnn.store.storage.places import Place, key_below


def record_after(store: OpenStore, batch: int, block: Block, last: Record | None, payload: str) -> Record:
    """Return the record of a block that follows `last`, whose arrays have the digest `payload`."""
    progress = _progress_after(BatchProgress() if last is None else last.progress, block)
    return Record(
        store=store.root.identity,
        batch=batch,
        block=progress.blocks - 1,
        previous="" if last is None else last.last_digest,
        first_iteration=block.first_iteration,
        n_iterations=block.n_iterations,
        section=block.section,
        first_draw=block.first_draw,
        n_draws=block.n_draws,
        chunks={},
        progress=progress,
        payload=payload,
        tuning=block.tuning,
    )


def _progress_after(progress: BatchProgress, block: Block) -> BatchProgress:
    """Return how far a batch is after a block that follows `progress`."""
    is_warmup = block.section == "warmup"
    totals = {
        name: progress.totals.get(name, 0.0) + value
        for name, value in {**dict.fromkeys(progress.totals, 0.0), **block.summary}.items()
    }
    return BatchProgress(
        iteration=block.last_iteration,
        draws=progress.draws + (0 if is_warmup else block.n_draws),
        warmup_draws=progress.warmup_draws + (block.n_draws if is_warmup else 0),
        blocks=progress.blocks + 1,
        totals=totals,
        last=dict(block.summary),
    )


def prepare_chunks(
    store: OpenStore,
    batch: int,
    arrays: Mapping[str, Array],
    first_draw: int,
    files: dict[str, bytes],
) -> dict[str, str]:
    """Return the digests of draws in each chunk that they touch; put the chunks into `files`.

    arrays  the draws by the path of their array, (n_chains, n_draws, ...) each, from `first_draw` on
    """
    digests = {}
    chains = store.header.batch_chains(batch)
    for path, values in arrays.items():
        plan = store.hierarchy.plans[path]
        values = np.ascontiguousarray(values, dtype=np.dtype(plan.dtype).newbyteorder("<"))
        for number, rows, inside in chunk_rows(first_draw, values.shape[1], store.header.draws_per_chunk):
            file = plan.chunk_file(batch, number)
            digests[file] = hashlib.sha256(values[:, rows].tobytes()).hexdigest()
            whole = _whole_chunk(store, plan, chains, number, values[:, rows], inside)
            files[file] = store.hierarchy.encode(path, (batch, number), whole)[1]
    return digests


def _whole_chunk(
    store: OpenStore, plan: ArrayPlan, chains: range, number: int, values: Array, inside: slice
) -> Array:
    """Return a chunk with `values` at the draws `inside` it, earlier draws as committed, later ones NaN."""
    first = number * store.header.draws_per_chunk
    n_draws = min(store.header.draws_per_chunk, plan.shape[1] - first)
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


def holds_segment(store: OpenStore, segment: Record, place: Place, content: bytes, existing: bytes) -> bool:
    """Return True if a chunk file has all that `content` has of the segment and of the draws before it.

    It may have later draws too: those of a worker that went further.

    content   what is to be written at `place`
    existing  what is there
    """
    path, _, name = key_below(place, store.path).rpartition("/")
    plan = store.hierarchy.plans[path]
    if existing == content or len(existing) != len(content):
        return existing == content
    number = int(name.split(".")[2])
    n_draws = segment.first_draw + segment.n_draws - number * store.header.draws_per_chunk
    dtype, n_values = np.dtype(plan.dtype), math.prod(plan.chunks)
    ours, theirs = (
        np.frombuffer(raw, dtype, n_values).reshape(plan.chunks)[:, :n_draws].tobytes()
        for raw in (content, existing)
    )
    return ours == theirs


def arrays_of(store: OpenStore, batch: int, block: Block) -> dict[str, Array]:
    """Return the block's draws by the path of their array, (n_chains, n_draws, ...) each.

    StoreError if the block has draws of another number of chains than the batch.
    """
    prefix = "warmup_" if block.section == "warmup" else ""
    positions, precisions = to_host(block.positions), to_host(block.precisions)
    n_chains = len(store.header.batch_chains(batch))
    if len(positions) != n_chains:
        raise StoreError(
            f"{store.path}: batch {batch} has {n_chains} chains, but its block has {len(positions)}"
        )
    arrays = {
        f"{prefix}posterior/{name}": values
        for name, values in store.parameter_layout.views(positions).items()
    }
    for sigma in sigma_plans(store.precision_layout):
        arrays[f"{prefix}posterior/{sigma.name}"] = 1 / np.sqrt(precisions[..., sigma.columns])
    absent = np.full(positions.shape[:2], np.nan)
    statistics = [to_host(block.stats.get(name, absent)) for name in store.header.statistics]
    arrays[f"{prefix}sample_stats/{STATISTICS}"] = np.stack(statistics, axis=-1)
    for name, values in block.predictive.items():
        arrays[f"prior_predictive/{name}"] = to_host(values)
    return arrays


def digest(values: Array) -> str:
    """Return the SHA-256 of the values, little-endian, in C order."""
    return hashlib.sha256(
        np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"), copy=False).tobytes()
    ).hexdigest()
