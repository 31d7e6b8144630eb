"""The creation of a store: its sizes, whether they fit, and its first files in a hidden folder."""

from __future__ import annotations

import hashlib
import json
import math
import re
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from rayfbnn.data import Dataset
from rayfbnn.errors import ConfigError, StoreExistsError
from rayfbnn.memory import bytes_text, memory_of_machine
from rayfbnn.spec import RunSpec
from rayfbnn.store.catalogue import (
    COMMITS,
    FORMAT_VERSION,
    ArrayPlan,
    Header,
    Kind,
    Section,
    StateShapes,
    array_plans,
    ladder_state,
    layouts,
)
from rayfbnn.store.documents import MOST_CHAINS, MOST_DRAWS, MOST_VALUES, values_in
from rayfbnn.store.hierarchy import METADATA, array_metadata, group_metadata, planned_chunks
from rayfbnn.store.records import batch_folder, no_blocks, seal_of, write_head
from rayfbnn.store.root import FORMAT, LOCK, metadata_files
from rayfbnn.store.rounds import rounds
from rayfbnn.store.storage.places import Place
from rayfbnn.store.storage.protocol import MOST_BYTES, Storage
from rayfbnn.version import RESULTS, __version__

_GROUPS = "(warmup_)?(posterior|sample_stats)|prior_predictive|ladder|observed_data|constant_data"
_ARRAY = r"zarr\.json|c\.[\d.]*"
_BATCH = r"lock|head\.json|\d+\.(block|segment)"
# The keys of all files and folders of a new store; those of folders end with "/".
_OURS = re.compile(
    rf"zarr\.json|({_GROUPS})/(zarr\.json|[^/]+/({_ARRAY})?)?|commits/({_ARRAY}|lock|batch\d+/({_BATCH})?)?",
    re.ASCII,
)


@contextmanager
def created(
    fs: Storage, path: Place, header: Header, spec: RunSpec, data: Dataset, kernel: str
) -> Iterator[Place]:
    """Return a context with the place of a new store, which ends up at `path`; a crash leaves none there."""
    if fs.is_taken(path):
        raise StoreExistsError(f"{path}: already exists; choose another path, or resume it")
    _check_text(spec)
    length = Length.from_longest(header, spec)
    check_size(header, spec, length, free_bytes=fs.free_bytes(path.parent))
    with fs.creation(path, f"{COMMITS}/{LOCK}", is_ours) as building:
        _build(fs, building, header, spec, data, kernel)
        yield building


def is_ours(key: str) -> bool:
    """Return True for the key of a file that a creation may write, or of a folder, with "/" at its end."""
    return _OURS.fullmatch(key) is not None


def _check_text(spec: RunSpec) -> None:
    """Raise ConfigError if the configuration is larger than the limits for reading it from a store."""
    encoding = None if spec.encoding is None else spec.encoding.to_dict()
    raw = json.dumps([spec.to_dict(), encoding], indent=1).encode()
    if values_in(raw) > 0.9 * MOST_VALUES or len(raw) > 0.9 * MOST_BYTES:
        raise ConfigError(
            f"configuration: with the names and labels of the table it has {len(raw)} bytes and"
            f" {values_in(raw)} values, but a store holds at most {0.9 * MOST_BYTES:.0f} bytes and"
            f" {0.9 * MOST_VALUES:.0f} values; describe connections by a generator"
        )


def _build(fs: Storage, path: Place, header: Header, spec: RunSpec, data: Dataset, kernel: str) -> None:
    plans = array_plans(header, spec, data)
    files: dict[str, bytes] = {}
    fixed: dict[str, str] = {}
    for plan in plans.values():
        files[f"{plan.path}/{METADATA}"] = array_metadata(plan)
        if plan.values is not None:
            for file, content in planned_chunks(plan):
                files[file] = content
                if not plan.is_draw_coordinate:  # an extension lengthens it
                    fixed[file] = hashlib.sha256(content).hexdigest()
    for group in dict.fromkeys(plan.partition("/")[0] for plan in plans if "/" in plan):
        files[f"{group}/{METADATA}"] = group_metadata({})
    sizes = asdict(header)
    if header.fit_state is None:
        del sizes["fit_state"]
    root = group_metadata(
        {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "rayfbnn_version": __version__,
            "results": RESULTS,
            "header": sizes,
            "spec": spec.to_dict(),
            "fixed_chunks": fixed,
            "kernel": kernel,
            "head_records": True,  # always true in this format
        }
        | ({} if spec.encoding is None else {"encoding": spec.encoding.to_dict()})
    )
    identity = seal_of(root, path / METADATA)
    batches = [batch_folder(path, batch) for batch in range(header.n_batches)]
    folders = {file[:end] for file in files for end, letter in enumerate(file) if letter == "/"}
    for folder in (*(path / name for name in sorted(folders)), *batches):
        fs.mkdir(folder)
    fs.write_files({path / file: content for file, content in files.items()})
    for batch, folder in enumerate(batches):
        write_head(fs, folder, no_blocks(identity, batch))
    fs.write_root(path / METADATA, root)
    for folder in (*(path / name for name in sorted(folders, reverse=True)), path):
        fs.fsync_dir(folder)


