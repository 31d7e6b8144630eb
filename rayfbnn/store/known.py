"""The commit records that a process has read: each file of a block or segment is read once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from rayfbnn.errors import StoreCorruptError
from rayfbnn.store.block_files import BlockFiles
from rayfbnn.store.documents import Head
from rayfbnn.store.records import Record, RunUpdates
from rayfbnn.store.storage.protocol import Result, Storage


class Seen(NamedTuple):
    """The head of a batch, the numbers of its blocks, and the numbers of the first blocks of its segments."""

    head: Head
    blocks: set[int]
    segments: set[int]


@dataclass
class _Batch:
    """The records of a batch: blocks in no segment by number, and segments by the number of their first."""

    single: dict[int, Record] = field(default_factory=dict)
    segments: dict[int, Record] = field(default_factory=dict)


class KnownRecords:
    """The records that were read so far. Several threads may use it at once."""

    def __init__(self, files: BlockFiles) -> None:
        self._files = files
        self._batches: dict[int, _Batch] = {}

    def _of(self, batch: int) -> _Batch:
        return self._batches.setdefault(batch, _Batch())

    def block(self, batch: int, number: int) -> Record:
        """Return the record of a block that is in no segment."""
        single = self._of(batch).single
        record = single.get(number)
        if record is None:
            record = single[number] = self._files.read_block(batch, number)
        return record

    def segment(self, batch: int, first_block: int) -> Record:
        """Return the record of the segment that starts with a block."""
        segments = self._of(batch).segments
        record = segments.get(first_block)
        if record is None:
            record = segments[first_block] = self._files.read_segment(batch, first_block)
        return record

    def n_in_segments(self, batch: int, segments: set[int]) -> int:
        """Return the number of the first block that is in no segment, given the first blocks of segments."""
        number = 0
        while number in segments:
            number = self.segment(batch, number).block + 1
        return number

    def n_blocks(self, seen: Seen) -> int:
        """Return the number of blocks of a batch by the names of its files, but at least that in the head.

        The head may be behind: by one block after a crash, and by more if a worker believed dead has put back
        an older one. A block that a segment stands for may still be there.
        """
        n_blocks = self.n_in_segments(seen.head.batch, seen.segments)
        while n_blocks in seen.blocks:
            n_blocks += 1
        return max(n_blocks, seen.head.blocks)

    def unread_segments(self, seen: Seen) -> list[int]:
        """Return the first blocks of the segments that were not read yet, in order."""
        return sorted(seen.segments - self._of(seen.head.batch).segments.keys())

    def unread_blocks(self, seen: Seen, *, first: int = 0) -> list[int]:
        """Return the numbers of the blocks from `first` on that are in no segment and not read yet."""
        batch = seen.head.batch
        start = max(first, self.n_in_segments(batch, seen.segments))
        wanted = {number for number in seen.blocks if start <= number < self.n_blocks(seen)}
        return sorted(wanted - self._of(batch).single.keys())

    def last(self, head: Head) -> Record | None:
        """Return the record that a head names as the last.

        None if it was not read yet, or if a later one was.
        """
        known = self._batches.get(head.batch)
        if known is None or head.blocks in known.single or head.blocks in known.segments:
            return None
        closing = known.segments[max(known.segments)] if known.segments else None
        for record in (known.single.get(head.blocks - 1), closing):
            if record is not None and (record.block, record.last_digest) == (head.blocks - 1, head.last):
                return record
        return None

    def add(self, record: Record) -> None:
        """Add the record of a block that is in no segment."""
        self._of(record.batch).single[record.block] = record

    def forget_single(self, batch: int, *, below: int) -> None:
        """Forget the blocks that are now in a segment."""
        single = self._of(batch).single
        for number in [number for number in list(single) if number < below]:
            single.pop(number, None)

    def forget(self, batch: int) -> bool:
        """Forget all records of a batch; True if there were any."""
        known = self._batches.pop(batch, _Batch())
        return bool(known.single or known.segments)


Item = TypeVar("Item")


def look_ahead(
    fs: Storage,
    files: BlockFiles,
    known: KnownRecords,
    read_head: Callable[[int], Head],
    batches: Sequence[int],
) -> dict[int, Seen]:
    """Read the names, the heads and the new records of several batches, and return the position of each.

    Only a slow storage is asked in this way; the result is empty for others. It takes one listing, and then
    the time of a few requests, because several are made at once. A batch with a damaged file is left out:
    whoever reads it gets the error.
    """
    if fs.at_once == 1:
        return {}
    numbers = files.numbers_of(batches)
    heads = fs.each(_or_none(read_head), batches)
    seen = {head.batch: Seen(head, *numbers[head.batch]) for head in heads if head is not None}
    segments = [(batch, number) for batch, one in seen.items() for number in known.unread_segments(one)]
    fs.each(_or_none(lambda item: known.segment(*item)), segments)
    single = {batch: _or_none(known.unread_blocks)(one) for batch, one in seen.items()}
    blocks = [(batch, number) for batch, unread in single.items() for number in unread or ()]
    fs.each(_or_none(lambda item: known.block(*item)), blocks)
    return {batch: one for batch, one in seen.items() if single[batch] is not None}


def _or_none(read: Callable[[Item], Result]) -> Callable[[Item], Result | None]:
    """Return a function that reads something, with None as the result if it is damaged or missing."""

    def attempt(item: Item) -> Result | None:
        try:
            return read(item)
        except StoreCorruptError:
            return None

    return attempt


class UpdateSums:
    """The sum of the updates of each batch so far, to which records are added as they are read."""

    def __init__(self) -> None:
        self._sums: dict[int, tuple[Record, RunUpdates]] = {}  # by batch: last record in the sum, sum

    def add(self, record: Record) -> None:
        """Add a record's updates to the sum of its batch if it is the next one."""
        summed, updates = self._sums.get(record.batch, (None, RunUpdates()))
        if record.previous == ("" if summed is None else summed.last_digest):
            self._sums[record.batch] = record, updates + record.updates

    def until(self, last: Record) -> RunUpdates | None:
        """Return the sum of a batch up to its record `last`; None if the sum ends with another record."""
        summed, updates = self._sums.get(last.batch, (None, RunUpdates()))
        return updates if summed is not None and summed.last_digest == last.last_digest else None

    def replace(self, records: Sequence[Record]) -> RunUpdates:
        """Replace the sum of a batch by that of all its records so far, and return it."""
        updates = sum((record.updates for record in records), RunUpdates())
        self._sums[records[-1].batch] = records[-1], updates
        return updates
