"""Each commit record is read once when a store of many blocks is opened and its run resumed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from rayfbnn.state import ChainState
from rayfbnn.store import appending
from rayfbnn.store.records import Block
from rayfbnn.store.storage.posix import FileSystem
from rayfbnn.store.storage.system_calls import SystemCalls
from rayfbnn.store.store import Store
from tests.support.store.crashes import commit_one, half_way
from tests.support.store.disks import Failing, MemoryDisk
from tests.support.store.toy import PATH, create, opened, toy_data, toy_spec


class Counting(Failing):
    """A disk that counts how often each file is read."""

    def __init__(self, inner: SystemCalls) -> None:
        super().__init__(inner)
        self.reads: Counter[Path] = Counter()

    def read(self, path: Path) -> bytes:
        self.reads[path] += 1
        return self.inner.read(path)


def independent_block(store: Store, number: int) -> Block:
    """A block of one draw that does not depend on those before it."""
    position = np.full((1, store.parameter_layout.n_parameters), number, dtype=np.float32)
    precisions = np.ones((1, store.precision_layout.n_precisions))
    return Block(
        first_iteration=number + 1,
        n_iterations=1,
        section="posterior",
        first_draw=number,
        positions=position[:, None],
        precisions=precisions[:, None],
        state=ChainState(position, position, precisions),
    )


def test_each_record_but_the_last_is_read_once_when_a_run_is_resumed() -> None:
    calls = Counting(half_way().copy())
    store = opened(calls)
    with store.lock():
        store.updates()
        store.read_positions()
    earlier = [PATH / f"commits/batch0001/{block:06d}.segment" for block in range(3)]
    assert [calls.reads[path] for path in earlier] == [1] * 3


def test_a_store_of_many_blocks_has_few_files_and_reads_each_once(tmp_path: Path) -> None:
    n = 300
    phase = [{"iterations": n, "operations": [{"op": "heatbath"}]}]
    spec = toy_spec(chains=1, chains_per_batch=1, draws_per_block=1, phase=phase)
    disk = MemoryDisk()
    disk.mkdir(PATH.parent)
    store = Store.create(PATH, spec, toy_data(), kernel="plain NumPy", fs=FileSystem(disk))
    positions = []
    with store.lock():
        for number in range(n):
            block = independent_block(store, number)
            positions.append(block.positions)
            store.commit(0, block)
            if number % 64 == 0:
                store.gather(0)
    calls = Counting(disk)
    store = opened(calls)
    with store.lock():
        assert (store.read_positions() == np.concatenate(positions, axis=1)).all()
    names = [path.name for path in disk.files() if path.parent.name == "batch0000"]
    assert sum(name.endswith(".segment") for name in names) == 1
    assert sum(name.endswith(".block") for name in names) == n - 257
    assert calls.reads[PATH / "commits/batch0000/000000.segment"] == 1
    # A block is read once for its record and once for its draws, and the last by whoever asks for progress.
    assert max(calls.reads[path] for path in disk.files() if path.name.endswith(".block")) <= 3


@pytest.mark.parametrize("in_segment", [1, 3])
def test_blocks_that_a_crash_has_left_beside_their_segment_are_removed_by_the_next_driver(
    in_segment: int, tmp_path: Path
) -> None:
    phase = [{"iterations": 3, "operations": [{"op": "heatbath"}]}]
    spec = toy_spec(chains=1, chains_per_batch=1, draws_per_block=in_segment, phase=phase)
    path = tmp_path / "run.zarr"
    store = create(FileSystem(), path, spec)
    with store.lock():
        for number in range(3):
            store.commit(0, independent_block(store, number))
        draws = store.read_positions()
        blocks = {file: file.read_bytes() for file in path.rglob("*.block")}
        store.gather(0, everything=True)
    assert len(blocks) == 3 and not any(file.exists() for file in blocks)
    for file, content in blocks.items():
        file.write_bytes(content)
    assert Store.open(path, fs=FileSystem()).commits.blocks(0) == list(range(0, 3, in_segment))
    with Store.open(path, fs=FileSystem()).lock():
        pass
    assert not any(file.exists() for file in blocks)
    assert (Store.open(path, fs=FileSystem()).read_positions() == draws).all()


def test_chunks_gathered_one_at_a_time_are_those_gathered_together(monkeypatch: pytest.MonkeyPatch) -> None:
    disks = [half_way().copy(), half_way().copy()]
    for disk, n_bytes in zip(disks, (0, appending._BYTES_AT_ONCE), strict=True):
        monkeypatch.setattr(appending, "_BYTES_AT_ONCE", n_bytes)
        commit_one(disk)
    one_at_a_time, together, before = (
        {path: file.live for path, file in disk.files().items()} for disk in (*disks, half_way())
    )
    assert one_at_a_time == together != before
