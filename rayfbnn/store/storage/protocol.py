"""The operations that a store needs of its storage."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias, TypeVar

from rayfbnn.store.storage.places import Place

MOST_BYTES = 64 * 2**20  # of a file that is not a chunk
PARTIAL = ".partial"  # end of the name of a file while it is written; a crash may leave such files behind

# Takes a place, its new content and its present content. True if the present content has all new values.
Holds: TypeAlias = Callable[[Place, bytes, bytes], bool]

# Takes a key. True if a creation writes a file with this key, or makes such a folder (with "/" at the end).
IsOurs: TypeAlias = Callable[[str], bool]

Item = TypeVar("Item")
Result = TypeVar("Result")


class Storage(Protocol):
    """Files by their place. Each write is whole or absent, for other processes and after a crash.

    A failure is a StoreError that names the file: StoreReadError for reads, StoreFullError without space.
    Only reads raise FileNotFoundError, for a missing file or folder. An object store has no folders: every
    folder exists and may be empty, and the methods that make or sync one do nothing.

    at_once  number of requests that are made at once, because each takes long; 1 on a disk
    """

    at_once: int

    def read(self, place: Place, *, at_most: int = MOST_BYTES) -> bytes:
        """Return the content of a file; FileNotFoundError if there is none.

        StoreCorruptError, before anything is read, if it has more than `at_most` bytes or is not a file.
        """

    def read_start(self, place: Place, n_bytes: int) -> bytes:
        """Return the first bytes of a file, or all if it has fewer; FileNotFoundError if there is none.

        StoreCorruptError if it is not a file.
        """

    def each(self, read: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Return the result of `read` for each item, in order; a slow storage reads several at once."""

    def check_folders(self, places: Iterable[Place]) -> None:
        """Raise StoreCorruptError if one of the places exists but is not a folder, such as a link to one."""

    def check_files(self, places: Iterable[Place]) -> None:
        """Raise StoreCorruptError if one of the places exists but is not a file, such as a link to one."""

    def listdir(self, place: Place) -> list[str]:
        """Return the names in a folder, in order."""

    def listdirs(self, places: Collection[Place]) -> dict[Place, list[str]]:
        """Return the names in each of some folders of one folder, in order; missing folders are left out."""

    def sizes(self, place: Place) -> dict[str, int]:
        """Return the sizes of the files in a folder by their names; {} for a missing folder.

        StoreCorruptError if something in it is neither a file nor a folder, such as a link.
        """

    def exists(self, place: Place) -> bool:
        """Return True if there is a file or a folder with this name."""

    def modified(self, place: Place) -> float:
        """Return the time when a file was written, in seconds since 1970, by the clock of the storage.

        FileNotFoundError if there is none.
        """

    def is_taken(self, place: Place) -> bool:
        """Return True if something is at a place, so no store can be created there."""

    def free_bytes(self, place: Place) -> int:
        """Return the number of bytes that can still be written into a folder."""

    def write_atomic(self, place: Place, data: bytes) -> None:
        """Write `data` to a place; the name is durable after `fsync_dir` of the folder."""

    def write_exclusive(self, place: Place, data: bytes) -> bool:
        """Write `data` to a place, durably, unless something else is there; return True if it was written."""

    def write_files(self, files: Mapping[Place, bytes]) -> None:
        """Write several files, each as `write_atomic` does."""

    def write_block(self, files: Mapping[Place, bytes], holds: Holds) -> None:
        """Write the chunk files of a segment, durably; they may replace chunks that an earlier segment began.

        A file that already `holds` the draws may stay: another driver has written it, and may have committed
        later draws in it.
        """

    def replace(self, place: Place, data: bytes, old: bytes) -> bool:
        """Replace a file as `write_atomic` does, if its content is still `old`; return True if it was.

        On a disk the caller keeps other writers away.
        """

    def unlink(self, place: Place, *, below: Place) -> None:
        """Remove a file below the folder `below`, if it exists. Links in that folder are not followed."""

    def drop(self, place: Place, *, below: Place) -> None:
        """Remove a file, as `unlink` does, that nobody reads any more; it may stay for the next driver.

        In a bucket this is a deletion, which has no condition. It leaves no empty object behind.
        """

    def rename_new(self, source: Place, destination: Place, *, below: Place) -> None:
        """Move a file within the folder `below`, durably; StoreExistsError if the new name is taken."""

    def mkdir(self, place: Place) -> None:
        """Make a folder unless it exists; StoreCorruptError if a link or a file is there."""

    def fsync_dir(self, place: Place) -> None:
        """Make the names in a folder durable."""

    def sweep(self, place: Place, *, below: Place) -> int:
        """Remove half-written files that crashes left in a folder below `below`; return their number."""

    def lock(self, place: Place) -> AbstractContextManager[None]:
        """Hold the lock of a store; StoreBusyError if another process holds it."""

    def is_locked(self, place: Place) -> bool:
        """Return True if a process holds the lock of a store; False if there is no such lock.

        This takes one request and changes nothing. In a bucket, a holder that died on another machine counts
        until repeated calls have seen its lease unchanged for the lease time.
        """

    def writer_lock(self, place: Place) -> AbstractContextManager[None]:
        """Keep other writers away from a batch while a block is written, if the storage can.

        An object store cannot, so `write_block` and `write_exclusive` alone must protect its draws.
        """

    def creation(self, place: Place, lock: str, is_ours: IsOurs) -> AbstractContextManager[Place]:
        """Return a context with the place to write a new store to; without an error it ends up at `place`.

        lock     key of the lock of the store, which an object store holds in the meantime
        is_ours  tells which files a creation writes; after a crash nothing else is ever removed

        Raises StoreExistsError if something is at `place`, StoreForeignError if foreign files are where the
        store is made, StoreBusyError if another process is making it, and StoreError if the storage lacks an
        operation that the store relies on.
        """

    def write_root(self, place: Place, data: bytes) -> None:
        """Write the root metadata of a new store, its last file."""