_CHUNK_BYTES = 32 * 2**20  # of a chunk of the array with the largest draws
# Draws in a chunk of a run of open length, because a chunk with few draws takes its full size on the disk.
_DRAWS_OF_OPEN = 500
_CASES_BYTES = 4 * 2**20  # of a chunk of inputs or targets, which a worker holds while it reads the chunk


def new_header(
    spec: RunSpec,
    *,
    n_cases: int,
    data_hash: str,
    kind: Kind = "mcmc",
    n_draws: int | None = None,
    n_warmup_draws: int = 0,
    chains: int | None = None,
    chains_per_batch: int | None = None,
    draws_per_block: int | None = None,
    draws_per_chunk: int | None = None,
    cases_per_chunk: int | None = None,
    fit_state: StateShapes | None = None,
) -> Header:
    """Return the sizes of a new store. Those that are None follow from the specification.

    n_draws          draws of each chain; None for the kept and the warm-up draws of the phases
    draws_per_block  maximum number of draws in a block; None in both places for blocks that end after some
                     seconds
    draws_per_chunk  draws in a chunk; None for about 32 MiB
    cases_per_chunk  training cases in a chunk; None for at most 4 MiB
    fit_state        names and shapes of the arrays in the state of a fit
    """
    if n_draws is None:
        n_draws, n_warmup_draws = spec.kept_draws, spec.warmup_draws
    chains = chains or spec.chains
    header = Header(
        kind=kind,
        chains=chains,
        chains_per_batch=min(chains_per_batch or spec.chains_per_batch, chains),
        draws_per_block=draws_per_block or spec.draws_per_block,
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
    size = draws_per_chunk or _chunk_draws(header, spec)
    return replace(header, draws_per_chunk=size, coordinate_chunk=max(size, n_draws, n_warmup_draws))


def chunk_cases(spec: RunSpec, n_cases: int) -> int:
    """Return the number of training cases in a chunk of a new store.

    A chunk takes at most 4 MiB and has no more cases than a part. A worker that needs the cases of one part
    reads only the chunks that contain some of them.
    """
    bytes_per_case = 8 * max(1, len(spec.input_names), len(spec.data.targets))
    return max(1, min(_CASES_BYTES // bytes_per_case, -(-n_cases // spec.n_parts)))


def _chunk_draws(header: Header, spec: RunSpec) -> int:
    """Return the number of draws in a chunk of a new store, from its other sizes.

    The array with the largest draws has chunks of about 32 MiB, and no chunk has more draws than are planned,
    or more than 500 if the length of the run is open.
    If blocks have a fixed number of draws, the last block of a chunk ends where the chunk ends.
    """
    largest = max(_bytes(plan) for plan in array_plans(_of_one(header), spec).values() if plan.is_drawn)
    planned = max(header.n_draws, header.n_warmup_draws, 1)
    most = max(1, _CHUNK_BYTES // (largest * header.chains_per_batch))
    most = min(most, _DRAWS_OF_OPEN) if spec.has_open_length else most
    step = min(header.draws_per_block or 1, planned)
    return -(-planned // step) * step if planned <= most else max(step, most // step * step)


def planned_size(spec: RunSpec, n_cases: int) -> tuple[int, int]:
    """Return the approximate number of files of a complete run, and their bytes.

    ConfigError for more chains or draws than a store holds.
    """
    header = new_header(spec, n_cases=n_cases, data_hash="")
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


_NUMBER_BYTES = 8  # of one number of a draw or chain in a coordinate
_COPIES_OF_NUMBERS = 3  # while a store is created: arrays, files, and one more copy of the largest
_COPIES_OF_BLOCK = 2  # while a block is committed: arrays and file


@dataclass(frozen=True)
class Length:
    """The key that determines the length of a run, its value, and the section of draws that grows with it."""

    key: str
    value: int
    section: Section | None

    @staticmethod
    def from_longest(header: Header, spec: RunSpec) -> Length:
        """Return the longest phase of a new run, or `draws` for draws without phases."""
        if header.kind != "mcmc":
            return Length("draws", header.n_draws, "posterior")
        number = max(range(len(spec.phase)), key=lambda index: spec.phase[index].iterations)
        return Length.from_phase(spec, number)

    @staticmethod
    def from_phase(spec: RunSpec, number: int) -> Length:
        """Return the length of the phase with a given number."""
        phase = spec.phase[number]
        section: Section | None = "posterior" if phase.keep is True else phase.keep or None
        is_last = number == len(spec.phase) - 1
        key = spec.length_key if is_last else f"phase[{number}].iterations"
        return Length(key, phase.iterations, section)

    def header_with(self, header: Header, value: int) -> Header:
        """Return the sizes of the run if the key had another value."""
        less = self.value - value
        return replace(
            header,
            n_draws=header.n_draws - (less if self.section == "posterior" else 0),
            n_warmup_draws=header.n_warmup_draws - (less if self.section == "warmup" else 0),
            n_blocks=header.n_blocks - less,
        )


def check_size(
    header: Header,
    spec: RunSpec,
    length: Length,
    *,
    free_bytes: int,
    before: Header | None = None,
) -> None:
    """Raise ConfigError, naming key, value and limit, if a store of these sizes does not fit.

    free_bytes  space left on the disk
    before      sizes of the store before it is made longer; they count as space that it already has
    """
    sizes = Sizes.from_plans(header, spec)
    memory, had = memory_of_machine(), 0 if before is None else sizes.on_disk(before)
    for key, value, what, available, needed in (
        (
            "draws_per_block",
            header.draws_per_block or header.draws_per_chunk,
            "a block takes {} of memory, and this machine has {}",
            memory,
            lambda n: n * header.chains_per_batch * sizes.draw * _COPIES_OF_BLOCK,
        ),
        (
            "chains",
            header.chains,
            "the numbers of the chains take {} of memory, and this machine has {}",
            memory,
            lambda n: n * sizes.n_coordinates * _NUMBER_BYTES * _COPIES_OF_NUMBERS,
        ),
        (
            length.key,
            length.value,
            "the numbers of the draws take {} of memory, and this machine has {}",
            memory,
            lambda n: sizes.of_numbers(length.header_with(header, n)) * _COPIES_OF_NUMBERS,
        ),
        (
            length.key,
            length.value,
            "the draws take {} of disk space, and {} are left",
            free_bytes,
            lambda n: sizes.on_disk(length.header_with(header, n)) - had,
        ),
    ):
        if needed(value) > available:
            most = max(0, bisect_right(range(value), available, key=needed) - 1)
            must_be = f"it must be at most {most}" if most else "not even 1 fits"
            sizes_in_words = what.format(bytes_text(needed(value)), bytes_text(available))
            raise ConfigError(f"{key}: {sizes_in_words}; {must_be}, got {value}")
    check_counts(header, length)


def check_counts(header: Header, length: Length) -> None:
    """Raise ConfigError, naming the key, for more chains or draws than a store holds."""
    for key, most, n in (
        ("chains", MOST_CHAINS, header.chains),
        (length.key, MOST_DRAWS, max(header.n_draws, header.n_warmup_draws)),
    ):
        if n > most:
            what = "chains" if key == "chains" else "draws of each chain"
            raise ConfigError(f"{key}: a store holds at most {most} {what}, but this run would have {n}")


@dataclass(frozen=True)
class Sizes:
    """The sizes in bytes of parts of a store.

    draw           one draw of one chain, with its statistics
    state          the state of one chain after one block
    n_coordinates  number of arrays (not bytes) that hold the numbers of the draws
    """

    draw: int
    state: int
    n_coordinates: int

    @staticmethod
    def from_plans(header: Header, spec: RunSpec) -> Sizes:
        """Return the sizes, computed from the short arrays of a run with one chain, draw and block."""
        plans = array_plans(_of_one(header), spec).values()
        kept = [plan for plan in plans if plan.section != "warmup"]
        return Sizes(
            draw=sum(_bytes(plan) for plan in kept if plan.is_drawn),
            state=_state_bytes(spec),
            n_coordinates=sum(plan.path.endswith("/draw") for plan in plans),
        )

    def of_numbers(self, header: Header) -> int:
        """Return the bytes of the numbers of the draws, which are in memory while a store is open."""
        return self.n_coordinates * _NUMBER_BYTES * max(header.n_draws, header.n_warmup_draws)

    def on_disk(self, header: Header) -> int:
        """Return the bytes of a finished run, with whole chunks and one state for each chunk of draws."""
        size = header.draws_per_chunk
        n_draws = sum(size * -(-n // size) for n in (header.n_draws, header.n_warmup_draws))
        n_states = -(-header.n_blocks // size) if header.kind == "mcmc" else 0
        n_chains = header.n_batches * header.chains_per_batch
        return n_chains * (n_draws * self.draw + n_states * self.state) + self.of_numbers(header)


def _state_bytes(spec: RunSpec) -> int:
    if spec.ladder is not None:
        return 8 * sum(map(math.prod, ladder_state(spec, spec.ladder.most_levels).values()))
    parameters, precisions = layouts(spec)
    return 8 * (2 * parameters.n_parameters + precisions.n_precisions)


def _of_one(header: Header) -> Header:
    """Return the sizes of a run with one chain, draw and block."""
    ones = ("n_draws", "n_blocks", "chains", "chains_per_batch", "draws_per_chunk", "coordinate_chunk")
    one: dict[str, Any] = dict.fromkeys(ones, 1)
    return replace(header, n_warmup_draws=min(1, header.n_warmup_draws), draws_per_block=1, **one)


def _bytes(plan: ArrayPlan) -> int:
    return math.prod(plan.shape) * np.dtype(plan.dtype).itemsize
