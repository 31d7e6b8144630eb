"""Repairs a damaged store: damaged blocks are set aside, and resume computes them again."""

from __future__ import annotations

from pathlib import Path

from rayfbnn.errors import StoreCorruptError
from rayfbnn.store.catalogue import COMMITS
from rayfbnn.store.checking.heads import HEAD
from rayfbnn.store.lengthening.verdict_log import VERDICTS, VerdictLog
from rayfbnn.store.opened import OpenStore
from rayfbnn.store.records import Problem, VerifyReport
from rayfbnn.store.tuning_log import TUNING
from rayfbnn.store.verify import verify


def repair(store: OpenStore) -> VerifyReport:
    """Set aside the records of each damaged block and of those after it in its batch, under the store's lock.

    A damaged record of the tuning is set aside alone, because the next driver makes it again from the
    commits. A whole one that says what does not follow from the commits takes with it all that came after.

    Returns what was wrong. Files that could not be read are in the report, and nothing is changed on account
    of them. Damage to what is in no block (metadata, the data) cannot be computed again: StoreCorruptError.
    """
    report = verify(store.path, fs=store.fs)
    of_tuning = [problem for problem in report.damage if problem.file.startswith(f"{COMMITS}/{TUNING}/")]
    of_heads = [problem for problem in report.damage if Path(problem.file).name == HEAD]
    of_blocks = [
        problem for problem in report.damage if problem.batch is not None and problem not in of_heads
    ]
    of_verdicts = [problem for problem in report.damage if problem.file.startswith(f"{COMMITS}/{VERDICTS}/")]
    lost = [
        problem
        for problem in report.damage
        if problem not in [*of_tuning, *of_heads, *of_blocks, *of_verdicts]
    ]
    if lost:
        listed = "\n  ".join(f"{problem.file}: {problem.what}" for problem in lost)
        raise StoreCorruptError(
            f"{store.path}: cannot be repaired, restore these files from a copy:\n  {listed}"
        )
    for problem in of_verdicts:  # no draw depends on them
        VerdictLog(store.fs, store.path, store.root.identity).discard(store.path / problem.file)
    rounds = {int(Path(problem.file).stem) for problem in of_tuning}
    first_blocks = _first_damaged_blocks(of_blocks)
    first_wrong = min((number for number in rounds if store.tuning.is_readable(number)), default=None)
    if first_wrong is not None:
        rounds |= set(range(first_wrong, len(store.tuning.rounds)))
        first_blocks |= _first_blocks_after_round(store, first_wrong, first_blocks)
    for batch, block in first_blocks.items():
        store.commits.discard(batch, block)
    for batch in {problem.batch for problem in of_heads if problem.batch is not None}:
        store.commits.set_head(batch, len(store.commits.blocks(batch)))
    for number in rounds:
        store.tuning.discard(number)
    for problem in of_blocks:
        # With its block gone a damaged chunk would only be in the way of those who open the store with Zarr
        # alone. One that holds draws of blocks that are kept is whole (they would be damaged too) and stays.
        if problem.is_chunk and not _is_needed(store, problem):
            store.fs.unlink(store.path / problem.file)
    return report


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
        for record in (store.commits.read(batch, block) for block in range(n_whole)):
            if record.first_iteration > last:
                first_blocks[batch] = record.block
                break
    return first_blocks


def _is_needed(store: OpenStore, problem: Problem) -> bool:
    """Return True if a chunk holds draws of blocks that are kept."""
    assert problem.batch is not None
    if problem.file.startswith("state/"):
        return False
    progress = store.commits.progress(problem.batch)
    draws = progress.warmup_draws if problem.file.startswith("warmup_") else progress.draws
    number = int(problem.file.rpartition("/")[2].split(".")[2])
    return number * store.header.draws_per_block < draws
