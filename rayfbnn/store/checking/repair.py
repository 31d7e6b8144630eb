"""Repairs a damaged store: damaged blocks are set aside, and resume computes them again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from rayfbnn.errors import StoreCorruptError, StoreMismatchError
from rayfbnn.store.catalogue import COMMITS, DISCARDED, TUNING, VERDICTS
from rayfbnn.store.checking.heads import HEAD
from rayfbnn.store.checking.verify import verify
from rayfbnn.store.lengthening.verdict_log import VerdictLog
from rayfbnn.store.opened import OpenStore
from rayfbnn.store.records import Problem, VerifyReport
from rayfbnn.version import __version__


@dataclass(frozen=True)
class _Repair:
    """The files that a repair sets aside, or makes again.

    verdicts      damaged records of verdicts
    first_blocks  batch -> first block of those whose records are set aside
    heads         batches whose head is made again from the records that are left
    rounds        numbers of records of the tuning
    chunks        files that hold draws of no block that is left
    """

    verdicts: tuple[str, ...]
    first_blocks: dict[int, int]
    heads: tuple[int, ...]
    rounds: tuple[int, ...]
    chunks: tuple[str, ...]

    def in_words(self) -> tuple[str, ...]:
        """Return a line for each thing that is set aside or made again."""
        return (
            *(f"set aside {file}" for file in self.verdicts),
            *(
                f"set aside the commits of batch {batch} from block {block} on"
                for batch, block in sorted(self.first_blocks.items())
            ),
            *(f"make {HEAD} of batch {batch} again" for batch in self.heads),
            *(f"set aside the record of round {number} of the tuning" for number in self.rounds),
            *(f"set aside {file}" for file in self.chunks),
        )


def repair(store: OpenStore, *, dry_run: bool = False) -> VerifyReport:
    """Set aside the records of each damaged block and of those after it in its batch, under the store's lock.

    A damaged record of the tuning is set aside alone, because the next driver makes it again from the
    commits. A whole one that says what does not follow from the commits takes with it all that came after.
    Nothing is removed: what is set aside lies in `commits/discarded`. With `dry_run` nothing is changed, and
    no lock is needed.

    Returns what was wrong, and what was done about it or would be. Files that could not be read are in the
    report, and nothing is changed on account of them. Damage to what is in no block (metadata, the data)
    cannot be computed again: StoreCorruptError. Nor can `resume` compute draws of another version:
    StoreMismatchError.
    """
    if store.root.version != __version__:
        raise StoreMismatchError(
            f"{store.path}: was made by rayfbnn {store.root.version}, and this is {__version__}, which cannot"
            f" compute draws of that version again; repair it with rayfbnn {store.root.version}"
        )
    report = verify(store.path, fs=store.fs)
    steps = _planned(store, report)
    if not dry_run:
        _carry_out(store, steps)
    return replace(report, repairs=steps.in_words())


def _planned(store: OpenStore, report: VerifyReport) -> _Repair:
    """Return what a repair does; StoreCorruptError if it cannot make the store whole."""
    of_tuning, of_heads, of_blocks, of_verdicts, lost = _by_kind(report.damage)
    if lost:
        listed = "\n  ".join(f"{problem.file}: {problem.what}" for problem in lost)
        raise StoreCorruptError(
            f"{store.path}: cannot be repaired, restore these files from a copy:\n  {listed}"
        )
    rounds = {int(Path(problem.file).stem) for problem in of_tuning}
    first_blocks = _first_damaged_blocks(of_blocks)
    first_wrong = min((number for number in rounds if store.tuning.is_readable(number)), default=None)
    if first_wrong is not None:
        rounds |= set(range(first_wrong, len(store.tuning.rounds)))
        first_blocks |= _first_blocks_after_round(store, first_wrong, first_blocks)
    # With its block gone a damaged chunk would only be in the way of those who open the store with Zarr
    # alone. One that holds draws of blocks that are kept is whole (they would be damaged too) and stays.
    chunks = (
        problem.file
        for problem in of_blocks
        if problem.is_chunk
        and store.fs.exists(store.path / problem.file)
        and not _is_needed(store, problem, first_blocks)
    )
    return _Repair(
        tuple(problem.file for problem in of_verdicts),
        first_blocks,
        tuple(dict.fromkeys(problem.batch for problem in of_heads if problem.batch is not None)),
        tuple(sorted(rounds)),
        tuple(dict.fromkeys(chunks)),
    )


def _by_kind(damage: Iterable[Problem]) -> tuple[list[Problem], ...]:
    """Return the problems with records of the tuning, heads, blocks, verdicts, and what cannot be mended."""
    kinds: tuple[list[Problem], ...] = ([], [], [], [], [])
    for problem in damage:
        if problem.file.startswith(f"{COMMITS}/{TUNING}/"):
            kind = 0
        elif Path(problem.file).name == HEAD:
            kind = 1
        elif problem.batch is not None:
            kind = 2
        else:
            kind = 3 if problem.file.startswith(f"{COMMITS}/{VERDICTS}/") else 4
        kinds[kind].append(problem)
    return kinds


def _carry_out(store: OpenStore, steps: _Repair) -> None:
    verdicts = VerdictLog(store.fs, store.path, store.root.identity)
    for file in steps.verdicts:  # no draw depends on them
        verdicts.discard(store.path / file)
    for batch, block in steps.first_blocks.items():
        store.commits.discard(batch, block)
    for batch in steps.heads:
        store.commits.set_head(batch, store.commits.n_listed(batch))
    for number in steps.rounds:
        store.tuning.discard(number)
    aside = store.path / COMMITS / DISCARDED
    for file in steps.chunks:
        store.fs.mkdir(aside)
        taken = len(store.fs.listdir(aside))
        kept = aside / f"{taken:04d}-{file.replace('/', '-')}"
        store.fs.rename_new(store.path / file, kept, below=store.path)


def _first_damaged_blocks(problems: list[Problem]) -> dict[int, int]:
    """Return the number of the first damaged block of each batch that has one."""
    first_blocks: dict[int, int] = {}
    for problem in problems:
        assert problem.batch is not None and problem.block is not None
        first_blocks[problem.batch] = min(problem.block, first_blocks.get(problem.batch, problem.block))
    return first_blocks


def _first_blocks_after_round(store: OpenStore, number: int, first_damaged: dict[int, int]) -> dict[int, int]:
    """Return each batch's first block after a round of tuning, of those before the damaged ones.

    These blocks may have been drawn with other settings than those that they should have had.
    """
    last = store.tuning.rounds[number].last
    first_blocks: dict[int, int] = {}
    for batch in range(store.header.n_batches):
        # The records before the first damaged one are whole; the others are set aside in any case.
        n_whole = first_damaged[batch] if batch in first_damaged else store.commits.n_blocks(batch)
        whole = [block for block in store.commits.blocks(batch) if block < n_whole]
        for record in (store.commits.files.read_first(batch, block) for block in whole):
            if record.first_iteration > last:
                first_blocks[batch] = record.first_block
                break
    return first_blocks


def _is_needed(store: OpenStore, problem: Problem, first_blocks: dict[int, int]) -> bool:
    """Return True if a chunk holds draws of blocks that are kept, which are those before `first_blocks`."""
    assert problem.batch is not None
    n_kept = first_blocks[problem.batch]
    if n_kept == 0:
        return False
    progress = store.commits.read(problem.batch, n_kept - 1).progress
    draws = progress.warmup_draws if problem.file.startswith("warmup_") else progress.draws
    number = int(problem.file.rpartition("/")[2].split(".")[2])
    return number * store.header.draws_per_chunk < draws
