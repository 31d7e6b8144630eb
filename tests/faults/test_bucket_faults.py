"""No draw is lost or repeated in a bucket, whatever fails and whoever else writes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

import pytest

from rayfbnn.errors import StoreBusyError, StoreError, StoreFullError
from rayfbnn.store.appending import gather
from rayfbnn.store.creation import is_ours
from rayfbnn.store.storage.bucket import Bucket, Tag
from rayfbnn.store.storage.objects import ObjectStorage
from rayfbnn.store.store import Store
from tests.support.store.buckets import PLACE, FailingBucket, MemoryBucket, half_way, opened, storage
from tests.support.store.crashes import undisturbed
from tests.support.store.disks import Crash
from tests.support.store.toy import contents, create, create_with_draws, run_to_end, step, toy_spec

OTHER_ENDS = (1, 3, 4, 7, 8)  # of blocks, by a worker that was told to stop at other iterations

# The quick tests take some of the writes, and the long ones each of them.
EVERY = pytest.mark.parametrize("every", [20, pytest.param(1, marks=pytest.mark.long)])


@pytest.fixture(scope="module")
def start() -> MemoryBucket:
    return half_way()


def slow(bucket: Bucket) -> Store:
    """The store as a process opens it that renews no lease while a test lasts."""
    return Store.open(PLACE, fs=ObjectStorage(bucket))


def commit_one(bucket: Bucket) -> None:
    store = slow(bucket)
    with store.lock():
        step(store, 0)
        store.gather(0)


def create_one(bucket: Bucket) -> None:
    create(ObjectStorage(bucket), PLACE)


def extend(bucket: Bucket) -> None:
    slow(bucket).extend(toy_spec().with_iterations(9), 9)


def n_changes(work: Callable[[Bucket], None], start: MemoryBucket) -> int:
    rehearsal = FailingBucket(start.copy())
    work(rehearsal)
    return rehearsal.n_changes


def chosen(n: int, every: int) -> list[int]:
    """Return one of every `every` numbers below n, and the last four: the record, the head, the lease."""
    return sorted({*range(0, n, every), *range(n - 4, n)})


def assert_ends_as_undisturbed(bucket: MemoryBucket) -> None:
    assert opened(bucket).verify().problems == ()
    run_to_end(opened(bucket))
    store = opened(bucket)
    assert store.verify().problems == ()
    assert contents(store) == undisturbed()


@pytest.mark.parametrize("fault", ["crash", "crash after"])
@EVERY
def test_a_crash_at_any_write_of_a_commit_loses_no_bit(start: MemoryBucket, fault: str, every: int) -> None:
    for at in chosen(n_changes(commit_one, start), every):
        bucket = start.copy()
        with pytest.raises(Crash):
            commit_one(FailingBucket(bucket, at=at, fault=fault))
        assert_ends_as_undisturbed(bucket)


@pytest.mark.parametrize("fault", ["crash", "crash after", "error"])
@EVERY
def test_a_creation_with_draws_that_ends_at_any_write_leaves_all_draws_or_no_store(
    fault: str, every: int
) -> None:
    """As `prior` and `reject` make them; the next creation may find any part of the draws."""

    def work(bucket: Bucket) -> None:
        create_with_draws(ObjectStorage(bucket), PLACE)

    for at in chosen(n_changes(work, MemoryBucket()), every):
        bucket = MemoryBucket()
        with suppress(Crash, StoreError):
            work(FailingBucket(bucket, at=at, fault=fault))
        if not bucket.exists(f"{PLACE.key}/zarr.json"):
            create_with_draws(storage(bucket), PLACE)
        store = opened(bucket)
        assert store.committed_draws == 5
        assert store.verify().problems == ()


@pytest.mark.parametrize("fault", ["crash", "crash after"])
@EVERY
def test_a_crash_at_any_write_of_create_leaves_nothing_or_all(fault: str, every: int) -> None:
    for at in chosen(n_changes(create_one, MemoryBucket()), every):
        bucket = MemoryBucket()
        with pytest.raises(Crash):
            create_one(FailingBucket(bucket, at=at, fault=fault))
        if bucket.exists(f"{PLACE.key}/zarr.json"):
            store = opened(bucket)
        else:
            with pytest.raises(StoreError, match="not a store|does not exist"):
                opened(bucket)
            store = create(storage(bucket), PLACE)
        assert store.verify().problems == ()
        with store.lock():  # the next start
            assert not bucket.exists(f"{PLACE.key}/.creating")


@EVERY
def test_a_crash_at_any_write_of_a_creation_that_fails_leaves_a_place_that_can_be_used(every: int) -> None:
    """The creation fails after its last object but the root, and removes nothing."""

    def create_in_vain(bucket: Bucket) -> None:
        inner = ObjectStorage(bucket)
        with suppress(StoreFullError), inner.creation(PLACE, "commits/lock", is_ours) as building:
            names = ("constant_data", "posterior", "sample_stats")
            inner.write_files({building / name / "zarr.json": b"{}" for name in names})
            inner.write_root(building / "zarr.json", b"root")
            raise StoreFullError("full")

    for at in chosen(n_changes(create_in_vain, MemoryBucket()), every if every == 1 else 3):
        bucket = MemoryBucket()
        with pytest.raises(Crash):
            create_in_vain(FailingBucket(bucket, at=at))
        if not bucket.exists(f"{PLACE.key}/zarr.json"):
            create(storage(bucket), PLACE)
            assert not bucket.exists(f"{PLACE.key}/.creating")


@EVERY
def test_a_crash_at_any_write_of_extend_leaves_the_old_run_or_the_new(
    start: MemoryBucket, every: int
) -> None:
    finished = start.copy()
    run_to_end(opened(finished))
    for at in chosen(n_changes(extend, finished), every):
        bucket = finished.copy()
        with pytest.raises(Crash):
            extend(FailingBucket(bucket, at=at))
        store = opened(bucket)
        assert store.verify().problems == ()
        assert contents(store) == undisturbed()
        store.extend(toy_spec().with_iterations(9), 9)
        assert opened(bucket).root.header.n_draws == 9


@pytest.mark.parametrize("fault", ["lost", "error"])
@EVERY
def test_an_answer_that_is_lost_loses_no_bit(start: MemoryBucket, fault: str, every: int) -> None:
    """A put that was done counts as done; one that was not is a StoreError, and a resumed run goes on."""
    for at in chosen(n_changes(commit_one, start), every):
        bucket = start.copy()
        if fault == "lost":
            with suppress(StoreError):  # of a removal, which is not tried again
                commit_one(FailingBucket(bucket, at=at, fault=fault))
            assert opened(bucket).progress(0).blocks == 4
        else:
            with suppress(StoreError):
                commit_one(FailingBucket(bucket, at=at, fault=fault))
        assert_ends_as_undisturbed(bucket)


@pytest.mark.parametrize("ends", [None, OTHER_ENDS])
@EVERY
def test_a_worker_thought_dead_can_wake_at_any_write(
    start: MemoryBucket, ends: tuple[int, ...] | None, every: int
) -> None:
    """Another driver finishes the run while a worker stands still before one of its writes."""
    options = {} if ends is None else {"ends": ends}

    def commit_late(bucket: Bucket) -> None:
        with suppress(StoreError):  # that others have gone on
            step(Store.open(PLACE, fs=ObjectStorage(bucket)), 0, **options)

    for at in chosen(n_changes(commit_late, start), every):
        bucket = start.copy()
        commit_late(
            FailingBucket(bucket, at=at, fault="pause", meanwhile=lambda b=bucket: run_to_end(opened(b)))
        )
        assert_ends_as_undisturbed(bucket)


@EVERY
def test_a_driver_thought_dead_can_gather_blocks_at_any_write(start: MemoryBucket, every: int) -> None:
    """Another driver commits and gathers the rest while one stands still before a write of its own."""

    def gather_late(bucket: Bucket) -> None:
        store = Store.open(PLACE, fs=ObjectStorage(bucket))
        step(store, 0)
        gather(store, 0, everything=True)

    for at in chosen(n_changes(gather_late, start), every):
        bucket = start.copy()
        with suppress(StoreError):  # that others have gone on
            gather_late(
                FailingBucket(bucket, at=at, fault="pause", meanwhile=lambda b=bucket: run_to_end(opened(b)))
            )
        assert_ends_as_undisturbed(bucket)


def test_several_drivers_at_once_without_a_lease_lose_no_bit(start: MemoryBucket) -> None:
    bucket = start.copy()

    def drive() -> None:
        while True:
            with suppress(StoreError):
                store = opened(bucket)
                if not sum(step(store, batch) for batch in range(store.n_batches)):
                    return
                for batch in range(store.n_batches):
                    gather(store, batch)

    threads = [threading.Thread(target=drive) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert opened(bucket).verify().problems == ()
    assert contents(opened(bucket)) == undisturbed()


def test_a_second_driver_is_refused_while_the_first_renews_its_lease(start: MemoryBucket) -> None:
    bucket = start.copy()
    first, second = (Store.open(PLACE, fs=ObjectStorage(bucket, lease_seconds=3)) for _ in range(2))
    with first.lock(), pytest.raises(StoreBusyError, match="in use by process"), second.lock():
        raise AssertionError
    with second.lock():
        pass


def test_a_driver_whose_lease_was_taken_over_stops(start: MemoryBucket) -> None:
    bucket = start.copy()
    store = opened(bucket)
    with pytest.raises(StoreBusyError, match="taken over"), store.lock():
        bucket.put(f"{PLACE.key}/commits/lock", b"{}")
        for _ in range(200):
            step(store, 0)
            threading.Event().wait(0.01)
            store.fs.write_atomic(PLACE / "commits" / "holder.json", b"{}")


@pytest.mark.parametrize("ignored", ["put_new", "put_unchanged"])
def test_a_server_that_ignores_a_condition_is_refused(ignored: str) -> None:
    class Careless(MemoryBucket):
        def put_new(self, key: str, data: bytes) -> Tag:
            return self.put(key, data) if ignored == "put_new" else super().put_new(key, data)

        def put_unchanged(self, key: str, data: bytes, tag: Tag) -> Tag:
            return (
                self.put(key, data) if ignored == "put_unchanged" else super().put_unchanged(key, data, tag)
            )

    with pytest.raises(StoreError, match="ignores If-"):
        create(storage(Careless()), PLACE)
