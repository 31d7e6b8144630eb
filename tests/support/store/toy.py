"""A run of milliseconds: chains x -> x/2 + noise, so that a wrong state shows in every later draw."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.data import Dataset, make_dataset
from rayfbnn.spec import RunSpec
from rayfbnn.state import ChainState
from rayfbnn.store.catalogue import STATS, ArrayPlan
from rayfbnn.store.hierarchy import array_metadata
from rayfbnn.store.records import Block
from rayfbnn.store.storage.places import Place
from rayfbnn.store.storage.posix import FileSystem
from rayfbnn.store.storage.protocol import Storage
from rayfbnn.store.storage.system_calls import SystemCalls
from rayfbnn.store.store import Store
from rayfbnn.streams import Purpose, Streams
from tests.support.store.disks import MemoryDisk

PATH = Path("/runs/toy.zarr")
_OPERATIONS = [{"op": "heatbath"}]
TOY: dict[str, Any] = {
    "seed": 3,
    "chains": 3,
    "chains_per_batch": 2,
    "draws_per_block": 3,
    "data": {"train": "train.csv", "inputs": ["x"], "targets": ["y"]},
    "model": {"kind": "binary"},
    "network": {"hidden": [], "priors": {"io": "1:0.5", "bo": "1"}},
    "phase": [
        {"iterations": 1, "keep": False, "operations": _OPERATIONS},
        {"iterations": 2, "keep": "warmup", "operations": _OPERATIONS},
        {"iterations": 5, "operations": _OPERATIONS},
    ],
}
# The last iteration of each block: one is discarded, one is warm-up, then come draws 0-1, 2, 3-4 in chunks of
# three, so that the fourth block fills up the chunk that the third began.
ENDS = (1, 3, 5, 6, 8)


def toy_spec(**changes: Any) -> RunSpec:
    return RunSpec.from_dict({**TOY, **changes})


def toy_data() -> Dataset:
    inputs = Streams(5, np.arange(4, dtype=np.uint64)).normal(Purpose.TARGET_VALUE, (1,))
    return make_dataset(inputs, (inputs > 0).astype(float), input_names=["x"], target_names=["y"])


def empty_disk() -> MemoryDisk:
    """A disk with the folder in which the store of a toy run will be."""
    disk = MemoryDisk()
    disk.mkdir(PATH.parent)
    return disk.copy()


def create(fs: Storage, path: Place = PATH, spec: RunSpec | None = None) -> Store:
    """The store of a toy run, with chunks of three draws and of three cases."""
    spec = toy_spec() if spec is None else spec
    return Store.create(
        path,
        spec,
        toy_data(),
        kernel="plain NumPy",
        draws_per_chunk=spec.draws_per_block,
        cases_per_chunk=3,
        fs=fs,
    )


def create_with_draws(fs: Storage, path: Place) -> None:
    """Make a store whose five draws are complete from the start, as `prior` and `reject` do."""
    Store.create(
        path,
        spec=toy_spec(chains=2),
        data=toy_data(),
        kernel="plain NumPy",
        n_draws=5,
        n_warmup_draws=2,
        draws_per_chunk=3,
        cases_per_chunk=3,
        blocks=_all_blocks(),
        fs=fs,
    )


@cache
def _all_blocks() -> tuple[Block, ...]:
    store = create(FileSystem(empty_disk()), spec=toy_spec(chains=2))
    blocks = []
    while (block := next_block(store, 0)) is not None:
        store.commit(0, block)
        blocks.append(block)
    return tuple(blocks)


def next_block(store: Store, batch: int, *, ends: tuple[int, ...] = ENDS) -> Block | None:
    """Return the block after the committed ones, starting from the committed state; None at the end."""
    loaded = store.load_state(batch)
    n_chains = len(store.header.batch_chains(batch))
    n_parameters, n_precisions = store.parameter_layout.n_parameters, store.precision_layout.n_precisions
    position, iteration = np.zeros((n_chains, n_parameters), dtype=np.float32), 0
    if loaded is not None:
        position, iteration = loaded[0].position, loaded[1]
    end = next((end for end in ends if end > iteration), None)
    if end is None:
        return None
    streams = Streams(store.spec.seed, np.array(store.header.batch_chains(batch), dtype=np.uint64))
    draws = []
    for number in range(iteration + 1, end + 1):
        noise = streams.at(iteration=number).normal(Purpose.PROPOSAL, (n_parameters,))
        position = (position / 2 + noise).astype(np.float32)
        draws.append(position)
    section: Literal["posterior", "warmup"] | None = (
        None if end <= 1 else "warmup" if end <= 3 else "posterior"
    )
    first_draw = {None: 0, "warmup": iteration - 1, "posterior": iteration - 3}[section]
    positions = np.stack(draws, axis=1)
    precisions = np.exp(positions[..., :1].astype(np.float64)) * np.ones(n_precisions)
    return Block(
        first_iteration=iteration + 1,
        n_iterations=end - iteration,
        section=section,
        first_draw=first_draw,
        positions=positions if section else None,
        precisions=precisions if section else None,
        stats={name: positions[..., 0].astype(np.float64) + i for i, name in enumerate(STATS)},
        state=ChainState(position, -position, precisions[:, -1]),
        summary={"updates": float(end - iteration)},
    )


def step(store: Store, batch: int, **options: Any) -> bool:
    """Commit a batch's next block; return False if there is none."""
    block = next_block(store, batch, **options)
    if block is not None:
        store.commit(batch, block)
    return block is not None


def half_run(calls: SystemCalls) -> None:
    """A store with its second batch complete and its first at the third block.

    The next block fills up the chunk that the third began."""
    calls.mkdir(PATH.parent)
    store = create(FileSystem(calls))
    while step(store, 1):
        store.gather(1)
    for _ in range(3):
        step(store, 0)


def run_to_end(store: Store, **options: Any) -> None:
    """Commit what is left of a run, and gather blocks as a driver does."""
    with store.lock():
        for batch in range(store.n_batches):
            while step(store, batch, **options):
                store.gather(batch)
            store.gather(batch, everything=True)


def contents(store: Store) -> dict[str, bytes]:
    """Everything that a run draws, by name, as bytes."""
    arrays: dict[str, Array] = {
        "positions": store.read_positions(),
        "precisions": store.read_precisions(),
        "warmup": store.read_positions(section="warmup"),
        **{name: store.read_stat(name) for name in STATS},
    }
    for batch in range(store.n_batches):
        loaded = store.load_state(batch)
        if loaded is not None:
            arrays[f"state {batch}"] = np.hstack(
                [loaded[0].position, loaded[0].momentum, loaded[0].precisions]
            )
    return {name: values.tobytes() for name, values in arrays.items()}


def opened(calls: SystemCalls, path: Path = PATH) -> Store:
    """The store as another process opens it."""
    return Store.open(path, fs=FileSystem(calls))


def written_by_zarr(plan: ArrayPlan, values: Array) -> bytes:
    """Return the first chunk file of an array that has these values at its start, as Zarr writes it."""
    import zarr
    from zarr.buffer import default_buffer_prototype
    from zarr.storage import MemoryStore

    files: dict[str, Any] = {"zarr.json": default_buffer_prototype().buffer.from_bytes(array_metadata(plan))}
    with zarr.config.set({"array.write_empty_chunks": True}):
        array = zarr.open_array(MemoryStore(files), mode="r+", zarr_format=3)
    assert isinstance(array, zarr.Array)
    array[tuple(slice(n) for n in values.shape)] = values
    content: bytes = files[plan.chunk_file().rpartition("/")[2]].to_bytes()
    return content
