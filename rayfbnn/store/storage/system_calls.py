"""The calls to the operating system, one for each method, so that tests can fail any of them."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from pathlib import Path

_NO_FILE = "it is no file but a link, a pipe, a device or a folder"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_THIS_PROCESS = Path("/proc/self/fd")  # of Linux; elsewhere there is none


class SystemCalls:
    """The calls to the operating system, one for each method. Every method may raise OSError.

    A path is taken from the open folder `at`, if one is given: then whoever renames a folder of the path, or
    puts a link in its place, does not change where the call leads. The last name of a path is never followed
    if it is that of a link, but for the methods that say so.
    """

    def open_new(self, path: Path, at: int | None = None) -> int:
        """Return a file descriptor of a new, empty file; FileExistsError if there is one."""
        return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666, dir_fd=at)

    def open_file(self, path: Path, at: int) -> int:
        """Return a descriptor of a file that is there; OSError (ENXIO) if it is a pipe or a device."""
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
        """Return a path of an open folder that holds whoever renames it; `path` where there is none."""
        own = _THIS_PROCESS / str(descriptor)
        return own if own.is_dir() else path

    def is_same(self, descriptor: int, path: Path, at: int) -> bool:
        """Return True if a name is that of an open file or folder."""
        try:
            named = os.stat(path, dir_fd=at, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(named, os.fstat(descriptor))

    def write(self, descriptor: int, data: memoryview) -> int:
        """Return how many bytes were written, which may be fewer than all."""
        return os.write(descriptor, data)

    def fsync(self, descriptor: int) -> None:
        """Make the content of an open file durable, or the names in an open folder."""
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        """Close a file, or let go of a lock."""
        os.close(descriptor)

    def size(self, path: Path, at: int | None = None) -> int:
        """Return the bytes of a file; OSError (ENXIO) if it is a link, a pipe, a device or a folder."""
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
        """Rename a file; what has the name `destination`, taken from the folder `to`, is gone."""
        os.replace(source, destination, src_dir_fd=at, dst_dir_fd=to)

    def link(self, source: Path, destination: Path) -> None:
        """Give a file a second name; FileExistsError if the name is taken."""
        os.link(source, destination)

    def unlink(self, path: Path, at: int | None = None) -> None:
        """Remove a file."""
        os.unlink(path, dir_fd=at)

    def listdir(self, path: Path | int) -> list[str]:
        """Return the names in a directory, which may be an open one, in any order."""
        return os.listdir(path)

    def exists(self, path: Path, at: int | None = None) -> bool:
        """Return True if the name is taken, even by a broken link."""
        return self._mode(path, at) is not None

    def is_directory(self, path: Path, at: int | None = None) -> bool:
        """Return True if the name is that of a directory, not of a link to one."""
        mode = self._mode(path, at)
        return mode is not None and stat.S_ISDIR(mode)

    def is_file(self, path: Path, at: int | None = None) -> bool:
        """Return True if the name is that of a file, not of a link, a pipe or a device."""
        mode = self._mode(path, at)
        return mode is not None and stat.S_ISREG(mode)

    def _mode(self, path: Path, at: int | None) -> int | None:
        """Return the mode of what has a name; None if there is nothing, or it cannot be looked at."""
        try:
            return os.stat(path, dir_fd=at, follow_symlinks=False).st_mode
        except (OSError, ValueError):
            return None

    def free_bytes(self, path: Path) -> int:
        """Return the bytes that are left for this user on the disk of a folder."""
        disk = os.statvfs(path)
        return disk.f_bavail * disk.f_frsize

    def mkdir(self, path: Path, at: int | None = None) -> None:
        """Make a directory; FileExistsError if the name is taken."""
        os.mkdir(path, dir_fd=at)

    def rmdir(self, path: Path, at: int | None = None) -> None:
        """Remove an empty directory."""
        os.rmdir(path, dir_fd=at)

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
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        try:
            self.flock(descriptor)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def flock(self, descriptor: int) -> None:
        """Lock an open file as `lock` does."""
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)
