"""The commit of a block: one file is added to a batch, whole or not at all.

The file is published under a name that must be free, and then the head of the batch names it. A crash between
the two leaves a head that is one block behind.
"""

from __future__ import annotations

import hashlib

import numpy as np

from rayfbnn.arrays import Array, to_host
from rayfbnn.errors import StoreCorruptError, StoreError, StoreFullError, StoreOvertakenError
from rayfbnn.store.catalogue import LADDER, STATISTICS, sigma_plans
from rayfbnn.store.checking.consistency import check_follows
from rayfbnn.store.opened import OpenStore
from rayfbnn.store.records import BatchProgress, Block, Record
from rayfbnn.store.segments.log import CommitLog
from rayfbnn.store.segments.payload import state_arrays


def append(store: OpenStore, batch: int, block: Block) -> BatchProgress:
    """Add a block to a batch and return the progress of the batch.

    Adding the same block again succeeds and changes nothing: a worker may die after its commit, and another
    then repeats the block. StoreOvertakenError if another worker has committed these iterations as part of
    another block; StoreCorruptError if the block is committed with other values.
    """
    log = store.commits
    with log.lock(batch):
        last = log.last(batch)
        progress = BatchProgress() if last is None else last.progress
        if block.first_iteration <= progress.iteration:
            return _committed_before(store, log, batch, block)
        check_follows(store.path, store.header, batch, block, progress)
        record, payload = _prepare(store, log, batch, block, last)
        try:
            published = log.files.publish(record, payload)
            if published is None or not log.advance_to(published):
                log.advance(batch)
                return _committed_before(store, log, batch, block)
        except StoreFullError as exc:
            raise StoreFullError(
                f"{exc}; batch {batch} has {progress.draws} draws committed; free some space, then resume"
            ) from exc
        return record.progress


def _prepare(
    store: OpenStore, log: CommitLog, batch: int, block: Block, last: Record | None
) -> tuple[Record, bytes]:
    """Return the record of a block that follows `last`, and its draws and state as bytes."""
    draws = _arrays_of(store, batch, block) if block.n_draws else {}
    section = block.section if block.n_draws else None
    payload = log.files.layout.encoded(draws, section, state_arrays(block.state))
    return _record_after(store, batch, block, last, hashlib.sha256(payload).hexdigest()), payload


def _record_after(store: OpenStore, batch: int, block: Block, last: Record | None, payload: str) -> Record:
    """Return the record of a block that follows `last`; `payload` is the digest of its arrays."""
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
    """Return the progress of a batch after a block that follows `progress`."""
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


def _arrays_of(store: OpenStore, batch: int, block: Block) -> dict[str, Array]:
    """Return the block's draws by path of the array, (n_chains, n_draws, ...) each.

    StoreError if the block does not have the number of chains of the batch.
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
    for name, values in block.ladder.items():
        arrays[f"{LADDER}/{name}"] = to_host(values)
    return arrays


def _committed_before(store: OpenStore, log: CommitLog, batch: int, block: Block) -> BatchProgress:
    """Return the batch's progress if the block is already committed with the same values, else raise."""
    what = f"{store.path}: batch {batch}: iterations {block.first_iteration} to {block.last_iteration}"
    before: Record | None = None
    for record in log.all(batch):
        if block.first_iteration <= record.progress.iteration:
            break
        before = record
    is_block = (record.first_iteration, record.n_iterations) == (block.first_iteration, block.n_iterations)
    if record.segment is None and is_block:
        is_same = _prepare(store, log, batch, block, before)[0].same_block(record)
    elif record.segment is not None and block.last_iteration <= record.progress.iteration:
        is_same = _has_draws_of(store, batch, block)
    else:
        raise StoreOvertakenError(f"{what}: another worker has committed later ones; load the state again")
    if not is_same:
        raise StoreCorruptError(f"{what}: are committed with other values; run `verify` on the store")
    store.fs.fsync_dir(log.files.folder(batch))  # the first attempt may have failed before this
    log.advance(batch)
    return log.progress(batch)


def _has_draws_of(store: OpenStore, batch: int, block: Block) -> bool:
    """Return True if a segment has the same draws as a block."""
    chains = store.header.batch_chains(batch)
    where = (
        slice(chains.start, chains.stop),
        slice(block.first_draw, block.first_draw + block.n_draws),
    )
    arrays = _arrays_of(store, batch, block) if block.n_draws else {}
    return all(
        np.array_equal(store.hierarchy.read(path, *where), values, equal_nan=True)
        for path, values in arrays.items()
    )
