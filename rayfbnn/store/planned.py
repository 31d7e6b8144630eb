"""The sizes of a new store: its header, its chunks, its files and bytes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from rayfbnn.spec import RunSpec
from rayfbnn.store.catalogue import Header, Kind, StateShapes, array_plans
from rayfbnn.store.limits import Length, Sizes, check_counts
from rayfbnn.store.metadata import metadata_files
from rayfbnn.store.rounds import rounds

_CHUNK_BYTES = 32 * 2**20  # of a chunk of the array with the largest draws
_CASES_BYTES = 4 * 2**20  # of a chunk of inputs or targets, which a worker holds while it reads the chunk


def new_header(
    spec: RunSpec,
    *,
    kind: Kind,
    n_draws: int,
    n_warmup_draws: int,
    chains: int,
    chains_per_batch: int,
    draws_per_block: int | None,
    draws_per_chunk: int | None,
    n_cases: int,
    data_hash: str,
    cases_per_chunk: int | None = None,
    fit_state: StateShapes | None = None,
) -> Header:
    """Return the sizes of a new store.

    If draws_per_chunk or cases_per_chunk is None, `chunk_draws` or `chunk_cases` decides.
    """
    header = Header(
        kind=kind,
        chains=chains,
        chains_per_batch=min(chains_per_batch, chains),
        draws_per_block=draws_per_block,
        n_draws=n_draws,
        n_warmup_draws=n_warmup_draws,
        n_blocks=max(spec.total_iterations, n_draws),
        n_cases=n_cases,
        coordinate_chunk=1,
        data_hash=data_hash,
        draws_per_chunk=1,
        cases_per_chunk=cases_per_chunk or chunk_cases(spec, n_cases),
        fit_state=fit_state,
    )
    size = draws_per_chunk or chunk_draws(header, spec)
    return replace(header, draws_per_chunk=size, coordinate_chunk=max(size, n_draws, n_warmup_draws))


def chunk_cases(spec: RunSpec, n_cases: int) -> int:
    """Return the number of training cases in a chunk of a new store.

    A chunk takes at most 4 MiB and has no more cases than a part. A worker that needs the cases of one part
    reads only the chunks that contain some of them.
    """
    bytes_per_case = 8 * max(1, len(spec.input_names), len(spec.data.targets))
    return max(1, min(_CASES_BYTES // bytes_per_case, -(-n_cases // spec.n_parts)))


def chunk_draws(header: Header, spec: RunSpec) -> int:
    """Return the number of draws in a chunk of a new store, from its other sizes.

    The array with the largest draws has chunks of about 32 MiB, and no chunk has more draws than are planned.
    If blocks have a fixed number of draws, the last block of a chunk ends where the chunk ends.
    """
    one = replace(header, chains=1, chains_per_batch=1, draws_per_chunk=1, n_draws=1, coordinate_chunk=1)
    one = replace(one, n_warmup_draws=min(1, header.n_warmup_draws))
    largest = max(
        math.prod(plan.shape) * np.dtype(plan.dtype).itemsize
        for plan in array_plans(one, spec).values()
        if plan.dims[:2] == ("chain", "draw")
    )
    planned = max(header.n_draws, header.n_warmup_draws, 1)
    most = max(1, _CHUNK_BYTES // (largest * header.chains_per_batch))
    step = min(header.draws_per_block or 1, planned)
    return -(-planned // step) * step if planned <= most else max(step, most // step * step)


def planned_size(spec: RunSpec, n_cases: int) -> tuple[int, int]:
    """Return the approximate number of files of a complete run, and their bytes.

    ConfigError for more chains or draws than a store holds.
    """
    header = new_header(
        spec,
        kind="mcmc",
        n_draws=spec.kept_draws,
        n_warmup_draws=spec.warmup_draws,
        chains=spec.chains,
        chains_per_batch=spec.chains_per_batch,
        draws_per_block=spec.draws_per_block,
        draws_per_chunk=None,
        n_cases=n_cases,
        data_hash="",
    )
    check_counts(header, Length.from_longest(header, spec))
    plans = array_plans(header, spec)
    n_segments = len(rounds(spec)) + len(spec.phase)
    n_chunks = 0
    for plan in plans.values():
        n_chunks += math.prod(-(-n // size) for n, size in zip(plan.shape, plan.chunks, strict=True) if size)
    for n_draws in (header.n_draws, header.n_warmup_draws):
        n_segments += max(0, -(-n_draws // header.draws_per_chunk) - 1)
    n_files = n_chunks + len(metadata_files(plans)) + header.n_batches * (n_segments + 2)
    return n_files, Sizes.from_plans(header, spec).on_disk(header)
