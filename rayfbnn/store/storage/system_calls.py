"""The calls to the operating system, one for each method, with errors that name the file and advise."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rayfbnn.errors import (
    NO_SPACE,
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    StoreExistsError,
    StoreFullError,
    StoreReadError,
)
from rayfbnn.store.storage.places import Place

NO_FOLDER = {errno.ENOTDIR, errno.ELOOP}  # errors of opening a link as a folder without following it

# A file is missing, too, if a part of its path is not a folder, or if its name is too long.
_MISSING = {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG}
_NOT_FILES = {errno.ELOOP, errno.ENXIO, errno.EISDIR}
_TAKEN = {errno.EEXIST, errno.ENOTEMPTY, errno.EISDIR}
_READING = {"read", "list", "look at"}


@contextmanager
def translated(action: str, place: Place) -> Iterator[None]:
    """Raise an OSError as a StoreError that says which action on `place` failed.

    If the action is "read" or "list", a missing file or folder is a FileNotFoundError, because only the
    caller knows the meaning.
    """
    try:
        yield
    except OSError as exc:
        if exc.errno in _MISSING and action in ("read", "list"):
            raise FileNotFoundError(*exc.args) from exc
        raise _store_error(action, place, exc) from exc


def _store_error(action: str, place: Place, exc: OSError) -> StoreError:
    """Return the StoreError for an error of an action on a file."""
    reason = exc.strerror or str(exc)
    if isinstance(exc, BlockingIOError):
        return StoreBusyError(f"{place}: another process holds this lock")
    if action in ("read", "lock") and exc.errno in _NOT_FILES:
        return StoreCorruptError(
            f"{place}: damaged: it is not a file but a link, a pipe, a device or a folder"
        )
    if action in ("make", "rename") and exc.errno in _TAKEN:
        return StoreExistsError(f"{place}: already exists; choose another path, or remove it")
    if action in ("remove", "rename") and exc.errno in NO_FOLDER:
        return StoreCorruptError(
            f"{place}: nothing was changed, because a part of its path is a link or a file"
        )
    if exc.errno in NO_SPACE:
        return StoreFullError(f"{place}: no space to write it ({reason}); all committed draws are kept")
    if exc.errno == errno.ENOENT:
        return StoreCorruptError(
            f"{place}: cannot {action} it: {reason}; something may have removed it or its folder, such as a"
            " cleaner of temporary folders"
        )
    error = StoreReadError if action in _READING else StoreError
    return error(f"{place}: cannot {action} it: {reason}")


_NO_FILE = "it is not a file but a link, a pipe, a device or a folder"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_THIS_PROCESS = Path("/proc/self/fd")  # exists on Linux only


class SystemCalls:
    """The calls to the operating system, one for each method. Every method may raise OSError.

    If `at` is given, the path starts in this open folder. Nobody can then redirect the call by renaming a
    folder of the path or by replacing it with a link. If the last name of a path is a link, it is not
    followed, except where a method says so.
    """

    def open_new(self, path: Path, at: int | None = None) -> int:
        """Return a descriptor of a new, empty file; FileExistsError if the name is taken."""
        return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666, dir_fd=at)

    def open_file(self, path: Path, at: int) -> int:
        """Return a descriptor of an existing file; OSError (ENXIO) if it is a pipe or a device."""
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=at)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.ENXIO, _NO_FILE)
        return descriptor

    def open_folder(self, path: Path) -> int:
        """Return a descriptor of a folder; a link to one is followed."""
        return os.open(path, _FOLDER)

    def open_inner(self, path: Path, at: int) -> int:
        """Return a descriptor of a folder; OSError (ENOTDIR or ELOOP) if it is a link or a file."""
        return os.open(path, _FOLDER | os.O_NOFOLLOW, dir_fd=at)

    def inside(self, descriptor: int, path: Path) -> Path:
        """Return a path to an open folder that stays valid when it is renamed; `path` outside Linux."""
        own = _THIS_PROCESS / str(descriptor)
        return own if own.is_dir() else path

    def is_same(self, descriptor: int, path: Path, at: int) -> bool:
        """Return True if a name belongs to an open file or folder."""
        try:
            named = os.stat(path, dir_fd=at, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(named, os.fstat(descriptor))

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write data, and return the number of bytes written, which may be less than all."""
        return os.write(descriptor, data)

    def fsync(self, descriptor: int) -> None:
        """Make the content of an open file durable, or the names in an open folder."""
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        """Close a file, or release a lock."""
        os.close(descriptor)

    def size(self, path: Path, at: int | None = None) -> int:
        """Return the size of a file; OSError (ENXIO) if it is a link, a pipe, a device or a folder."""
        status = os.stat(path, dir_fd=at, follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.ENXIO, _NO_FILE)
        return status.st_size

    def read(self, path: Path, n_bytes: int = -1) -> bytes:
        """Return the content of a file, or its first bytes; a link is not followed."""
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            return file.read(n_bytes)

    def modified(self, path: Path) -> float:
        """Return the time of a file's last change, in seconds since 1970."""
        return os.lstat(path).st_mtime

    def replace(self, source: Path, destination: Path, at: int | None = None, to: int | None = None) -> None:
        """Rename a file and replace `destination`, a path that starts in the folder `to`."""
        os.replace(source, destination, src_dir_fd=at, dst_dir_fd=to)

    def link(self, source: Path, destination: Path) -> None:
        """Give a file a second name; FileExistsError if the name is taken."""
        os.link(source, destination)

    def unlink(self, path: Path, at: int | None = None) -> None:
        """Remove a file."""
        os.unlink(path, dir_fd=at)

    def listdir(self, path: Path | int) -> list[str]:
        """Return the names in a folder, which may be an open one, in any order."""
        return os.listdir(path)

    def exists(self, path: Path, at: int | None = None) -> bool:
        """Return True if the name is taken, even by a broken link."""
        return self._mode(path, at) is not None

    def is_directory(self, path: Path, at: int | None = None) -> bool:
        """Return True for a folder, but not for a link to one."""
        mode = self._mode(path, at)
        return mode is not None and stat.S_ISDIR(mode)

    def is_file(self, path: Path, at: int | None = None) -> bool:
        """Return True for a file, but not for a link, a pipe or a device."""
        mode = self._mode(path, at)
        return mode is not None and stat.S_ISREG(mode)

    def _mode(self, path: Path, at: int | None) -> int | None:
        """Return the mode of a file or folder; None if it does not exist or cannot be looked at."""
        try:
            return os.stat(path, dir_fd=at, follow_symlinks=False).st_mode
        except (OSError, ValueError):
            return None

    def free_bytes(self, path: Path) -> int:
        """Return the number of bytes left for this user on the disk of a folder."""
        disk = os.statvfs(path)
        return disk.f_bavail * disk.f_frsize

    def mkdir(self, path: Path, at: int | None = None) -> None:
        """Make a folder; FileExistsError if the name is taken."""
        os.mkdir(path, dir_fd=at)

    def rmdir(self, path: Path, at: int | None = None) -> None:
        """Remove an empty folder."""
        os.rmdir(path, dir_fd=at)

    def fsync_dir(self, path: Path) -> None:
        """Make the names in a folder durable."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def lock(self, path: Path) -> int:
        """Lock a file without waiting, and return a descriptor that holds the lock until it is closed.

        BlockingIOError means that another process holds the lock. The kernel releases the lock of a process
        that dies, so no lock is ever stale.
        """
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        try:
            self.flock(descriptor)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def is_locked(self, path: Path) -> bool:
        """Return True if a process has locked a file as `lock` does; FileNotFoundError without the file.

        The lock tried here is a shared one, so that processes that ask at once do not see each other.
        """
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def flock(self, descriptor: int) -> None:
        """Lock an open file as `lock` does."""
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)
