"""Adds a block of draws to a batch: whole and durable, or not at all.

From format 3 on a block is one file (segments/appending.py). In formats 1 and 2 it is spread over chunks:
their files are written beside the files they replace, synced and renamed; then the folders are synced; then
the record is published under a name that must be free, and last the head of the batch names it. A crash
before the record leaves files that no record names, and one after it a head that is one record behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from rayfbnn.errors import StoreCorruptError, StoreError, StoreFullError
from rayfbnn.store.checking.consistency import check_follows
from rayfbnn.store.opened import OpenStore
from rayfbnn.store.records import BatchProgress, Block, Record
from rayfbnn.store.segments.appending import append
from rayfbnn.store.segments.log import BlockLog
from rayfbnn.store.storage.places import Place, key_below
from rayfbnn.store.writing import holds_block, prepare


def commit(store: OpenStore, batch: int, block: Block) -> BatchProgress:
    """Add a block to a batch and return how far the batch is then.

    Committing the same block again is a success that changes nothing: a worker may die after its commit and
    before it could say so. Another block in its place is a StoreCorruptError.
    """
    if isinstance(store.commits, BlockLog):
        return append(store, store.commits, batch, block)
    with store.commits.lock(batch):
        n_blocks = store.commits.n_blocks(batch)
        last = store.commits.read(batch, n_blocks - 1) if n_blocks else None
        progress = BatchProgress() if last is None else last.progress
        if block.first_iteration <= progress.iteration:
            return _recommit(store, batch, block, n_blocks)
        check_follows(store.path, store.header, batch, block, progress)
        record, files = prepare(store, batch, block, last)
        try:
            places = {store.path / file: content for file, content in files.items()}
            replaced = store.fs.write_block(places, partial(_can_stay, store, block, record))
            if not store.commits.publish(record):
                _give_back(store, record, replaced)
                return _recommit(store, batch, block, n_blocks + 1)
            store.commits.advance(batch)
        except StoreFullError as exc:
            raise StoreFullError(
                f"{exc}; batch {batch} has {progress.draws} draws committed; free some space, then resume"
            ) from exc
        return record.progress


def _can_stay(
    store: OpenStore, block: Block, record: Record, place: Place, content: bytes, existing: bytes
) -> bool:
    """Return True if a chunk file that is there need not, or must not, be replaced.

    It must not where another worker has committed the block meanwhile.
    """
    return holds_block(store, block, place, content, existing) or store.fs.exists(
        store.commits.file(record.batch, record.block)
    )


def _give_back(store: OpenStore, record: Record, replaced: Mapping[Place, bytes]) -> None:
    """Put back the state of a block that another worker committed, if this one has replaced it.

    Both may have ended the block at different iterations, and states have no draws in common as chunks do.
    """
    states = {place: old for place, old in replaced.items() if key_below(place, store.path) in record.state}
    store.fs.write_block(states, lambda place, content, existing: existing == content)


def _recommit(store: OpenStore, batch: int, block: Block, n_blocks: int) -> BatchProgress:
    """Return the batch's progress if the block was committed before with the same values, else raise."""
    what = f"{store.path}: batch {batch}: iterations {block.first_iteration} to {block.last_iteration}"
    for number in range(n_blocks):
        old = store.commits.read(batch, number)
        if (old.first_iteration, old.n_iterations) == (block.first_iteration, block.n_iterations):
            previous = store.commits.read(batch, number - 1) if number else None
            if not prepare(store, batch, block, previous, encode=False)[0].same_block(old):
                raise StoreCorruptError(f"{what}: are committed with other values; run `verify` on the store")
            # The first attempt may have failed just before this.
            store.fs.fsync_dir(store.commits.folder(batch))
            store.commits.advance(batch)
            return store.commits.progress(batch)
    raise StoreError(f"{what}: another worker has committed later iterations; load the state again")
