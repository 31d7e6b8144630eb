"""Storage in folders of a POSIX file system. All bytes of a run on disk pass through here.

Tests put another class in the place of `SystemCalls` that crashes, fails, or loses what was not synced.
`FileSystem` builds from these calls the few operations that the store needs, and turns an OSError into a
StoreError that names the file.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path

from rayfbnn.errors import StoreBusyError, StoreCorruptError, StoreExistsError
from rayfbnn.store.storage.building import MARKER, PROBE, TEMPORARY, Building
from rayfbnn.store.storage.os_errors import translated
from rayfbnn.store.storage.places import Place
from rayfbnn.store.storage.protocol import MOST_BYTES, PARTIAL, Holds, IsOurs, Item, Result
from rayfbnn.store.storage.system_calls import SystemCalls

_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
# Errors that may be over when a file is read again: a network file system that was not there for a moment.
_PASSING = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR}
_PAUSES = (0.1, 0.4)  # seconds before the second and the third attempt to read
_counter = count()


class FileSystem:
    """Storage on a disk. An OSError becomes a StoreError, but not FileNotFoundError on reading."""

    def __init__(self, calls: SystemCalls | None = None) -> None:
        self._calls = SystemCalls() if calls is None else calls

    def read(self, place: Place, *, at_most: int = MOST_BYTES) -> bytes:
        """Return the content of a file; FileNotFoundError if there is none.

        StoreCorruptError if it has more than `at_most` bytes, or is a link, a pipe or a device.
        """
        path = _local(place)
        with translated("read", place):
            size = self._again(lambda: self._calls.size(path))
            if size > at_most:
                raise StoreCorruptError(
                    f"{path}: damaged: {size} bytes, where at most {at_most} are expected"
                )
            return self._again(lambda: self._calls.read(path))

    def read_start(self, place: Place, n_bytes: int) -> bytes:
        """Return the first bytes of a file; FileNotFoundError if there is none.

        StoreCorruptError if it is a link, a pipe or a device.
        """
        path = _local(place)
        with translated("read", place):
            self._again(lambda: self._calls.size(path))  # looks whether it is a file
            return self._again(lambda: self._calls.read(path, n_bytes))

    def each(self, read: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Return what `read` gives for each item, one after the other."""
        return [read(item) for item in items]

    def check_folders(self, places: Iterable[Place]) -> None:
        """Raise StoreCorruptError if there is something else in the place of a folder, such as a link."""
        for place in places:
            if self.exists(place) and not self.is_directory(place):
                raise StoreCorruptError(
                    f"{place}: is no folder but a link or a file; a store or a study has its own folders"
                )

    def check_files(self, places: Iterable[Place]) -> None:
        """Raise StoreCorruptError if there is something else in the place of a file, such as a link."""
        for place in places:
            if self.exists(place) and not self._calls.is_file(_local(place)):
                raise StoreCorruptError(f"{place}: is no file but a link, a pipe, a device or a folder")

    def listdir(self, place: Place) -> list[str]:
        """Return the names in a directory, in order."""
        with translated("list", place):
            return sorted(self._again(lambda: self._calls.listdir(_local(place))))

    def _again(self, action: Callable[[], Result]) -> Result:
        """Return what an action reads; it is tried three times if it fails with an error that may pass."""
        for pause in _PAUSES:
            try:
                return action()
            except OSError as exc:
                if exc.errno not in _PASSING:
                    raise
                self._calls.sleep(pause)
        return action()

    def exists(self, place: Place) -> bool:
        """Return True if the name is taken, even by a broken link."""
        with translated("look at", place):
            return self._calls.exists(_local(place))

    def modified(self, place: Place) -> float:
        """Return the time a file was written, in seconds since 1970."""
        with translated("read", place):
            return self._calls.modified(_local(place))

    def is_taken(self, place: Place) -> bool:
        """Return True if there is anything of this name."""
        return self.exists(place)

    def is_directory(self, place: Place) -> bool:
        """Return True if the name is that of a directory, not of a link to one."""
        with translated("look at", place):
            return self._calls.is_directory(_local(place))

    def free_bytes(self, place: Place) -> int:
        """Return the bytes that are left for this user on the disk of a folder."""
        with translated("look at", place):
            return self._calls.free_bytes(_local(place))

    def mkdir(self, place: Place) -> None:
        """Make a directory; nothing if it is there. StoreCorruptError if a link or a file is there."""
        try:
            with translated("make", place):
                self._calls.mkdir(_local(place))
        except StoreExistsError:
            self.check_folders([place])

    def fsync_dir(self, place: Place) -> None:
        """Make the names in a directory durable."""
        with translated("sync", place):
            self._calls.fsync_dir(_local(place))

    def unlink(self, place: Place, *, below: Place) -> None:
        """Remove a file below a folder; nothing if it is gone."""
        path = _local(place)
        with translated("remove", place), suppress(FileNotFoundError), self._folder(path.parent, below) as at:
            self._calls.unlink(Path(path.name), at)

    @contextmanager
    def _folder(self, folder: Place, below: Place) -> Iterator[int]:
        """Give a descriptor of a folder in `below`. No link leads to it but those in the path of `below`.

        What is removed or renamed in it is where it seems to be, even if someone puts a link in the place of
        a folder meanwhile.
        """
        with ExitStack() as stack:
            descriptor = self._calls.open_folder(_local(below))
            stack.callback(self._calls.close, descriptor)
            for part in _local(folder).relative_to(_local(below)).parts:
                descriptor = self._calls.open_inner(Path(part), descriptor)
                stack.callback(self._calls.close, descriptor)
            yield descriptor

    def write_atomic(self, place: Place, data: bytes) -> None:
        """Put `data` at `place`, synced: a reader, or a crash, finds the old content or the new, whole.

        The name itself is durable only after `fsync_dir` of the directory: one such call serves many files.
        """
        path = _local(place)
        with translated("write", path):
            temporary = self._write_temporary(path, data)
            self._or_remove(temporary, lambda: self._calls.replace(temporary, path))

    def write_exclusive(self, place: Place, data: bytes) -> bool:
        """Put `data` at `place` unless something is there: True if it was put. Content and name are durable.

        A hard link from a finished temporary: it fails if the name is taken, and shows the content whole.
        Where the file system has no hard links the caller must hold a lock that keeps other writers away.
        """
        path = _local(place)
        with translated("write", path):
            temporary = self._write_temporary(path, data)
            is_new = self._or_remove(temporary, lambda: self._publish(temporary, path))
            self._calls.fsync_dir(path.parent)
            return is_new

    def write_files(self, files: Mapping[Place, bytes]) -> None:
        """Put several files, each as `write_atomic` does."""
        for place, content in files.items():
            self.write_atomic(place, content)

    def write_block(self, files: Mapping[Place, bytes], holds: Holds) -> None:
        """Put the chunk files of a block. `holds` is not asked, because `writer_lock` keeps others away."""
        self.write_files(files)
        for folder in dict.fromkeys(place.parent for place in files):
            self.fsync_dir(folder)

    def rename_new(self, source: Place, destination: Place, *, below: Place) -> None:
        """Move a file in a folder to a name in it that is not taken (else StoreExistsError), durably."""
        old, new = _local(source), _local(destination)
        with (
            translated("rename", destination),
            self._folder(old.parent, below) as at,
            self._folder(new.parent, below) as to,
        ):
            if self._calls.exists(Path(new.name), to):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            self._calls.replace(Path(old.name), Path(new.name), at, to)
            for descriptor in (to, at):
                self._calls.fsync(descriptor)

    def sweep(self, place: Place, *, below: Place) -> int:
        """Remove what crashes left half written in a directory, and say how many files that was."""
        with translated("remove", place), self._folder(place, below) as at:
            with translated("list", place):
                names = sorted(self._again(lambda: self._calls.listdir(at)))
            ours = [Path(name) for name in names if TEMPORARY.fullmatch(name) or MARKER.fullmatch(name)]
            partial = [name for name in ours if self._calls.is_file(name, at)]
            for name in partial:
                with suppress(FileNotFoundError):
                    self._calls.unlink(name, at)
        return len(partial)

    @contextmanager
    def lock(self, place: Place, *, attempts: int = 1) -> Iterator[None]:
        """Hold the lock on the file `place`; StoreBusyError if it is held after `attempts`, 0.05 s apart."""
        for attempt in range(attempts):
            try:
                with translated("lock", place):
                    descriptor = self._calls.lock(_local(place))
                break
            except StoreBusyError:
                if attempt == attempts - 1:
                    raise
                self._calls.sleep(0.05)
        try:
            yield
        finally:
            self._calls.close(descriptor)

    def writer_lock(self, place: Place) -> AbstractContextManager[None]:
        """Hold the lock of a batch; wait 10 s for a worker thought dead, which may still write a block."""
        return self.lock(place, attempts=200)

    @contextmanager
    def creation(self, place: Place, lock: str, is_ours: IsOurs) -> Iterator[Place]:
        """Give a hidden folder beside `place`, which is renamed at the end: a crash leaves nothing there."""
        with Building(self._calls, _local(place), is_ours) as inside:
            self._probe(inside / PROBE)
            yield inside

    def write_root(self, place: Place, data: bytes) -> None:
        """Put the root metadata of a new store, which nobody sees before the store is renamed."""
        self.write_atomic(place, data)

    def _probe(self, place: Path) -> None:
        """Raise StoreError unless a file can be published here as a record is.

        The first commit would otherwise find out that links fail, after the first block was sampled.
        """
        self.write_exclusive(place, b"")
        self.unlink(place, below=place.parent)

    def _write_temporary(self, path: Path, data: bytes) -> Path:
        """Write and sync the content to a file beside `path`, with a name that no other attempt uses."""
        temporary = (
            path.parent / f".{path.name}.{socket.gethostname()}-{os.getpid()}-{next(_counter)}{PARTIAL}"
        )
        descriptor = self._calls.open_new(temporary)
        self._or_remove(temporary, lambda: self._fill(descriptor, data))
        return temporary

    def _fill(self, descriptor: int, data: bytes) -> None:
        try:
            rest = memoryview(data)
            while len(rest) > 0:  # a write may take less than it was given, and says so only in its result
                written = self._calls.write(descriptor, rest)
                if written == 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                rest = rest[written:]
            # An fsync that fails is not tried again: the kernel may have dropped the pages and call it done.
            self._calls.fsync(descriptor)
        finally:
            self._calls.close(descriptor)

    def _publish(self, temporary: Path, path: Path) -> bool:
        try:
            self._calls.link(temporary, path)
        except FileExistsError:
            self._calls.unlink(temporary)
            return False
        except OSError as exc:
            if exc.errno not in _NO_LINKS:
                raise
            if self._calls.exists(path):
                self._calls.unlink(temporary)
                return False
            self._calls.replace(temporary, path)
            return True
        self._calls.unlink(temporary)
        return True

    def _or_remove(self, temporary: Path, action: Callable[[], Result]) -> Result:
        """Return the action's result; if it fails, remove the temporary file, since the disk may be full."""
        try:
            return action()
        except OSError:
            with suppress(OSError):  # the first error is the one to report; `sweep` gets what stays
                self._calls.unlink(temporary)
            raise


def _local(place: Place) -> Path:
    if not isinstance(place, Path):
        raise TypeError(f"{place} is not on a disk")
    return place
