"""The commit records of a store, batch by batch; draws without a record do not exist."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager

from rayfbnn.errors import StoreCorruptError
from rayfbnn.store.catalogue import COMMITS, DISCARDED
from rayfbnn.store.checking.heads import HEAD, Head, read_head
from rayfbnn.store.records import BatchProgress, Record, RunUpdates
from rayfbnn.store.storage.places import Place
from rayfbnn.store.storage.protocol import Storage

_RECORD = re.compile(r"(\d{6,})\.json")


class CommitLog:
    """The records `commits/batch<b>/<block>.json` of the store whose root metadata has the digest `store`.

    has_heads  False for stores that were made before there were heads
    """

    def __init__(self, fs: Storage, root: Place, store: str, *, has_heads: bool) -> None:
        self._fs, self._root, self._store, self.has_heads = fs, root, store, has_heads
        self._updates: dict[
            int, tuple[Record, RunUpdates]
        ] = {}  # by batch: the last record summed, and the sum

    def folder(self, batch: int) -> Place:
        """Return the folder of a batch's records."""
        return self._root / COMMITS / f"batch{batch:04d}"

    def file(self, batch: int, block: int) -> Place:
        """Return the file of the record of a block."""
        return self.folder(batch) / f"{block:06d}.json"

    def file_of(self, record: Record) -> Place:
        """Return the file of a record."""
        return self.file(record.batch, record.block)

    def lock(self, batch: int) -> AbstractContextManager[None]:
        """Hold the lock for writing a block: a worker thought dead may still be at its successor's block."""
        return self._fs.writer_lock(self.folder(batch) / "lock")

    def head_file(self, batch: int) -> Place:
        """Return the file that says how many records a batch has at least."""
        return self.folder(batch) / HEAD

    def head(self, batch: int) -> Head | None:
        """Read the head of a batch; None in a store without heads."""
        if not self.has_heads:
            return None
        return read_head(self._fs, self.head_file(batch), self._store, batch)

    def n_blocks(self, batch: int) -> int:
        """Count the records; StoreCorruptError if one is seen to be missing.

        With a head only a record that a crash left behind it is looked for, and so no folder is listed.
        """
        return self._n_blocks(batch, self.head(batch))

    def _n_blocks(self, batch: int, head: Head | None) -> int:
        if head is not None:
            n_blocks = head.blocks
            while self._fs.exists(self.file(batch, n_blocks)):
                n_blocks += 1
            return n_blocks
        blocks = self.blocks(batch)
        for expected, block in enumerate(blocks):
            if block != expected:
                raise StoreCorruptError(
                    f"{self.file(batch, expected)}: missing: the commit of block {expected} of batch {batch}"
                )
        return len(blocks)

    def blocks(self, batch: int) -> list[int]:
        """Return the first blocks of the records that are there, in order."""
        try:
            names = self._fs.listdir(self.folder(batch))
        except FileNotFoundError:
            raise StoreCorruptError(f"{self.folder(batch)}: missing: the commits of batch {batch}") from None
        numbers = (self._first_block_of(name) for name in names)
        return sorted(number for number in numbers if number is not None)

    def listed(self, batch: int) -> list[int]:
        """Return the first blocks of all files of records, in order, also of those that are not needed."""
        return self.blocks(batch)

    def read_first(self, batch: int, first_block: int) -> Record:
        """Read the record that begins with a block."""
        return self.read(batch, first_block)

    def first_file(self, batch: int, first_block: int) -> Place:
        """Return the file of the record that begins with a block."""
        return self.file(batch, first_block)

    def n_listed(self, batch: int) -> int:
        """Count the blocks of the records that are there, without the head."""
        return len(self.blocks(batch))

    def _first_block_of(self, name: str) -> int | None:
        """Return the number of the first block of a record by the name of its file; None for other files."""
        match = _RECORD.fullmatch(name)
        return None if match is None else int(match[1])

    def read(self, batch: int, block: int) -> Record:
        """Read the record that ends with a block, and check its checksum and its place."""
        path = self.file(batch, block)
        try:
            record = Record.from_bytes(self._fs.read(path), path)
        except FileNotFoundError:
            raise StoreCorruptError(
                f"{path}: missing: the commit of block {block} of batch {batch}"
            ) from None
        if (record.store, record.batch, record.block) != (self._store, batch, block):
            raise StoreCorruptError(
                f"{path}: is the commit of block {record.block} of batch {record.batch}"
                f"{'' if record.store == self._store else ' of another store'},"
                f" not of block {block} of batch {batch}"
            )
        return record

    def last(self, batch: int) -> Record | None:
        """Return the last record of a batch; None before its first block."""
        head = self.head(batch)
        n_blocks = self._n_blocks(batch, head)
        if not n_blocks:
            return None
        record = self.read(batch, n_blocks - 1)
        if head is not None:
            head.check(record, self.file_of(record))
        return record

    def all(self, batch: int) -> list[Record]:
        """Return every record of a batch, each checked against the one before it."""
        return list(self.records(batch))

    def records(self, batch: int, *, first: int = 0, previous: str = "") -> Iterable[Record]:
        """Return the records of a batch from block `first` on, each checked against the one before it.

        previous  digest of the record of block `first` - 1; StoreCorruptError if that block is gone
        """
        return self._in_order(batch, first, previous)

    def _in_order(self, batch: int, first: int, previous: str) -> Iterator[Record]:
        head = self.head(batch)
        n_blocks = self._n_blocks(batch, head)
        if n_blocks < first:
            raise StoreCorruptError(
                f"{self.file(batch, n_blocks)}: missing: the commit of block {n_blocks} of batch {batch}"
            )
        for block in range(first, n_blocks):
            record = self.read(batch, block)
            if record.previous != previous:
                raise StoreCorruptError(
                    f"{self.file(batch, block)}: does not follow the commit of block {block - 1}"
                    f" of batch {batch}"
                )
            if head is not None:
                head.check(record, self.file(batch, block))
            previous = record.digest
            self._add_updates(record)
            yield record

    def _add_updates(self, record: Record) -> None:
        """Add a record's updates to the sum of its batch if it is the next one."""
        summed, updates = self._updates.get(record.batch, (None, RunUpdates()))
        if record.previous == ("" if summed is None else summed.last_digest):
            self._updates[record.batch] = record, updates + record.updates

    def progress(self, batch: int) -> BatchProgress:
        """Return how far a batch is. Only one small file is read, so this is cheap enough to ask often."""
        last = self.last(batch)
        return BatchProgress() if last is None else last.progress

    def updates_until(self, last: Record | None) -> RunUpdates:
        """Return the acceptances and divergences of a batch up to its record `last`.

        Each record is read once in the life of this log, so that a worker may ask after every block.
        """
        if last is None:
            return RunUpdates()
        summed, updates = self._updates.get(last.batch, (None, RunUpdates()))
        if summed is not None and summed.digest == last.digest:
            return updates
        first = 0 if summed is None or summed.block >= last.block else summed.block + 1
        records = [*(self.read(last.batch, block) for block in range(first, last.block)), last]
        if summed is None or records[0].previous != summed.digest:  # or a repair has replaced what was summed
            records = [*(self.read(last.batch, block) for block in range(first)), *records]
            updates = RunUpdates()
        for record in records:
            updates += record.updates
        self._updates[last.batch] = last, updates
        return updates

    def publish(self, record: Record) -> bool:
        """Make the block exist, durably; return False if its record exists already.

        `advance` follows; until then the record is the one that the head may lack.
        """
        return self._fs.write_exclusive(self.file(record.batch, record.block), record.to_bytes())

    def advance(self, batch: int) -> None:
        """Let the head of a batch name its last record. The caller holds the lock of the batch or the store.

        The new name of the file is durable with the next record; until then a head that is one behind may
        come back after a power loss.
        """
        head = self.head(batch)
        n_blocks = self._n_blocks(batch, head)
        if head is not None and n_blocks > head.blocks:
            last = self.read(batch, n_blocks - 1)
            self._fs.write_atomic(self.head_file(batch), Head.from_record(last).to_bytes())

    def set_head(self, batch: int, n_blocks: int) -> None:
        """Let the head of a batch name its first `n_blocks` records and no others, durably."""
        if not self.has_heads:
            return
        head = Head.from_record(self.read(batch, n_blocks - 1)) if n_blocks else Head(self._store, batch)
        self._fs.write_atomic(self.head_file(batch), head.to_bytes())
        self._fs.fsync_dir(self.folder(batch))

    def discard(self, batch: int, first_block: int) -> list[Place]:
        """Set aside the records of a batch from `first_block` on, last first: a crash leaves a prefix.

        Unreadable and out-of-place files are set aside too. The head goes back first, since it must not name
        what is not there. Returns the records' new paths.
        """
        folder = self._root / COMMITS / DISCARDED
        for needed in (folder, self.folder(batch)):
            self._fs.mkdir(needed)
        self.set_head(batch, first_block)
        numbers = {name: self._first_block_of(name) for name in self._fs.listdir(self.folder(batch))}
        blocks = [name for name, number in numbers.items() if number is not None and number >= first_block]
        taken = len(self._fs.listdir(folder))
        moved = []
        for number, name in enumerate(reversed(blocks)):
            moved.append(folder / f"{taken + number:04d}-batch{batch:04d}-{name}")
            self._fs.rename_new(self.folder(batch) / name, moved[-1], below=self._root)
        return moved
