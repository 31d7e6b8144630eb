"""The sums of acceptances and divergences over the records of a batch."""

from __future__ import annotations

from collections.abc import Sequence

from rayfbnn.store.records import Record, RunUpdates


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
