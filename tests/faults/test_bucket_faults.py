"""No draw is lost or repeated in a bucket, whatever fails and whoever else writes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial

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
from tests.support.store.toy import ENDS, contents, create, create_with_draws, run_to_end, step, toy_spec

Work = Callable[[Bucket], object]
OTHER_ENDS = (1, 3, 4, 7, 8)  # of blocks, by a worker that was told to stop at other iterations

# The quick tests take some of the writes, and the long ones each of them.
EVERY = pytest.mark.parametrize("every", [20, pytest.param(1, marks=pytest.mark.long)])
LONGER = toy_spec().with_iterations(9)


@cache
def nothing() -> MemoryBucket:
    return MemoryBucket()


@cache
def half() -> MemoryBucket:
    return half_way()


@cache
def finished() -> MemoryBucket:
    bucket = half().copy()
    run_to_end(opened(bucket))
    return bucket


def slow(bucket: Bucket) -> Store:
    """The store as a process opens it that renews no lease while a test lasts."""
    return Store.open(PLACE, fs=ObjectStorage(bucket))


def commit_one(bucket: Bucket) -> None:
    store = slow(bucket)
    with store.lock():
        step(store, 0)
        store.gather(0)


def create_in_vain(bucket: Bucket) -> None:
    """A creation that fails after its last object but the root, and removes nothing."""
    inner = ObjectStorage(bucket)
    with suppress(StoreFullError), inner.creation(PLACE, "commits/lock", is_ours) as building:
        names = ("constant_data", "posterior", "sample_stats")
        inner.write_files({building / name / "zarr.json": b"{}" for name in names})
        inner.write_root(building / "zarr.json", b"root")
        raise StoreFullError("full")


def ends_as_undisturbed(bucket: MemoryBucket) -> None:
    assert opened(bucket).verify().problems == ()
    run_to_end(opened(bucket))
    store = opened(bucket)
    assert store.verify().problems == ()
    assert contents(store) == undisturbed()


def commits_and_ends_as_undisturbed(bucket: MemoryBucket) -> None:
    assert opened(bucket).progress(0).blocks == 4
    ends_as_undisturbed(bucket)


def has_all_draws_or_no_store(bucket: MemoryBucket) -> None:
    """The next creation may find any part of the draws."""
    if not bucket.exists(f"{PLACE.key}/zarr.json"):
        create_with_draws(storage(bucket), PLACE)
    store = opened(bucket)
    assert store.committed_draws == 5
    assert store.verify().problems == ()


def is_whole_or_can_be_made(bucket: MemoryBucket) -> None:
    if not bucket.exists(f"{PLACE.key}/zarr.json"):
        with pytest.raises(StoreError, match="not a store|does not exist"):
            opened(bucket)
        create(storage(bucket), PLACE)
    store = opened(bucket)
    assert store.verify().problems == ()
    with store.lock():  # the next start
        assert not bucket.exists(f"{PLACE.key}/.creating")


def can_be_made_if_it_is_not_there(bucket: MemoryBucket) -> None:
    if not bucket.exists(f"{PLACE.key}/zarr.json"):
        create(storage(bucket), PLACE)
        assert not bucket.exists(f"{PLACE.key}/.creating")


def is_the_old_run_or_the_new(bucket: MemoryBucket) -> None:
    store = opened(bucket)
    assert store.verify().problems == ()
    assert contents(store) == undisturbed()
    store.extend(LONGER, 9)
    assert opened(bucket).root.header.n_draws == 9


# The work of a process, the bucket it starts with, the faults at one of its writes, and the check at the end.
CASES: dict[str, tuple[Work, Callable[[], MemoryBucket], tuple[str, ...], Callable[[MemoryBucket], None]]] = {
    "a commit": (commit_one, half, ("crash", "crash after", "error"), ends_as_undisturbed),
    "a commit whose answer is lost": (commit_one, half, ("lost",), commits_and_ends_as_undisturbed),
    "creation": (
        lambda bucket: create(ObjectStorage(bucket), PLACE),
        nothing,
        ("crash", "crash after"),
        is_whole_or_can_be_made,
    ),
    "creation with draws": (
        lambda bucket: create_with_draws(ObjectStorage(bucket), PLACE),
        nothing,
        ("crash", "crash after", "error"),
        has_all_draws_or_no_store,
    ),
    "creation in vain": (create_in_vain, nothing, ("crash",), can_be_made_if_it_is_not_there),
    "extension": (
        lambda bucket: slow(bucket).extend(LONGER, 9),
        finished,
        ("crash",),
        is_the_old_run_or_the_new,
    ),
}


def disturbed(work: Work, start: MemoryBucket, every: int, fault: str) -> Iterator[MemoryBucket]:
    """Yield the bucket after a fault at one of every `every` writes, and the last four: record, head, lease.

    At a pause another process finishes the run.
    """
    rehearsal = FailingBucket(start.copy())
    work(rehearsal)
    n = rehearsal.n_changes
    for at in sorted({*range(0, n, every), *range(n - 4, n)}):
        bucket = start.copy()
        meanwhile = partial(lambda bucket: run_to_end(opened(bucket)), bucket)
        failing = FailingBucket(bucket, at=at, fault=fault, meanwhile=meanwhile)
        if fault.startswith("crash"):
            with pytest.raises(Crash):
                work(failing)
        else:
            with suppress(StoreError):  # a put that was done counts as done, and a removal is not tried again
                work(failing)
        yield bucket


@pytest.mark.parametrize(
    ("case", "fault"), [(case, fault) for case, (_, _, faults, _) in CASES.items() for fault in faults]
)
@EVERY
def test_a_fault_at_any_write_loses_no_bit(case: str, fault: str, every: int) -> None:
    work, start, _, check = CASES[case]
    for bucket in disturbed(work, start(), 3 if case == "creation in vain" and every > 1 else every, fault):
        check(bucket)


def commit_late(bucket: Bucket, ends: tuple[int, ...] = ENDS) -> None:
    step(slow(bucket), 0, ends=ends)


def gather_late(bucket: Bucket) -> None:
    store = slow(bucket)
    step(store, 0)
    gather(store, 0, everything=True)


@pytest.mark.parametrize("work", [commit_late, partial(commit_late, ends=OTHER_ENDS), gather_late])
@EVERY
def test_one_thought_dead_can_wake_at_any_write(work: Work, every: int) -> None:
    """Another driver finishes the run while a worker or a driver stands still before one of its writes."""
    for bucket in disturbed(work, half(), every, "pause"):
        ends_as_undisturbed(bucket)


def test_several_drivers_at_once_without_a_lease_lose_no_bit() -> None:
    bucket = half().copy()

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


def test_a_second_driver_is_refused_while_the_first_renews_its_lease() -> None:
    bucket = half().copy()
    first, second = (Store.open(PLACE, fs=ObjectStorage(bucket, lease_seconds=3)) for _ in range(2))
    with first.lock(), pytest.raises(StoreBusyError, match="in use by process"), second.lock():
        raise AssertionError
    with second.lock():
        pass


def test_a_driver_whose_lease_was_taken_over_stops() -> None:
    bucket = half().copy()
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
