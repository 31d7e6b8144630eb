"""A process stands still before any one request, and another one takes over: nothing of its work changes.

The first process then goes on, and either ends well or says that the store is in use. Buckets are those of
obstore in memory; disks are those of tests/support/store/disks.py.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from itertools import count
from typing import Any

import pytest

from rayfbnn.errors import StoreBusyError, StoreCorruptError, StoreExistsError, StoreOvertakenError
from rayfbnn.store.storage.bucket import Bucket
from rayfbnn.store.storage.objects import ObjectStorage
from rayfbnn.store.storage.places import Place
from rayfbnn.store.storage.posix import FileSystem
from rayfbnn.store.storage.protocol import PARTIAL, Storage
from rayfbnn.store.store import Store
from tests.support.store.buckets import PLACE
from tests.support.store.crashes import undisturbed
from tests.support.store.disks import Crash, Failing, MemoryDisk
from tests.support.store.toy import (
    PATH,
    contents,
    create,
    create_with_draws,
    run_to_end,
    step,
    toy_spec,
)

MemoryStore = pytest.importorskip("obstore.store").MemoryStore
Work = Callable[[Storage, Place], object]


class Requests:
    """The requests of a process to a bucket in memory; before number `at` (from 0) it is suspended.

    Its clock then shows that hours have passed, and `meanwhile` is what others do in this time.
    """

    def __init__(self, objects: Any, *, at: int = -1, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.objects, self.at, self.meanwhile = objects, at, meanwhile
        self.log: list[str] = []
        self.slept = 0.0
        self.turn = threading.RLock()  # all threads of the process stand still together

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def request(key: str, *args: Any, **options: Any) -> Any:
            with self.turn:
                self.log.append(f"{name} {key}")
                if len(self.log) - 1 == self.at:
                    self.slept = 1e5
                    self.meanwhile()
                return getattr(self.objects, name)(key, *args, **options)

        return request

    def storage(self) -> ObjectStorage:
        return ObjectStorage(Bucket(self), lease_seconds=3, clock=lambda: self.slept)


class InBucket:
    """Stores in a bucket: `other` waits hardly at all for the lease of a process that stands still."""

    place: Place = PLACE

    def __init__(self, objects: dict[str, bytes] | None = None) -> None:
        self.bucket = MemoryStore()
        for key, content in (objects or {}).items():
            self.bucket.put(key, content)

    def files(self) -> dict[str, bytes]:
        keys = [meta["path"] for page in self.bucket.list() for meta in page if meta["size"]]
        return {key: bytes(self.bucket.get(key).bytes()) for key in sorted(keys)}

    def other(self) -> Storage:
        return ObjectStorage(Bucket(self.bucket), lease_seconds=0.03)

    def suspended(self, at: int, meanwhile: Callable[[], None]) -> tuple[Storage, list[str]]:
        requests = Requests(self.bucket, at=at, meanwhile=meanwhile)
        return requests.storage(), requests.log


class OnDisk:
    """Stores on a disk, where nobody takes over what a living process has locked."""

    place: Place = PATH

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        self.disk = MemoryDisk()
        for parent in reversed(PATH.parents[:-1]):
            self.disk.mkdir(parent)
        for path, content in (files or {}).items():
            folder = PATH.parent.joinpath(path).parent
            for needed in (*reversed(folder.parents[:-1]), folder):
                if not self.disk.exists(needed):
                    self.disk.mkdir(needed)
            self.disk.put(PATH.parent / path, content)

    def files(self) -> dict[str, bytes]:
        return {str(path.relative_to(PATH.parent)): file.live for path, file in self.disk.files().items()}

    def other(self) -> Storage:
        return FileSystem(self.disk)

    def suspended(self, at: int, meanwhile: Callable[[], None]) -> tuple[Storage, list[str]]:
        class Suspended(Failing):
            def pass_on(self, name: str, *args: Any) -> Any:
                self.log.append(f"{name} {args}")
                if len(self.log) - 1 == at:
                    meanwhile()
                return getattr(self.inner, name)(*args)

        calls = Suspended(self.disk)
        return FileSystem(calls), calls.log


Home = InBucket | OnDisk


@pytest.fixture(autouse=True)
def hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each process write another record of itself, although all of them are this one."""
    numbers = count()
    monkeypatch.setattr(socket, "gethostname", lambda: f"host{next(numbers)}")


def make(storage: Storage, place: Place) -> None:
    create(storage, place)


