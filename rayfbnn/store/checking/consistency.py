"""Checks that a block, and the commit record of a block or segment, fits the run and its batch."""

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

    Its draws must be the next ones and within the plan, and its chunk files must be those of its batch and
    draws.
    """
    problem = (
        _block_problem(record, header)
        or _progress_problem(record, before, header)
        or _chunks_problem(record, header, plans)
    )
    if problem:
        raise StoreCorruptError(f"{path}: does not fit this run: {problem}")


def check_follows(root: Place, header: Header, batch: int, block: Block, progress: BatchProgress) -> None:
    """Raise StoreError unless a block starts where its batch ends and its draws are within the plan."""
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
        problem = "has no state, so the run could not continue"
    elif block.n_draws > header.draws_per_chunk:
        problem = f"has {block.n_draws} draws, but a block holds at most {header.draws_per_chunk}"
    if problem:
        raise StoreError(f"{root}: batch {batch}: the block {problem}")


def _block_problem(record: Record, header: Header) -> str:
    """Return why the record of a block is impossible, or ""; segments are not looked at."""
    if record.segment is not None:
        return ""
    if record.chunks:
        return "it is a block, but it names chunks"
    if record.n_draws > header.draws_per_chunk:
        return f"it has {record.n_draws} draws, but a block has at most {header.draws_per_chunk}"
    return ""


def _progress_problem(record: Record, before: BatchProgress, header: Header) -> str:
    """Return the problem with the numbers of iterations and draws, or ""."""
    is_warmup = record.section == "warmup"
    first, planned = (
        (before.warmup_draws, header.n_warmup_draws) if is_warmup else (before.draws, header.n_draws)
    )
    if record.n_iterations < 1 or record.first_iteration != before.iteration + 1:
        return f"it starts at iteration {record.first_iteration}, but the batch ends at {before.iteration}"
    if record.n_draws and (record.section is None or record.first_draw != first):
        return f"it starts at draw {record.first_draw}, expected {first}"
    if record.n_draws and first + record.n_draws > planned:
        return f"it ends at draw {first + record.n_draws}, but {planned} are planned"
    expected = (
        before.iteration + record.n_iterations,
        before.draws + (0 if is_warmup else record.n_draws),
        before.warmup_draws + (record.n_draws if is_warmup else 0),
        record.block + 1,
    )
    if record.first_block != before.blocks:
        return f"it starts with block {record.first_block}, expected {before.blocks}"
    progress = record.progress
    if (progress.iteration, progress.draws, progress.warmup_draws, progress.blocks) != expected:
        return "its progress does not match its draws"
    return ""


def _chunks_problem(record: Record, header: Header, plans: Mapping[str, ArrayPlan]) -> str:
    """Return the problem with the chunk files of a segment, or ""."""
    if record.segment is None:
        return ""
    size = header.draws_per_chunk
    numbers = range(record.first_draw // size, -(-(record.first_draw + record.n_draws) // size))
    if record.n_draws and len(numbers) > len(record.chunks):
        return f"it has {record.n_draws} draws but only {len(record.chunks)} chunks"
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
            return f"{file} is not one of its chunks"
    return ""
