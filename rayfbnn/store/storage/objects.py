"""Storage in a bucket of an object store: S3, Google Cloud Storage or Azure.

An object store has neither renames nor locks, but two conditional puts: one succeeds only if no object
exists, and the other only if the object has not changed. Records are put in the first way, and chunks that
an earlier segment began in the second. Whatever several processes do at once, the draws that a record names
stay intact.

Deletions have no condition. A process may be suspended before any request, and wake up when another one has
taken the store over. It must then change nothing of the other's:

* An object is replaced on the condition that it is still the one that was read, and after the read the lease
  was proved to be held. The next holder's changes came later, so they fail the condition.
* An object is removed by putting an empty one in its place, on the same condition.
* Only names that the next holder does not use are deleted for good.

The answer to a put may be lost although the put was done. The object is then read back and compared.

The objects of a new store have their final keys from the start. The root metadata is put last; without it the
address is not a store. Until then a marker tells the objects from those of others. A creation that fails
removes nothing, because another process may have taken over its objects. The next creation replaces objects
that differ from its own, and removes those it does not write.
"""

from __future__ import annotations

import re
import sys
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from rayfbnn.errors import (
    RayFBNNError,
    StoreAwayError,
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    StoreExistsError,
    StoreForeignError,
    StoreRefusedError,
)
from rayfbnn.store.storage.bucket import Bucket, BucketError, Changed, Tag, TooLarge
from rayfbnn.store.storage.lease import SECONDS, Lease, LeasesSeen, running_time
from rayfbnn.store.storage.places import ObjectPath, Place
from rayfbnn.store.storage.protocol import MOST_BYTES, Holds, IsOurs, Item, Result, Storage

_ATTEMPTS = 20  # to replace an object that others replace at the same time
_METADATA = "zarr.json"  # the root object of every store


