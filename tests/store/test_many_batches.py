"""A store of many batches is opened, and asked for its progress, with few listings and no file read twice."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rayfbnn.errors import StoreCorruptError
from rayfbnn.spec import RunSpec
from rayfbnn.store.storage.bucket import Tag
from rayfbnn.store.storage.objects import ObjectStorage
from rayfbnn.store.storage.posix import FileSystem
from rayfbnn.store.storage.system_calls import SystemCalls
from rayfbnn.store.store import Store
from tests.support.store.buckets import PLACE, MemoryBucket, storage
from tests.support.store.toy import create, step, toy_spec


class Watched(MemoryBucket):
    """A bucket that counts its requests, and calls `meanwhile` once, after the first listing of all keys."""

    def __init__(self, bucket: MemoryBucket) -> None:
        super().__init__(dict(bucket.objects))
        self.number = bucket.number
        self.reads: Counter[str] = Counter()
        self.n_listings = 0
        self.meanwhile: Callable[[], object] | None = None

    def get(self, key: str, at_most: int = 2**40) -> tuple[bytes, Tag]:
        self.reads[key] += 1
        return super().get(key, at_most)

    def names(self, key: str) -> list[str]:
        self.n_listings += 1
        return sorted({name[len(key) + 1 :].partition("/")[0] for name in super().keys(key)})

    def keys(self, key: str) -> list[str]:
        self.n_listings += 1
        listed = super().keys(key)
        if self.meanwhile is not None:
            action, self.meanwhile = self.meanwhile, None
            action()
        return listed

    def named(self, end: str) -> list[int]:
        return [count for key, count in self.reads.items() if key.endswith(end)]


def bucket_of(n_batches: int) -> MemoryBucket:
    """A store with three segments and a block in each batch."""
    bucket = MemoryBucket()
    fill(create(storage(bucket), PLACE, spec_of(n_batches)))
    return bucket


def spec_of(n_batches: int) -> RunSpec:
    return toy_spec(chains=n_batches, chains_per_batch=1)


def fill(store: Store) -> None:
    with store.lock():
        for batch in range(store.n_batches):
            for _ in range(3):
                step(store, batch)
            store.gather(batch, everything=True)
            step(store, batch)


def test_opening_lists_all_batches_at_once_and_reads_each_record_once() -> None:
    listings = []
    for n_batches in (3, 20):
        bucket = Watched(bucket_of(n_batches))
        Store.open(PLACE, fs=ObjectStorage(bucket))
        listings.append(bucket.n_listings)
        assert bucket.named("head.json") == [1] * n_batches
        assert bucket.named(".segment") == [1] * 3 * n_batches
        assert bucket.named(".block") == [1] * n_batches
    assert listings[0] == listings[1]


def test_progress_of_an_open_store_takes_the_heads_alone() -> None:
    bucket = Watched(bucket_of(20))
    store = Store.open(PLACE, fs=ObjectStorage(bucket))
    bucket.reads.clear()
    bucket.n_listings = 0
    assert store.committed_draws == 3
    assert store.updates() == Store.open(PLACE, fs=ObjectStorage(bucket_of(20))).updates()
    assert set(bucket.reads) == {f"{PLACE.key}/commits/batch{batch:04d}/head.json" for batch in range(20)}
    assert bucket.n_listings == 0


def test_new_blocks_of_all_batches_are_found_with_one_listing() -> None:
    bucket = Watched(bucket_of(20))
    store = Store.open(PLACE, fs=ObjectStorage(bucket))
    other = Store.open(PLACE, fs=ObjectStorage(bucket))
    for batch in range(20):
        step(other, batch)
    bucket.n_listings = 0
    assert [progress.blocks for progress in store.all_progress()] == [5] * 20
    assert bucket.n_listings == 1


def test_a_lock_lists_all_batches_at_once() -> None:
    listings = []
    for n_batches in (3, 20):
        bucket = Watched(bucket_of(n_batches))
        store = Store.open(PLACE, fs=ObjectStorage(bucket))
        bucket.n_listings = 0
        with store.lock():
            listings.append(bucket.n_listings)
    assert listings[0] == listings[1]


def test_several_heads_are_read_at_once() -> None:
    """The first head is answered only when another is asked for."""
    bucket, both = Watched(bucket_of(3)), threading.Event()
    read, lock, asked = bucket.get, threading.Lock(), Counter[str]()

    def get(key: str, at_most: int = 2**40) -> tuple[bytes, Tag]:
        if key.endswith("head.json"):
            with lock:
                asked[key] += 1
                if len(asked) > 1:
                    both.set()
            assert both.wait(30)
        return read(key, at_most)

    bucket.get = get  # type: ignore[method-assign]
    Store.open(PLACE, fs=ObjectStorage(bucket))


@pytest.mark.parametrize("everything", [False, True])
def test_blocks_that_are_gathered_after_the_listing_are_read_from_their_segment(everything: bool) -> None:
    bucket = Watched(bucket_of(3))
    driver = Store.open(PLACE, fs=ObjectStorage(bucket))
    expected = driver.read_positions()

    def gather() -> None:
        with driver.lock():
            for batch in range(3):
                step(driver, batch)
                driver.gather(batch, everything=everything)

    bucket.meanwhile = gather
    store = Store.open(PLACE, fs=ObjectStorage(bucket))
    assert bucket.meanwhile is None
    assert store.committed_draws == 5
    assert np.array_equal(store.read_positions()[:, :3], expected)


@pytest.mark.parametrize("end", ["head.json", "000003.block", "000001.segment"])
def test_a_damaged_file_of_any_batch_is_named(end: str) -> None:
    bucket = bucket_of(3)
    key = f"{PLACE.key}/commits/batch0001/{end}"
    content, number = bucket.objects[key]
    bucket.objects[key] = content[:-3] + b"123", number
    with pytest.raises(StoreCorruptError, match=f"batch0001/{end}"):
        Store.open(PLACE, fs=ObjectStorage(bucket))


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    store = create(FileSystem(), tmp_path / "run.zarr", spec_of(3))
    fill(store)
    (tmp_path / "run.zarr/commits/batch0002").rename(tmp_path / "elsewhere")
    with pytest.raises(StoreCorruptError, match="batch0002.*: missing"):
        store.all_progress()


class Listed(SystemCalls):
    def __init__(self) -> None:
        super().__init__()
        self.n_listings = 0

    def listdir(self, path: Path) -> list[str]:
        self.n_listings += 1
        return super().listdir(path)


def test_a_gathered_run_on_a_disk_is_listed_only_as_it_is_opened(tmp_path: Path) -> None:
    store = create(FileSystem(), tmp_path / "run.zarr", spec_of(3))
    with store.lock():
        for batch in range(3):
            while step(store, batch):
                pass
            store.gather(batch, everything=True)
    calls = Listed()
    store = Store.open(tmp_path / "run.zarr", fs=FileSystem(calls))
    before = calls.n_listings
    assert store.committed_draws == 5
    store.updates()
    store.read_positions()
    assert calls.n_listings == before
