"""The table of what may lie in the place of a file or folder, and folders of someone else's files.

Stores, studies, and the hidden folder of a store that is being made take the same damages.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rayfbnn.store.storage.building import hidden_name
from rayfbnn.store.storage.posix import FileSystem
from rayfbnn.store.storage.system_calls import SystemCalls
from tests.support.store.disks import Failing
from tests.support.store.toy import create

Damage = Callable[[Path, Path], object]  # changes a store, a study or a path, given a folder of someone else
MARKER = f".creating.{'0' * 32}.partial"


def _sparse(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.truncate(size)


# By their names, what is made at a path where nothing is.
LINKS: dict[str, Damage] = {
    "a link to a folder": lambda path, outside: path.symlink_to(outside),
    "a link to a file": lambda path, outside: path.symlink_to(outside / "thesis.txt"),
    "a broken link": lambda path, outside: path.symlink_to(outside / "new"),
    "a pipe": lambda path, outside: os.mkfifo(path),
}
FILE: dict[str, Damage] = {"a file": lambda path, outside: path.write_text("years of work")}
FOLDER: dict[str, Damage] = {"a folder": lambda path, outside: path.mkdir()}
ANYTHING: dict[str, Damage] = {
    **LINKS,
    **FILE,
    **FOLDER,
    "a link to /dev/zero": lambda path, outside: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path, outside: path.symlink_to(path),
    "empty": lambda path, outside: path.touch(),
    "two gigabytes large": lambda path, outside: _sparse(path, 2**31),
}


def put(name: str, make: Damage) -> Damage:
    """Put something in the place of a file or folder, which may be there or not."""

    def damage(root: Path, outside: Path) -> None:
        path = root / name
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
        path.parent.mkdir(exist_ok=True)
        make(path, outside)

    return damage


def moved(name: str) -> Damage:
    """Move a file or folder elsewhere, and leave a link to it."""

    def damage(root: Path, outside: Path) -> None:
        (root / name).rename(outside / "moved")
        (root / name).symlink_to(outside / "moved")

    return damage


def in_place_of(things: dict[str, Damage], *names: str) -> Iterator[tuple[str, Damage]]:
    """Yield each of the things in the place of each file or folder, with a sentence about it."""
    for name in names:
        for what, make in things.items():
            yield f"{name} is {what}", put(name, make)


def make_outside(folder: Path) -> Path:
    """Make a folder of someone's files, some of which have the names of a store's, and a marker's."""
    for name in (
        *("thesis.txt", "c.0", "zarr.json", "probe", MARKER, "commits/lock", "commits/batch0000/head.json"),
        *("posterior/io/c.0.0.0.0", "commits/batch0000/000000.block", "posterior/zarr.json"),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("years of work")
    (folder / "empty").mkdir()
    return folder


def content(folder: Path) -> dict[str, str]:
    """Every name below a folder, with what is there: a link's target, or a file's content."""
    entries = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            entries[name] = f"link to {os.readlink(path)}"
        else:
            entries[name] = path.read_bytes().hex() if path.is_file() else f"kind {path.stat().st_mode:o}"
    return entries


def leave_behind(place: Path, *, at: int = 150) -> Path:
    """Let a process that makes a store kill itself at a call to the disk; return the folder that it left."""
    child = os.fork()
    if child == 0:
        try:
            create(FileSystem(Killed(SystemCalls(), at=at)), place)
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    return place.parent / hidden_name(place.name)


class Killed(Failing):
    """A disk at whose call number `at` the process kills itself."""

    def pass_on(self, name: str, *args: Any) -> Any:
        if len(self.log) == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.log.append(name)
        return getattr(self.inner, name)(*args)


_SWAP = """
import contextlib, os, sys

path, aside, other, how, count = *sys.argv[1:5], int(sys.argv[5])
for _ in range(count):
    with contextlib.suppress(OSError):
        os.rename(path, aside)
        os.symlink(other, path) if how == "link" else os.rename(other, path)
    with contextlib.suppress(OSError):
        os.unlink(path) if how == "link" else os.rename(path, other)
    with contextlib.suppress(OSError):
        os.rename(aside, path)
"""


@contextmanager
def swapped_again_and_again(path: Path, other: Path, how: str, count: int) -> Iterator[Callable[[], bool]]:
    """Let another process put a link to `other`, or `other` itself, in the place of `path`, and take it back.

    Gives a function that returns True until it has done so `count` times.
    """
    aside = path.parent / f"{path.name}.aside"
    command = [sys.executable, "-c", _SWAP, path, aside, other, how, count]
    process = subprocess.Popen([str(part) for part in command])
    try:
        yield lambda: process.poll() is None
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()
