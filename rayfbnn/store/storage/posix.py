"""Storage in folders of a POSIX file system. All bytes of a run on disk pass through here.

Tests replace `SystemCalls` with a class that crashes, fails, or loses data that was not synced. `FileSystem`
builds the operations of the store from these calls, and turns an OSError into a StoreError that names the
file.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from weakref import WeakValueDictionary

from rayfbnn.errors import StoreBusyError, StoreCorruptError, StoreExistsError
from rayfbnn.store.storage.building import MARKER, PROBE, TEMPORARY, Building
from rayfbnn.store.storage.places import Place
from rayfbnn.store.storage.protocol import MOST_BYTES, PARTIAL, Holds, IsOurs, Item, Result
from rayfbnn.store.storage.system_calls import SystemCalls, translated

_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
# Errors that may be gone when a file is read again, such as those of a network file system.
_PASSING = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR}
_PAUSES = (0.1, 0.4)  # seconds before the second and the third attempt to read
_counter = count()
_locks_of_threads: WeakValueDictionary[Place, threading.RLock] = WeakValueDictionary()
_lookup = threading.Lock()


class FileSystem:
    """Storage on a disk. An OSError becomes a StoreError, except FileNotFoundError for reads."""

    at_once = 1

    def __init__(self, calls: SystemCalls | None = None) -> None:
        self._calls = SystemCalls() if calls is None else calls

    def read(self, place: Place, *, at_most: int = MOST_BYTES) -> bytes:
        path = _local(place)
        with translated("read", place):
            size = self._again(lambda: self._calls.size(path))
            if size > at_most:
                raise StoreCorruptError(f"{path}: damaged: {size} bytes, expected at most {at_most}")
            return self._again(lambda: self._calls.read(path))

    def read_start(self, place: Place, n_bytes: int) -> bytes:
        path = _local(place)
        with translated("read", place):
            self._again(lambda: self._calls.size(path))  # raises an error unless it is a file
            return self._again(lambda: self._calls.read(path, n_bytes))

    def each(self, read: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        return [read(item) for item in items]

    def check_folders(self, places: Iterable[Place]) -> None:
        for place in places:
            if not self.is_directory(place) and self.exists(place):
                raise StoreCorruptError(
                    f"{place}: is a link or a file; folders of a store or a study must be ordinary folders"
                )

    def check_files(self, places: Iterable[Place]) -> None:
        for place in places:
            if not self._calls.is_file(_local(place)) and self.exists(place):
                raise StoreCorruptError(f"{place}: is not a file but a link, a pipe, a device or a folder")

    def listdir(self, place: Place) -> list[str]:
        with translated("list", place):
            return sorted(self._again(lambda: self._calls.listdir(_local(place))))

    def listdirs(self, places: Collection[Place]) -> dict[Place, list[str]]:
        names = {}
        for place in places:
            with suppress(FileNotFoundError):
                names[place] = self.listdir(place)
        return names

    def sizes(self, place: Place) -> dict[str, int]:
        sizes: dict[str, int] = {}
        with suppress(FileNotFoundError):
            for name in self.listdir(place):
                if not self.is_directory(place / name):
                    with suppress(FileNotFoundError), translated("read", place / name):
                        sizes[name] = self._again(partial(self._calls.size, _local(place / name)))
        return sizes

    def _again(self, action: Callable[[], Result]) -> Result:
        """Return the result of an action, which is tried three times if its error may pass."""
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
        with translated("read", place):
            return self._calls.modified(_local(place))

    def is_taken(self, place: Place) -> bool:
        return self.exists(place)

    def is_directory(self, place: Place) -> bool:
        """Return True for a folder, but not for a link to one."""
        with translated("look at", place):
            return self._calls.is_directory(_local(place))

    def free_bytes(self, place: Place) -> int:
        with translated("look at", place):
            return self._calls.free_bytes(_local(place))

    def mkdir(self, place: Place) -> None:
        try:
            with translated("make", place):
                self._calls.mkdir(_local(place))
        except StoreExistsError:
            self.check_folders([place])

    def fsync_dir(self, place: Place) -> None:
        with translated("sync", place):
            self._calls.fsync_dir(_local(place))

    def unlink(self, place: Place, *, below: Place) -> None:
        path = _local(place)
        with translated("remove", place), suppress(FileNotFoundError), self._folder(path.parent, below) as at:
            self._calls.unlink(Path(path.name), at)

    def drop(self, place: Place, *, below: Place) -> None:
        self.unlink(place, below=below)

    @contextmanager
    def _folder(self, folder: Place, below: Place) -> Iterator[int]:
        """Return a context with a descriptor of a folder below `below`; links are followed only in `below`.

        Through the descriptor, files are removed or renamed in the right folder even if someone replaces a
        folder of the path with a link at the same time.
        """
        with ExitStack() as stack:
            descriptor = self._calls.open_folder(_local(below))
            stack.callback(self._calls.close, descriptor)
            for part in _local(folder).relative_to(_local(below)).parts:
                descriptor = self._calls.open_inner(Path(part), descriptor)
                stack.callback(self._calls.close, descriptor)
            yield descriptor

    def write_atomic(self, place: Place, data: bytes) -> None:
        """Write and sync `data`; readers, and a crash, find the old content or the new content, whole.

        The name is durable only after `fsync_dir` of the folder, and one such call serves many files.
        """
        path = _local(place)
        with translated("write", path):
            temporary = self._write_temporary(path, data)
            self._or_remove(temporary, lambda: self._calls.replace(temporary, path))

    def replace(self, place: Place, data: bytes, old: bytes) -> bool:
        is_old = self.read(place) == old
        if is_old:
            self.write_atomic(place, data)
        return is_old

    def write_exclusive(self, place: Place, data: bytes) -> bool:
        """Write `data` to `place`, durably, unless something is there; return True if it was written.

        This makes a hard link from a complete temporary file. The link fails if the name is taken, and shows
        the whole content. On a file system without hard links the caller must hold a lock against other
        writers.
        """
        path = _local(place)
        with translated("write", path):
            temporary = self._write_temporary(path, data)
            is_new = self._or_remove(temporary, lambda: self._publish(temporary, path))
            self._calls.fsync_dir(path.parent)
            return is_new

    def write_files(self, files: Mapping[Place, bytes]) -> None:
        for place, content in files.items():
            self.write_atomic(place, content)

    def write_block(self, files: Mapping[Place, bytes], holds: Holds) -> None:
        """Write the chunk files of a segment, without `holds`, because `writer_lock` keeps others away."""
        self.write_files(files)
        for folder in dict.fromkeys(place.parent for place in files):
            self.fsync_dir(folder)

    def rename_new(self, source: Place, destination: Place, *, below: Place) -> None:
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
        """Hold the lock on the file `place`; StoreBusyError if all `attempts`, 0.05 s apart, fail."""
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

    def is_locked(self, place: Place) -> bool:
        try:
            with translated("read", place):
                return self._again(lambda: self._calls.is_locked(_local(place)))
        except FileNotFoundError:
            return False

    @contextmanager
    def writer_lock(self, place: Place) -> Iterator[None]:
        """Hold the lock of a batch; wait 10 s, because a worker believed dead may still write a block.

        Another thread of this process is waited for as long as it takes: it gathers blocks, on a slow disk
        perhaps for minutes, and it ends with this process.
        """
        with _lock_of_thread(place), self.lock(place, attempts=200):
            yield

    @contextmanager
    def creation(self, place: Place, lock: str, is_ours: IsOurs) -> Iterator[Place]:
        with Building(self._calls, _local(place), is_ours) as inside:
            self._probe(inside / PROBE)
            yield inside

    def write_root(self, place: Place, data: bytes) -> None:
        self.write_atomic(place, data)

    def _probe(self, place: Path) -> None:
        """Raise StoreError unless a file can be published here in the way of a record.

        Otherwise failing links would only be noticed at the first commit, after the first block was sampled.
        """
        self.write_exclusive(place, b"")
        self.unlink(place, below=place.parent)

    def _write_temporary(self, path: Path, data: bytes) -> Path:
        """Write and sync the content to a file next to `path`, with a name that no other attempt uses."""
        temporary = (
            path.parent / f".{path.name}.{socket.gethostname()}-{os.getpid()}-{next(_counter)}{PARTIAL}"
        )
        descriptor = self._calls.open_new(temporary)
        self._or_remove(temporary, lambda: self._fill(descriptor, data))
        return temporary

    def _fill(self, descriptor: int, data: bytes) -> None:
        try:
            rest = memoryview(data)
            while len(rest) > 0:  # a write may take only a part, and reports that only in its result
                written = self._calls.write(descriptor, rest)
                if written == 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                rest = rest[written:]
            # A failed fsync is not repeated: the kernel may have dropped the pages, and would report success.
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
        """Return the action's result; if it fails, remove the temporary file, as the disk may be full."""
        try:
            return action()
        except OSError:
            with suppress(OSError):  # report the first error; `sweep` removes the file later
                self._calls.unlink(temporary)
            raise


def _lock_of_thread(place: Place) -> threading.RLock:
    """Return the lock by which the threads of this process take turns with the lock file at a place."""
    with _lookup:
        return _locks_of_threads.setdefault(place, threading.RLock())


def _local(place: Place) -> Path:
    if not isinstance(place, Path):
        raise TypeError(f"{place} is not on a disk")
    return place
