"""The lease of a store in a bucket: one holder at a time, and nobody ends the lease of another."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from rayfbnn.errors import StoreBusyError
from rayfbnn.store.storage import lease as lease_module
from rayfbnn.store.storage.bucket import Bucket, BucketError
from rayfbnn.store.storage.lease import Lease, LeasesSeen, running_time

MemoryStore = pytest.importorskip("obstore.store").MemoryStore
KEY = "store/commits/lock"
QUICK = 0.3  # seconds of a lease that others wait for
LONG = 600.0  # seconds of a lease whose thread renews nothing while a test lasts


class Objects:
    """A bucket in memory that counts the puts; `fail` may raise an error before or after one."""

    def __init__(self, store: Any) -> None:
        self.store, self.n_puts = store, 0
        self.fail: Callable[[bool], None] = lambda is_done: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def put(self, *arguments: Any, **options: Any) -> Any:
        self.n_puts += 1
        self.fail(False)
        answer = self.store.put(*arguments, **options)
        self.fail(True)
        return answer


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def objects() -> Objects:
    return Objects(MemoryStore())


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def first(objects: Objects, clock: Clock) -> Lease:
    lease = Lease(Bucket(objects), KEY, seconds=LONG, clock=clock)
    lease.acquire()
    return lease


def other(objects: Objects) -> Lease:
    return Lease(Bucket(objects.store), KEY, seconds=QUICK)


def content(objects: Objects) -> bytes:
    return bytes(objects.store.get(KEY).bytes())


def no_answer() -> None:
    from obstore.exceptions import GenericError

    raise GenericError("status code: 503")


@pytest.mark.parametrize("hours", [0, 5])
def test_a_release_leaves_the_lease_of_another(
    first: Lease, objects: Objects, clock: Clock, hours: int
) -> None:
    second = other(objects)
    second.acquire()
    clock.now += 3600 * hours
    first.release()
    first.release()
    assert Bucket(objects).exists(KEY)
    with pytest.raises(StoreBusyError):
        other(objects).acquire()
    assert second.is_held()
    second.release()


def test_a_lease_that_was_released_can_be_had_at_once_again_and_again(first: Lease, objects: Objects) -> None:
    first.release()
    seen = LeasesSeen(Bucket(objects), seconds=LONG)
    for _ in range(3):
        assert not seen.is_held(KEY)
        lease = Lease(Bucket(objects), KEY, seconds=LONG)
        start = time.monotonic()
        lease.acquire()
        assert time.monotonic() - start < LONG / 30  # the time between two looks at another's lease
        assert seen.is_held(KEY) and lease.is_held()
        lease.release()


def test_a_release_after_a_renewal_whose_answer_was_lost_frees_the_lease(
    first: Lease, objects: Objects, clock: Clock
) -> None:
    objects.fail = lambda is_done: no_answer() if is_done else None
    clock.now += LONG
    with pytest.raises(BucketError):
        first.is_held()
    objects.fail = lambda is_done: None
    first.release()
    assert not LeasesSeen(Bucket(objects)).is_held(KEY)


def test_a_renewal_of_the_last_moments_proves_the_lease_without_a_request(
    first: Lease, objects: Objects, clock: Clock
) -> None:
    before = content(objects)
    clock.now += LONG / 12
    assert first.is_held() and content(objects) == before
    clock.now += 0.01
    assert first.is_held() and content(objects) != before
    before = content(objects)
    assert first.is_held() and content(objects) == before
    first.release()


@pytest.mark.parametrize("is_released", [False, True])
def test_a_holder_that_slept_notices_at_once_that_another_took_over(
    first: Lease, objects: Objects, clock: Clock, is_released: bool
) -> None:
    second = other(objects)
    second.acquire()
    if is_released:
        second.release()
    before = content(objects)
    clock.now += 3600
    assert not first.is_held() and first.is_lost
    assert is_released == (content(objects) == before == b"")
    first.release()
    assert is_released or second.is_held()
    second.release()


def test_a_holder_that_slept_alone_goes_on(first: Lease, clock: Clock) -> None:
    for _ in range(3):
        clock.now += 3600
        assert first.is_held()
    first.release()


def test_without_an_answer_the_lease_is_neither_held_nor_lost(
    first: Lease, objects: Objects, clock: Clock
) -> None:
    objects.fail = lambda is_done: None if is_done else no_answer()
    clock.now += 3600
    with pytest.raises(BucketError, match="503"):
        first.is_held()
    objects.fail = lambda is_done: None
    assert first.is_held()
    first.release()


def test_the_thread_renews_a_lease_that_is_not_asked_for(objects: Objects) -> None:
    lease = other(objects)
    lease.acquire()
    with pytest.raises(StoreBusyError):
        Lease(Bucket(objects.store), KEY, seconds=5 * QUICK).acquire()
    lease.release()


def test_one_of_many_has_a_lease_that_was_released(first: Lease, objects: Objects) -> None:
    first.release()
    held: list[Lease] = []

    def try_it() -> None:
        lease = other(objects)
        try:
            lease.acquire()
        except StoreBusyError:
            return
        held.append(lease)

    threads = [threading.Thread(target=try_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [lease.is_held() for lease in held] == [True]
    held[0].release()


def test_the_lease_of_a_process_that_ended_is_taken_at_once(
    first: Lease, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "_is_dead", lambda content: True)
    second = Lease(Bucket(objects), KEY, seconds=LONG)
    second.acquire()
    assert second.is_held()
    second.release()


def test_the_clock_counts_like_that_of_the_machine() -> None:
    start, also = running_time(), time.monotonic()
    time.sleep(0.02)
    assert 0.02 <= running_time() - start <= time.monotonic() - also + 5
