"""The reading of many batches at once, before their records are checked one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from rayfbnn.errors import StoreCorruptError
from rayfbnn.store.checking.heads import Head
from rayfbnn.store.segments.block_files import BlockFiles
from rayfbnn.store.segments.known import KnownRecords, Seen
from rayfbnn.store.storage.protocol import Result, Storage

Item = TypeVar("Item")


def look_ahead(
    fs: Storage,
    files: BlockFiles,
    known: KnownRecords,
    read_head: Callable[[int], Head],
    batches: Sequence[int],
) -> dict[int, Seen]:
    """Read the names, the heads and the new records of several batches, and return what was seen of each.

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
