"""Checks that a block, and the commit record of one, says what a block of the run can say."""

from __future__ import annotations

from collections.abc import Mapping

from rayfbnn.errors import StoreCorruptError, StoreError
from rayfbnn.store.catalogue import ArrayPlan, Header
from rayfbnn.store.records import BatchProgress, Block, Record
from rayfbnn.store.storage.places import Place


def check_record(
    record: Record, before: BatchProgress, header: Header, plans: Mapping[str, ArrayPlan], path: Place
) -> None:
    """Raise StoreCorruptError, naming `path`, unless a record follows the progress before it.

    Its draws must be the next ones and among those planned, and its chunk files those of its batch and draws.
    """
    problem = (
        _block_problem(record, header)
        or _progress_problem(record, before, header)
        or _chunks_problem(record, header, plans)
    )
    if problem:
        raise StoreCorruptError(f"{path}: is not the commit of a block of this run: {problem}")


def check_follows(root: Place, header: Header, batch: int, block: Block, progress: BatchProgress) -> None:
    """Raise StoreError unless a block starts where its batch ends and its draws are among those planned."""
    is_warmup = block.section == "warmup"
    first = progress.warmup_draws if is_warmup else progress.draws
    planned = header.n_warmup_draws if is_warmup else header.n_draws
    problem = ""
    if block.first_iteration != progress.iteration + 1:
        problem = f"starts at iteration {block.first_iteration}, expected {progress.iteration + 1}"
    elif block.n_draws and block.first_draw != first:
        problem = f"starts at draw {block.first_draw}, expected {first}"
    elif block.n_draws and first + block.n_draws > planned:
        problem = f"ends at draw {first + block.n_draws}, but {planned} are planned"
    elif header.kind in ("mcmc", "approximate") and block.state is None:
        problem = "has no state, from which the run could go on"
    elif block.n_draws > header.draws_per_chunk:
        problem = f"has {block.n_draws} draws, and a block holds at most {header.draws_per_chunk}"
    if problem:
        raise StoreError(f"{root}: batch {batch}: the block {problem}")


def _block_problem(record: Record, header: Header) -> str:
    """Return why a record that is not of a segment cannot be that of a block, or ""."""
    if record.segment is not None:
        return ""
    if record.chunks:
        return "it names chunks, but a block holds its draws itself"
    if record.n_draws > header.draws_per_chunk:
        return f"it has {record.n_draws} draws, and a block has at most {header.draws_per_chunk}"
    return ""


def _progress_problem(record: Record, before: BatchProgress, header: Header) -> str:
    """Return what is wrong with the numbers of iterations and draws, or ""."""
    is_warmup = record.section == "warmup"
    first, planned = (
        (before.warmup_draws, header.n_warmup_draws) if is_warmup else (before.draws, header.n_draws)
    )
    if record.n_iterations < 1 or record.first_iteration != before.iteration + 1:
        return f"it starts at iteration {record.first_iteration}, after {before.iteration}"
    if record.n_draws and (record.section is None or record.first_draw != first):
        return f"it starts at draw {record.first_draw}, after {first}"
    if record.n_draws and first + record.n_draws > planned:
        return f"it ends at draw {first + record.n_draws}, of {planned}"
    expected = (
        before.iteration + record.n_iterations,
        before.draws + (0 if is_warmup else record.n_draws),
        before.warmup_draws + (record.n_draws if is_warmup else 0),
        record.block + 1,
    )
    if record.first_block != before.blocks:
        return f"it begins with block {record.first_block}, after {before.blocks} blocks"
    progress = record.progress
    if (progress.iteration, progress.draws, progress.warmup_draws, progress.blocks) != expected:
        return "its progress is not that of its draws"
    return ""


def _chunks_problem(record: Record, header: Header, plans: Mapping[str, ArrayPlan]) -> str:
    """Return which chunk file is not one of the segment's, or ""."""
    if record.segment is None:
        return ""
    size = header.draws_per_chunk
    numbers = range(record.first_draw // size, -(-(record.first_draw + record.n_draws) // size))
    if record.n_draws and len(numbers) > len(record.chunks):
        return f"it has {record.n_draws} draws and {len(record.chunks)} chunks"
    is_warmup = record.section == "warmup"
    places = {f"c.{record.batch}.{number}" for number in numbers}
    for file in record.chunks:
        path, _, name = file.rpartition("/")
        plan = plans.get(path)
        if (
            plan is None
            or plan.dims[:2] != ("chain", "draw")
            or path.startswith("warmup_") != is_warmup
            or not name.endswith(".0" * (len(plan.dims) - 2))
            or name[: len(name) - 2 * (len(plan.dims) - 2)] not in places
        ):
            return f"it names {file}"
    return ""
