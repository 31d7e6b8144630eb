"""The Zarr arrays of a store: all bytes go through the storage, and Zarr itself opens no file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.errors import StoreCorruptError
from rayfbnn.store.catalogue import ArrayPlan, chunk_index
from rayfbnn.store.records import NO_SEAL, SEAL, seal
from rayfbnn.store.rows import ADVICE, ChunkRows, CommittedDraws
from rayfbnn.store.storage.places import Place
from rayfbnn.store.storage.protocol import Storage
from rayfbnn.store.storage.recent import Recent

if TYPE_CHECKING:
    from zarr.abc.store import Store as ZarrStore

METADATA = "zarr.json"
_chunks = Recent(128 * 2**20)  # with the number of known draws of each
_FILL: dict[str, Any] = {"int64": 0, "string": ""}  # fill value by type; NaN for other types
_BYTES = {"name": "bytes", "configuration": {"endian": "little"}}


class Hierarchy:
    """The arrays of a store. Their chunks are read through `fs`.

    metadata   path of a metadata file -> its checked content, which Zarr gets instead of the file
    committed  the digests that chunks are checked with, and the draws that are not in chunks yet; None for
               `verify`, which compares chunks itself
    """

    def __init__(
        self,
        fs: Storage,
        root: Place,
        plans: Mapping[str, ArrayPlan],
        metadata: Mapping[str, bytes],
        committed: CommittedDraws | None = None,
    ) -> None:
        self.plans, self.metadata = plans, metadata
        self._fs, self._root, self._committed = fs, root, committed
        self._number = _chunks.number_of(self)

    def read(self, path: str, *selection: slice) -> Array:
        """Return a part of an array of numbers; StoreCorruptError names a missing or damaged chunk.

        Zarr itself takes as long to read a chunk as to write one, see `encoded`.

        selection  slices without a step for the first axes; the other axes are read whole
        """
        plan = self.plans[path]
        wanted = plan.ranges(*selection)
        values = np.empty([len(part) for part in wanted], dtype=plan.dtype)
        for file in plan.chunk_files(*wanted):
            to, where = _overlap(plan, file, wanted)
            n_draws = where[1].stop if plan.is_drawn else 0
            values[to] = plan.decoded(self.content(file, n_draws))[where]
        return values

    def chunks(self, path: str) -> Iterator[Array]:
        """Yield the values of an array of numbers one chunk of rows at a time, read-only.

        StoreCorruptError names a missing or damaged chunk.
        """
        plan = self.plans[path]
        for number, file in enumerate(plan.files_of_rows()):
            n = min(plan.chunks[0], plan.shape[0] - number * plan.chunks[0])
            yield plan.decoded(self.content(file, 0))[:n]

    def zarr_store(self) -> ZarrStore:
        """Return the hierarchy as a store of Zarr, for readers such as xarray."""
        return _zarr_store(_Files(self), read_only=True)

    def content(self, key: str, n_draws: int | None = None) -> bytes:
        """Return the bytes of a chunk; StoreCorruptError if a file is missing or damaged.

        A wrong file is read a second time, as `verify` does, before it counts as damaged. Draws that are not
        in chunks yet are inserted. Recently read chunks are kept, because a reader that takes a few draws of
        a chunk asks for it again.

        n_draws  number of draws the caller uses, from the start of the chunk; None for all
        """
        path, _, name = key.rpartition("/")
        if path not in self.plans or not name.startswith("c."):
            raise KeyError(key)
        plan = self.plans[path]
        if self._committed is None or not plan.is_drawn:
            return self._read_twice(plan, key)
        needed = plan.chunks[1] if n_draws is None else n_draws
        n_kept, kept = _chunks.get(self._number, key) or (0, b"")
        if kept and n_kept >= needed:
            return kept
        is_there, later, n_known = self._committed.in_chunk(plan, key)
        raw = self._with_later(plan, key, is_there, later) if later else self._read_twice(plan, key)
        _chunks.keep(self._number, key, (n_known, raw), len(raw))
        return raw

    def _with_later(self, plan: ArrayPlan, key: str, is_there: bool, later: Sequence[ChunkRows]) -> bytes:
        values = np.full(plan.chunks, np.nan, dtype=plan.dtype)
        if is_there:
            values[:] = plan.decoded(self._read_twice(plan, key))
        for part in later:
            values[: len(part.values), part.rows] = part.values
        return encoded(values, plan)

    def _read_twice(self, plan: ArrayPlan, key: str) -> bytes:
        try:
            return self._checked(plan, key)
        except StoreCorruptError:
            if self._committed is None:
                raise
            return self._checked(plan, key)

    def _checked(self, plan: ArrayPlan, key: str) -> bytes:
        try:
            raw = self._fs.read(self._root / key, at_most=plan.most_bytes)
        except FileNotFoundError:
            raise StoreCorruptError(f"{self._root / key}: missing{holds(plan, key)}") from None
        expected, reason = plan.chunk_bytes, ""
        if expected is not None and len(raw) != expected:
            reason = f"{len(raw)} bytes instead of {expected}"
        elif expected is not None and _checksum(raw[:-4]) != raw[-4:]:
            reason = "Stored and computed checksum do not match"
        if reason:
            raise StoreCorruptError(f"{self._root / key}: damaged: {reason}{holds(plan, key)}")
        # Zarr decodes text, so it must only see the bytes that follow from the configuration.
        if plan.is_text and raw != text_chunk(plan):
            raise StoreCorruptError(f"{self._root / key}: damaged: its names are not those of the run")
        if self._committed is not None:
            self._committed.check(plan, key, raw)
        return raw


def encoded(values: Array, plan: ArrayPlan) -> bytes:
    """Return the bytes that Zarr writes for a chunk of numbers with the codecs of `array_metadata`.

    These are the values and then their crc32c, little-endian. Zarr itself takes 0.7 milliseconds for each
    chunk, in an event loop, and a segment has some twenty arrays. Beyond the array's edge the chunk has the
    fill value.
    """
    if values.shape != plan.chunks:
        chunk = np.full(plan.chunks, _FILL.get(plan.dtype, np.nan), dtype=plan.dtype)
        chunk[tuple(slice(n) for n in values.shape)] = values
        values = chunk
    raw = np.ascontiguousarray(values, dtype=plan.stored_dtype).tobytes()
    return raw + _checksum(raw)


def _checksum(raw: bytes) -> bytes:
    import google_crc32c

    return int(google_crc32c.value(raw)).to_bytes(4, "little")


def text_chunk(plan: ArrayPlan) -> bytes:
    """Return the content of the only chunk of an array of names, as Zarr's codec vlen-utf8 writes it."""
    names = [str(name).encode() for name in (() if plan.values is None else plan.values)]
    parts = [len(names).to_bytes(4, "little")]
    for name in names:
        parts += [len(name).to_bytes(4, "little"), name]
    raw = b"".join(parts)
    return raw + _checksum(raw)