def finish(storage: Storage, place: Place) -> None:
    run_to_end(Store.open(place, fs=storage))


def gather_all(storage: Storage, place: Place) -> None:
    store = Store.open(place, fs=storage)
    with store.lock():
        for batch in range(store.n_batches):
            store.gather(batch, everything=True)


def repair(storage: Storage, place: Place) -> None:
    Store.open(place, fs=storage, check_records=False).repair()


def commit_as_worker(storage: Storage, place: Place) -> None:
    try:
        step(Store.open(place, fs=storage, check_records=False, headers_only=True), 0)
    except StoreOvertakenError:
        pass  # the worker then loads the state again
    except StoreCorruptError as exc:
        # On a disk the next driver sweeps half-written files; a worker whose driver is dead ends with this.
        if "something may have removed it" not in str(exc):
            raise


def lengthen(storage: Storage, place: Place, iterations: int = 9) -> None:
    Store.open(place, fs=storage).extend(toy_spec().with_iterations(iterations), iterations)


def make_and_finish(storage: Storage, place: Place) -> None:
    with suppress(StoreExistsError):
        make(storage, place)
    finish(storage, place)


def repair_and_finish(storage: Storage, place: Place) -> None:
    repair(storage, place)
    finish(storage, place)


def lengthen_further(storage: Storage, place: Place) -> None:
    lengthen(storage, place, 12)
    lengthen(storage, place, 7)


def damaged(files: dict[str, bytes], name: str) -> dict[str, bytes]:
    key = next(key for key in files if key.endswith(name))
    return files | {key: files[key][:-1] + bytes([files[key][-1] ^ 1])}


@cache
def start_of(kind: type[Home], name: str) -> dict[str, bytes]:
    """The files that both processes find."""
    home = kind()
    if name == "nothing":
        return {}
    if name == "leftovers":  # of a network with other arrays

        def die() -> None:
            raise Crash

        priors = {"ih0": "1", "bh0": "1", "ho0": "1", "bo": "1"}
        other = toy_spec(network={"hidden": [{"units": 2}], "priors": priors})
        with suppress(Crash):
            create(home.suspended(100 if kind is InBucket else 700, die)[0], home.place, other)
        assert home.files()
        return home.files()
    store = create(home.other(), home.place)
    while step(store, 1):
        pass
    for _ in range(3):
        step(store, 0)
    if name == "half":
        return home.files()
    if name == "half, damaged":
        return damaged(home.files(), "batch0000/000001.block")
    finish(home.other(), home.place)
    return home.files() if name == "whole" else damaged(home.files(), "batch0000/000000.segment")


# What the first process does, what the second does while the first stands still, and what both find.
CASES: dict[str, tuple[Work, Work, str]] = {
    "creation": (make, make_and_finish, "nothing"),
    "creation over leftovers": (make, make_and_finish, "leftovers"),
    "creation with draws": (create_with_draws, create_with_draws, "nothing"),
    "sampling": (finish, finish, "half"),
    "a commit": (commit_as_worker, finish, "half"),
    "a commit and a repair": (commit_as_worker, repair_and_finish, "half, damaged"),
    "gathering": (gather_all, finish, "half"),
    "repair": (repair, repair_and_finish, "damaged"),
    "repair of a half run": (repair, repair_and_finish, "half, damaged"),
    "extension": (lengthen, lengthen_further, "whole"),
}


