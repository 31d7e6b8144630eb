"""Disks that fail on demand: at the n-th call, or by losing what was not synced."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from rayfbnn.store.storage.system_calls import SystemCalls

CALLS = (
    "open_new open_file open_folder open_inner inside is_same write fsync close size read replace link unlink"
    " listdir exists is_directory is_file free_bytes mkdir rmdir fsync_dir lock is_locked flock sleep"
).split()
READING = {"size", "read", "listdir", "exists", "is_directory", "is_file", "free_bytes", "is_locked"}
READING |= {"open_file", "open_folder", "open_inner", "inside", "is_same"}


class Crash(BaseException):
    """The death of the process; no error handler may run on it."""


class Failing(SystemCalls):
    """A disk that passes calls on to `inner`, except call number `at` (from 0), where `fault` happens.

    crash       the process dies before the call, and every later call fails too
    torn        the process dies halfway: half of the bytes are written (other calls: nothing happens)
    EIO, ENOSPC the call fails with this error and has done nothing
    EIO after   the call fails with the error although it was done, as on a network file system
    short       half of the bytes are written, and the call says so
    With `forever` every call from `at` on fails in this way, as on a disk that stays full.
    """

    def __init__(
        self, inner: SystemCalls, *, at: int = -1, fault: str = "crash", forever: bool = False
    ) -> None:
        self.inner, self.at, self.fault, self.forever = inner, at, fault, forever
        self.log: list[str] = []
        self.is_dead = False

    def pass_on(self, name: str, *args: Any) -> Any:
        if self.is_dead:
            raise Crash
        number = len(self.log)
        self.log.append(name)
        call = getattr(self.inner, name)
        is_hit = number == self.at or (self.forever and number >= self.at >= 0)
        if not is_hit or (name in ("close", "sleep") and self.fault != "crash"):
            return call(*args)
        if self.fault in ("crash", "torn"):
            if self.fault == "torn" and name == "write":
                call(args[0], args[1][: len(args[1]) // 2])
            self.is_dead = True
            raise Crash
        if self.fault == "short":
            return call(args[0], args[1][: (len(args[1]) + 1) // 2]) if name == "write" else call(*args)
        if self.fault == "EIO after":
            call(*args)
            if name == "lock":  # a descriptor that nobody received
                return None
        code = errno.ENOSPC if self.fault == "ENOSPC" else errno.EIO
        raise OSError(code, os.strerror(code))


def _passing(name: str) -> Callable[..., Any]:
    def call(self: Failing, *args: Any) -> Any:
        return self.pass_on(name, *args)

    return call


for _name in CALLS:
    setattr(Failing, _name, _passing(_name))


@dataclass(eq=False)
class File:
    live: bytes = b""
    durable: bytes = b""


@dataclass(eq=False)
class Folder:
    """Current names, synced names, and the changes between: sets of names added, or None if removed.

    Nothing can be put into a folder that was removed while it was open.
    """

    live: dict[str, File | Folder] = field(default_factory=dict)
    durable: dict[str, File | Folder] = field(default_factory=dict)
    pending: list[dict[str, File | Folder | None]] = field(default_factory=list)
    is_removed: bool = False

    def change(self, **names: File | Folder | None) -> None:
        self.pending.append(names)
        _apply(self.live, names)

    def sync(self) -> None:
        self.durable = dict(self.live)
        self.pending = []


def _apply(names: dict[str, File | Folder], change: dict[str, File | Folder | None]) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class MemoryDisk(SystemCalls):
    """A disk in memory that tracks what is synced: contents by fsync, names by fsync of the folder."""

    def __init__(self) -> None:
        self.root = Folder()
        self.free = 2**50  # bytes
        self.reboot()

    def reboot(self) -> None:
        """End the process: its descriptors and locks are gone."""
        self.open_files: dict[int, File | Folder] = {}
        self.locks: dict[int, File] = {}
        self.numbers = count(3)

    def copy(self) -> MemoryDisk:
        """Return another disk with the same content, all of it synced."""
        other = MemoryDisk()
        other.root = _copied(self.root)
        return other

    def after_power_loss(self, keep: Callable[[], float]) -> MemoryDisk:
        """Return a state in which the disk may be when power comes back; `keep` decides by numbers in [0, 1).

        Any subset of a folder's changes since its last sync may survive. A file may keep any prefix of its
        content, followed by zeros or by nothing.
        """
        other = MemoryDisk()
        other.root = _survivor(self.root, keep)
        return other

    def content(self) -> Hashable:
        """All names and bytes that a process finds now, synced or not."""
        return _content(self.root)

    def node(self, path: Path, at: int | None = None) -> File | Folder:
        node: File | Folder = self.root if at is None else self.open_files[at]
        for part in path.parts[1:] if at is None else path.parts:
            if not isinstance(node, Folder) or part not in node.live:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            node = node.live[part]
        return node

    def folder(self, path: Path, at: int | None = None) -> Folder:
        node = self.node(path, at)
        if not isinstance(node, Folder):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        return node

    def file(self, path: Path, at: int | None = None) -> File:
        node = self.node(path, at)
        if not isinstance(node, File):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        return node

    def files(self, path: Path = Path("/")) -> dict[Path, File]:
        """Every file below a folder."""
        paths: dict[Path, File] = {}
        for name, node in sorted(self.folder(path).live.items()):
            paths |= {path / name: node} if isinstance(node, File) else self.files(path / name)
        return paths

    def contents(self) -> dict[Path, bytes]:
        """Return the content of every file, synced or not."""
        return {path: file.live for path, file in self.files().items()}

    def put(self, path: Path, content: bytes | None) -> None:
        """Give a file this content whatever was there; None removes it."""
        if self.exists(path):
            self.unlink(path)
        if content is not None:
            self._new(path, File(content, content))

    def _new(self, path: Path, node: File | Folder, at: int | None = None) -> None:
        parent = self.folder(path.parent, at)
        if parent.is_removed:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        if path.name in parent.live:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        parent.change(**{path.name: node})

    def _open(self, node: File | Folder) -> int:
        descriptor = next(self.numbers)
        self.open_files[descriptor] = node
        return descriptor

    def open_new(self, path: Path, at: int | None = None) -> int:
        file = File()
        self._new(path, file, at)
        return self._open(file)

    def open_file(self, path: Path, at: int) -> int:
        return self._open(self.file(path, at))

    def open_folder(self, path: Path) -> int:
        return self._open(self.folder(path))

    def open_inner(self, path: Path, at: int) -> int:
        return self._open(self.folder(path, at))

    def inside(self, descriptor: int, path: Path) -> Path:
        return path

    def is_same(self, descriptor: int, path: Path, at: int) -> bool:
        return self.exists(path, at) and self.node(path, at) is self.open_files[descriptor]

    def _opened(self, descriptor: int) -> File:
        file = self.open_files[descriptor]
        assert isinstance(file, File)
        return file

    def write(self, descriptor: int, data: memoryview) -> int:
        self._opened(descriptor).live += bytes(data)
        return len(data)

    def fsync(self, descriptor: int) -> None:
        node = self.open_files[descriptor]
        if isinstance(node, Folder):
            node.sync()
        else:
            node.durable = node.live

    def close(self, descriptor: int) -> None:
        self.open_files.pop(descriptor, None)
        self.locks.pop(descriptor, None)

    def size(self, path: Path, at: int | None = None) -> int:
        return len(self.file(path, at).live)

    def read(self, path: Path, n_bytes: int = -1) -> bytes:
        content = self.file(path).live
        return content if n_bytes < 0 else content[:n_bytes]

    def replace(self, source: Path, destination: Path, at: int | None = None, to: int | None = None) -> None:
        before, after = self.folder(source.parent, at), self.folder(destination.parent, to)
        node, old = self.node(source, at), after.live.get(destination.name)
        if isinstance(old, Folder) and (old.live or isinstance(node, File)):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(destination))
        if before is after:
            before.change(**{source.name: None, destination.name: node})
        else:
            after.change(**{destination.name: node})
            before.change(**{source.name: None})

    def link(self, source: Path, destination: Path) -> None:
        self._new(destination, self.file(source))

    def unlink(self, path: Path, at: int | None = None) -> None:
        self.file(path, at)
        self.folder(path.parent, at).change(**{path.name: None})

    def listdir(self, path: Path | int) -> list[str]:
        folder = self.folder(path) if isinstance(path, Path) else self.folder(Path(), path)
        return list(folder.live)

    def exists(self, path: Path, at: int | None = None) -> bool:
        try:
            self.node(path, at)
        except FileNotFoundError:
            return False
        return True

    def is_directory(self, path: Path, at: int | None = None) -> bool:
        return self.exists(path, at) and isinstance(self.node(path, at), Folder)

    def is_file(self, path: Path, at: int | None = None) -> bool:
        return self.exists(path, at) and isinstance(self.node(path, at), File)

    def free_bytes(self, path: Path) -> int:
        self.folder(path)
        return self.free

    def mkdir(self, path: Path, at: int | None = None) -> None:
        self._new(path, Folder(), at)

    def rmdir(self, path: Path, at: int | None = None) -> None:
        folder = self.folder(path, at)
        if folder.live:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(path))
        folder.is_removed = True
        self.folder(path.parent, at).change(**{path.name: None})

    def fsync_dir(self, path: Path) -> None:
        self.folder(path).sync()

    def lock(self, path: Path) -> int:
        if not self.exists(path):
            self._new(path, File())
        descriptor = self._open(self.file(path))
        try:
            self.flock(descriptor)
        except BlockingIOError:
            self.close(descriptor)
            raise
        return descriptor

    def is_locked(self, path: Path) -> bool:
        file = self.file(path)
        return any(held is file for held in self.locks.values())

    def flock(self, descriptor: int) -> None:
        file = self._opened(descriptor)
        if any(held is file for held in self.locks.values()):
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self.locks[descriptor] = file

    def sleep(self, seconds: float) -> None:
        pass


def _copied(folder: Folder) -> Folder:
    """Copy a folder with everything synced. Hard links become separate files, which nothing here can tell."""
    nodes: dict[str, File | Folder] = {
        name: File(node.live, node.live) if isinstance(node, File) else _copied(node)
        for name, node in folder.live.items()
    }
    return Folder(nodes, dict(nodes))


def _content(folder: Folder) -> Hashable:
    return tuple(
        (name, node.live if isinstance(node, File) else _content(node))
        for name, node in sorted(folder.live.items())
    )


def _survivor(folder: Folder, keep: Callable[[], float]) -> Folder:
    names = dict(folder.durable)
    chance = keep()
    for change in folder.pending:
        if keep() < chance:
            _apply(names, change)
    nodes: dict[str, File | Folder] = {}
    for name, node in names.items():
        if isinstance(node, Folder):
            nodes[name] = _survivor(node, keep)
        else:
            content = _survived(node, keep)
            nodes[name] = File(content, content)
    return Folder(nodes, dict(nodes))


def _survived(file: File, keep: Callable[[], float]) -> bytes:
    if file.live == file.durable:
        return file.live
    n = int(keep() * (len(file.live) + 1))
    return file.live[:n] + (b"\0" * (len(file.live) - n) if keep() < 0.5 else b"")


def flipped(raw: bytes, bit: int) -> bytes:
    """Return the content with one bit changed."""
    changed = bytearray(raw)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)
