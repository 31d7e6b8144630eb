"""Every file of a store against its checksum and its commit record."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from rayfbnn.errors import StoreCorruptError, StoreError
from rayfbnn.store.catalogue import COMMITS, array_plans
from rayfbnn.store.commits import CommitLog
from rayfbnn.store.filesystem import FileSystem
from rayfbnn.store.hierarchy import ADVICE, METADATA, Hierarchy, array_metadata
from rayfbnn.store.metadata import (
    check_draws,
    draw_chunks,
    is_draw_coordinate,
    metadata_files,
    read_metadata_file,
)
from rayfbnn.store.opened import OpenStore
from rayfbnn.store.records import Problem, Record, VerifyReport, unseal
from rayfbnn.store.root import HOLDER, extension_files, read_fixed, read_root, read_sealed
from rayfbnn.store.tuning_log import TUNING, TuningLog
from rayfbnn.store.writing import chunk_rows, digest


def verify(path: str | Path, *, fs: FileSystem | None = None) -> VerifyReport:
    """What is wrong with a store, file by file; also with one that cannot be opened. Nothing is changed.

    Checked are the metadata, the coordinates, the training cases, the commit records and their order, and
    every chunk that a record names: each block's values in it must have the digest in the record; and the
    records of the tuning, which are computed again from those of the commits. Chunks that
    no record names are what a crash left behind, discarded records what a repair did; nobody reads them.
    """
    found = _Verification(FileSystem() if fs is None else fs, Path(path).absolute())
    if not found.fs.exists(found.path):
        raise StoreError(f"{found.path}: there is no store here")
    found.run()
    return VerifyReport(len(found.checked), tuple(found.problems))


def repair(store: OpenStore) -> VerifyReport:
    """Set aside the records of each damaged block and of those after it in its batch, under the store's lock.

    A damaged record of the tuning is set aside alone, as the next driver makes it again from the commits; a
    whole one that says what does not follow from them takes with it all that came after.
    Returns what was wrong. What is in no block (metadata, the data) cannot be computed again:
    StoreCorruptError.
    """
    report = verify(store.path, fs=store.fs)
    of_tuning = [problem for problem in report.problems if problem.file.startswith(f"{COMMITS}/{TUNING}/")]
    lost = [problem for problem in report.problems if problem.batch is None and problem not in of_tuning]
    if lost:
        listed = "\n  ".join(f"{problem.file}: {problem.what}" for problem in lost)
        raise StoreCorruptError(
            f"{store.path}: cannot be repaired, restore these files from a copy:\n  {listed}"
        )
    first: dict[int, int] = {}
    for problem in report.problems:
        if problem in of_tuning:
            continue
        assert problem.batch is not None and problem.block is not None
        first[problem.batch] = min(problem.block, first.get(problem.batch, problem.block))
    rounds = {int(Path(problem.file).stem) for problem in of_tuning}
    wrong = min((number for number in rounds if store.tuning.is_readable(number)), default=None)
    if wrong is not None:
        # What came after it may have been drawn with other settings than those that should have been.
        for batch in range(store.header.n_batches):
            # The records before the first damaged one are whole; the others go in any case.
            whole = first[batch] if batch in first else store.commits.n_blocks(batch)
            for record in (store.commits.read(batch, block) for block in range(whole)):
                if record.first_iteration > store.tuning.rounds[wrong].last:
                    first[batch] = record.block
                    break
    for batch, block in first.items():
        store.commits.discard(batch, block)
    for number in rounds if wrong is None else {*rounds, *range(wrong, len(store.tuning.rounds))}:
        store.tuning.discard(number)
    for problem in report.problems:
        # With its block gone a damaged chunk would only be in the way of those who open the store with Zarr
        # alone. One that holds draws of blocks that are kept is whole (they would be damaged too) and stays.
        if problem.is_chunk and problem.batch is not None and not _is_needed(store, problem):
            store.fs.unlink(store.path / problem.file)
    return report


def _is_needed(store: OpenStore, problem: Problem) -> bool:
    if problem.batch is None or problem.file.startswith("state/"):
        return False
    progress = store.commits.progress(problem.batch)
    draws = progress.warmup_draws if problem.file.startswith("warmup_") else progress.draws
    number = int(problem.file.rpartition("/")[2].split(".")[2])
    return number * store.header.draws_per_block < draws


class _Verification:
    """The problems found so far."""

    def __init__(self, fs: FileSystem, path: Path) -> None:
        self.fs, self.path = fs, path
        self.checked: set[Path] = set()
        self.problems: list[Problem] = []

    def run(self) -> None:
        for path in (self.path / METADATA, *extension_files(self.fs, self.path)):
            self._try(path, partial(read_sealed, self.fs, path))
        if self.problems:
            return
        try:
            self.root = read_root(self.fs, self.path)
        except StoreError as exc:
            self._add(self.path / METADATA, exc)
            return
        self.plans = array_plans(self.root.header, self.root.spec)
        # Zarr is given the metadata that should be there: chunks can be checked also where it is damaged.
        metadata = {f"{name}/{METADATA}": array_metadata(plan) for name, plan in self.plans.items()}
        self.hierarchy = Hierarchy(self.fs, self.path, self.plans, metadata)
        for file in metadata_files(self.plans):
            path = self.path / file
            self._try(path, partial(read_metadata_file, self.fs, path, self.plans, file))
        self._check_fixed()
        commits = CommitLog(self.fs, self.path, self.root.identity)
        for batch in range(self.root.header.n_batches):
            self._check_batch(commits, batch)
        self._check_tuning(commits)

    def _check_tuning(self, commits: CommitLog) -> None:
        """The record of every round that some batch has gone beyond, and of every other that is there."""
        header = self.root.header
        log = TuningLog(self.fs, self.path, self.root.identity, self.root.spec, header.n_batches)
        done = 0
        for batch in range(header.n_batches if log.rounds else 0):
            with suppress(StoreError):  # reported with the batch
                done = max(done, commits.progress(batch).iteration)
        for each in log.rounds:
            path = log.file(each.number)
            if done > each.last or self.fs.exists(path):
                self._try(path, partial(log.check, each.number))

    def _check_fixed(self) -> None:
        """Coordinates, names, training cases: written at creation, and the draw numbers again by `extend`."""
        for file, expected in self.root.fixed_chunks.items():
            path = self.path / file
            self._try(path, partial(read_fixed, self.fs, path, expected))
        for plan in self.plans.values():
            if is_draw_coordinate(plan):
                for path in draw_chunks(self.fs, self.path, plan, self.root):
                    self._try(path, partial(check_draws, self.fs, path, plan, self.root))
        path = self.path / COMMITS / HOLDER  # who runs the store; gone when nobody does
        with suppress(FileNotFoundError):
            raw = self.fs.read(path)
            self._try(path, partial(unseal, raw, path))

    def _check_batch(self, commits: CommitLog, batch: int) -> None:
        try:
            blocks = commits.blocks(batch)
        except StoreError as exc:
            self._add(commits.folder(batch), exc, batch, 0)
            return
        previous: str | None = ""  # None behind a record that cannot be read
        for block in range(max(blocks, default=-1) + 1):
            path = commits.file(batch, block)
            try:
                record = commits.read(batch, block)
                self.checked.add(path)
            except StoreError as exc:
                self._add(path, exc, batch, block)
                previous = None
                continue
            if previous is not None and record.previous != previous:
                reason = f"does not follow the commit of block {block - 1} of batch {batch}"
                self._add(path, StoreCorruptError(reason), batch, block)
            previous = record.digest
            self._check_block(record)

    def _check_block(self, record: Record) -> None:
        header = self.root.header
        own = header.batch_chains(record.batch)
        chains = slice(own.start, own.stop)
        for file, expected in record.state.items():
            block = slice(record.block, record.block + 1)
            self._check_chunk(record, file, expected, (block, chains), None)
        for number, rows, _ in chunk_rows(record.first_draw, record.n_draws, header.draws_per_block):
            draws = slice(record.first_draw + rows.start, record.first_draw + rows.stop)
            for file, expected in record.chunks.items():
                if int(file.rpartition("/")[2].split(".")[2]) == number:
                    self._check_chunk(record, file, expected, (chains, draws), range(draws.start, draws.stop))

    def _check_chunk(
        self, record: Record, file: str, expected: str, where: tuple[slice, slice], draws: range | None
    ) -> None:
        path = self.path / file
        self.checked.add(path)
        try:
            if digest(self.hierarchy.read(file.rpartition("/")[0], *where)) == expected:
                return
            error = StoreCorruptError(f"{path}: damaged: not the values that were committed")
        except StoreError as exc:
            error = StoreCorruptError(str(exc))
        self._add(path, error, record.batch, record.block, draws, is_chunk=True)

    def _try(self, path: Path, check: Callable[[], object]) -> None:
        self.checked.add(path)
        try:
            check()
        except FileNotFoundError:
            self._add(path, StoreCorruptError("missing"))
        except StoreError as exc:
            self._add(path, exc)

    def _add(
        self,
        path: Path,
        error: StoreError,
        batch: int | None = None,
        block: int | None = None,
        draws: range | None = None,
        *,
        is_chunk: bool = False,
    ) -> None:
        file = str(path.relative_to(self.path)) if path != self.path else "."
        what = str(error).removeprefix(f"{path}: ").removesuffix(ADVICE)
        self.problems.append(Problem(file, what, batch, block, draws, is_chunk=is_chunk))
