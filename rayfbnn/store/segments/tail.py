"""Draws that are still in the files of blocks, ready to be inserted into their future chunks."""

from __future__ import annotations

from dataclasses import dataclass

from rayfbnn.arrays import Array
from rayfbnn.store.catalogue import ArrayPlan, Header, chunk_rows
from rayfbnn.store.checking.rows import RowDigests
from rayfbnn.store.records import Section
from rayfbnn.store.segments.block_files import MissingFile
from rayfbnn.store.segments.log import CommitLog

_ATTEMPTS = 5  # to read blocks while a driver gathers them


@dataclass(frozen=True)
class ChunkRows:
    """Draws of a block in a chunk: their rows, and their values (n_chains, n_draws, ...)."""

    rows: slice
    values: Array


@dataclass(frozen=True, eq=False)
class Tail:
    """The blocks that are not gathered into segments yet."""

    header: Header
    log: CommitLog
    rows: RowDigests

    def in_chunk(self, plan: ArrayPlan, file: str) -> tuple[bool, list[ChunkRows], int]:
        """Return whether a chunk has draws of segments, its draws of later blocks, and the number of both.

        StoreCorruptError if a block is missing or damaged.
        """
        batch, number = (int(part) for part in file.rpartition("/")[2].split(".")[1:3])
        for _ in range(_ATTEMPTS - 1):
            try:
                return self._in_chunk(plan, batch, number)
            except MissingFile:  # the driver has gathered the block since its name was read
                self.rows.refresh(batch)
        return self._in_chunk(plan, batch, number)

    def _in_chunk(self, plan: ArrayPlan, batch: int, number: int) -> tuple[bool, list[ChunkRows], int]:
        section: Section = "warmup" if plan.path.startswith("warmup_") else "posterior"
        first = number * self.header.draws_per_chunk
        last = min(first + self.header.draws_per_chunk, plan.shape[1]) - 1
        if self.rows.n_known(batch, section) <= last:
            self.rows.refresh(batch)
        n_known = self.rows.n_known(batch, section) - first
        parts = []
        for record in self.rows.tail(batch):
            if record.section != section or not record.n_draws:
                continue
            for place, of_block, of_chunk in chunk_rows(
                record.first_draw, record.n_draws, self.header.draws_per_chunk
            ):
                if place == number:
                    draws = self.log.files.layout.draws(record, self.log.files.content(record))
                    parts.append(ChunkRows(of_chunk, draws[plan.path][:, of_block]))
        return bool(self.rows.of_chunk(batch, section, number)), parts, n_known
