"""Each commit record is read once when a store of many blocks is opened and its run resumed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from rayfbnn.store.checking.heads import Head
from rayfbnn.store.records import BatchProgress, Record, seal_of
from rayfbnn.store.storage.posix import FileSystem
from rayfbnn.store.storage.system_calls import SystemCalls
from rayfbnn.store.store import Store
from tests.support.store.crashes import half_way
from tests.support.store.disks import Failing
from tests.support.store.toy import PATH, create, opened, toy_spec


class Counting(Failing):
    """A disk that counts how often each file is read."""

    def __init__(self, inner: SystemCalls) -> None:
        super().__init__(inner)
        self.reads: Counter[Path] = Counter()

    def read(self, path: Path) -> bytes:
        self.reads[path] += 1
        return self.inner.read(path)


def test_each_record_but_the_last_is_read_once_when_a_run_is_resumed() -> None:
    calls = Counting(half_way().copy())
    store = opened(calls)
    with store.lock():
        store.updates()
        store.read_positions()
    earlier = [PATH / f"commits/batch0001/{block:06d}.json" for block in range(4)]
    assert [calls.reads[path] for path in earlier] == [1] * 4


@pytest.mark.long
def test_each_of_10_000_records_but_the_last_is_read_once(tmp_path: Path) -> None:
    n = 10_000
    phase = [{"iterations": n, "operations": [{"op": "heatbath"}]}]
    spec = toy_spec(chains=1, chains_per_batch=1, draws_per_block=1, phase=phase)
    store = create(FileSystem(), tmp_path / "run.zarr", spec)
    plans = store.hierarchy.plans.values()
    previous, progress = "", BatchProgress()
    for block in range(n):
        progress = BatchProgress(
            block + 1, block + 1, 0, block + 1, {"updates": block + 1.0}, {"updates": 1.0}
        )
        chunks = {plan.chunk_file(0, block): "0" * 64 for plan in plans if plan.dims[:2] == ("chain", "draw")}
        state = {plan.chunk_file(block, 0): "0" * 64 for plan in plans if plan.dims[0] == "block"}
        identity = store.root.identity
        record = Record(
            identity, 0, block, previous, block + 1, 1, "posterior", block, 1, chunks, state, progress
        )
        file = tmp_path / f"run.zarr/commits/batch0000/{block:06d}.json"
        file.write_bytes(record.to_bytes())
        previous = seal_of(file.read_bytes(), file)
    head = Head(store.root.identity, 0, n, previous)
    (tmp_path / "run.zarr/commits/batch0000/head.json").write_bytes(head.to_bytes())
    calls = Counting(SystemCalls())
    store = Store.open(tmp_path / "run.zarr", fs=FileSystem(calls))
    with store.lock():
        store.updates()
    folder = tmp_path / "run.zarr/commits/batch0000"
    assert {calls.reads[folder / f"{block:06d}.json"] for block in range(n - 1)} == {1}
    assert store.progress(0) == progress
