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
    "open_new write fsync close size read replace link unlink listdir exists is_directory free_bytes mkdir"
    " rmdir fsync_dir lock sleep"
).split()
READING = {"size", "read", "listdir", "exists", "is_directory", "free_bytes"}


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
    """Current names, synced names, and the changes between: sets of names added, or None if removed."""

    live: dict[str, File | Folder] = field(default_factory=dict)
    durable: dict[str, File | Folder] = field(default_factory=dict)
    pending: list[dict[str, File | Folder | None]] = field(default_factory=list)

    def change(self, **names: File | Folder | None) -> None:
        self.pending.append(names)
        _apply(self.live, names)


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
        self.open_files: dict[int, File] = {}
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

    def node(self, path: Path) -> File | Folder:
        node: File | Folder = self.root
        for part in path.parts[1:]:
            if not isinstance(node, Folder) or part not in node.live:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            node = node.live[part]
        return node

    def folder(self, path: Path) -> Folder:
        node = self.node(path)
        if not isinstance(node, Folder):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        return node

    def file(self, path: Path) -> File:
        node = self.node(path)
        if not isinstance(node, File):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        return node

    def files(self, path: Path = Path("/")) -> dict[Path, File]:
        """Every file below a folder."""
        paths: dict[Path, File] = {}
        for name, node in sorted(self.folder(path).live.items()):
            paths |= {path / name: node} if isinstance(node, File) else self.files(path / name)
        return paths

    def put(self, path: Path, content: bytes | None) -> None:
        """Give a file this content whatever was there; None removes it."""
        if self.exists(path):
            self.unlink(path)
        if content is not None:
            self._new(path, File(content, content))

    def _new(self, path: Path, node: File | Folder) -> None:
        parent = self.folder(path.parent)
        if path.name in parent.live:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        parent.change(**{path.name: node})

    def open_new(self, path: Path) -> int:
        file = File()
        self._new(path, file)
        descriptor = next(self.numbers)
        self.open_files[descriptor] = file
        return descriptor

    def write(self, descriptor: int, data: memoryview) -> int:
        self.open_files[descriptor].live += bytes(data)
        return len(data)

    def fsync(self, descriptor: int) -> None:
        file = self.open_files[descriptor]
        file.durable = file.live

    def close(self, descriptor: int) -> None:
        self.open_files.pop(descriptor, None)
        self.locks.pop(descriptor, None)

    def size(self, path: Path) -> int:
        return len(self.file(path).live)

    def read(self, path: Path) -> bytes:
        return self.file(path).live

    def replace(self, source: Path, destination: Path) -> None:
        node, old = self.node(source), self.folder(destination.parent).live.get(destination.name)
        if isinstance(old, Folder) and (old.live or isinstance(node, File)):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(destination))
        if source.parent == destination.parent:
            self.folder(source.parent).change(**{source.name: None, destination.name: node})
        else:
            self.folder(destination.parent).change(**{destination.name: node})
            self.folder(source.parent).change(**{source.name: None})

    def link(self, source: Path, destination: Path) -> None:
        self._new(destination, self.file(source))

    def unlink(self, path: Path) -> None:
        self.file(path)
        self.folder(path.parent).change(**{path.name: None})

    def listdir(self, path: Path) -> list[str]:
        return list(self.folder(path).live)

    def exists(self, path: Path) -> bool:
        try:
            self.node(path)
        except FileNotFoundError:
            return False
        return True

    def is_directory(self, path: Path) -> bool:
        return self.exists(path) and isinstance(self.node(path), Folder)

    def free_bytes(self, path: Path) -> int:
        self.folder(path)
        return self.free

    def mkdir(self, path: Path) -> None:
        self._new(path, Folder())

    def rmdir(self, path: Path) -> None:
        if self.folder(path).live:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(path))
        self.folder(path.parent).change(**{path.name: None})

    def fsync_dir(self, path: Path) -> None:
        folder = self.folder(path)
        folder.durable = dict(folder.live)
        folder.pending = []

    def lock(self, path: Path) -> int:
        if not self.exists(path):
            self._new(path, File())
        file = self.file(path)
        if any(held is file for held in self.locks.values()):
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), str(path))
        descriptor = next(self.numbers)
        self.locks[descriptor] = file
        return descriptor

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
