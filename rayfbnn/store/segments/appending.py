"""Adds a block to a batch as one file, which is there whole or not at all.

The file is published under a name that must be free; then the head of the batch names it. A crash between
the two leaves a head that is one block behind.
"""

from __future__ import annotations

import hashlib

import numpy as np

from rayfbnn.errors import StoreCorruptError, StoreFullError, StoreOvertakenError
from rayfbnn.store.checking.consistency import check_follows
from rayfbnn.store.opened import OpenStore
from rayfbnn.store.records import BatchProgress, Block, Record
from rayfbnn.store.segments.log import CommitLog
from rayfbnn.store.segments.payload import state_arrays
from rayfbnn.store.writing import arrays_of, record_after


def append(store: OpenStore, batch: int, block: Block) -> BatchProgress:
    """Add a block to a batch and return how far the batch is then.

    Adding the same block again is a success that changes nothing. StoreOvertakenError if another worker has
    committed the block with another end; StoreCorruptError if it is committed with other values.
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
            published = log.publish_file(record, payload)
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
    draws = arrays_of(store, batch, block) if block.n_draws else {}
    section = block.section if block.n_draws else None
    payload = log.layout.encoded(draws, section, state_arrays(block.state))
    return record_after(store, batch, block, last, hashlib.sha256(payload).hexdigest()), payload


def _committed_before(store: OpenStore, log: CommitLog, batch: int, block: Block) -> BatchProgress:
    """Return the batch's progress if the block was committed before with the same values, else raise."""
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
    store.fs.fsync_dir(log.folder(batch))  # the first attempt may have failed just before this
    log.advance(batch)
    return log.progress(batch)


def _has_draws_of(store: OpenStore, batch: int, block: Block) -> bool:
    """Return True if the draws of a block are those that a segment has in their place."""
    chains = store.header.batch_chains(batch)
    where = (
        slice(chains.start, chains.stop),
        slice(block.first_draw, block.first_draw + block.n_draws),
    )
    arrays = arrays_of(store, batch, block) if block.n_draws else {}
    return all(
        np.array_equal(store.hierarchy.read(path, *where), values, equal_nan=True)
        for path, values in arrays.items()
    )
