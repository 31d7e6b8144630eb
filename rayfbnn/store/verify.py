"""A check of every file of a store against its checksum and its commit record."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import numpy as np

from rayfbnn.errors import StoreCorruptError, StoreError, StoreReadError
from rayfbnn.store.catalogue import COMMITS, array_plans, chunk_index, chunk_rows
from rayfbnn.store.hierarchy import METADATA, Hierarchy, array_metadata
from rayfbnn.store.locking import read_holder
from rayfbnn.store.log import CommitLog
from rayfbnn.store.records import BatchProgress, Problem, Record, VerifyReport, check_head
from rayfbnn.store.root import (
    HOLDER,
    check_draws,
    check_fixed_chunks,
    check_layout,
    draw_chunks,
    extension_log,
    metadata_files,
    read_fixed,
    read_metadata_file,
    read_root,
    read_sealed,
    root_document,
    verdict_log,
)
from rayfbnn.store.rows import ADVICE, check_record
from rayfbnn.store.storage import storage_of
from rayfbnn.store.storage.places import Place, key_below, place_of
from rayfbnn.store.storage.protocol import Storage
from rayfbnn.store.tuning_log import TuningLog

_MOST_PROBLEMS = 3_000  # the check stops after so many
Value = TypeVar("Value")


def verify(path: str | Place, *, fs: Storage | None = None) -> VerifyReport:
    """List the problems of a store, file by file, even if it cannot be opened. Nothing changes.

    The check covers the metadata, the coordinates, the training cases, the commit records and their order,
    and every chunk that a record names: the values of each segment in it must have the digest in the record.
    The records of the tuning are computed again from the commits and compared. Chunks that no record names
    (left by a crash) and discarded records (left by a repair) are not checked, because nobody reads them.

    A file with wrong content is read a second time, and is damaged only if it is wrong again. If the system
    fails to read a file, or reads it differently the second time, the problem is a read error.
    """
    place = place_of(path)
    verification = _Verification(storage_of(place) if fs is None else fs, place)
    with suppress(StoreCorruptError, StoreReadError):  # listed below
        root_document(verification.fs, verification.path)
    verification.run()
    return VerifyReport(len(verification.checked), tuple(verification.problems))


class _Verification:
    """The files checked and the problems found so far."""

    def __init__(self, fs: Storage, path: Place) -> None:
        self.fs, self.path = fs, path
        self.checked: set[Place] = set()
        self.problems: list[Problem] = []

    def run(self) -> None:
        self._check(self.path / COMMITS, partial(self.fs.check_folders, [self.path / COMMITS]), is_file=False)
        if self.problems:
            return
        extensions = extension_log(self.fs, self.path, "")
        for path in (self.path / METADATA, *map(extensions.file, extensions.numbers())):
            self._check(path, partial(read_sealed, self.fs, path))
        if self.problems:
            return
        root = self._check(self.path / METADATA, partial(read_root, self.fs, self.path))
        if root is None:
            return
        self.root = root
        self.plans = array_plans(self.root.header, self.root.spec)
        fixed = self.root.fixed_chunks
        self._check(self.path / METADATA, partial(check_layout, self.fs, self.path, self.plans))
        self._check(self.path / METADATA, partial(check_fixed_chunks, self.path, fixed, self.plans))
        if self.problems:
            return
        # Zarr is given the expected metadata, so chunks can be checked even if the metadata are damaged.
        metadata = {f"{name}/{METADATA}": array_metadata(plan) for name, plan in self.plans.items()}
        self.hierarchy = Hierarchy(self.fs, self.path, self.plans, metadata)
        for file in metadata_files(self.plans):
            path = self.path / file
            self._check(path, partial(read_metadata_file, self.fs, path, self.plans, file))
        self._check_fixed()
        commits = CommitLog(self.fs, self.path, self.root, self.plans)
        for batch in range(self.root.header.n_batches):
            self._check_batch(commits, batch)
            if len(self.problems) > _MOST_PROBLEMS:  # a store may claim to have a million batches
                return
        self._check_tuning(commits)
        verdicts = verdict_log(self.fs, self.path, self.root.identity)
        for number in verdicts.numbers():
            self._check(verdicts.file(number), partial(verdicts.read, number))

    def _check_fixed(self) -> None:
        """Check the files that only creation and `extend` write: coordinates, names and training cases."""
        for file, expected in self.root.fixed_chunks.items():
            path = self.path / file
            at_most = self.plans[file.rpartition("/")[0]].most_bytes
            self._check(path, partial(read_fixed, self.fs, path, expected, at_most=at_most))
        for plan in self.plans.values():
            if plan.is_draw_coordinate:
                metadata = self.path / plan.path / METADATA
                files = self._check(metadata, partial(draw_chunks, self.fs, self.path, plan, self.root))
                for path in files or ():
                    self._check(path, partial(check_draws, self.fs, path, plan, self.root))
        holder = self.path / COMMITS / HOLDER  # names the process that runs the store; absent otherwise
        if self.fs.exists(holder):
            self._check(holder, self._read_holder)

    def _read_holder(self) -> None:
        with suppress(FileNotFoundError):  # the run may have just ended
            read_holder(self.fs, self.path)

    def _check_batch(self, commits: CommitLog, batch: int) -> None:
        folder = commits.files.folder(batch)
        numbers = self._check(folder, partial(commits.files.numbers, batch), batch, 0, is_file=False)
        head = self._check(commits.head_file(batch), partial(commits.head, batch), batch)
        expected: int | None = 0  # None behind a record that cannot be read
        previous: str | None = ""  # the same
        before: BatchProgress | None = BatchProgress()  # the same
        for first_block in sorted(set().union(*numbers or ())):
            if len(self.problems) > _MOST_PROBLEMS:
                return
            if expected is not None and first_block < expected:
                continue  # a segment stands for it
            if expected is not None and first_block > expected:
                self._add_missing(commits, batch, expected)
                previous = before = None
            path = commits.files.first_file(batch, first_block)
            record = self._check(
                path, partial(commits.files.read_first, batch, first_block), batch, first_block
            )
            if record is None:
                expected = previous = before = None
                continue
            if previous is not None and record.previous != previous:
                reason = f"does not follow the commit of block {first_block - 1} of batch {batch}"
                self._add(path, StoreCorruptError(reason), batch, first_block)
            if head is not None:
                self._check(path, partial(check_head, head, record, path), batch, first_block)
            expected, previous = record.block + 1, record.last_digest
            n_problems, before = len(self.problems), before or _progress_before(record)
            fits = partial(check_record, record, before, self.root.header, self.plans, path)
            self._check(path, fits, batch, first_block)
            before = record.progress
            if len(self.problems) == n_problems:
                self._check_block(record)
        if head is not None and expected is not None and head.blocks > expected:
            self._add_missing(commits, batch, expected)  # the head names records that are gone

    def _add_missing(self, commits: CommitLog, batch: int, block: int) -> None:
        self._add(commits.files.file(batch, block), StoreCorruptError("missing"), batch, block)

    def _check_block(self, record: Record) -> None:
        header = self.root.header
        numbers = header.batch_chains(record.batch)
        chains = slice(numbers.start, numbers.stop)
        for number, rows, _ in chunk_rows(record.first_draw, record.n_draws, header.draws_per_chunk):
            draws = range(record.first_draw + rows.start, record.first_draw + rows.stop)
            for file, expected in record.chunks.items():
                if chunk_index(file)[1] == number:
                    compare = partial(self._compare, file, expected, chains, slice(draws.start, draws.stop))
                    where = record.batch, record.first_block, draws
                    self._check(self.path / file, compare, *where, is_chunk=True)

    def _compare(self, file: str, expected: str, chains: slice, draws: slice) -> None:
        values = self.hierarchy.read(file.rpartition("/")[0], chains, draws)
        raw = np.ascontiguousarray(values, values.dtype.newbyteorder("<")).tobytes()
        if hashlib.sha256(raw).hexdigest() != expected:
            raise StoreCorruptError(f"{self.path / file}: damaged: not the values that were committed")

    def _check_tuning(self, commits: CommitLog) -> None:
        log = TuningLog(self.fs, self.path, self.root, commits)
        done = 0
        for batch in range(self.root.header.n_batches if log.rounds else 0):
            with suppress(StoreError):  # already reported for the batch
                done = max(done, commits.progress_of([batch])[0].iteration)
        for tuning_round in log.rounds:
            path = log.file(tuning_round.number)
            if done > tuning_round.last or self.fs.exists(path):
                self._check(path, partial(log.check, tuning_round.number))

    def _check(
        self,
        path: Place,
        check: Callable[[], Value],
        *where: Any,
        is_chunk: bool = False,
        is_file: bool = True,
    ) -> Value | None:
        """Return the result of a check of the file `path`; if it fails, add a problem and return None.

        where  the batch, the block and the draws of the file, as in Problem

        A wrong file is checked once more, because a page cache or a file server may return a wrong byte once.
        """
        if is_file:
            self.checked.add(path)
        value, error = _attempt(check)
        if error is not None and not isinstance(error, StoreReadError):
            value, error_again = _attempt(check)
            error = error_again or StoreReadError(f"{path}: wrong on the first read, but not on the second")
        if error is not None:
            self._add(path, error, *where, is_chunk=is_chunk)
            return None
        return value

    def _add(self, path: Place, error: StoreError, *where: Any, is_chunk: bool = False) -> None:
        file = key_below(path, self.path)
        is_read_error = isinstance(error, StoreReadError)
        what = str(error).removeprefix(f"{path}: ").removesuffix(ADVICE)
        what = f"read error: {what}" if is_read_error else what
        place = dict(zip(("batch", "block", "draws"), where, strict=False))
        self.problems.append(Problem(file, what, is_chunk=is_chunk, is_read_error=is_read_error, **place))


def _progress_before(record: Record) -> BatchProgress:
    """Return the progress before a block, computed from its own record because the previous is unreadable."""
    progress, is_warmup = record.progress, record.section == "warmup"
    return BatchProgress(
        iteration=progress.iteration - record.n_iterations,
        draws=progress.draws - (0 if is_warmup else record.n_draws),
        warmup_draws=progress.warmup_draws - (record.n_draws if is_warmup else 0),
        blocks=record.first_block,
    )


def _attempt(check: Callable[[], Value]) -> tuple[Value | None, StoreError | None]:
    try:
        return check(), None
    except FileNotFoundError:
        return None, StoreCorruptError("missing")
    except StoreError as exc:
        return None, exc
