"""The only access to the disk: all bytes of a run pass through here, so that tests can fail any call.

`SystemCalls` holds the calls to the operating system, one for each method. Tests put another class in its
place that crashes, fails, or loses what was not synced. `FileSystem` builds from these calls the few
operations that the store needs, and turns an OSError into a StoreError that names the file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TypeVar

from rayfbnn.errors import (
    StoreBusyError,
    StoreError,
    StoreExistsError,
    StoreFullError,
    StoreReadError,
)

PARTIAL = ".partial"  # the end of the name of a file that is being written; a crash may leave some behind

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_READING = {"read", "list", "look at"}
# Errors that may be over when a file is read again: a network file system that was not there for a moment.
_PASSING = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR}
_PAUSES = (0.1, 0.4)  # seconds before the second and the third attempt to read
_counter = count()

Result = TypeVar("Result")


class SystemCalls:
    """The calls to the operating system, one for each method. Every method may raise OSError."""

    def open_new(self, path: Path) -> int:
        """Return a file descriptor of a new, empty file; FileExistsError if there is one."""
        return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)

    def write(self, descriptor: int, data: memoryview) -> int:
        """Return how many bytes were written, which may be fewer than all."""
        return os.write(descriptor, data)

    def fsync(self, descriptor: int) -> None:
        """Make the content of an open file durable."""
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        """Close a file, or let go of a lock."""
        os.close(descriptor)

    def read(self, path: Path) -> bytes:
        """Return the content of a file."""
        return path.read_bytes()

    def replace(self, source: Path, destination: Path) -> None:
        """Rename a file; what has the name `destination` is gone."""
        os.replace(source, destination)

    def link(self, source: Path, destination: Path) -> None:
        """Give a file a second name; FileExistsError if the name is taken."""
        os.link(source, destination)

    def unlink(self, path: Path) -> None:
        """Remove a file."""
        path.unlink()

    def listdir(self, path: Path) -> list[str]:
        """Return the names in a directory, in any order."""
        return os.listdir(path)

    def exists(self, path: Path) -> bool:
        """Return True if the name is taken, even by a broken link."""
        return os.path.lexists(path)

    def is_directory(self, path: Path) -> bool:
        """Return True if the name is that of a directory, not of a link to one."""
        return path.is_dir() and not path.is_symlink()

    def free_bytes(self, path: Path) -> int:
        """Return the bytes that are left for this user on the disk of a folder."""
        disk = os.statvfs(path)
        return disk.f_bavail * disk.f_frsize

    def mkdir(self, path: Path) -> None:
        """Make a directory; FileExistsError if the name is taken."""
        path.mkdir()

    def rmdir(self, path: Path) -> None:
        """Remove an empty directory."""
        path.rmdir()

    def fsync_dir(self, path: Path) -> None:
        """Make the names in a directory durable."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def lock(self, path: Path) -> int:
        """Return a descriptor that locks a file until it is closed or the process ends; never waits.

        BlockingIOError means that another process holds it. The kernel releases the lock of a process that
        dies, so no lock is ever stale.
        """
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


