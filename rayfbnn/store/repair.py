"""The repair of a damaged store: it sets damaged blocks aside, and resume computes them again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

from rayfbnn.errors import StoreCorruptError, StoreMismatchError, at_most_ten
from rayfbnn.store.catalogue import COMMITS, TUNING, VERDICTS, chunk_index
from rayfbnn.store.hierarchy import holds
from rayfbnn.store.opened import OpenStore
from rayfbnn.store.records import HEAD, Problem, VerifyReport, set_aside
from rayfbnn.store.verify import verify
from rayfbnn.version import difference


def repair(store: OpenStore, *, dry_run: bool = False) -> VerifyReport:
    """Set aside each damaged block and all later blocks of its batch, under the store's lock.

    A damaged record of the tuning is set aside alone, because the next driver computes it again from the
    commits. If a record is whole but does not follow from the commits, all records and blocks after its round
    are set aside too. Nothing is removed: files are moved to `commits/discarded`. With `dry_run` nothing
    changes, and no lock is needed.

    Returns the problems and the steps of the repair. A read error is reported, but no file is changed because
    of it. Raises StoreCorruptError for damaged metadata or data, which cannot be computed again, and
    StoreMismatchError for a store of another version or other results, because `resume` cannot compute its
    draws.
    """
    if words := difference(store.root.version, store.root.results):
        raise StoreMismatchError(
            f"{store.path}: {words}, which cannot compute the same draws again; repair it with the version"
            " that made it"
        )
    report = verify(store.path, fs=store.fs)
    steps = _planned(store, report)
    for step in steps.values() if not dry_run else ():
        step()
    return replace(report, repairs=tuple(steps))


def _planned(store: OpenStore, report: VerifyReport) -> dict[str, Callable[[], object]]:
    """Return the steps of a repair, in words and to be taken; StoreCorruptError if some damage remains."""
    of_tuning, of_heads, of_blocks, of_verdicts, lost = _by_kind(report.damage)
    if lost:
        listed = "\n  ".join(at_most_ten(f"{problem.file}: {problem.what}" for problem in lost))
        raise StoreCorruptError(
            f"{store.path}: cannot be repaired; restore these files from a copy:\n  {listed}"
        )
    rounds = {int(Path(problem.file).stem) for problem in of_tuning}
    first_blocks: dict[int, int] = {}
    for problem in of_blocks:
        assert problem.batch is not None and problem.block is not None
        first_blocks[problem.batch] = min(problem.block, first_blocks.get(problem.batch, problem.block))
    first_wrong = min((number for number in rounds if store.tuning.is_readable(number)), default=None)
    if first_wrong is not None:
        rounds |= set(range(first_wrong, len(store.tuning.rounds)))
        first_blocks |= _first_blocks_after_round(store, first_wrong, first_blocks)
    # Without its block a damaged chunk is only an obstacle to readers that use Zarr alone. A chunk with draws
    # of a remaining block stays: it is whole, or that block would be damaged too.
    chunks = (
        problem.file
        for problem in of_blocks
        if problem.is_chunk
        and store.fs.exists(store.path / problem.file)
        and not _is_needed(store, problem, first_blocks)
    )

    def aside(file: str, name: str) -> Callable[[], object]:
        return partial(set_aside, store.fs, store.path, store.path / file, name)

    verdicts = [problem.file for problem in of_verdicts]  # no draw depends on a verdict
    return {
        **{f"set aside {file}": aside(file, f"verdict-{Path(file).name}") for file in verdicts},
        **{
            f"set aside the commits of batch {batch} from block {block} on": partial(
                _discard, store, batch, block
            )
            for batch, block in sorted(first_blocks.items())
        },
        **{
            f"rewrite {HEAD} of batch {problem.batch}": partial(_set_head, store, problem.batch)
            for problem in of_heads
            if problem.batch is not None
        },
        **{
            f"set aside the record of round {number} of the tuning": partial(store.tuning.discard, number)
            for number in sorted(rounds)
        },
        **{f"set aside {file}": aside(file, file.replace("/", "-")) for file in chunks},
    }


def _by_kind(damage: Iterable[Problem]) -> tuple[list[Problem], ...]:
    """Return the problems with tuning records, heads, blocks and verdicts, and all that cannot be mended."""
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


def _discard(store: OpenStore, batch: int, block: int) -> None:
    with store.commits.lock(batch):  # a worker believed dead may be committing a block
        store.commits.discard(batch, block)


def _set_head(store: OpenStore, batch: int) -> None:
    with store.commits.lock(batch):
        store.commits.set_head(batch, store.commits.n_listed(batch))


def _first_blocks_after_round(store: OpenStore, number: int, first_damaged: dict[int, int]) -> dict[int, int]:
    """Return each batch's first block after a round of tuning, among the blocks before the damaged ones.

    These blocks may have been drawn with the wrong settings.
    """
    last = store.tuning.rounds[number].last
    first_blocks: dict[int, int] = {}
    for batch in range(store.header.n_batches):
        # The blocks before the first damaged one are whole; the others are set aside anyway.
        n_whole = first_damaged[batch] if batch in first_damaged else store.commits.n_blocks(batch)
        whole = [block for block in store.commits.blocks(batch) if block < n_whole]
        for record in (store.commits.files.read_first(batch, block) for block in whole):
            if record.first_iteration > last:
                first_blocks[batch] = record.first_block
                break
    return first_blocks


def _is_needed(store: OpenStore, problem: Problem, first_blocks: dict[int, int]) -> bool:
    """Return True if a chunk holds draws of a block that stays, which is one before `first_blocks`."""
    assert problem.batch is not None
    n_kept = first_blocks[problem.batch]
    if n_kept == 0:
        return False
    progress = store.commits.read(problem.batch, n_kept - 1).progress
    section = store.hierarchy.plans[problem.file.rpartition("/")[0]].section
    number = chunk_index(problem.file)[1]
    return number * store.header.draws_per_chunk < progress.draws_of(section)


def check_files(store: OpenStore) -> None:
    """Raise StoreCorruptError for a missing file, or for a chunk of another size than planned.

    Metadata, commit records and the blocks that are not gathered yet were read when the store was opened, and
    records of tuning are read now. Chunks are only listed, because reading them takes as long as predicting.
    """
    plans = store.hierarchy.plans
    files = [
        file
        for plan in plans.values()
        if not plan.is_drawn
        # Before a pending extension is finished, the numbers of its draws need not be there.
        and not (store.is_pending and plan.is_draw_coordinate)
        for file in plan.files_of_rows()
    ]
    listed = store.fs.each(lambda path: store.fs.sizes(store.path / path), plans)
    sizes = dict(zip(plans, listed, strict=True))
    for file in (*files, *store.rows.chunk_files()):
        path, _, name = file.rpartition("/")
        plan, size = plans[path], sizes[path].get(name)
        if size == plan.most_bytes:
            continue
        problem = "missing" if size is None else f"damaged: {size} bytes instead of {plan.most_bytes}"
        raise StoreCorruptError(f"{store.path / file}: {problem}{holds(plan, file)}")
    progress = store.commits.progress_of(range(store.header.n_batches))
    store.tuning.check_until(max(batch.iteration for batch in progress))
