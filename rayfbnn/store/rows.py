"""The committed draws by the chunk that holds them: their digests, and draws still in the files of blocks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.errors import StoreCorruptError, StoreError
from rayfbnn.store.block_files import MissingFile
from rayfbnn.store.catalogue import ArrayPlan, Header, Section, chunk_index, chunk_rows
from rayfbnn.store.known import Seen
from rayfbnn.store.log import CommitLog
from rayfbnn.store.records import BatchProgress, Block, Record
from rayfbnn.store.storage.places import Place


def check_record(
    record: Record, before: BatchProgress, header: Header, plans: Mapping[str, ArrayPlan], path: Place
) -> None:
    """Raise StoreCorruptError, naming `path`, unless a record follows the progress before it.

    Its draws must be the next ones and within the plan, and its chunk files must be those of its batch and
    draws.
    """
    problem = (
        _follows_problem(record, before, header)
        or _progress_problem(record, before)
        or _chunks_problem(record, header, plans)
    )
    if problem:
        raise StoreCorruptError(f"{path}: does not fit this run: it {problem}")


def check_follows(root: Place, header: Header, batch: int, block: Block, progress: BatchProgress) -> None:
    """Raise StoreError unless a block starts where its batch ends and its draws are within the plan."""
    problem = _follows_problem(block, progress, header)
    if not problem and header.kind in ("mcmc", "approximate") and block.state is None:
        problem = "has no state, so the run could not continue"
    if problem:
        raise StoreError(f"{root}: batch {batch}: the block {problem}")


def _follows_problem(block: Block | Record, before: BatchProgress, header: Header) -> str:
    """Return why a block or segment cannot follow the progress before it, or ""."""
    first, planned = before.draws_of(block.section), header.planned(block.section)
    is_segment = isinstance(block, Record) and block.segment is not None
    if block.n_iterations < 1 or block.first_iteration != before.iteration + 1:
        return f"starts at iteration {block.first_iteration}, expected {before.iteration + 1}"
    if block.n_draws and (block.section is None or block.first_draw != first):
        return f"starts at draw {block.first_draw}, expected {first}"
    if block.n_draws and first + block.n_draws > planned:
        return f"ends at draw {first + block.n_draws}, but {planned} are planned"
    if not is_segment and block.n_draws > header.draws_per_chunk:
        return f"has {block.n_draws} draws, but a block holds at most {header.draws_per_chunk}"
    return ""


def _progress_problem(record: Record, before: BatchProgress) -> str:
    is_warmup, progress = record.section == "warmup", record.progress
    expected = (
        before.iteration + record.n_iterations,
        before.draws + (0 if is_warmup else record.n_draws),
        before.warmup_draws + (record.n_draws if is_warmup else 0),
        record.block + 1,
    )
    if record.first_block != before.blocks:
        return f"starts with block {record.first_block}, expected {before.blocks}"
    if (progress.iteration, progress.draws, progress.warmup_draws, progress.blocks) != expected:
        return "has a progress that does not match its draws"
    return ""


def _chunks_problem(record: Record, header: Header, plans: Mapping[str, ArrayPlan]) -> str:
    if record.segment is None:
        return "is a block, but it names chunks" if record.chunks else ""
    size = header.draws_per_chunk
    numbers = range(record.first_draw // size, -(-(record.first_draw + record.n_draws) // size))
    if record.n_draws and len(numbers) > len(record.chunks):
        return f"has {record.n_draws} draws but only {len(record.chunks)} chunks"
    is_warmup = record.section == "warmup"
    places = {f"c.{record.batch}.{number}" for number in numbers}
    for file in record.chunks:
        path, _, name = file.rpartition("/")
        plan = plans.get(path)
        if (
            plan is None
            or not plan.is_drawn
            or (plan.section == "warmup") != is_warmup
            or not name.endswith(".0" * (len(plan.dims) - 2))
            or name[: len(name) - 2 * (len(plan.dims) - 2)] not in places
        ):
            return f"names {file}, which is not one of its chunks"
    return ""


ADVICE = "; `verify` lists what can be kept"
_BATCHES_AT_ONCE = 512
_ATTEMPTS = 5  # to read blocks while a driver gathers them


@dataclass(frozen=True)
class ChunkRows:
    """Draws of a block in a chunk: their rows, and their values (n_chains, n_draws, ...)."""

    rows: slice
    values: Array


@dataclass
class _RowsOfBatch:
    """The segments of a batch that were read so far, and the blocks after them.

    n_records  number of blocks in the segments
    last       digest of the last of these blocks
    progress   progress of the batch after it
    chunks     (is it the warm-up, number of the chunk) -> segments with draws in the chunk, and their rows
    tail       the blocks after the segments; their draws are not in chunks yet
    """

    n_records: int = 0
    last: str = ""
    progress: BatchProgress = BatchProgress()
    chunks: dict[tuple[bool, int], list[tuple[Record, slice]]] = field(default_factory=dict)
    tail: tuple[Record, ...] = ()


class CommittedDraws:
    """The committed draws of a store by their chunks, from all its commit records."""

    def __init__(self, root: Place, commits: CommitLog) -> None:
        """Start with no records; `set_sizes` must be called, and `refresh` reads them."""
        self._root, self._commits = root, commits
        self._batches: dict[int, _RowsOfBatch] = {}

    def set_sizes(
        self, header: Header, plans: Mapping[str, ArrayPlan], fixed_chunks: Mapping[str, str]
    ) -> None:
        """Take the sizes of the run, also after an extension; the records read so far stay.

        fixed_chunks  digests of the chunks written at creation
        """
        self._header, self._plans, self._fixed = header, plans, fixed_chunks

    def _in_segments(self, batch: int, section: Section, number: int) -> list[tuple[Record, slice]]:
        """Return the segments with draws in a chunk, and their rows, in order, of those read so far."""
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
        known = self._batches.setdefault(batch, _RowsOfBatch())
        try:
            self._read_on(batch, known, seen)
        except StoreCorruptError:
            if not known.n_records:
                raise
            # A repair may have set aside records that were read before, and a run may have replaced them.
            self._batches[batch] = known = _RowsOfBatch()
            self._read_on(batch, known)

    def _n_known(self, batch: int, section: Section) -> int:
        """Return the number of committed draws of a section in a batch, from the records read so far."""
        known = self._batches.get(batch)
        if known is None:
            return 0
        progress = known.tail[-1].progress if known.tail else known.progress
        return progress.draws_of(section)

    def chunk_files(self) -> Iterator[str]:
        """Yield the chunk files that segments name, from the records read so far."""
        for known in self._batches.values():
            segments = (record for chunk in known.chunks.values() for record, _ in chunk)
            yield from dict.fromkeys(file for record in segments for file in record.chunks)

    def tail(self, batch: int) -> tuple[Record, ...]:
        """Return the blocks after the last segment, from the records read so far."""
        known = self._batches.get(batch)
        return () if known is None else known.tail

    def _read_on(self, batch: int, known: _RowsOfBatch, seen: Seen | None = None) -> None:
        tail: list[Record] = []
        progress = known.progress
        for record in self._commits.records(batch, first=known.n_records, previous=known.last, seen=seen):
            check_record(record, progress, self._header, self._plans, self._commits.files.file_of(record))
            progress = record.progress
            if record.segment is None:
                tail.append(record)
                continue
            size, is_warmup = self._header.draws_per_chunk, record.section == "warmup"
            for number, _, rows in chunk_rows(record.first_draw, record.n_draws, size):
                known.chunks.setdefault((is_warmup, number), []).append((record, rows))
            known.n_records, known.last, known.progress = record.block + 1, record.last_digest, progress
        known.tail = tuple(tail)

    def check(self, plan: ArrayPlan, file: str, raw: bytes) -> None:
        """Raise StoreCorruptError, naming file, batch and block, if a chunk is damaged.

        raw  content of the whole chunk file, which has the size of a chunk of `plan`
        """
        if file in self._fixed:
            if hashlib.sha256(raw).hexdigest() != self._fixed[file]:
                raise StoreCorruptError(f"{self._root / file}: damaged: its content is not what was written")
        elif plan.is_draw_coordinate:
            self._check_numbers(plan, file, raw)
        elif plan.is_drawn:
            self._check_draws(plan, file, raw)
        else:
            raise StoreCorruptError(f"{self._root / file}: the store has no digest of it")

    def _check_numbers(self, plan: ArrayPlan, file: str, raw: bytes) -> None:
        """Check the numbers of the draws; an extension may have written more of them than are planned."""
        first = chunk_index(file)[0] * plan.chunks[0]
        values = np.frombuffer(raw, "<i8", count=plan.chunks[0])[: plan.shape[0] - first]
        if (values != np.arange(first, first + len(values))).any():
            raise StoreCorruptError(
                f"{self._root / file}: damaged: its values are not the numbers of the draws"
            )

    def _check_draws(self, plan: ArrayPlan, file: str, raw: bytes) -> None:
        """Check the committed draws in a chunk; the others are never used."""
        batch, number = chunk_index(file)[:2]
        n_chains = len(self._header.batch_chains(batch))  # the last batch may fill less than a chunk
        values = plan.decoded(raw)[:n_chains]
        committed = self._committed(plan, batch, number)
        if not committed:
            raise StoreCorruptError(f"{self._root / file}: no commit of batch {batch} names its draws")
        for record, rows in committed:
            draws = np.ascontiguousarray(values[:, rows])
            if hashlib.sha256(draws.data).hexdigest() != record.chunks.get(file):
                raise StoreCorruptError(
                    f"{self._root / file}: damaged: not the values that block {record.block} of batch {batch}"
                    f" committed{ADVICE}"
                )

    def _committed(self, plan: ArrayPlan, batch: int, number: int) -> list[tuple[Record, slice]]:
        """Return the segments with draws in a chunk; read new records if the chunk may hold more draws."""
        size = self._header.draws_per_chunk
        committed = self._in_segments(batch, plan.section, number)
        if not committed or committed[-1][1].stop < min(size, plan.shape[1] - number * size):
            self.refresh(batch)
            committed = self._in_segments(batch, plan.section, number)
        return committed

    def in_chunk(self, plan: ArrayPlan, file: str) -> tuple[bool, list[ChunkRows], int]:
        """Return whether a chunk has draws of segments, its draws of later blocks, and the number of both.

        StoreCorruptError if a block is missing or damaged.
        """
        batch, number = chunk_index(file)[:2]
        for _ in range(_ATTEMPTS - 1):
            try:
                return self._in_chunk(plan, batch, number)
            except MissingFile:  # the driver has gathered the block since its name was read
                self.refresh(batch)
        return self._in_chunk(plan, batch, number)

    def _in_chunk(self, plan: ArrayPlan, batch: int, number: int) -> tuple[bool, list[ChunkRows], int]:
        section, first = plan.section, number * self._header.draws_per_chunk
        last = min(first + self._header.draws_per_chunk, plan.shape[1]) - 1
        if self._n_known(batch, section) <= last:
            self.refresh(batch)
        n_known = self._n_known(batch, section) - first
        parts = []
        for record in self.tail(batch):
            if record.section != section or not record.n_draws:
                continue
            for place, of_block, of_chunk in chunk_rows(
                record.first_draw, record.n_draws, self._header.draws_per_chunk
            ):
                if place == number:
                    draws = self._commits.files.layout.draws(record, self._commits.files.content(record))
                    parts.append(ChunkRows(of_chunk, draws[plan.path][:, of_block]))
        return bool(self._in_segments(batch, section, number)), parts, n_known