class FileSystem:
    """File operations of a store. An OSError becomes a StoreError, but not FileNotFoundError on reading."""

    def __init__(self, calls: SystemCalls | None = None) -> None:
        self._calls = SystemCalls() if calls is None else calls

    def read(self, path: Path) -> bytes:
        """Return the content of a file; FileNotFoundError if there is none."""
        with _translated("read", path):
            return self._again(lambda: self._calls.read(path))

    def listdir(self, path: Path) -> list[str]:
        """Return the names in a directory, in order."""
        with _translated("list", path):
            return sorted(self._again(lambda: self._calls.listdir(path)))

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

    def exists(self, path: Path) -> bool:
        """Return True if the name is taken, even by a broken link."""
        with _translated("look at", path):
            return self._calls.exists(path)

    def is_directory(self, path: Path) -> bool:
        """Return True if the name is that of a directory, not of a link to one."""
        with _translated("look at", path):
            return self._calls.is_directory(path)

    def free_bytes(self, path: Path) -> int:
        """Return the bytes that are left for this user on the disk of a folder."""
        with _translated("look at", path):
            return self._calls.free_bytes(path)

    def mkdir(self, path: Path) -> None:
        """Make a directory; nothing if it is there."""
        with _translated("make", path), suppress(FileExistsError):
            self._calls.mkdir(path)

    def fsync_dir(self, path: Path) -> None:
        """Make the names in a directory durable."""
        with _translated("sync", path):
            self._calls.fsync_dir(path)

    def unlink(self, path: Path) -> None:
        """Remove a file; nothing if it is gone."""
        with _translated("remove", path), suppress(FileNotFoundError):
            self._calls.unlink(path)

    def write_atomic(self, path: Path, data: bytes) -> None:
        """Put `data` at `path`, synced: a reader, or a crash, finds the old content or the new, whole.

        The name itself is durable only after `fsync_dir` of the directory: one such call serves many files.
        """
        with _translated("write", path):
            temporary = self._write_temporary(path, data)
            self._or_remove(temporary, lambda: self._calls.replace(temporary, path))

    def write_exclusive(self, path: Path, data: bytes) -> bool:
        """Put `data` at `path` unless something is there: True if it was put. Content and name are durable.

        A hard link from a finished temporary: it fails if the name is taken, and shows the content whole.
        Where the file system has no hard links the caller must hold a lock that keeps other writers away.
        """
        with _translated("write", path):
            temporary = self._write_temporary(path, data)
            is_new = self._or_remove(temporary, lambda: self._publish(temporary, path))
            self._calls.fsync_dir(path.parent)
            return is_new

    def rename_new(self, source: Path, destination: Path) -> None:
        """Move a file or directory to a name that is not taken (else StoreExistsError), durably."""
        if self.exists(destination):
            raise StoreExistsError(f"{destination}: already exists; choose another path, or remove it")
        try:
            self._calls.replace(source, destination)
        except OSError as exc:
            if exc.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR):
                raise StoreExistsError(
                    f"{destination}: already exists; choose another path, or remove it"
                ) from exc
            raise _store_error("rename", source, exc) from exc
        for directory in dict.fromkeys((destination.parent, source.parent)):
            self.fsync_dir(directory)

    def remove_tree(self, path: Path) -> None:
        """Remove a directory and all in it."""
        for name in self.listdir(path):
            if self.is_directory(path / name):
                self.remove_tree(path / name)
            else:
                self.unlink(path / name)
        with _translated("remove", path):
            self._calls.rmdir(path)

    def sweep(self, directory: Path) -> int:
        """Remove what crashes left half written in a directory, and say how many files that was."""
        partial = [name for name in self.listdir(directory) if name.endswith(PARTIAL)]
        for name in partial:
            self.unlink(directory / name)
        return len(partial)

    @contextmanager
    def lock(self, path: Path, *, attempts: int = 1) -> Iterator[None]:
        """Hold the lock on the file `path`; StoreBusyError if it is held after `attempts`, 0.05 s apart."""
        for attempt in range(attempts):
            try:
                with _translated("lock", path):
                    descriptor = self._calls.lock(path)
                break
            except StoreBusyError:
                if attempt == attempts - 1:
                    raise
                self._calls.sleep(0.05)
        try:
            yield
        finally:
            self._calls.close(descriptor)

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


@contextmanager
def _translated(action: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        if isinstance(exc, FileNotFoundError) and action in ("read", "list"):
            raise  # what is missing means is for the caller to say
        raise _store_error(action, path, exc) from exc


def _store_error(action: str, path: Path, exc: OSError) -> StoreError:
    reason = exc.strerror or str(exc)
    if isinstance(exc, BlockingIOError):
        return StoreBusyError(f"{path}: another process holds this lock")
    if exc.errno in _FULL:
        return StoreFullError(f"{path}: no space to write it ({reason}); what was committed before is kept")
    error = StoreReadError if action in _READING else StoreError
    return error(f"{path}: cannot {action} it: {reason}")
