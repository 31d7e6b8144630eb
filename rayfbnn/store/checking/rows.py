"""The digests of committed draws, by the chunk that holds them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rayfbnn.errors import StoreCorruptError
from rayfbnn.store.catalogue import ArrayPlan, Header, chunk_rows
from rayfbnn.store.checking.consistency import check_record
from rayfbnn.store.records import BatchProgress, Record, Section
from rayfbnn.store.segments.known import Seen
from rayfbnn.store.segments.log import CommitLog

_BATCHES_AT_ONCE = 512


@dataclass(frozen=True)
class CommittedRows:
    """The draws of one segment in one chunk of every array of a section.

    block    number of the last block of the segment
    rows     place of the draws in the chunk
    names    paths of the arrays, in the order of `digests`
    digests  SHA-256 of the values in each array, 32 bytes each
    """

    block: int
    rows: slice
    names: tuple[str, ...]
    digests: bytes

    def digest(self, name: str) -> bytes | None:
        """Return the SHA-256 of the values in an array; None if the record does not name it."""
        if name not in self.names:
            return None
        place = self.names.index(name) * 32
        return self.digests[place : place + 32]


@dataclass
class _Batch:
    """The segments of a batch that were read so far, and the blocks after them.

    n_records  number of blocks in the segments
    last       digest of the last of these blocks
    progress   progress of the batch after it
    chunks     (is it the warm-up, number of the chunk) -> the committed draws in the chunk
    tail       the blocks after the segments; their draws are not in chunks yet
    """

    n_records: int = 0
    last: str = ""
    progress: BatchProgress = BatchProgress()
    chunks: dict[tuple[bool, int], list[CommittedRows]] = field(default_factory=dict)
    tail: tuple[Record, ...] = ()


class RowDigests:
    """The digests in all commit records of a store; each record is read once.

    A segment takes about a kilobyte, because the digests are held as bytes and not as hexadecimal text.
    """

    def __init__(self, header: Header, plans: Mapping[str, ArrayPlan], commits: CommitLog) -> None:
        """Start with no records; `refresh` reads them."""
        self._header, self._plans, self._commits = header, plans, commits
        self._batches: dict[int, _Batch] = {}
        self._names: dict[tuple[str, ...], tuple[str, ...]] = {}  # one tuple for all blocks

    def lengthen(self, header: Header, plans: Mapping[str, ArrayPlan]) -> None:
        """Take the sizes of the run after an extension; the records read so far stay."""
        self._header, self._plans = header, plans

    def of_chunk(self, batch: int, section: Section, number: int) -> list[CommittedRows]:
        """Return the committed draws in a chunk, in order, from the records read so far."""
        known = self._batches.get(batch)
        return [] if known is None else known.chunks.get((section == "warmup", number), [])

    def refresh_all(self) -> None:
        """Read the new records of all batches, as `refresh` does for one.

        A store may claim any number of batches, so only some are looked at before they are checked.
        """
        for first in range(0, self._header.n_batches, _BATCHES_AT_ONCE):
            batches = range(first, min(first + _BATCHES_AT_ONCE, self._header.n_batches))
            seen = self._commits.look(batches)
            for batch in batches:
                self.refresh(batch, seen.get(batch))

    def refresh(self, batch: int, seen: Seen | None = None) -> None:
        """Read the new records; StoreCorruptError if one is damaged, lost or out of place.

        seen  as in CommitLog.records
        """
        known = self._batches.setdefault(batch, _Batch())
        try:
            self._read_on(batch, known, seen)
        except StoreCorruptError:
            if not known.n_records:
                raise
            # A repair may have set aside records that were read before, and a run may have replaced them.
            self._batches[batch] = known = _Batch()
            self._read_on(batch, known)

    def n_known(self, batch: int, section: Section) -> int:
        """Return the number of committed draws of a section in a batch, from the records read so far."""
        known = self._batches.get(batch)
        if known is None:
            return 0
        progress = known.tail[-1].progress if known.tail else known.progress
        return progress.warmup_draws if section == "warmup" else progress.draws

    def chunk_files(self) -> Iterator[str]:
        """Yield the chunk files that segments name, from the records read so far."""
        for batch, known in self._batches.items():
            for (_, number), segments in known.chunks.items():
                for name in dict.fromkeys(name for segment in segments for name in segment.names):
                    yield self._plans[name].chunk_file(batch, number)

    def tail(self, batch: int) -> tuple[Record, ...]:
        """Return the blocks after the last segment, from the records read so far."""
        known = self._batches.get(batch)
        return () if known is None else known.tail

    def _read_on(self, batch: int, known: _Batch, seen: Seen | None = None) -> None:
        tail: list[Record] = []
        progress = known.progress
        for record in self._commits.records(batch, first=known.n_records, previous=known.last, seen=seen):
            check_record(record, progress, self._header, self._plans, self._commits.files.file_of(record))
            progress = record.progress
            if record.segment is None:
                tail.append(record)
                continue
            for number, committed in self._rows_of(record):
                known.chunks.setdefault((record.section == "warmup", number), []).append(committed)
            known.n_records, known.last, known.progress = record.block + 1, record.last_digest, progress
        known.tail = tuple(tail)

    def _rows_of(self, record: Record) -> Iterator[tuple[int, CommittedRows]]:
        """Yield the number of each chunk that a segment touches, and its draws there."""
        size = self._header.draws_per_chunk
        by_chunk: dict[int, dict[str, bytes]] = {}
        for file, expected in record.chunks.items():
            path, _, name = file.rpartition("/")
            by_chunk.setdefault(int(name.split(".")[2]), {})[path] = bytes.fromhex(expected)
        for number, _, rows in chunk_rows(record.first_draw, record.n_draws, size):
            digests = by_chunk.get(number, {})
            names = tuple(sorted(digests))
            names = self._names.setdefault(names, names)
            yield number, CommittedRows(record.block, rows, names, b"".join(map(digests.__getitem__, names)))
