"""The commit of a block, and the gathering of a batch's blocks into a segment.

The file of a block is published under a name that must be free, and then the head of the batch names it. A
crash between the two leaves a head that is one block behind.

When blocks are gathered, their draws go into chunks, and their records into one. The chunks are written
first. Then the segment is published under a name that must be free, and last the blocks are removed. After a
crash in between, either the chunks hold draws that the blocks have too, or blocks are left that a segment
stands for. The next driver finishes the work.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial, reduce
from itertools import groupby

import numpy as np

from rayfbnn.arrays import Array, to_host
from rayfbnn.errors import StoreCorruptError, StoreError, StoreFullError, StoreOvertakenError
from rayfbnn.store.catalogue import LADDER, STATISTICS, ArrayPlan, chunk_index, chunk_rows, sigma_plans
from rayfbnn.store.hierarchy import encoded
from rayfbnn.store.log import CommitLog
from rayfbnn.store.opened import OpenStore
from rayfbnn.store.payload import state_arrays
from rayfbnn.store.records import BatchProgress, Block, Record, Segment
from rayfbnn.store.rounds import round_of, summed
from rayfbnn.store.rows import check_follows
from rayfbnn.store.storage.places import Place, key_below


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
        record, payload = _prepare(store, batch, block, last)
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


def _prepare(store: OpenStore, batch: int, block: Block, last: Record | None) -> tuple[Record, bytes]:
    """Return the record of a block that follows `last`, and its draws and state as bytes."""
    draws = _arrays_of(store, batch, block) if block.n_draws else {}
    section = block.section if block.n_draws else None
    payload = store.commits.files.layout.encoded(draws, section, state_arrays(block.state))
    before = BatchProgress() if last is None else last.progress
    n_draws, n_warmup_draws = (0, block.n_draws) if block.section == "warmup" else (block.n_draws, 0)
    progress = BatchProgress.model_construct(  # whole numbers in a summary stay whole in the file
        iteration=block.last_iteration,
        draws=before.draws + n_draws,
        warmup_draws=before.warmup_draws + n_warmup_draws,
        blocks=before.blocks + 1,
        totals=_added(before.totals, {name: value + 0.0 for name, value in block.summary.items()}),
        last=dict(block.summary),
    )
    record = Record(
        store=store.root.identity,
        batch=batch,
        block=before.blocks,
        previous="" if last is None else last.last_digest,
        first_iteration=block.first_iteration,
        n_iterations=block.n_iterations,
        section=block.section,
        first_draw=block.first_draw,
        n_draws=block.n_draws,
        chunks={},
        state={},
        tuning=block.tuning,
        payload=hashlib.sha256(payload).hexdigest(),
        progress=progress,
    )
    return record, payload


def _added(ours: dict[str, float], theirs: dict[str, float]) -> dict[str, float]:
    return {name: ours.get(name, 0.0) + theirs.get(name, 0.0) for name in {**ours, **theirs}}


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
    for record in log.records(batch):
        if block.first_iteration <= record.progress.iteration:
            break
        before = record
    is_block = (record.first_iteration, record.n_iterations) == (block.first_iteration, block.n_iterations)
    if record.segment is None and is_block:
        is_same = _prepare(store, batch, block, before)[0].same_block(record)
    elif record.segment is not None and block.last_iteration <= record.progress.iteration:
        is_same = _has_draws_of(store, batch, block)
    else:
        raise StoreOvertakenError(f"{what}: another worker has committed later ones; load the state again")
    if not is_same:
        raise StoreCorruptError(f"{what}: are committed with other values; run `verify` on the store")
    store.fs.fsync_dir(log.files.folder(batch))  # the first attempt may have failed before this
    log.advance(batch)
    return log.progress_of([batch])[0]


def _has_draws_of(store: OpenStore, batch: int, block: Block) -> bool:
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


_MOST_BLOCKS = 256  # of a batch; so many are gathered even if no chunk is complete
_BYTES_AT_ONCE = 16 * 2**20  # of chunks that are written together


def gather(store: OpenStore, batch: int, *, everything: bool = False) -> int:
    """Gather the blocks of a batch whose chunks are complete, and return the number of new segments.

    A segment never has blocks of different sections or of different rounds of tuning. Blocks of the warm-up
    wait for the first kept draws, because until then predictions use the states after them. With `everything`
    the last chunk may be incomplete, as at the end of a run. The caller holds the lock of the store.
    """
    log = store.commits
    with log.lock(batch):
        log.advance(batch)
        store.rows.refresh(batch)
        single = store.rows.tail(batch)
        groups = list(_groups(store, single))
        has_draws = any(record.n_draws for record in single)
        is_time = everything and has_draws or any(_is_complete(store, blocks) for blocks in groups)
        n_segments = 0
        for number, blocks in enumerate(groups if is_time or len(single) >= _MOST_BLOCKS else ()):
            is_last = number == len(groups) - 1
            if is_last and not everything and not _is_complete(store, blocks):
                break
            if not _make_segment(store, log, blocks):
                break
            n_segments += 1
        return n_segments


def _groups(store: OpenStore, blocks: tuple[Record, ...]) -> Iterator[list[Record]]:
    """Yield the blocks of each segment in order: one section, one round, and draws that end in one chunk."""
    rounds, size = store.tuning.rounds, store.header.draws_per_chunk

    def place(record: Record) -> tuple[object, ...]:
        tuning_round = round_of(rounds, record.first_iteration)
        last_draw = record.first_draw + max(record.n_draws, 1) - 1
        return record.section, None if tuning_round is None else tuning_round.number, last_draw // size

    for _, group in groupby(blocks, place):
        yield list(group)


def _is_complete(store: OpenStore, blocks: list[Record]) -> bool:
    last = blocks[-1]
    end, size = last.first_draw + last.n_draws, store.header.draws_per_chunk
    is_full = last.n_draws > 0 and (end % size == 0 or end == store.header.planned(last.section))
    return is_full or len(blocks) >= _MOST_BLOCKS


def _make_segment(store: OpenStore, log: CommitLog, blocks: list[Record]) -> bool:
    """Put the draws of blocks into chunks, publish the segment, and remove the blocks.

    Returns False if another driver has already published a segment with this first block.
    """
    first, last = blocks[0], blocks[-1]
    payload = log.files.layout.state_bytes(last, log.files.content(last))
    segment = last.model_copy(
        update={
            "previous": first.previous,
            "first_iteration": first.first_iteration,
            "n_iterations": sum(record.n_iterations for record in blocks),
            "first_draw": first.first_draw,
            "n_draws": sum(record.n_draws for record in blocks),
            "progress": last.progress.model_copy(
                update={"last": reduce(_added, (record.progress.last for record in blocks))}
            ),
            "tuning": summed([record.tuning for record in blocks]),
            "segment": Segment(first_block=first.block, last=last.digest),
            "payload": hashlib.sha256(payload).hexdigest(),
        }
    )
    chunks = _write_chunks(store, log, blocks, segment) if segment.n_draws else {}
    segment = segment.model_copy(update={"chunks": chunks})
    is_new = log.files.publish(segment, payload) is not None
    for record in blocks if is_new else ():
        log.files.remove(record)
    return is_new


def _write_chunks(store: OpenStore, log: CommitLog, blocks: list[Record], segment: Record) -> dict[str, str]:
    """Write the draws of blocks into chunks, and return the digests of these draws in each chunk.

    A chunk may be many times larger than the draws, so only some chunks are in memory at once.
    """
    parts = [log.files.layout.draws(record, log.files.content(record)) for record in blocks]
    digests: dict[str, str] = {}
    files: dict[str, bytes] = {}
    for path in parts[0]:
        draws = np.concatenate([part[path] for part in parts], axis=1)
        digests |= _add_chunks(store, segment, path, draws, files)
        if sum(map(len, files.values())) >= _BYTES_AT_ONCE:
            _write(store, segment, files)
            files.clear()
    _write(store, segment, files)
    return digests


def _add_chunks(
    store: OpenStore, segment: Record, path: str, draws: Array, files: dict[str, bytes]
) -> dict[str, str]:
    """Add the chunks with a segment's draws of one array to `files`; return the digests of these draws.

    draws  (n_chains, n_draws, ...)
    """
    digests = {}
    chains, plan = store.header.batch_chains(segment.batch), store.hierarchy.plans[path]
    values = np.ascontiguousarray(draws, dtype=plan.stored_dtype)
    size = store.header.draws_per_chunk
    for number, rows, inside in chunk_rows(segment.first_draw, segment.n_draws, size):
        file = plan.chunk_file(segment.batch, number)
        digests[file] = hashlib.sha256(values[:, rows].tobytes()).hexdigest()
        whole = _whole_chunk(store, plan, chains, number, values[:, rows], inside)
        files[file] = encoded(whole, plan)
    return digests


def _whole_chunk(
    store: OpenStore, plan: ArrayPlan, chains: range, number: int, values: Array, inside: slice
) -> Array:
    """Return a chunk with `values` at the draws `inside`, committed draws before them, and NaN after them."""
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


def _write(store: OpenStore, segment: Record, files: dict[str, bytes]) -> None:
    places = {store.path / file: content for file, content in files.items()}
    store.fs.write_block(places, partial(_holds, store, segment))


def _holds(store: OpenStore, segment: Record, place: Place, content: bytes, existing: bytes) -> bool:
    """Return True if a chunk file already has the draws in `content` up to the end of the segment.

    It may also have later draws, of a driver that went further.

    content   the new content of the file at `place`
    existing  its present content
    """
    path, _, name = key_below(place, store.path).rpartition("/")
    plan = store.hierarchy.plans[path]
    if existing == content or len(existing) != len(content):
        return existing == content
    number = chunk_index(name)[1]
    n_draws = segment.first_draw + segment.n_draws - number * store.header.draws_per_chunk
    ours, theirs = (plan.decoded(raw)[:, :n_draws].tobytes() for raw in (content, existing))
    return bool(ours == theirs)