class ObjectStorage:
    """Storage in one bucket. A BucketError becomes a StoreError."""

    at_once = 16

    def __init__(
        self, bucket: Bucket, *, lease_seconds: float = SECONDS, clock: Callable[[], float] = running_time
    ) -> None:
        """Keep the bucket, the lease time of drivers in seconds, and the clock of leases."""
        self._bucket, self._lease_seconds, self._clock = bucket, lease_seconds, clock
        self._lease: Lease | None = None
        self._home: Place = Path()  # the store of the lease
        self._creation: ObjectCreation | None = None
        self._leases_seen = LeasesSeen(bucket, seconds=lease_seconds)

    @staticmethod
    def from_place(place: ObjectPath) -> ObjectStorage:
        """Return the storage of the bucket with a place."""
        with _translated("open", place):
            return ObjectStorage(Bucket.from_place(place))

    def read(self, place: Place, *, at_most: int = MOST_BYTES) -> bytes:
        root = None if self._creation is None else self._creation.root
        if root is not None and place == root[0]:
            return root[1]
        with _translated("read", place):
            try:
                return self._bucket.get(_key(place), at_most)[0]
            except TooLarge as exc:
                raise StoreCorruptError(f"{place}: damaged: {exc}") from None

    def read_start(self, place: Place, n_bytes: int) -> bytes:
        with _translated("read", place):
            return self._bucket.get_start(_key(place), n_bytes)

    def each(self, read: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Return the result of `read` for each item, in order, with up to 16 requests at once."""
        return self._at_once((read, item) for item in items)

    def check_folders(self, places: Iterable[Place]) -> None:
        """Do nothing: keys lead nowhere else."""

    check_files = check_folders

    def mkdir(self, place: Place) -> None:
        """Do nothing: a bucket has no folders, and an object is durable once its put is answered."""

    fsync_dir = mkdir

    def listdir(self, place: Place) -> list[str]:
        with _translated("list", place):
            return self._bucket.names(_key(place))

    def listdirs(self, places: Collection[Place]) -> dict[Place, list[str]]:
        """Return the names one level below each of some places in one folder, in order.

        A listing has up to 1,000 keys, so all keys of the folder together take few requests.
        """
        if len(places) < 2:
            return {place: self.listdir(place) for place in places}
        names: dict[str, set[str]] = {_key(place): set() for place in places}
        folder = next(iter(places)).parent
        below = len(_key(folder)) + 1
        for key in self._keys(folder):
            name, _, rest = key[below:].partition("/")
            names.get(key[: below + len(name)], set()).add(rest.partition("/")[0])
        return {place: sorted(names[_key(place)]) for place in places}

    def sizes(self, place: Place) -> dict[str, int]:
        with _translated("list", place):
            return self._bucket.sizes(_key(place))

    def exists(self, place: Place) -> bool:
        with _translated("look at", place):
            return self._bucket.exists(_key(place)) or bool(self._bucket.names(_key(place)))

    def modified(self, place: Place) -> float:
        with _translated("read", place):
            return self._bucket.modified(_key(place))

    def is_taken(self, place: Place) -> bool:
        """Return True if there are objects below a place, not counting leftovers of a crashed creation."""
        keys = [key for key in self._keys(place) if not key.endswith("/lock")]
        is_store = _key(place / _METADATA) in keys
        return is_store or (bool(keys) and _key(place / CREATING) not in keys)

    def free_bytes(self, place: Place) -> int:
        return sys.maxsize

    def write_atomic(self, place: Place, data: bytes) -> None:
        """Put an object, and replace any other."""
        if not self.write_exclusive(place, data):
            self._replace(place, data, lambda existing: True)

    def replace(self, place: Place, data: bytes, old: bytes) -> bool:
        return self._replace(place, data, lambda existing: existing == old)

    def write_exclusive(self, place: Place, data: bytes) -> bool:
        self._check_lease()
        if self._creation is not None:
            self._creation.written.add(_key(place))
        with _translated("write", place):
            try:
                self._bucket.put_new(_key(place), data)
                return True
            except Changed:
                return self._is_there(place, data)
            except BucketError:
                if self._is_there(place, data):
                    return True
                if self._bucket.exists(_key(place)):
                    return False
                raise

    def write_files(self, files: Mapping[Place, bytes]) -> None:
        self._at_once((self.write_atomic, place, content) for place, content in files.items())

    def write_block(self, files: Mapping[Place, bytes], holds: Holds) -> None:
        """Put the chunks of a segment at once, and return after all answers.

        A chunk only ever gains draws: it stays if it has the draws of this segment, and is replaced only if
        it has not changed since it was read.
        """
        self._at_once((self._write_chunk, place, content, holds) for place, content in files.items())

    def unlink(self, place: Place, *, below: Place) -> None:
        with _translated("remove", place), suppress(FileNotFoundError):
            self._remove(place, self._bucket.get(_key(place))[1])

    def drop(self, place: Place, *, below: Place) -> None:
        """Delete an object that nobody needs. Without a lease, or an answer, it stays for the next driver."""
        if self._lease is not None:
            self._check_lease()
            with suppress(BucketError):
                self._bucket.delete(_key(place))

    def rename_new(self, source: Place, destination: Place, *, below: Place) -> None:
        """Copy an object to a new key, then remove it; StoreExistsError if the key is taken."""
        with _translated("read", source):
            content, tag = self._bucket.get(_key(source))
        if not self.write_exclusive(destination, content):
            raise StoreExistsError(f"{destination}: already exists; choose another path, or remove it")
        with _translated("remove", source):
            self._remove(source, tag)

    def _remove(self, place: Place, tag: Tag) -> None:
        """Put an empty object in the place of one that was read with this tag."""
        self._check_lease()
        try:
            self._bucket.remove(_key(place), tag)
        except Changed:
            if self._bucket.exists(_key(place)):  # otherwise only the answer was lost
                raise StoreBusyError(f"{place}: another process has replaced it") from None

    def sweep(self, place: Place, *, below: Place) -> int:
        """Do nothing and return 0: a put never leaves half an object."""
        return 0

    @contextmanager
    def lock(self, place: Place) -> Iterator[None]:
        """Hold the lease at `place`; StoreBusyError if another process renews it, or has taken it over."""
        lease = Lease(self._bucket, _key(place), seconds=self._lease_seconds, clock=self._clock)
        with _translated("lock", place):
            lease.acquire()
        self._lease, self._home = lease, place.parent.parent
        try:
            self._clear_marker(self._home)
            yield
        except StoreBusyError:
            raise
        except (RayFBNNError, FileNotFoundError) as exc:
            with suppress(BucketError):  # report the first error
                if not lease.is_held():
                    raise self._overtaken() from exc
            raise
        finally:
            self._lease = None
            lease.release()

    def is_locked(self, place: Place) -> bool:
        with _translated("read", place):
            return self._leases_seen.is_held(_key(place))

    def writer_lock(self, place: Place) -> AbstractContextManager[None]:
        """Hold nothing: `write_block` and `write_exclusive` protect the draws from other writers."""
        return nullcontext()

    @contextmanager
    def creation(self, place: Place, lock: str, is_ours: IsOurs) -> Iterator[Place]:
        """Return a context with `place` itself, where the root metadata is put last."""
        with self.lock(place / lock):
            if self.is_taken(place):
                raise StoreExistsError(f"{place}: already exists; choose another path, or remove it")
            assert isinstance(place, ObjectPath)
            self._creation = ObjectCreation(self, self._bucket, place, self._check_lease)
            self._creation.written.add(_key(place / lock))
            try:
                with _translated("write", place):
                    self._creation.begin(is_ours)
                yield place
                root = self._creation.root
            finally:
                self._creation = None
            if root is not None and not self.write_exclusive(*root):
                raise StoreExistsError(f"{place}: already exists; choose another path, or remove it")
            self.drop(place / CREATING, below=place)

    def write_root(self, place: Place, data: bytes) -> None:
        """Keep the root metadata for the end of the creation, and remove the leftovers of an earlier one."""
        if self._creation is None:
            raise TypeError(f"{place}: only a creation writes it")
        with _translated("list", place):
            self._creation.clear()
        self._creation.root = place, data

    def _clear_marker(self, place: Place) -> None:
        """Remove the marker of a creation that was killed after its last object, the root metadata."""
        with _translated("look at", place):
            is_whole = all(map(self._bucket.exists, (_key(place / CREATING), _key(place / _METADATA))))
        if is_whole:
            self.drop(place / CREATING, below=place)

    def _write_chunk(self, place: Place, content: bytes, holds: Holds) -> None:
        """Put one chunk, unless the existing one holds its draws."""
        if not self.write_exclusive(place, content):
            self._replace(place, content, lambda existing: not holds(place, content, existing))

    def _replace(self, place: Place, data: bytes, is_wanted: Callable[[bytes], bool]) -> bool:
        """Replace an object, which must exist; return False if its content is one that should stay."""
        with _translated("write", place):
            has_failed = False
            for _ in range(_ATTEMPTS):
                try:
                    existing, tag = self._bucket.get(_key(place))
                except FileNotFoundError:
                    raise BucketError("it was removed while it was written") from None
                if existing == data or not is_wanted(existing):
                    return existing == data
                self._check_lease()
                try:
                    self._bucket.put_unchanged(_key(place), data, tag)
                    return True
                except Changed:
                    pass
                except BucketError:
                    if has_failed:
                        raise
                    has_failed = True  # read it again: it may be ours, with the answer lost
        raise StoreBusyError(f"{place}: other processes replace it again and again")

    def _is_there(self, place: Place, data: bytes) -> bool:
        try:
            return self._bucket.get(_key(place))[0] == data
        except FileNotFoundError:
            return False

    def _check_lease(self) -> None:
        """Raise StoreBusyError if the lease is not held for certain. A worker writes without a lease."""
        with _translated("lock", self._home):
            if self._lease is not None and not self._lease.is_held():
                raise self._overtaken()

    def _overtaken(self) -> StoreBusyError:
        return StoreBusyError(f"{self._home}: another process has taken over this store; its work is kept")

    def _keys(self, place: Place) -> list[str]:
        with _translated("list", place):
            return self._bucket.keys(_key(place))

    def _at_once(self, calls: Iterable[tuple[Any, ...]]) -> list[Any]:
        """Make the calls in threads, wait for all, and return their results or raise the first error."""
        calls = list(calls)
        if len(calls) == 1:
            return [function(*arguments) for function, *arguments in calls]
        with ThreadPoolExecutor(self.at_once) as threads:
            answers = [threads.submit(*call) for call in calls]
        return [answer.result() for answer in answers]


def _key(place: Place) -> str:
    if not isinstance(place, ObjectPath):
        raise TypeError(f"{place} is not in a bucket")
    return place.key


@contextmanager
def _translated(action: str, place: Place) -> Iterator[None]:
    try:
        yield
    except BucketError as exc:
        error = StoreAwayError if exc.may_pass else StoreRefusedError
        raise error(f"{place}: cannot {action} it: {exc}") from None


CREATING = ".creating"  # marks a store that is being created
_PROBE = re.compile(rf"{re.escape(CREATING)}\.[0-9a-f]{{32}}", re.ASCII)
_UNFIT = "{}: this object store ignores {} of a put, and draws could be lost; use another one"


class ObjectCreation:
    """The objects of a store that is being created. Methods may raise BucketError.

    root     place and content of the root metadata, once they are known
    written  keys of the objects that this creation has put, or has found as it would have put them
    """

    def __init__(
        self, storage: Storage, bucket: Bucket, place: ObjectPath, check_lease: Callable[[], None]
    ) -> None:
        """Keep the bucket, the place of the store, and the check that this process may still change it."""
        self._storage, self._bucket, self._place = storage, bucket, place
        self._check_lease = check_lease
        self.root: tuple[Place, bytes] | None = None
        self.written: set[str] = set()

    def begin(self, is_ours: IsOurs) -> None:
        """Mark the store as unfinished.

        StoreForeignError, with nothing changed, if there are objects that a creation does not write;
        StoreError if the server does not honour conditions.
        """
        below = len(self._place.key) + 1
        for key in self._bucket.keys(self._place.key):
            name = key[below:]
            if not (key in self.written or name == CREATING or is_ours(name) or _PROBE.fullmatch(name)):
                raise StoreForeignError(
                    f"{self._place}: contains {name}, which is not part of an unfinished store; nothing was"
                    " changed; move it elsewhere, or remove it"
                )
        self._storage.write_exclusive(self._place / CREATING, b"unfinished")
        self._probe(self._place / f"{CREATING}.{uuid.uuid4().hex}")

    def clear(self) -> None:
        """Remove the objects of an earlier creation that this one has not written.

        Where this creation has written other objects, a process that takes over may write the same keys. It
        writes none elsewhere, so those objects are deleted.
        """
        folders = {key.rpartition("/")[0] for key in self.written} - {self._place.key}
        for key in self._bucket.keys(self._place.key):
            if key not in self.written:
                is_shared = key.rpartition("/")[0] in folders
                remove = self._storage.unlink if is_shared else self._storage.drop
                remove(replace(self._place, key=key), below=self._place)

    def _probe(self, place: ObjectPath) -> None:
        """Raise StoreError unless the server honours the conditions of both conditional puts.

        Some servers ignored their headers until recently, and would let one record replace another.
        """
        try:
            old = self._bucket.put(place.key, uuid.uuid4().hex.encode())
            self._bucket.put(place.key, uuid.uuid4().hex.encode())
            with suppress(Changed):
                self._bucket.put_new(place.key, b"new")
                raise self._unfit("If-None-Match: *")
            with suppress(Changed):
                self._bucket.put_unchanged(place.key, b"changed", old)
                raise self._unfit("If-Match")
        finally:
            with suppress(BucketError):  # nobody else uses this name, so this needs no lease
                self._bucket.delete(place.key)

    def _unfit(self, condition: str) -> StoreError:
        self._check_lease()  # the next holder may have removed the object
        return StoreError(_UNFIT.format(self._place, condition))
