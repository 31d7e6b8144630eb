"""A check of every chunk that is read against the digests recorded when it was written."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

import numpy as np

from rayfbnn.errors import StoreCorruptError
from rayfbnn.store.catalogue import ArrayPlan, Header
from rayfbnn.store.checking.rows import CommittedRows, RowDigests
from rayfbnn.store.hierarchy import ADVICE, text_chunk
from rayfbnn.store.metadata import is_draw_coordinate
from rayfbnn.store.records import Section
from rayfbnn.store.storage.places import Place


class ChunkCheck:
    """A comparison of a chunk file with the digests in the root metadata and in the commit records."""

    def __init__(
        self, root: Place, header: Header, fixed_chunks: Mapping[str, str], rows: RowDigests
    ) -> None:
        """Keep the store's folder, the digests of chunks written at creation, and the digests of draws."""
        self._root, self._header, self._fixed, self._rows = root, header, fixed_chunks, rows

    def __call__(self, plan: ArrayPlan, file: str, raw: bytes) -> None:
        """Raise StoreCorruptError, naming file, batch and block, if a chunk is damaged.

        raw  content of the whole chunk file, which has the size of a chunk of `plan`
        """
        if file in self._fixed:
            # Zarr decodes text, so it must only see the bytes that follow from the configuration.
            if plan.is_text and raw != text_chunk(plan):
                raise StoreCorruptError(f"{self._root / file}: damaged: its names are not those of the run")
            if hashlib.sha256(raw).hexdigest() != self._fixed[file]:
                raise StoreCorruptError(f"{self._root / file}: damaged: its content is not what was written")
        elif is_draw_coordinate(plan):
            self._check_numbers(plan, file, raw)
        elif plan.dims[:2] == ("chain", "draw"):
            self._check_draws(plan, file, raw)
        else:
            raise StoreCorruptError(f"{self._root / file}: the store has no digest of it")

    def _check_numbers(self, plan: ArrayPlan, file: str, raw: bytes) -> None:
        """Check the numbers of the draws; an extension may have written more of them than are planned."""
        first = _index(file)[0] * plan.chunks[0]
        values = np.frombuffer(raw, "<i8", count=plan.chunks[0])[: plan.shape[0] - first]
        if (values != np.arange(first, first + len(values))).any():
            raise StoreCorruptError(
                f"{self._root / file}: damaged: its values are not the numbers of the draws"
            )

    def _check_draws(self, plan: ArrayPlan, file: str, raw: bytes) -> None:
        """Check the committed draws in a chunk; the others are never used."""
        batch, number = _index(file)[:2]
        dtype = np.dtype(plan.dtype).newbyteorder("<")
        values = np.frombuffer(raw, dtype, count=math.prod(plan.chunks)).reshape(plan.chunks)
        values = values[: len(self._header.batch_chains(batch))]  # the last batch may fill less than a chunk
        committed = self._committed(plan, batch, number)
        if not committed:
            raise StoreCorruptError(f"{self._root / file}: no commit of batch {batch} names its draws")
        for part in committed:
            rows = np.ascontiguousarray(values[:, part.rows])
            if hashlib.sha256(rows.data).digest() != part.digest(plan.path):
                raise StoreCorruptError(
                    f"{self._root / file}: damaged: not the values that block {part.block} of batch {batch}"
                    f" committed{ADVICE}"
                )

    def _committed(self, plan: ArrayPlan, batch: int, number: int) -> list[CommittedRows]:
        """Return the committed draws in a chunk; read new records if the chunk may hold more draws."""
        section: Section = "warmup" if plan.path.startswith("warmup_") else "posterior"
        size = self._header.draws_per_chunk
        committed = self._rows.of_chunk(batch, section, number)
        if not committed or committed[-1].rows.stop < min(size, plan.shape[1] - number * size):
            self._rows.refresh(batch)
            committed = self._rows.of_chunk(batch, section, number)
        return committed


def _index(file: str) -> list[int]:
    return [int(part) for part in file.rpartition("/")[2].split(".")[1:]]
