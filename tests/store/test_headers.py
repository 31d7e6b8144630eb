"""Whoever asks only how far a run is reads the records of its blocks, and none of the draws after them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import rayfbnn
from rayfbnn.errors import StoreCorruptError
from rayfbnn.run.status import status_of
from rayfbnn.state import ChainState
from rayfbnn.store.records import SECONDS, Block
from rayfbnn.store.storage.places import place_of
from rayfbnn.store.storage.posix import FileSystem
from rayfbnn.store.storage.system_calls import SystemCalls
from rayfbnn.store.store import Store
from tests.support.small import make_store, small_spec
from tests.support.store.buckets import MemoryBucket, storage

N_BLOCKS = 6
LONG = {"phase": [{"iterations": 400, "operations": [{"op": "heatbath"}]}]}


class Counting(SystemCalls):
    """Counts the bytes that are read of files of blocks and segments."""

    def __init__(self) -> None:
        self.n_bytes = 0

    def read(self, path: Path, n_bytes: int = -1) -> bytes:
        content = super().read(path, n_bytes)
        self.n_bytes += len(content) if path.suffix in (".block", ".segment") else 0
        return content


def killed(folder: Path, *, units: int = 1000) -> Path:
    """Return the path of a store with six blocks of 4 draws in no segment, as a driver that is killed leaves.

    A block has some 250 kB with 1000 hidden units.
    """
    spec = small_spec(folder, chains=2, network__hidden=[{"units": units, "activation": "tanh"}], **LONG)
    fill(make_store(folder / "run.zarr", spec))
    return folder / "run.zarr"


def fill(store: Store, blocks: range = range(N_BLOCKS), **summary: float) -> None:
    """Commit blocks of draws that are made up."""
    position = np.zeros((2, store.parameter_layout.n_parameters), dtype=np.float32)
    precisions = np.ones((2, store.precision_layout.n_precisions))
    for number in blocks:
        store.commit(
            0,
            Block(
                first_iteration=4 * number + 1,
                n_iterations=4,
                section="posterior",
                first_draw=4 * number,
                positions=np.repeat(position[:, None] + number, 4, axis=1),
                precisions=np.repeat(precisions[:, None], 4, axis=1),
                state=ChainState(position, position, precisions),
                summary=summary or {SECONDS: 2.0, "accepted_sum": 6.0, "n_accepted": 8, "diverged": 1},
            ),
        )


def n_block_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*.block"))


@pytest.mark.parametrize("units", [3, 1000])
def test_status_of_a_killed_run_reads_no_draws(tmp_path: Path, units: int) -> None:
    path, calls = killed(tmp_path, units=units), Counting()
    store = Store.open(path, fs=FileSystem(calls), check_records=False, headers_only=True)
    status = status_of(store)
    assert (status.batches[0].draws, status.batches[0].seconds_of_block) == (4 * N_BLOCKS, 2.0)
    assert (status.acceptance, status.divergences) == (0.75, N_BLOCKS)
    assert calls.n_bytes <= N_BLOCKS * 4 * 2**10
    assert units == 3 or calls.n_bytes < n_block_bytes(path) / 10


def test_headers_say_the_same_as_whole_files(tmp_path: Path) -> None:
    path = killed(tmp_path)
    heads, whole = Store.open(path, headers_only=True), Store.open(path)
    assert heads.commits.records(0) == whole.commits.records(0)
    assert status_of(heads, now=0.0) == status_of(whole, now=0.0)
    with whole.lock():
        whole.gather(0, everything=True)
    gathered = Store.open(path, headers_only=True)
    assert gathered.commits.records(0) == Store.open(path).commits.records(0)
    assert gathered.committed_draws == 4 * N_BLOCKS


def test_a_record_that_is_longer_than_what_is_read_first_is_read_whole(tmp_path: Path) -> None:
    """That of a segment names the digests of all its chunks; this one counts many things."""
    store = Store.open(killed(tmp_path, units=3))
    long = {f"name_{number}": 1.0 for number in range(1000)}
    fill(store, range(N_BLOCKS, N_BLOCKS + 1), **long)
    record = Store.open(store.path, headers_only=True).commits.last(0)
    assert record is not None and len(record.to_bytes()) > 4 * 2**10
    assert record.progress.last == long


def damage(path: Path, *, at: int) -> Path:
    """Change a byte of the last block."""
    file = max(path.rglob("*.block"))
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(bytes(content))
    return file


def test_draws_are_checked_when_they_are_asked_for(tmp_path: Path) -> None:
    """`verify`, and whoever reads draws or goes on, finds the damage; `status` says how far the run is."""
    path = killed(tmp_path)
    damage(path, at=-1)
    assert rayfbnn.status(path).batches[0].draws == 4 * N_BLOCKS
    store = Store.open(path, headers_only=True)
    for read in (store.read_positions, lambda: store.load_state(0)):
        with pytest.raises(StoreCorruptError, match=r"000005.block: damaged: not the values"):
            read()
    with pytest.raises(StoreCorruptError, match="not the values that were committed"):
        Store.open(path)
    assert not rayfbnn.verify(path).ok


@pytest.mark.parametrize("at", [0, 25, 40, 700])
def test_a_damaged_record_is_found(tmp_path: Path, at: int) -> None:
    path = killed(tmp_path, units=3)
    file = damage(path, at=at)
    with pytest.raises(StoreCorruptError, match=f"{file.name}: damaged"):
        rayfbnn.status(path)


@pytest.mark.parametrize("n_bytes", [0, 20, 500])
def test_a_file_that_ends_in_its_record_is_found(tmp_path: Path, n_bytes: int) -> None:
    path = killed(tmp_path, units=3)
    file = max(path.rglob("*.block"))
    file.write_bytes(file.read_bytes()[:n_bytes])
    with pytest.raises(StoreCorruptError, match=f"{file.name}: damaged"):
        rayfbnn.status(path)


def test_headers_are_read_in_a_bucket(tmp_path: Path) -> None:
    class CountingBucket(MemoryBucket):
        n_bytes = 0

        def get(self, key: str, *at_most: int) -> tuple[bytes, dict[str, str | None]]:
            content, tag = super().get(key, *at_most)
            self.n_bytes += len(content)
            return content, tag

        def get_start(self, key: str, n_bytes: int) -> bytes:
            return MemoryBucket.get(self, key)[0][:n_bytes]

    bucket = CountingBucket()
    spec = small_spec(tmp_path, chains=2, network__hidden=[{"units": 1000, "activation": "tanh"}], **LONG)
    fill(make_store(place_of("s3://bucket/run.zarr"), spec, fs=storage(bucket)))
    bucket.n_bytes = 0
    store = Store.open("s3://bucket/run.zarr", fs=storage(bucket), check_records=False, headers_only=True)
    status = status_of(store, now=1e6)
    assert status.batches[0].draws == 4 * N_BLOCKS and status.batches[0].seconds_since_commit is not None
    stored = sum(len(content) for key, (content, _) in bucket.objects.items() if key.endswith(".block"))
    assert bucket.n_bytes < stored / 10
