"""The log of commits: the records of each batch in order, from blocks and segments alike."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

from rayfbnn.arrays import Array
from rayfbnn.errors import StoreCorruptError
from rayfbnn.state import ChainState
from rayfbnn.store.catalogue import COMMITS, DISCARDED
from rayfbnn.store.checking.heads import HEAD, Head, read_head, write_head
from rayfbnn.store.records import BatchProgress, Record, RunUpdates
from rayfbnn.store.segments.files import NAME, BlockFiles, MissingFile, missing
from rayfbnn.store.segments.payload import PayloadLayout
from rayfbnn.store.storage.places import Place
from rayfbnn.store.storage.protocol import Result, Storage

_ATTEMPTS = 5  # to read a batch while a driver gathers its blocks


class CommitLog:
    """The commit records of a store; `store` is the digest of its root metadata.

    A block is a record with its draws and state. A segment is a record of consecutive blocks, with the state
    after the last; their draws are in chunks. It replaces its blocks, and these are removed; blocks that a
    crash left behind are ignored. For a reader of records, a segment is one long block: it follows the block
    before its first, and the block after its last follows it.

    headers_only  as in BlockFiles
    """

    def __init__(
        self, fs: Storage, root: Place, store: str, layout: PayloadLayout, *, headers_only: bool = False
    ) -> None:
        self._fs, self._root, self._store = fs, root, store
        self.files = BlockFiles(fs, root, store, layout, headers_only=headers_only)
        self._single: dict[tuple[int, int], Record] = {}  # blocks in no segment, by batch and number
        self._segments: dict[tuple[int, int], Record] = {}  # segments, by batch and first block
        self._updates: dict[int, tuple[Record, RunUpdates]] = {}  # by batch: last record in the sum, sum

    def lock(self, batch: int) -> AbstractContextManager[None]:
        """Hold the lock for writing a block, because a worker believed dead may still write the same one."""
        return self._fs.writer_lock(self.files.folder(batch) / "lock")

    def head_file(self, batch: int) -> Place:
        """Return the file with the head of a batch."""
        return self.files.folder(batch) / HEAD

    def head(self, batch: int) -> Head:
        """Read the head of a batch."""
        return read_head(self._fs, self.files.folder(batch), self._store, batch)

    def n_blocks(self, batch: int) -> int:
        """Return the number of blocks of a batch."""
        return self._count(batch, self.head(batch), *self.files.numbers(batch))

    def _count(self, batch: int, head: Head, blocks: set[int], segments: set[int]) -> int:
        """Return the number of blocks by the names of the files, but at least the number in the head.

        The head may be behind: by one block after a crash, and by more if a worker believed dead has put back
        an older one. A block that a segment stands for may still be there.
        """
        n_blocks = self._n_in_segments(batch, segments)
        while n_blocks in blocks:
            n_blocks += 1
        return max(n_blocks, head.blocks)

    def _n_in_segments(self, batch: int, segments: set[int]) -> int:
        """Return the number of the first block that is in no segment."""
        number = 0
        while number in segments:
            number = self._segment(batch, number).block + 1
        return number

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
                    covered = self.files.read_segment(batch, number).block + 1
                except StoreCorruptError:  # whoever reads it gets the error
                    covered = number + 1
        return first_blocks

    def n_listed(self, batch: int) -> int:
        """Return the number of blocks by their files alone, without the head."""
        first_blocks = self.blocks(batch)
        return self.files.read_first(batch, first_blocks[-1]).block + 1 if first_blocks else 0

    def read(self, batch: int, block: int) -> Record:
        """Read the record that ends with a block: the block itself, or the segment that it closes."""
        return self._again(lambda: self._read(batch, block, self.files.numbers(batch)[1]))

    def _read(self, batch: int, block: int, segments: set[int]) -> Record:
        number = 0
        while number in segments and number <= block:
            record = self._segment(batch, number)
            if record.block == block:
                return record
            number = record.block + 1
        return self.files.read_block(batch, block)

    def state_after(self, record: Record) -> ChainState | None:
        """Read the state after a block or segment; None if it has none (exact draws).

        Once a block has been gathered, only the state after the last block of its segment is left.
        """
        return self.files.layout.state(*self._with_state(record))

    def fit_after(self, record: Record) -> dict[str, Array]:
        """Read the state of a fit after a block or segment, arrays (n_starts, ...) by name."""
        return self.files.layout.fit_state(*self._with_state(record))

    def _with_state(self, record: Record) -> tuple[Record, memoryview]:
        """Return a record and its arrays, or those of the segment that ends with its block."""
        try:
            return record, self.files.content(record)
        except MissingFile:
            closing = self._read(record.batch, record.block, self.files.numbers(record.batch)[1])
            if closing.last_digest != record.last_digest:
                raise
            return closing, self.files.content(closing)

    def all(self, batch: int) -> list[Record]:
        """Return every record of a batch, each checked against the one before it."""
        return self.records(batch)

    def records(self, batch: int, *, first: int = 0, previous: str = "") -> list[Record]:
        """Return the records of a batch from block `first` on, each checked against the one before it.

        previous  digest of the block before it; StoreCorruptError if that block is gone
        """
        try:
            records = self._again(lambda: self._records(batch, first, previous))
        except StoreCorruptError:
            if not self._forget(batch):
                raise
            # A repair may have set aside blocks that were read before, and a run may have replaced them.
            records = self._again(lambda: self._records(batch, first, previous))
        for record in records:
            self._add_updates(record)
        return records

    def _records(self, batch: int, first: int, previous: str) -> list[Record]:
        head = self.head(batch)
        blocks, segments = self.files.numbers(batch)
        n_blocks = self._count(batch, head, blocks, segments)
        if n_blocks < first:
            raise missing(self.files.file(batch, n_blocks), batch, n_blocks)
        start = max(first, self._n_in_segments(batch, segments))
        single = sorted(number for number in blocks if start <= number < n_blocks)
        self._fs.each(partial(self._single_block, batch), single)
        records: list[Record] = []
        number = first
        while number < n_blocks:
            is_segment = number in segments
            record = self._segment(batch, number) if is_segment else self._single_block(batch, number)
            path = self.files.file_of(record)
            if record.previous != previous:
                before = f"the commit of block {number - 1} of batch {batch}"
                raise StoreCorruptError(f"{path}: does not follow {before}")
            head.check(record, path)
            previous, number = record.last_digest, record.block + 1
            records.append(record)
            if is_segment:
                self._forget_single(batch, below=number)
        return records

    def _single_block(self, batch: int, block: int) -> Record:
        """Return the record of a block that is in no segment; it is read once."""
        if (batch, block) not in self._single:
            self._single[batch, block] = self.files.read_block(batch, block)
        return self._single[batch, block]

    def _segment(self, batch: int, first_block: int) -> Record:
        """Return the record of a segment; it is read once."""
        if (batch, first_block) not in self._segments:
            self._segments[batch, first_block] = self.files.read_segment(batch, first_block)
        return self._segments[batch, first_block]

    def _forget_single(self, batch: int, *, below: int) -> None:
        """Forget the blocks that are now in a segment."""
        for key in [key for key in self._single if key[0] == batch and key[1] < below]:
            del self._single[key]

    def _forget(self, batch: int) -> bool:
        """Forget all records of a batch; True if there were any."""
        known = [(kept, key) for kept in (self._single, self._segments) for key in kept if key[0] == batch]
        for kept, key in known:
            del kept[key]
        return bool(known)

    def last(self, batch: int) -> Record | None:
        """Return the last record of a batch; None before its first block."""
        head = self.head(batch)
        known = self._single.get((batch, head.blocks - 1))
        is_last = (batch, head.blocks) not in self._single
        if known is not None and known.digest == head.last and is_last:
            return known
        record = self._again(lambda: self._last(batch, head))
        if record is None:
            return None
        if record.segment is None:
            self._single[batch, record.block] = record
        head.check(record, self.files.file_of(record))
        return record

    def _last(self, batch: int, head: Head) -> Record | None:
        """Read the last record of a batch; this lists its folder once."""
        blocks, segments = self.files.numbers(batch)
        n_blocks = self._count(batch, head, blocks, segments)
        return self._read(batch, n_blocks - 1, segments) if n_blocks else None

    def _again(self, read: Callable[[], Result]) -> Result:
        """Return the result of `read`, repeated while files are missing because a driver gathers them."""
        for _ in range(_ATTEMPTS - 1):
            try:
                return read()
            except MissingFile:
                continue
        return read()

    def progress(self, batch: int) -> BatchProgress:
        """Return the progress of a batch. This reads only one folder and one small file."""
        last = self.last(batch)
        return BatchProgress() if last is None else last.progress

    def updates_until(self, last: Record | None) -> RunUpdates:
        """Return the acceptances and divergences of a batch up to its record `last`."""
        if last is None:
            return RunUpdates()
        if self._is_summed(last):
            return self._updates[last.batch][1]
        self._add_updates(last)
        if not self._is_summed(last):
            records = [record for record in self.all(last.batch) if record.block <= last.block]
            self._updates[last.batch] = last, sum((record.updates for record in records), RunUpdates())
        return self._updates[last.batch][1]

    def _add_updates(self, record: Record) -> None:
        """Add a record's updates to the sum of its batch if it is the next one."""
        summed, updates = self._updates.get(record.batch, (None, RunUpdates()))
        if record.previous == ("" if summed is None else summed.last_digest):
            self._updates[record.batch] = record, updates + record.updates

    def _is_summed(self, last: Record) -> bool:
        """Return True if the sum of the updates of a batch ends with this record."""
        summed = self._updates.get(last.batch)
        return summed is not None and summed[0].last_digest == last.last_digest

    def advance(self, batch: int) -> None:
        """Let the head of a batch name its last block. The caller holds the lock of the batch or the store.

        The new name becomes durable with the next record. Until then a power loss may bring back the previous
        head, which is one block behind.
        """
        head = self.head(batch)
        n_blocks = self._count(batch, head, *self.files.numbers(batch))
        if n_blocks > head.blocks:
            last = self.read(batch, n_blocks - 1)
            self._fs.write_atomic(self.head_file(batch), Head.from_record(last).to_bytes())

    def advance_to(self, record: Record) -> bool:
        """Let the head of a batch name a block that was just published.

        Returns False, and removes the block, if a segment stands for its number, because others went ahead.
        """
        if record.block < self._n_in_segments(record.batch, self.files.numbers(record.batch)[1]):
            self.files.remove(record)
            return False
        self._single[record.batch, record.block] = record
        self._fs.write_atomic(self.head_file(record.batch), Head.from_record(record).to_bytes())
        return True

    def remove_gathered(self, batch: int) -> None:
        """Remove blocks that a crash left although a segment stands for them, under the store's lock."""
        blocks, segments = self.files.numbers(batch)
        end = self._n_in_segments(batch, segments)
        for number in sorted(number for number in blocks if number < end):
            self._fs.unlink(self.files.file(batch, number), below=self._root)

    def set_head(self, batch: int, n_blocks: int) -> None:
        """Let the head of a batch name its first `n_blocks` blocks and no others, durably."""
        head = Head.from_record(self.read(batch, n_blocks - 1)) if n_blocks else Head(self._store, batch)
        write_head(self._fs, self.files.folder(batch), head)

    def discard(self, batch: int, first_block: int) -> list[Place]:
        """Set aside the blocks and segments of a batch from a block on, and return their new paths.

        The last goes first, so a crash leaves a prefix. Unreadable files and files out of place are set aside
        too. Before that the head is set back, because it must not name a missing block.
        """
        self._forget(batch)
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
        return moved
