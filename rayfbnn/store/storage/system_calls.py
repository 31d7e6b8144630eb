"""The calls to the operating system, one for each method, so that tests can fail any of them."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from pathlib import Path


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

    def size(self, path: Path) -> int:
        """Return the bytes of a file; OSError (ENXIO) if it is a link, a pipe, a device or a folder."""
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.ENXIO, "it is no file but a link, a pipe, a device or a folder")
        return status.st_size

    def read(self, path: Path) -> bytes:
        """Return the content of a file; a link is not followed."""
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            return file.read()

    def modified(self, path: Path) -> float:
        """Return the time of a file's last change, in seconds since 1970."""
        return os.lstat(path).st_mtime

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
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)
