"""The operations that a store needs of the storage it lies in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias, TypeVar

from rayfbnn.store.storage.places import Place

MOST_BYTES = 64 * 2**20  # of a file that is not a chunk
PARTIAL = ".partial"  # the end of the name of a file that is being written; a crash may leave some behind

# True if a file has the values that are to be written, and maybe more. Takes the place, the content that is
# to be written, and the content that is there.
Holds: TypeAlias = Callable[[Place, bytes, bytes], bool]

# True for the key of a file that a creation writes, or of a folder that it makes, which ends with "/".
IsOurs: TypeAlias = Callable[[str], bool]

Item = TypeVar("Item")
Result = TypeVar("Result")


class Storage(Protocol):
    """Files by their place. Each write is whole or absent, for other processes and after a crash.

    A failure is a StoreError that names the file: StoreReadError on reading, StoreFullError without space.
    A missing file or folder is a FileNotFoundError on reading alone. An object store has no folders: those
    that are asked for are there and empty, and what makes or syncs them does nothing.
    """

    def read(self, place: Place, *, at_most: int = MOST_BYTES) -> bytes:
        """Return the content of a file; FileNotFoundError if there is none.

        StoreCorruptError, before anything is read, if it has more than `at_most` bytes or is no file.
        """
        ...

    def read_start(self, place: Place, n_bytes: int) -> bytes:
        """Return the first bytes of a file, all of them if it has fewer; FileNotFoundError if there is none.

        StoreCorruptError if it is no file.
        """
        ...

    def each(self, read: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Return what `read` gives for each item, in order; reads are at once where answers take long."""
        ...

    def check_folders(self, places: Iterable[Place]) -> None:
        """Raise StoreCorruptError if one of the places is there and leads elsewhere, as a link does."""
        ...

    def check_files(self, places: Iterable[Place]) -> None:
        """Raise StoreCorruptError if one of the places is there and is no file, such as a link to one."""
        ...

    def listdir(self, place: Place) -> list[str]:
        """Return the names in a folder, in order."""
        ...

    def exists(self, place: Place) -> bool:
        """Return True if there is a file or a folder of this name."""
        ...

    def modified(self, place: Place) -> float:
        """Return the time a file was put, in seconds since 1970, by the clock of the storage.

        FileNotFoundError if there is none.
        """
        ...

    def is_taken(self, place: Place) -> bool:
        """Return True if no store can be created at a place, because something is there."""
        ...

    def free_bytes(self, place: Place) -> int:
        """Return the bytes that can still be written into a folder."""
        ...

    def write_atomic(self, place: Place, data: bytes) -> None:
        """Put `data` at a place; its name is durable after `fsync_dir` of the folder."""
        ...

    def write_exclusive(self, place: Place, data: bytes) -> bool:
        """Put `data` at a place unless something else is there, durably; True if it was put."""
        ...

    def write_files(self, files: Mapping[Place, bytes]) -> None:
        """Put several files, each as `write_atomic` does."""
        ...

    def write_block(self, files: Mapping[Place, bytes], holds: Holds) -> None:
        """Put the chunk files of a segment, durably; they may replace chunks that an earlier segment began.

        A file that `holds` the draws already can stay: another driver has put it, and may have committed
        later draws in it.
        """
        ...

    def unlink(self, place: Place, *, below: Place) -> None:
        """Remove a file in the folder `below`; nothing if it is gone. No link in that folder is followed."""
        ...

    def rename_new(self, source: Place, destination: Place, *, below: Place) -> None:
        """Move a file in the folder `below` to a name in it, durably; StoreExistsError if it is taken."""
        ...

    def mkdir(self, place: Place) -> None:
        """Make a folder; nothing if it is there. StoreCorruptError if a link or a file is there."""
        ...

    def fsync_dir(self, place: Place) -> None:
        """Make the names in a folder durable."""
        ...

    def sweep(self, place: Place, *, below: Place) -> int:
        """Remove what crashes left half written in a folder that is in `below`; return how many files."""
        ...

    def lock(self, place: Place) -> AbstractContextManager[None]:
        """Hold the lock of a store; StoreBusyError if another process holds it."""
        ...

    def writer_lock(self, place: Place) -> AbstractContextManager[None]:
        """Keep other writers away from a batch while a block is written, as far as the storage can.

        An object store cannot: `write_block` and `write_exclusive` alone must keep its draws.
        """
        ...

    def creation(self, place: Place, lock: str, is_ours: IsOurs) -> AbstractContextManager[Place]:
        """Give the place to write a new store to. It is at `place` once the context ends without an error.

        lock     key of the lock of the store, which an object store holds meanwhile
        is_ours  what a creation writes: nothing else is ever removed after one that crashed
        StoreExistsError if something is there, StoreForeignError if something else is where it is made,
        StoreBusyError if another process makes it, StoreError if the storage lacks an operation that the
        store relies on.
        """
        ...

    def write_root(self, place: Place, data: bytes) -> None:
        """Put the root metadata of a new store, its last file."""
        ...
