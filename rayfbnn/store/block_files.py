"""The files of blocks and segments: their names, how one is read and checked, and how one is published."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rayfbnn.errors import StoreCorruptError
from rayfbnn.store.payload import PayloadLayout, joined, size_of_header, split
from rayfbnn.store.records import Record, batch_folder, seal_of, unsealed
from rayfbnn.store.storage.places import Place
from rayfbnn.store.storage.protocol import Storage
from rayfbnn.store.storage.recent import Recent

NAME = re.compile(r"([0-9]{6,15})\.(block|segment)")
_KINDS = ("block", "segment")
_START_BYTES = 4 * 2**10  # read first of a file; the record of a block has one or two thousand bytes
_arrays = Recent(64 * 2**20)  # of blocks and segments, by digest of the record


class MissingFile(StoreCorruptError):
    """A file is missing; its block may have been gathered into a segment since the folder was listed."""


class BlockFiles:
    """The files `commits/batch<b>/<n>.block` and `<n>.segment`; n is the number of the (first) block.

    headers_only  whether only records are read, which is enough to tell how far a run is; the draws and
                  states after them are read and checked when they are asked for
    """

    def __init__(
        self, fs: Storage, root: Place, store: str, layout: PayloadLayout, *, headers_only: bool
    ) -> None:
        self._fs, self._root, self._store = fs, root, store
        self.layout = layout
        self._headers_only = headers_only
        self._number = _arrays.number_of(self)

    def folder(self, batch: int) -> Place:
        """Return the folder of a batch's commits."""
        return batch_folder(self._root, batch)

    def file(self, batch: int, first_block: int, *, is_segment: bool = False) -> Place:
        """Return the file of the segment that starts with a block, or of a block that is in no segment."""
        return self.folder(batch) / f"{first_block:06d}.{_KINDS[is_segment]}"

    def file_of(self, record: Record) -> Place:
        """Return the file of a record."""
        return self.file(record.batch, record.first_block, is_segment=record.segment is not None)

    def first_file(self, batch: int, first_block: int) -> Place:
        """Return the file of the record that starts with a block: a segment if there is one, or the block."""
        segment = self.file(batch, first_block, is_segment=True)
        return segment if self._fs.exists(segment) else self.file(batch, first_block)

    def numbers(self, batch: int) -> tuple[set[int], set[int]]:
        """Return the numbers in the names of a batch's files: of blocks, and of first blocks of segments."""
        return self.numbers_of([batch])[batch]

    def numbers_of(self, batches: Sequence[int]) -> dict[int, tuple[set[int], set[int]]]:
        """Return the numbers of several batches, which a slow storage lists at once."""
        folders = {batch: self.folder(batch) for batch in batches}
        names = self._fs.listdirs(folders.values())
        for batch, folder in folders.items():
            if folder not in names:
                raise StoreCorruptError(f"{folder}: missing: the commits of batch {batch}")
        return {batch: _numbers(names[folder]) for batch, folder in folders.items()}

    def read(self, batch: int, first_block: int, *, is_segment: bool = False) -> Record:
        """Read the record of the segment that starts with a block, or of a block that is in no segment."""
        return self._read(self.file(batch, first_block, is_segment=is_segment), batch, first_block)

    def read_first(self, batch: int, first_block: int) -> Record:
        """Read the record that starts with a block: a segment if there is one, or the block."""
        return self._read(self.first_file(batch, first_block), batch, first_block)

    def content(self, record: Record) -> memoryview:
        """Return the arrays in the file of a record; MissingFile if its block has been gathered."""
        kept: memoryview | None = _arrays.get(self._number, record.digest)
        if kept is not None:
            return kept
        path = self.file_of(record)
        again, payload = self._content(path, record.batch, record.first_block)
        if again.digest != record.digest:
            raise StoreCorruptError(f"{path}: was replaced by another record while it was read")
        _arrays.keep(self._number, record.digest, payload, len(payload))  # every array of draws asks for it
        return payload

    def _read(self, path: Place, batch: int, first_block: int) -> Record:
        """Read the record in a file, and check the arrays after it unless only headers are wanted."""
        if not self._headers_only:
            return self._content(path, batch, first_block)[0]
        try:
            start = self._fs.read_start(path, _START_BYTES)
            n_bytes = size_of_header(start, path)
            if n_bytes > len(start) == _START_BYTES:
                start = self._fs.read_start(path, n_bytes)
        except FileNotFoundError:
            raise missing(path, batch, first_block) from None
        return self._checked(split(start, path)[0], path, batch, first_block)

    def _content(self, path: Place, batch: int, first_block: int) -> tuple[Record, memoryview]:
        """Read a file, and check that it is whole and in its place."""
        try:
            raw = self._fs.read(path, at_most=self.layout.most_bytes)
        except FileNotFoundError:
            raise missing(path, batch, first_block) from None
        header, payload = split(raw, path)
        record = self._checked(header, path, batch, first_block)
        self.layout.check(record, payload, path)
        return record, payload

    def _checked(self, header: bytes, path: Place, batch: int, first_block: int) -> Record:
        """Return the record in a header; StoreCorruptError unless it is whole and in its place."""
        record = unsealed(Record, header, path, "a commit record")
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
        self.layout.check_measurements(record, path)
        return record

    def publish(self, record: Record, payload: bytes) -> Record | None:
        """Publish a block or segment, durably, and return its record; None if the name is taken."""
        raw = record.to_bytes()
        if not self._fs.write_exclusive(self.file_of(record), joined(raw, payload)):
            return None
        return record.model_copy(update={"digest": seal_of(raw, self.file_of(record))})

    def remove(self, record: Record) -> None:
        """Remove a block that a segment stands for, and forget its arrays."""
        _arrays.drop(self._number, record.digest)
        self._fs.drop(self.file_of(record), below=self._root)


def _numbers(names: Iterable[str]) -> tuple[set[int], set[int]]:
    matches = [match for name in names if (match := NAME.fullmatch(name))]
    blocks, segments = ({int(match[1]) for match in matches if match[2] == kind} for kind in _KINDS)
    return blocks, segments


def missing(path: Place, batch: int, block: int) -> MissingFile:
    """Return the error for a missing file of a block or segment."""
    return MissingFile(f"{path}: missing: the commit of block {block} of batch {batch}")