def array_metadata(plan: ArrayPlan) -> bytes:
    """Return the sealed zarr.json of an array.

    The chunks are not compressed, because draws are noise to a compressor (zstd leaves 92 %). Their crc32c
    finds every flipped bit; Zarr's default codec misses 97 % of them.

    The document is the one that Zarr writes, down to the order of its keys. Zarr itself takes a quarter of a
    second to import, which no reader of a store should wait for.
    """
    return _array_metadata(plan.dims, plan.shape, plan.chunks, plan.dtype)


@lru_cache(maxsize=256)  # many arrays differ only in their name, which is not in the file
def _array_metadata(
    dims: tuple[str, ...], shape: tuple[int, ...], chunks: tuple[int, ...], dtype: str
) -> bytes:
    codec = {"name": "vlen-utf8", "configuration": {}} if dtype == "string" else _BYTES
    return seal(
        {
            "shape": shape,
            "data_type": dtype,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
            "fill_value": _FILL.get(dtype, "NaN"),
            "codecs": [codec, {"name": "crc32c"}],
            "attributes": {SEAL: NO_SEAL},
            "dimension_names": dims,
            "zarr_format": 3,
            "node_type": "array",
            "storage_transformers": [],
        }
    )


def group_metadata(attributes: dict[str, Any]) -> bytes:
    """Return the sealed zarr.json of a group."""
    return seal({"attributes": {**attributes, SEAL: NO_SEAL}, "zarr_format": 3, "node_type": "group"})


def planned_chunks(plan: ArrayPlan, *, first: int = 0) -> Iterator[tuple[str, bytes]]:
    """Yield the chunk files of an array with planned values, from index `first` of the first axis on."""
    values: Array = plan.values
    size = plan.chunks[0]
    for index in range(first // size, -(-plan.shape[0] // size)):
        some = values[index * size : (index + 1) * size]
        yield plan.chunk_file(index), text_chunk(plan) if plan.is_text else encoded(some, plan)


class _Files(dict[str, Any]):
    """Zarr's view of the files: the keys are paths in the store, and the values are Zarr's buffers.

    A missing chunk is an error, because only committed chunks are asked for and Zarr would silently read NaN.
    """

    def __init__(self, hierarchy: Hierarchy) -> None:
        super().__init__({key: _buffer(raw) for key, raw in hierarchy.metadata.items()})
        self._hierarchy = hierarchy

    def __missing__(self, key: str) -> Any:
        return _buffer(self._hierarchy.content(key))


def _zarr_store(files: dict[str, Any], *, read_only: bool = False) -> ZarrStore:
    from zarr.storage import MemoryStore

    return MemoryStore(files, read_only=read_only)


def _buffer(raw: bytes) -> Any:
    from zarr.buffer import default_buffer_prototype

    return default_buffer_prototype().buffer.from_bytes(raw)


def _overlap(
    plan: ArrayPlan, file: str, wanted: tuple[range, ...]
) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Return the place of a chunk's values among the wanted ones, and their place in the chunk."""
    to, where = [], []
    for part, chunk in zip(wanted, _extent(plan, file), strict=True):
        start, stop = max(part.start, chunk.start), min(part.stop, chunk.stop)
        to.append(slice(start - part.start, stop - part.start))
        where.append(slice(start - chunk.start, stop - chunk.start))
    return tuple(to), tuple(where)


def _extent(plan: ArrayPlan, file: str) -> tuple[slice, ...]:
    where = zip(chunk_index(file), plan.chunks, strict=True)
    return tuple(slice(i * size, (i + 1) * size) for i, size in where)


def holds(plan: ArrayPlan, file: str) -> str:
    """Return the end of a message on a chunk: the draws in it, and advice."""
    parts = [
        f"{dim}s {part.start} to {min(part.stop, n) - 1}"
        for dim, part, n in zip(plan.dims, _extent(plan, file), plan.shape, strict=True)
        if dim in ("chain", "draw")
    ]
    return f" (it holds {', '.join(parts)}){ADVICE}" if parts else ""