def stops(kind: type[Home], first: Work, start: dict[str, bytes], share: int) -> Iterator[int]:
    """Yield numbers of requests before which the first process is suspended: one in `share`, and more."""
    home = kind(start)
    storage, log = home.suspended(-1, lambda: None)
    first(storage, home.place)
    # Before that the first process has only looked, and lengthens afterwards what the second made longer.
    at_lock = next(at for at, call in enumerate(log) if "commits/lock" in call) if first is lengthen else -1
    # Changes of what was there at the start are what can harm the second, so some of them are always tried.
    changes = [
        at for at, call in enumerate(log) if call.startswith(("put", "delete")) and call.split()[1] in start
    ]
    changes = changes[:: -(-len(changes) // 8) or 1]
    yield from sorted({at for at in (*range(0, len(log), share), *changes) if at > at_lock})


def may_be_left(key: str) -> bool:
    """Return True for a file that the next holder of the lock removes, or that nobody reads."""
    return key.endswith((".block", "/.creating", "commits/holder.json")) or "/discarded/" in key


SHARES = pytest.mark.parametrize(
    ("kind", "share"),
    [
        (InBucket, 61),
        (OnDisk, 397),
        pytest.param(InBucket, 1, marks=pytest.mark.long),
        pytest.param(OnDisk, 1, marks=pytest.mark.long),
    ],
)


@SHARES
@pytest.mark.parametrize("case", CASES)
def test_nothing_of_a_finisher_changes(kind: type[Home], share: int, case: str) -> None:
    first, second, name = CASES[case]
    start, n_taken_over = start_of(kind, name), 0
    for at in stops(kind, first, start, share):
        home = kind(start)
        done: dict[str, bytes] = {}

        def take_over(home: Home = home, done: dict[str, bytes] = done) -> None:
            # On a disk the first holds the lock; a store with all its draws may already be there.
            with suppress(StoreBusyError, StoreExistsError):
                second(home.other(), home.place)
                # The half-written files and the marker on a disk are those of the first.
                done |= {key: file for key, file in home.files().items() if not key.endswith(PARTIAL)}

        storage, log = home.suspended(at, take_over)
        try:
            first(storage, home.place)
        except (StoreBusyError, StoreExistsError):
            assert done, log[at]
        after = home.files()
        assert [key for key in done if after.get(key) != done[key]] == [], log[at]
        if done:
            n_taken_over += 1
            assert [key for key in after if key not in done and not may_be_left(key)] == [], log[at]
        else:
            with suppress(StoreExistsError):
                second(home.other(), home.place)
        if done != after:
            store = Store.open(home.place, fs=home.other())
            assert store.verify().problems == (), log[at]
    assert n_taken_over > 0 or (kind is OnDisk and first is lengthen)


@pytest.mark.parametrize("share", [61, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("case", ["sampling", "a commit and a repair", "gathering", "repair of a half run"])
def test_nothing_changes_under_a_driver_that_is_at_work_in_a_bucket(case: str, share: int) -> None:
    """The first process goes on while the second holds the lease and has repaired and committed something."""
    first, _, name = CASES[case]
    start = start_of(InBucket, name)

    def half_of_it(storage: Storage) -> Iterator[None]:
        store = Store.open(PLACE, fs=storage, check_records=False)
        with store.lock():
            store.repair()
            for _ in range(3):
                step(store, 0)
            yield
            while step(store, 0):
                store.gather(0)
            for batch in range(store.n_batches):
                store.gather(batch, everything=True)

    for at in stops(InBucket, first, start, share):
        home = InBucket(start)
        second = half_of_it(home.other())
        done: dict[str, bytes] = {}

        def take_over(home: Home = home, done: dict[str, bytes] = done, second: Any = second) -> None:
            next(second)
            done |= home.files()
            del done[f"{PLACE.key}/commits/lock"]  # which its holder renews
            if first is commit_as_worker:  # which may do its work for the second
                del done[f"{PLACE.key}/commits/batch0000/head.json"]

        storage, log = home.suspended(at, take_over)
        with suppress(StoreBusyError):
            first(storage, home.place)
        after = home.files()
        assert [key for key in done if after.get(key) != done[key]] == [], log[at]
        for _ in second:
            raise AssertionError
        store = Store.open(PLACE, fs=home.other())
        assert store.verify().problems == (), log[at]
        assert contents(store) == undisturbed(), log[at]


def test_a_creation_ends_well_if_a_driver_has_swept_its_marker() -> None:
    """The store has its name on the disk, and the creation stands still before it removes its marker."""
    rehearsal = OnDisk()
    storage, log = rehearsal.suspended(-1, lambda: None)
    make(storage, PATH)
    at = max(number for number, call in enumerate(log) if call.startswith("unlink") and ".creating" in call)
    home = OnDisk()
    make(home.suspended(at, lambda: finish(home.other(), PATH))[0], PATH)
    assert contents(Store.open(PATH, fs=home.other())) == undisturbed()


@pytest.mark.parametrize("kind", [InBucket, OnDisk])
def test_what_is_set_aside_keeps_its_content(kind: type[Home]) -> None:
    home = kind(start_of(kind, "half, damaged"))
    before = home.files()
    repair(home.other(), home.place)
    kept = {content for key, content in home.files().items() if "/discarded/" in key}
    for number in (1, 2):
        key = next(key for key in before if key.endswith(f"batch0000/00000{number}.block"))
        assert before[key] in kept and key not in home.files()
