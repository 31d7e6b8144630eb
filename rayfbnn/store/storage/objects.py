"""Storage in a bucket of an object store: S3, Google Cloud Storage or Azure.

An object store has neither renames nor locks, but two conditional puts: one succeeds only if no object
exists, and the other only if the object has not changed. Records are put in the first way, and chunks that
an earlier segment began in the second. Whatever several processes do at once, the draws that a record names
stay intact.

The answer to a put may be lost although the put was done. The object is then read back and compared.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

from rayfbnn.errors import (
    StoreAwayError,
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    StoreExistsError,
    StoreForeignError,
    StoreRefusedError,
)
from rayfbnn.store.storage.bucket import Bucket, BucketError, Changed, TooLarge
from rayfbnn.store.storage.lease import SECONDS, Lease, LeasesSeen
from rayfbnn.store.storage.places import ObjectPath, Place
from rayfbnn.store.storage.protocol import MOST_BYTES, Holds, IsOurs, Item, Result

_ATTEMPTS = 20  # to replace a chunk that others replace at the same time
_CREATING = ".creating"  # marks a store that is being created
_UNFIT = "{}: this object store ignores {} of a put, and draws could be lost; use another one"
_METADATA = "zarr.json"  # the root object of every store


class ObjectStorage:
    """Storage in one bucket. A BucketError becomes a StoreError."""

    at_once = 16

    def __init__(self, bucket: Bucket, *, lease_seconds: float = SECONDS) -> None:
        """Keep the bucket, and the lease time of drivers, in seconds."""
        self._bucket, self._lease_seconds = bucket, lease_seconds
        self._lease: Lease | None = None
        self._leases_seen = LeasesSeen(bucket, seconds=lease_seconds)

    @staticmethod
    def from_place(place: ObjectPath) -> ObjectStorage:
        """Return the storage of the bucket with a place."""
        with _translated("open", place):
            return ObjectStorage(Bucket.from_place(place))

    def read(self, place: Place, *, at_most: int = MOST_BYTES) -> bytes:
        """Return the content of an object; FileNotFoundError if there is none.

        StoreCorruptError, before anything is read, if it has more than `at_most` bytes.
        """
        with _translated("read", place):
            try:
                return self._bucket.get(_key(place), at_most)[0]
            except TooLarge as exc:
                raise StoreCorruptError(f"{place}: damaged: {exc}") from None

    def read_start(self, place: Place, n_bytes: int) -> bytes:
        """Return the first bytes of an object; FileNotFoundError if there is none."""
        with _translated("read", place):
            return self._bucket.get_start(_key(place), n_bytes)

    def each(self, read: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Return the result of `read` for each item, in order, with up to 16 requests at once."""
        return self._at_once((read, item) for item in items)

    def check_folders(self, places: Iterable[Place]) -> None:
        """Do nothing: keys lead nowhere else."""

    def check_files(self, places: Iterable[Place]) -> None:
        """Do nothing: keys lead nowhere else."""

    def listdir(self, place: Place) -> list[str]:
        """Return the names one level below a place, in order; there may be none."""
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
        """Return the sizes of the objects one level below a place by their names; there may be none."""
        with _translated("list", place):
            return self._bucket.sizes(_key(place))

    def exists(self, place: Place) -> bool:
        """Return True if there is an object with this key, or below it."""
        with _translated("look at", place):
            return self._bucket.exists(_key(place)) or bool(self._bucket.names(_key(place)))

    def modified(self, place: Place) -> float:
        """Return the time when an object was put, in seconds since 1970, by the server's clock."""
        with _translated("read", place):
            return self._bucket.modified(_key(place))

    def is_taken(self, place: Place) -> bool:
        """Return True if there are objects below a place, not counting leftovers of a crashed creation."""
        keys = [key for key in self._keys(place) if not key.endswith("/lock")]
        is_store = _key(place / _METADATA) in keys
        return is_store or (bool(keys) and _key(place / _CREATING) not in keys)

    def free_bytes(self, place: Place) -> int:
        """Return a number larger than any run, because a bucket has no limit."""
        return sys.maxsize

    def write_atomic(self, place: Place, data: bytes) -> None:
        """Put an object, and replace any other."""
        self._check_lease()
        with _translated("write", place):
            try:
                self._bucket.put(_key(place), data)
            except BucketError:
                if not self._is_there(place, data):
                    raise

    def write_exclusive(self, place: Place, data: bytes) -> bool:
        """Put an object if there is none; return True if it was put, even if the answer was lost."""
        self._check_lease()
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
        """Put several objects at once."""
        self._at_once((self.write_atomic, place, content) for place, content in files.items())

    def write_block(self, files: Mapping[Place, bytes], holds: Holds) -> None:
        """Put the chunks of a segment at once, and return after all answers.

        A chunk only ever gains draws: it stays if it has the draws of this segment, and is replaced only if
        it has not changed since it was read.
        """
        self._at_once((self._write_chunk, place, content, holds) for place, content in files.items())

    def unlink(self, place: Place, *, below: Place) -> None:
        """Remove an object, if it exists."""
        with _translated("remove", place):
            self._bucket.delete(_key(place))

    def rename_new(self, source: Place, destination: Place, *, below: Place) -> None:
        """Copy an object to a new key, then remove it; StoreExistsError if the key is taken."""
        with _translated("read", source):
            content = self._bucket.get(_key(source))[0]
        if not self.write_exclusive(destination, content):
            raise StoreExistsError(f"{destination}: already exists; choose another path, or remove it")
        self.unlink(source, below=below)

    def mkdir(self, place: Place) -> None:
        """Do nothing, because a bucket has no folders."""

    def fsync_dir(self, place: Place) -> None:
        """Do nothing: an object is durable once its put is answered."""

    def sweep(self, place: Place, *, below: Place) -> int:
        """Do nothing and return 0: a put never leaves half an object."""
        return 0

    @contextmanager
    def lock(self, place: Place) -> Iterator[None]:
        """Hold the lease at `place`; StoreBusyError if another process renews it."""
        lease = Lease(self._bucket, _key(place), seconds=self._lease_seconds)
        with _translated("lock", place):
            lease.acquire()
        self._lease = lease
        try:
            self._clear_marker(place.parent.parent)
            yield
        finally:
            self._lease = None
            lease.release()

    def is_locked(self, place: Place) -> bool:
        """Return True if a process holds the lease at `place`; repeated calls notice that it died."""
        with _translated("read", place):
            return self._leases_seen.is_held(_key(place))

    def writer_lock(self, place: Place) -> AbstractContextManager[None]:
        """Hold nothing: `write_block` and `write_exclusive` protect the draws from other writers."""
        return nullcontext()

    @contextmanager
    def creation(self, place: Place, lock: str, is_ours: IsOurs) -> Iterator[Place]:
        """Return a context with `place` itself; objects that a crashed creation left there are removed."""
        with self.lock(place / lock):
            if self.is_taken(place):
                raise StoreExistsError(f"{place}: already exists; choose another path, or remove it")
            marker = place / _CREATING
            kept = {_key(marker), _key(place / lock)}
            try:
                self._check_ours(place, kept, is_ours)
                self._probe(marker)
                self._delete(key for key in self._keys(place) if key not in kept)
                yield place
            except (StoreBusyError, StoreExistsError, StoreForeignError):
                raise  # another creator may have put these objects in the meantime
            except StoreError:
                with suppress(StoreError):  # report the first error
                    self.unlink(place / _METADATA, below=place)  # from here on it is not a store
                    self._delete(key for key in self._keys(place) if key not in kept)
                    # The marker goes last: objects without it would look foreign after a kill.
                    self.unlink(marker, below=place)
                raise
            self.unlink(marker, below=place)

    def _check_ours(self, place: Place, kept: set[str], is_ours: IsOurs) -> None:
        """Raise StoreForeignError if there is a key below a place that a creation does not write."""
        below = f"{_key(place)}/"
        for key in self._keys(place):
            name = key.removeprefix(below)
            if key not in kept and not is_ours(name):
                raise StoreForeignError(
                    f"{place}: contains {name}, which is not part of an unfinished store; nothing was"
                    " changed; move it elsewhere, or remove it"
                )

    def write_root(self, place: Place, data: bytes) -> None:
        """Put the root metadata of a new store; StoreExistsError if there is one."""
        if not self.write_exclusive(place, data):
            raise StoreExistsError(f"{place}: already exists; choose another path, or remove it")

    def _clear_marker(self, place: Place) -> None:
        """Remove the marker of a creation that was killed after its last object, the root metadata."""
        with _translated("look at", place):
            keys = (_key(place / _CREATING), _key(place / _METADATA))
            if all(map(self._bucket.exists, keys)):
                self._bucket.delete(keys[0])

    def _probe(self, place: Place) -> None:
        """Raise StoreError unless the server honours the conditions of both conditional puts.

        Some servers ignored their headers until recently, and would let one record replace another.
        """
        key = _key(place)
        with _translated("write", place):
            old = self._bucket.put(key, uuid.uuid4().hex.encode())
            self._bucket.put(key, uuid.uuid4().hex.encode())
            with suppress(Changed):
                self._bucket.put_new(key, b"")
                raise StoreError(_UNFIT.format(place, "If-None-Match: *"))
            with suppress(Changed):
                self._bucket.put_unchanged(key, b"", old)
                raise StoreError(_UNFIT.format(place, "If-Match"))

    def _write_chunk(self, place: Place, content: bytes, holds: Holds) -> None:
        """Put one chunk, unless the existing one holds its draws."""
        if self.write_exclusive(place, content):
            return
        with _translated("write", place):
            has_failed = False
            for _ in range(_ATTEMPTS):
                try:
                    existing, tag = self._bucket.get(_key(place))
                except FileNotFoundError:
                    raise BucketError("it was removed while it was written") from None
                if holds(place, content, existing):
                    return
                try:
                    self._bucket.put_unchanged(_key(place), content, tag)
                    return
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
        if self._lease is not None and self._lease.is_lost:
            raise StoreBusyError("another process has taken over this store, because its lease ran out")

    def _keys(self, place: Place) -> list[str]:
        with _translated("list", place):
            return self._bucket.keys(_key(place))

    def _delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            with _translated("remove", key):
                self._bucket.delete(key)

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
def _translated(action: str, place: Place | str) -> Iterator[None]:
    try:
        yield
    except BucketError as exc:
        error = StoreAwayError if exc.may_pass else StoreRefusedError
        raise error(f"{place}: cannot {action} it: {exc}") from None
