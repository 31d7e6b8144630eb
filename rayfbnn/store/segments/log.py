"""The blocks and segments of a store, batch by batch."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

from rayfbnn.arrays import Array
from rayfbnn.errors import StoreCorruptError
from rayfbnn.state import ChainState
from rayfbnn.store.catalogue import COMMITS, DISCARDED
from rayfbnn.store.checking.heads import HEAD, Head, batch_folder, read_head, write_head
from rayfbnn.store.records import BatchProgress, Record, RunUpdates, seal_of
from rayfbnn.store.segments.payload import PayloadLayout, joined, size_of_header, split
from rayfbnn.store.storage.places import Place
from rayfbnn.store.storage.protocol import Result, Storage

_KINDS = ("block", "segment")
_NAME = re.compile(r"([0-9]{6,15})\.(block|segment)")
_ATTEMPTS = 5  # to read a batch whose blocks are gathered meanwhile
_START_BYTES = 4 * 2**10  # of a file, in which the record of a block has one or two thousand
_KEPT_BYTES = 64 * 2**20  # of the arrays that were read last, the newest apart


class CommitLog:
    """The files `commits/batch<b>/<n>.block` and `<n>.segment`; n is the number of the (first) block.

    A block is a record with its draws and state. A segment is a record of blocks that follow each other,
    whose draws lie in chunks, with the state after the last of them. It takes the place of its blocks, which
    are then removed; those that a crash left behind are not looked at. To whoever reads records a segment is
    one long block, which follows the block before its first and is followed by the one after its last.

    headers_only  whether records are read without the draws and states that follow them in their files, for
                  whoever asks only how far the run is. Arrays are then checked once they are asked for.
    """

    def __init__(
        self, fs: Storage, root: Place, store: str, layout: PayloadLayout, *, headers_only: bool = False
    ) -> None:
        self._fs, self._root, self._store = fs, root, store
        self.layout = layout
        self._headers_only = headers_only
        self._single: dict[tuple[int, int], Record] = {}  # blocks in no segment, by batch and number
        self._segments: dict[tuple[int, int], Record] = {}  # segments, by batch and first block
        self._contents: dict[str, memoryview] = {}  # arrays that were read last, by digest of their record
        self._updates: dict[int, tuple[Record, RunUpdates]] = {}  # by batch: last record summed, and sum

    def folder(self, batch: int) -> Place:
        """Return the folder of a batch's commits."""
        return batch_folder(self._root, batch)

    def lock(self, batch: int) -> AbstractContextManager[None]:
        """Hold the lock for writing a block: a worker thought dead may still be at its successor's block."""
        return self._fs.writer_lock(self.folder(batch) / "lock")

    def head_file(self, batch: int) -> Place:
        """Return the file that says how many blocks a batch has at least."""
        return self.folder(batch) / HEAD

    def head(self, batch: int) -> Head:
        """Read the head of a batch."""
        return read_head(self._fs, self.folder(batch), self._store, batch)

    def file(self, batch: int, block: int) -> Place:
        """Return the file of a block that is in no segment."""
        return self.folder(batch) / f"{block:06d}.block"

    def segment_file(self, batch: int, first_block: int) -> Place:
        """Return the file of the segment that begins with a block."""
        return self.folder(batch) / f"{first_block:06d}.segment"

    def file_of(self, record: Record) -> Place:
        """Return the file of a record."""
        if record.segment is None:
            return self.file(record.batch, record.block)
        return self.segment_file(record.batch, record.first_block)

    def n_blocks(self, batch: int) -> int:
        """Count the blocks of a batch."""
        return self._count(batch, self.head(batch), *self._numbers(batch))

    def _count(self, batch: int, head: Head, blocks: set[int], segments: set[int]) -> int:
        """Count the blocks by the numbers in the names of the files, and not fewer than the head names.

        The head may be behind: by one block after a crash, and by more if a worker that was thought dead has
        put back an older one. A block may be left where a segment stands for it.
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

    def _numbers(self, batch: int) -> tuple[set[int], set[int]]:
        """Return the numbers in the names of a batch's files: of blocks, and of segments' first blocks."""
        try:
            names = self._fs.listdir(self.folder(batch))
        except FileNotFoundError:
            raise StoreCorruptError(f"{self.folder(batch)}: missing: the commits of batch {batch}") from None
        matches = [match for name in names if (match := _NAME.fullmatch(name))]
        blocks, segments = ({int(match[1]) for match in matches if match[2] == kind} for kind in _KINDS)
        return blocks, segments

    def listed(self, batch: int) -> list[int]:
        """Return the first blocks of all blocks and segments, in order, also of those that are not needed."""
        blocks, segments = self._numbers(batch)
        return sorted(blocks | segments)

    def blocks(self, batch: int) -> list[int]:
        """Return the first blocks of what is there, in order, without blocks that a segment stands for."""
        blocks, segments = self._numbers(batch)
        first_blocks, covered = [], 0
        for number in sorted(blocks | segments):
            if number < covered:
                continue
            first_blocks.append(number)
            if number in segments:
                try:
                    covered = self.read_segment(batch, number).block + 1
                except StoreCorruptError:  # told by whoever reads it
                    covered = number + 1
        return first_blocks

    def first_file(self, batch: int, first_block: int) -> Place:
        """Return the file of the record that begins with a block: that of a segment, or of the block."""
        segment = self.segment_file(batch, first_block)
        return segment if self._fs.exists(segment) else self.file(batch, first_block)

    def n_listed(self, batch: int) -> int:
        """Count the blocks that are there, without the head."""
        first_blocks = self.blocks(batch)
        return self.read_first(batch, first_blocks[-1]).block + 1 if first_blocks else 0

    def read_first(self, batch: int, first_block: int) -> Record:
        """Read the record that begins with a block: that of a segment, or of the block itself."""
        return self._record(self.first_file(batch, first_block), batch, first_block)

    def read(self, batch: int, block: int) -> Record:
        """Read the record that ends with a block: that of the block, or of the segment that it closes."""
        return self._again(lambda: self._read(batch, block, self._numbers(batch)[1]))

    def _read(self, batch: int, block: int, segments: set[int]) -> Record:
        number = 0
        while number in segments and number <= block:
            record = self._segment(batch, number)
            if record.block == block:
                return record
            number = record.block + 1
        return self.read_block(batch, block)

    def read_block(self, batch: int, block: int) -> Record:
        """Read the record of a block that is in no segment, and check its arrays."""
        return self._record(self.file(batch, block), batch, block)

    def read_segment(self, batch: int, first_block: int) -> Record:
        """Read the record of a segment."""
        return self._record(self.segment_file(batch, first_block), batch, first_block)

    def content(self, record: Record) -> memoryview:
        """Return the arrays in the file of a record; MissingFile if its block is in a segment now."""
        if record.digest not in self._contents:
            path = self.file_of(record)
            again, payload = self._content(path, record.batch, record.first_block)
            if again.digest != record.digest:
                raise StoreCorruptError(f"{path}: was replaced by another record while it was read")
            self._keep(record.digest, payload)
            return payload
        return self._contents[record.digest]

    def state_after(self, record: Record) -> ChainState | None:
        """Read the state after a block or segment; None if it has none (exact draws).

        If the block is in a segment by now, only the state after the last block of the segment is left.
        """
        return self.layout.state(*self._with_state(record))

    def fit_after(self, record: Record) -> dict[str, Array]:
        """Read the state of a fit after a block or segment, arrays (n_starts, ...) by name."""
        return self.layout.fit_state(*self._with_state(record))

    def _with_state(self, record: Record) -> tuple[Record, memoryview]:
        """Return the content of a record, or that of the segment which ends with its block by now."""
        try:
            return record, self.content(record)
        except MissingFile:
            closing = self._read(record.batch, record.block, self._numbers(record.batch)[1])
            if closing.last_digest != record.last_digest:
                raise
            return closing, self.content(closing)

    def _record(self, path: Place, batch: int, first_block: int) -> Record:
        """Read the record in a file, and check the arrays that follow it unless headers are enough."""
        if not self._headers_only:
            return self._content(path, batch, first_block)[0]
        try:
            start = self._fs.read_start(path, _START_BYTES)
            n_bytes = size_of_header(start, path)
            if n_bytes > len(start) == _START_BYTES:
                start = self._fs.read_start(path, n_bytes)
        except FileNotFoundError:
            raise MissingFile(_missing(path, batch, first_block)) from None
        return self._checked(split(start, path)[0], path, batch, first_block)

    def _content(self, path: Place, batch: int, first_block: int) -> tuple[Record, memoryview]:
        """Read a file, and check that it is whole and in its place."""
        try:
            raw = self._fs.read(path, at_most=self.layout.most_bytes)
        except FileNotFoundError:
            raise MissingFile(_missing(path, batch, first_block)) from None
        header, payload = split(raw, path)
        record = self._checked(header, path, batch, first_block)
        self.layout.check(record, payload, path)
        return record, payload

    def _checked(self, header: bytes, path: Place, batch: int, first_block: int) -> Record:
        """Return the record in a header; StoreCorruptError unless it is whole and in its place."""
        record = Record.from_bytes(header, path)
        is_segment = record.segment is not None
        if record.first_block > record.block:
            raise StoreCorruptError(f"{path}: stands for blocks {record.first_block} to {record.block}")
        if (record.store, record.batch, record.first_block, is_segment) != (
            self._store,
            batch,
            first_block,
            path.name.endswith(".segment"),
        ):
            raise StoreCorruptError(
                f"{path}: is the commit of block {record.block} of batch {record.batch}"
                f"{'' if record.store == self._store else ' of another store'},"
                f" not of block {first_block} of batch {batch}"
            )
        return record

    def _keep(self, digest: str, payload: memoryview) -> None:
        """Keep the arrays of the blocks that were read last, since each array of draws asks for them."""
        n_bytes = len(payload) + sum(map(len, self._contents.values()))
        while self._contents and n_bytes > _KEPT_BYTES:
            n_bytes -= len(self._contents.pop(next(iter(self._contents))))
        self._contents[digest] = payload

    def all(self, batch: int) -> list[Record]:
        """Return every record of a batch, each checked against the one before it."""
        return self.records(batch)

    def records(self, batch: int, *, first: int = 0, previous: str = "") -> list[Record]:
        """Return the records of a batch from block `first` on, each checked against the one before it.

        previous  digest of the block before; StoreCorruptError if that block is gone
        """
        try:
            records = self._again(lambda: self._records(batch, first, previous))
        except StoreCorruptError:
            if not self._forget(batch):
                raise
            # A repair may have set aside blocks that were read before, and a run replaced them.
            records = self._again(lambda: self._records(batch, first, previous))
        for record in records:
            self._add_updates(record)
        return records

    def _records(self, batch: int, first: int, previous: str) -> list[Record]:
        head = self.head(batch)
        blocks, segments = self._numbers(batch)
        n_blocks = self._count(batch, head, blocks, segments)
        if n_blocks < first:
            raise MissingFile(_missing(self.file(batch, n_blocks), batch, n_blocks))
        start = max(first, self._n_in_segments(batch, segments))
        single = sorted(number for number in blocks if start <= number < n_blocks)
        self._fs.each(partial(self._single_block, batch), single)
        records: list[Record] = []
        number = first
        while number < n_blocks:
            is_segment = number in segments
            record = self._segment(batch, number) if is_segment else self._single_block(batch, number)
            path = self.file_of(record)
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
        """Return the record of a block that is in no segment; one that was read before is not read again."""
        if (batch, block) not in self._single:
            self._single[batch, block] = self.read_block(batch, block)
        return self._single[batch, block]

    def _segment(self, batch: int, first_block: int) -> Record:
        """Return the record of a segment; one that was read before is not read again."""
        if (batch, first_block) not in self._segments:
            self._segments[batch, first_block] = self.read_segment(batch, first_block)
        return self._segments[batch, first_block]

    def _forget_single(self, batch: int, *, below: int) -> None:
        """Forget the blocks that are in a segment now."""
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
        head.check(record, self.file_of(record))
        return record

    def _last(self, batch: int, head: Head) -> Record | None:
        """Read the last record of a batch; its folder is listed once."""
        blocks, segments = self._numbers(batch)
        n_blocks = self._count(batch, head, blocks, segments)
        return self._read(batch, n_blocks - 1, segments) if n_blocks else None

    def _again(self, read: Callable[[], Result]) -> Result:
        """Return what is read; it is read again if files are missing, which may be in a segment by then."""
        for _ in range(_ATTEMPTS - 1):
            try:
                return read()
            except MissingFile:
                continue
        return read()

    def progress(self, batch: int) -> BatchProgress:
        """Return how far a batch is. Only one small file is read, so this is cheap enough to ask often."""
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
        """Return True if the updates of a batch are known up to this record and no further."""
        summed = self._updates.get(last.batch)
        return summed is not None and summed[0].last_digest == last.last_digest

    def publish_file(self, record: Record, payload: bytes) -> Record | None:
        """Make a block or segment exist, durably, and return it; None if there is one in its place."""
        raw = record.to_bytes()
        if not self._fs.write_exclusive(self.file_of(record), joined(raw, payload)):
            return None
        return replace(record, digest=seal_of(raw, self.file_of(record)))

    def advance(self, batch: int) -> None:
        """Let the head of a batch name its last block. The caller holds the lock of the batch or the store.

        The new name of the file is durable with the next record; until then a head that is one behind may
        come back after a power loss.
        """
        head = self.head(batch)
        n_blocks = self._count(batch, head, *self._numbers(batch))
        if n_blocks > head.blocks:
            last = self.read(batch, n_blocks - 1)
            self._fs.write_atomic(self.head_file(batch), Head.from_record(last).to_bytes())

    def advance_to(self, record: Record) -> bool:
        """Let the head of a batch name a block that was just published.

        Returns False, and removes the block, if a segment stands for its number: others have gone on.
        """
        if record.block < self._n_in_segments(record.batch, self._numbers(record.batch)[1]):
            self._fs.unlink(self.file_of(record), below=self._root)
            return False
        self._single[record.batch, record.block] = record
        self._fs.write_atomic(self.head_file(record.batch), Head.from_record(record).to_bytes())
        return True

    def remove_block(self, record: Record) -> None:
        """Remove a block that a segment stands for, and forget its arrays."""
        self._contents.pop(record.digest, None)
        self._fs.unlink(self.file_of(record), below=self._root)

    def remove_gathered(self, batch: int) -> None:
        """Remove the blocks that a segment stands for, which a crash has left, under the store's lock."""
        blocks, segments = self._numbers(batch)
        end = self._n_in_segments(batch, segments)
        for number in sorted(number for number in blocks if number < end):
            self._fs.unlink(self.file(batch, number), below=self._root)

    def set_head(self, batch: int, n_blocks: int) -> None:
        """Let the head of a batch name its first `n_blocks` blocks and no others, durably."""
        head = Head.from_record(self.read(batch, n_blocks - 1)) if n_blocks else Head(self._store, batch)
        write_head(self._fs, self.folder(batch), head)

    def discard(self, batch: int, first_block: int) -> list[Place]:
        """Set aside the blocks and segments of a batch from a block on, last first: a crash leaves a prefix.

        Unreadable and out-of-place files are set aside too. The head goes back first, since it must not name
        what is not there. Returns the records' new paths.
        """
        self._forget(batch)
        folder = self._root / COMMITS / DISCARDED
        for needed in (folder, self.folder(batch)):
            self._fs.mkdir(needed)
        self.set_head(batch, first_block)
        names = self._fs.listdir(self.folder(batch))
        names = [name for name in names if (match := _NAME.fullmatch(name)) and int(match[1]) >= first_block]
        taken = len(self._fs.listdir(folder))
        moved = []
        for number, name in enumerate(reversed(names)):
            moved.append(folder / f"{taken + number:04d}-batch{batch:04d}-{name}")
            self._fs.rename_new(self.folder(batch) / name, moved[-1], below=self._root)
        return moved


class MissingFile(StoreCorruptError):
    """A file was not there; its block may have been gathered into a segment since the folder was listed."""


def _missing(path: Place, batch: int, block: int) -> str:
    return f"{path}: missing: the commit of block {block} of batch {batch}"
