"""Buckets in memory that fail on demand, and stores of the toy run in them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rayfbnn.store.storage.bucket import Bucket, BucketError, Changed, Tag, TooLarge
from rayfbnn.store.storage.objects import ObjectStorage
from rayfbnn.store.storage.places import ObjectPath
from rayfbnn.store.store import Store
from tests.support.store.disks import Crash
from tests.support.store.toy import create, step

PLACE = ObjectPath("s3", "bucket", "runs/toy.zarr")
CHANGING = {"put", "put_new", "put_unchanged", "remove", "delete"}


class MemoryBucket(Bucket):
    """Objects in a dictionary, each with the number of the put that made it."""

    def __init__(self, objects: dict[str, tuple[bytes, int]] | None = None) -> None:
        self.objects = {} if objects is None else objects
        self.number = 1000
        self.turn = threading.RLock()  # one call at a time, as a server answers

    def copy(self) -> MemoryBucket:
        return MemoryBucket(dict(self.objects))

    def is_there(self, key: str) -> bool:
        return self.objects.get(key, (b"", 0))[0] != b""

    def get(self, key: str, at_most: int = sys.maxsize) -> tuple[bytes, Tag]:
        with self.turn:
            if not self.is_there(key):
                raise FileNotFoundError(key)
            content, number = self.objects[key]
            if len(content) > at_most:
                raise TooLarge
            return content, {"e_tag": str(number)}

    def get_start(self, key: str, n_bytes: int) -> bytes:
        return self.get(key)[0][:n_bytes]

    def modified(self, key: str) -> float:
        with self.turn:
            if key not in self.objects:
                raise FileNotFoundError(key)
            return float(self.objects[key][1])  # a second for each put

    def put(self, key: str, data: bytes) -> Tag:
        with self.turn:
            self.number += 1
            self.objects[key] = data, self.number
            return {"e_tag": str(self.number)}

    def put_new(self, key: str, data: bytes) -> Tag:
        with self.turn:
            if self.is_there(key):
                raise Changed
            return self.put(key, data)

    def put_unchanged(self, key: str, data: bytes, tag: Tag) -> Tag:
        with self.turn:
            if key not in self.objects or {"e_tag": str(self.objects[key][1])} != tag:
                raise Changed
            return self.put(key, data)

    def delete(self, key: str) -> None:
        with self.turn:
            self.objects.pop(key, None)

    def exists(self, key: str) -> bool:
        return self.is_there(key)

    def names(self, key: str) -> list[str]:
        start = f"{key}/"
        with self.turn:
            return sorted({name[len(start) :].partition("/")[0] for name in self.keys(key)})

    def sizes(self, key: str) -> dict[str, int]:
        start = f"{key}/"
        with self.turn:
            below = {name[len(start) :]: len(self.objects[name][0]) for name in self.keys(key)}
        return {name: size for name, size in below.items() if "/" not in name}

    def keys(self, key: str) -> list[str]:
        with self.turn:
            return sorted(name for name in self.objects if name.startswith(f"{key}/") and self.is_there(name))


class FailingBucket(MemoryBucket):
    """Passes calls on to `inner`, but for the changing call number `at` (from 0), where `fault` happens.

    crash        the process dies before the call, and every later call fails too
    crash after  the same, after the call was done
    lost         the call is done, and its answer lost
    error        the call is not done, and fails
    pause        `meanwhile` runs before the call: what other processes do while this one stands still
    """

    def __init__(
        self,
        inner: MemoryBucket,
        *,
        at: int = -1,
        fault: str = "crash",
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        self.inner, self.at, self.fault, self.meanwhile = inner, at, fault, meanwhile
        self.n_changes = 0
        self.is_dead = False

    def pass_on(self, name: str, *args: Any) -> Any:
        with self.inner.turn:
            if self.is_dead:
                raise Crash
            number = self.n_changes
            self.n_changes += name in CHANGING
        call = getattr(self.inner, name)
        if name not in CHANGING or number != self.at:
            return call(*args)
        if self.fault == "pause":
            self.meanwhile()
            return call(*args)
        if self.fault in ("crash after", "lost"):
            with suppress(Changed):  # a refusal is an answer too
                call(*args)
        if self.fault.startswith("crash"):
            self.is_dead = True
            raise Crash
        raise BucketError("GenericError: no answer")


def _passing(name: str) -> Callable[..., Any]:
    def call(self: FailingBucket, *args: Any) -> Any:
        return self.pass_on(name, *args)

    return call


for _name in (*CHANGING, "get", "get_start", "modified", "exists", "names", "sizes", "keys"):
    setattr(FailingBucket, _name, _passing(_name))


def storage(bucket: Bucket) -> ObjectStorage:
    """Return the storage of a process that waits hardly at all for the lease of one that died."""
    return ObjectStorage(bucket, lease_seconds=0.03)


def opened(bucket: Bucket) -> Store:
    return Store.open(PLACE, fs=storage(bucket))


def half_way() -> MemoryBucket:
    """A store as `toy.half_run` makes it: the next block fills up chunks that the third began."""
    bucket = MemoryBucket()
    store = create(storage(bucket), PLACE)
    while step(store, 1):
        pass
    for _ in range(3):
        step(store, 0)
    return bucket
