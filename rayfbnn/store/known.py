"""The commit records that a process has read: each file of a block or segment is read once."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from rayfbnn.store.block_files import BlockFiles
from rayfbnn.store.documents import Head
from rayfbnn.store.records import Record


class Seen(NamedTuple):
    """The head of a batch, the numbers of its blocks, and the numbers of the first blocks of its segments."""

    head: Head
    blocks: set[int]
    segments: set[int]


class KnownRecords:
    """The records that were read so far. Several threads may use it at once.

    Of each batch it has blocks in no segment by number, and segments by the number of their first block.
    """

    def __init__(self, files: BlockFiles) -> None:
        self._files = files
        self._single: dict[int, dict[int, Record]] = defaultdict(dict)
        self._segments: dict[int, dict[int, Record]] = defaultdict(dict)

    def block(self, batch: int, number: int) -> Record:
        """Return the record of a block that is in no segment."""
        record = self._single[batch].get(number)
        if record is None:
            record = self._single[batch][number] = self._files.read(batch, number)
        return record

    def segment(self, batch: int, first_block: int) -> Record:
        """Return the record of the segment that starts with a block."""
        record = self._segments[batch].get(first_block)
        if record is None:
            record = self._files.read(batch, first_block, is_segment=True)
            self._segments[batch][first_block] = record
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
        return sorted(seen.segments - self._segments[seen.head.batch].keys())

    def unread_blocks(self, seen: Seen, *, first: int = 0) -> list[int]:
        """Return the numbers of the blocks from `first` on that are in no segment and not read yet."""
        batch = seen.head.batch
        start, end = max(first, self.n_in_segments(batch, seen.segments)), self.n_blocks(seen)
        wanted = {number for number in seen.blocks if start <= number < end}
        return sorted(wanted - self._single[batch].keys())

    def last(self, head: Head) -> Record | None:
        """Return the record that a head names as the last.

        None if it was not read yet, or if a later one was.
        """
        single, segments = self._single[head.batch], self._segments[head.batch]
        if head.blocks in single or head.blocks in segments:
            return None
        closing = segments[max(segments)] if segments else None
        for record in (single.get(head.blocks - 1), closing):
            if record is not None and (record.block, record.last_digest) == (head.blocks - 1, head.last):
                return record
        return None

    def add(self, record: Record) -> None:
        """Add the record of a block that is in no segment."""
        self._single[record.batch][record.block] = record

    def forget_single(self, batch: int, *, below: int) -> None:
        """Forget the blocks that are now in a segment."""
        for number in [number for number in list(self._single[batch]) if number < below]:
            self._single[batch].pop(number, None)

    def forget(self, batch: int) -> bool:
        """Forget all records of a batch; True if there were any."""
        single, segments = self._single.pop(batch, {}), self._segments.pop(batch, {})
        return bool(single or segments)
