"""The log of commits: the records of each batch in order, from blocks and segments alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial

from rayfbnn.arrays import Array
from rayfbnn.errors import StoreCorruptError, StoreOvertakenError
from rayfbnn.state import ChainState
from rayfbnn.store.block_files import NAME, BlockFiles, MissingFile, missing
from rayfbnn.store.catalogue import COMMITS, DISCARDED, ArrayPlan, Root
from rayfbnn.store.documents import Head
from rayfbnn.store.known import KnownRecords, Seen
from rayfbnn.store.payload import PayloadLayout
from rayfbnn.store.records import (
    HEAD,
    BatchProgress,
    Record,
    RunUpdates,
    check_head,
    head_after,
    head_bytes,
    no_blocks,
    read_head,
    write_head,
)
from rayfbnn.store.storage.places import Place
from rayfbnn.store.storage.protocol import Item, Result, Storage

_ATTEMPTS = 5  # to read a batch while a driver gathers its blocks


class CommitLog:
    """The commit records of a store with these root metadata and arrays.

    A block is a record with its draws and state. A segment is a record of consecutive blocks, with the state
    after the last; their draws are in chunks. It replaces its blocks, and these are removed; blocks that a
    crash left behind are ignored. For a reader of records, a segment is one long block: it follows the block
    before its first, and the block after its last follows it.

    headers_only  as in BlockFiles
    """

    def __init__(
        self,
        fs: Storage,
        path: Place,
        root: Root,
        plans: Mapping[str, ArrayPlan],
        *,
        headers_only: bool = False,
    ) -> None:
        self._fs, self._root, self._store = fs, path, root.identity
        layout = PayloadLayout(root.header, root.spec, plans)
        self.files = BlockFiles(fs, path, root.identity, layout, headers_only=headers_only)
        self._known = KnownRecords(self.files)
        self._sums: dict[int, tuple[str, RunUpdates]] = {}  # by batch: digest of the last block, its sum

    def lock(self, batch: int) -> AbstractContextManager[None]:
        """Hold the lock for writing a block, because a worker believed dead may still write the same one."""
        return self._fs.writer_lock(self.files.folder(batch) / "lock")

    def head_file(self, batch: int) -> Place:
        """Return the file with the head of a batch."""
        return self.files.folder(batch) / HEAD

    def head(self, batch: int) -> Head:
        """Read the head of a batch."""
        return read_head(self._fs, self.files.folder(batch), self._store, batch)

    def n_blocks(self, batch: int, seen: Seen | None = None) -> int:
        """Return the number of blocks of a batch; `seen` as in `records`."""
        return self._known.n_blocks(self._seen(batch) if seen is None else seen)

    def blocks(self, batch: int) -> list[int]:
        """Return the first blocks of all records in order, without blocks that a segment stands for."""
        blocks, segments = self.files.numbers(batch)
        first_blocks, covered = [], 0
        for number in sorted(blocks | segments):
            if number < covered:
                continue
            first_blocks.append(number)
            if number in segments:
                try:
                    covered = self.files.read(batch, number, is_segment=True).block + 1
                except StoreCorruptError:  # whoever reads it gets the error
                    covered = number + 1
        return first_blocks

    def n_listed(self, batch: int) -> int:
        """Return the number of blocks by their files alone, without the head."""
        first_blocks = self.blocks(batch)
        return self.files.read_first(batch, first_blocks[-1]).block + 1 if first_blocks else 0

    def read(self, batch: int, block: int, seen: Seen | None = None) -> Record:
        """Read the record that ends with a block: the block itself, or the segment that it closes.

        seen  as in `records`; a record that `look` has read is not read again
        """
        return self._again(self._closing, batch, block, seen=seen)

    def _closing(self, batch: int, block: int, *, seen: Seen | None) -> Record:
        if seen is None:
            return self._read(batch, block, self.files.numbers(batch)[1])
        if block >= self._known.n_in_segments(batch, seen.segments):
            return self._known.block(batch, block)
        return self._read(batch, block, seen.segments)

    def _read(self, batch: int, block: int, segments: set[int]) -> Record:
        segment = self._segment_with(batch, block, segments)
        if segment is not None and segment.block == block:
            return segment
        return self.files.read(batch, block)

    def _segment_with(self, batch: int, block: int, segments: set[int]) -> Record | None:
        number = 0
        while number in segments:
            segment = self._known.segment(batch, number)
            if segment.block >= block:
                return segment
            number = segment.block + 1
        return None

    def state_after(self, record: Record) -> ChainState | None:
        """Read the state after a block or segment; None if it has none (exact draws).

        Once a block has been gathered, only the state after the last block of its segment is left.
        """
        return self.files.layout.state(*self._with_state(record))

    def named_state_after(self, record: Record) -> dict[str, Array]:
        """Read the state of a fit or of ladders after a block or segment, arrays (n_chains, ...) by name."""
        return self.files.layout.state_by_name(*self._with_state(record))

    def _with_state(self, record: Record) -> tuple[Record, memoryview]:
        """Return a record and its arrays, or those of the segment that ends with its block.

        StoreOvertakenError if the block has been gathered with later ones, so that its state is gone.
        """
        try:
            return record, self.files.content(record)
        except MissingFile as exc:
            segments = self.files.numbers(record.batch)[1]
            segment = self._segment_with(record.batch, record.block, segments)
            if segment is not None and segment.block > record.block:
                where = f"{self._root}: block {record.block} of batch {record.batch}"
                raise StoreOvertakenError(
                    f"{where}: another worker has committed later ones; load the state again"
                ) from exc
            if segment is None or segment.last_digest != record.last_digest:
                raise
            return segment, self.files.content(segment)

    def records(
        self, batch: int, *, first: int = 0, previous: str = "", seen: Seen | None = None
    ) -> list[Record]:
        """Return the records of a batch from block `first` on, each checked against the one before it.

        previous  digest of the block before it; StoreCorruptError if that block is gone
        seen      what `look` has just seen of the batch, if it was called
        """
        try:
            records = self._again(self._records, batch, first, previous, seen=seen)
        except StoreCorruptError:
            if not self._known.forget(batch):
                raise
            # A repair may have set aside blocks that were read before, and a run may have replaced them.
            records = self._again(self._records, batch, first, previous)
        for record in records:
            self._added(record)
        return records

    def _records(self, batch: int, first: int, previous: str, *, seen: Seen | None) -> list[Record]:
        seen = self._seen(batch) if seen is None else seen
        head, _, segments = seen
        n_blocks = self._known.n_blocks(seen)
        if n_blocks < first:
            raise missing(self.files.file(batch, n_blocks), batch, n_blocks)
        self._fs.each(partial(self._known.block, batch), self._known.unread_blocks(seen, first=first))
        records: list[Record] = []
        number = first
        while number < n_blocks:
            is_segment = number in segments
            record = (self._known.segment if is_segment else self._known.block)(batch, number)
            path = self.files.file_of(record)
            if record.previous != previous:
                before = f"the commit of block {number - 1} of batch {batch}"
                raise StoreCorruptError(f"{path}: does not follow {before}")
            check_head(head, record, path)
            previous, number = record.last_digest, record.block + 1
            records.append(record)
            if is_segment:
                self._known.forget_single(batch, below=number)
        return records

    def look(self, batches: Sequence[int]) -> dict[int, Seen]:
        """Read the names, the heads and the new records of several batches, and return what was seen of each.

        Only a slow storage is asked in this way; the result is empty for others. It takes one listing, and
        then the time of a few requests, because several are made at once. A batch with a damaged file is left
        out: whoever reads it gets the error.
        """
        if self._fs.at_once == 1:
            return {}
        numbers = self.files.numbers_of(batches)
        heads = self._fs.each(_or_none(self.head), batches)
        seen = {head.batch: Seen(head, *numbers[head.batch]) for head in heads if head is not None}
        segments = [(batch, n) for batch, one in seen.items() for n in self._known.unread_segments(one)]
        self._fs.each(_or_none(lambda item: self._known.segment(*item)), segments)
        single = {batch: _or_none(self._known.unread_blocks)(one) for batch, one in seen.items()}
        blocks = [(batch, number) for batch, unread in single.items() for number in unread or ()]
        self._fs.each(_or_none(lambda item: self._known.block(*item)), blocks)
        return {batch: one for batch, one in seen.items() if single[batch] is not None}

    def _seen(self, batch: int) -> Seen:
        """Read the head of a batch and the names of its files, in this order."""
        head = self.head(batch)
        return Seen(head, *self.files.numbers(batch))

    def last(self, batch: int) -> Record | None:
        """Return the last record of a batch; None before its first block.

        Take progress and state from the same record, because another worker may commit between two calls.
        """
        return self.lasts([batch])[0]

    def lasts(self, batches: Sequence[int]) -> list[Record | None]:
        """Return the last record of each batch; None before its first block.

        The head of a batch is always read. If it names a record that was read before, nothing else is.
        """
        heads = self._fs.each(self.head, batches)
        known = [self._known.last(head) for head in heads]
        unknown = [head for head, record in zip(heads, known, strict=True) if record is None]
        numbers = self.files.numbers_of([head.batch for head in unknown])
        found = self._fs.each(lambda head: self._found(Seen(head, *numbers[head.batch])), unknown)
        others = iter(found)
        return [next(others) if record is None else record for record in known]

    def _found(self, seen: Seen) -> Record | None:
        record = self._again(self._last, seen.head, seen=seen)
        if record is None:
            return None
        if record.segment is None:
            self._known.add(record)
        check_head(seen.head, record, self.files.file_of(record))
        return record

    def _last(self, head: Head, *, seen: Seen | None) -> Record | None:
        seen = Seen(head, *self.files.numbers(head.batch)) if seen is None else seen
        n_blocks = self._known.n_blocks(seen)
        return self._read(head.batch, n_blocks - 1, seen.segments) if n_blocks else None

    def _again(self, read: Callable[..., Result], *arguments: object, seen: Seen | None = None) -> Result:
        """Return the result of `read`, repeated while files are missing because a driver gathers them.

        Only the first attempt relies on what was `seen` before.
        """
        for _ in range(_ATTEMPTS - 1):
            try:
                return read(*arguments, seen=seen)
            except MissingFile:
                seen = None
        return read(*arguments, seen=None)

    def progress_of(self, batches: Sequence[int]) -> list[BatchProgress]:
        """Return the progress of several batches; a slow storage lists their folders once."""
        return [BatchProgress() if last is None else last.progress for last in self.lasts(batches)]

    def updates_until(self, last: Record | None) -> RunUpdates:
        """Return the acceptances and divergences of a batch up to its record `last`."""
        if last is None:
            return RunUpdates()
        updates = self._added(last)
        if updates is None:
            until = (record for record in self.records(last.batch) if record.block <= last.block)
            updates = sum((record.updates for record in until), RunUpdates())
            self._sums[last.batch] = last.last_digest, updates
        return updates

    def _added(self, record: Record) -> RunUpdates | None:
        """Add a record to the sum of its batch if it is the next; None if the sum then ends with another."""
        summed, updates = self._sums.get(record.batch, ("", RunUpdates()))
        if record.previous == summed:
            updates += record.updates
            self._sums[record.batch] = record.last_digest, updates
            return updates
        return updates if record.last_digest == summed else None

    def advance(self, batch: int) -> None:
        """Let the head of a batch name its last block. The caller holds the lock of the batch or the store.

        The new name becomes durable with the next record. Until then a power loss may bring back the previous
        head, which is one block behind.
        """
        self._advance(self._seen(batch))

    def _advance(self, seen: Seen) -> None:
        batch, n_blocks = seen.head.batch, self._known.n_blocks(seen)
        if n_blocks > seen.head.blocks:
            self._replace_head(seen.head, self.read(batch, n_blocks - 1))

    def advance_to(self, record: Record) -> bool:
        """Let the head of a batch name a block that was just published.

        Returns False, and removes the block, if a segment stands for its number, because others went ahead.
        """
        seen = self._seen(record.batch)
        if record.block < self._known.n_in_segments(record.batch, seen.segments):
            self.files.remove(record)
            return False
        self._known.add(record)
        if record.block in seen.blocks and record.block >= seen.head.blocks:
            self._replace_head(seen.head, record)
        return True

    def _replace_head(self, head: Head, last: Record) -> None:
        """Let the head name a block that was seen after this head; a head that others changed stays.

        Others may have gone further, or set the head back and moved the block aside.
        """
        self._fs.replace(self.head_file(head.batch), head_bytes(head_after(last)), head_bytes(head))

    def finish(self, batch: int, seen: Seen | None = None) -> None:
        """Finish what a crash left of a batch, under the store's lock.

        The head then names the last block, and blocks that a segment stands for are gone; `seen` as in
        `records`.
        """
        seen = self._seen(batch) if seen is None else seen
        self._advance(seen)
        end = self._known.n_in_segments(batch, seen.segments)
        for number in sorted(number for number in seen.blocks if number < end):
            self._fs.drop(self.files.file(batch, number), below=self._root)

    def set_head(self, batch: int, n_blocks: int) -> None:
        """Let the head of a batch name its first `n_blocks` blocks and no others, durably."""
        head = head_after(self.read(batch, n_blocks - 1)) if n_blocks else no_blocks(self._store, batch)
        write_head(self._fs, self.files.folder(batch), head)

    def discard(self, batch: int, first_block: int) -> list[Place]:
        """Set aside the blocks and segments of a batch from a block on, and return their new paths.

        The last goes first, so a crash leaves a prefix. Unreadable files and files out of place are set aside
        too. Before that the head is set back, because it must not name a missing block.
        """
        self._known.forget(batch)
        folder = self._root / COMMITS / DISCARDED
        for needed in (folder, self.files.folder(batch)):
            self._fs.mkdir(needed)
        self.set_head(batch, first_block)
        there = self._fs.listdir(self.files.folder(batch))
        names = [name for name in there if (match := NAME.fullmatch(name)) and int(match[1]) >= first_block]
        taken = len(self._fs.listdir(folder))
        moved = []
        for number, name in enumerate(reversed(names)):
            moved.append(folder / f"{taken + number:04d}-batch{batch:04d}-{name}")
            self._fs.rename_new(self.files.folder(batch) / name, moved[-1], below=self._root)
        self.set_head(batch, first_block)  # a worker in a bucket may have seen a block before it was moved
        return moved


def _or_none(read: Callable[[Item], Result]) -> Callable[[Item], Result | None]:
    """Return a function that reads something, with None as the result if it is damaged or missing."""

    def attempt(item: Item) -> Result | None:
        try:
            return read(item)
        except StoreCorruptError:
            return None

    return attempt
