"""What someone may put where a new store is made, and a second process that swaps a folder for a link."""

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

Plant = Callable[[Path, Path], object]  # takes the place where a new store is made, and a folder elsewhere
MARKER = f".creating.{'0' * 32}.partial"


def make_victim(folder: Path) -> Path:
    """Make a folder of someone's files, some of which have the names of a store's, and a marker's."""
    for name in ("thesis.txt", "zarr.json", "probe", MARKER, "commits/lock", "commits/batch0000/head.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("years of work")
    for name in ("posterior/io/c.0.0.0.0", "commits/batch0000/000000.block", "posterior/zarr.json"):
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
            create(FileSystem(_Killed(SystemCalls(), at=at)), place)
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    return place.parent / hidden_name(place.name)


class _Killed(Failing):
    def pass_on(self, name: str, *args: Any) -> Any:
        if len(self.log) == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.log.append(name)
        return getattr(self.inner, name)(*args)


def _left(change: Callable[[Path, Path], object]) -> Plant:
    """A folder that a killed creation left, and that someone changed since."""

    def plant(place: Path, victim: Path) -> None:
        folder = leave_behind(place)
        assert {"posterior", "commits"} <= {path.name for path in folder.iterdir()}
        change(folder, victim)

    return plant


def _replaced(name: str, make: Callable[[Path, Path], object]) -> Plant:
    """Such a folder with something else in the place of a file or folder in it."""

    def change(folder: Path, victim: Path) -> None:
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        make(path, victim)

    return _left(change)


def _hidden(make: Callable[[Path, Path], object]) -> Plant:
    return lambda place, victim: make(place.parent / hidden_name(place.name), victim)


def _with_files(*names: str) -> Plant:
    def make(path: Path, victim: Path) -> None:
        for name in names:
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text("years of work")

    return _hidden(make)


def _renamed_store(place: Path, victim: Path) -> None:
    create(FileSystem(), place)
    place.rename(place.parent / hidden_name(place.name))


def _marker_of(folder: Path) -> Path:
    return next(path for path in folder.iterdir() if path.name.startswith(".creating."))


def _marker_replaced(make: Callable[[Path, Path], object]) -> Plant:
    def change(folder: Path, victim: Path) -> None:
        marker = _marker_of(folder)
        marker.unlink()
        make(marker, victim)

    return _left(change)


PLANTS: dict[str, Plant] = {
    "a link to a folder": _hidden(lambda path, victim: path.symlink_to(victim)),
    "a link to an empty folder": _hidden(lambda path, victim: path.symlink_to(victim / "empty")),
    "a relative link to a folder": _hidden(lambda path, victim: path.symlink_to(f"../{victim.name}")),
    "a link to a file": _hidden(lambda path, victim: path.symlink_to(victim / "thesis.txt")),
    "a broken link": _hidden(lambda path, victim: path.symlink_to(victim / "new")),
    "a link to itself": _hidden(lambda path, victim: path.symlink_to(path)),
    "a file": _hidden(lambda path, victim: path.write_text("years of work")),
    "a pipe": _hidden(lambda path, victim: os.mkfifo(path)),
    "a folder with a file": _with_files("thesis.txt"),
    "a folder with a folder": _hidden(lambda path, victim: (path / "photos").mkdir(parents=True)),
    "a folder with a file deep in it": _with_files("posterior/io/photos/thesis.txt"),
    "a folder with files named as those of a store": _with_files("zarr.json", "commits/lock"),
    "a folder with an empty file": _hidden(lambda path, v: (path.mkdir(), (path / "thesis.txt").touch())),
    "a folder with a pipe named as a file of a store": _hidden(
        lambda path, victim: (path.mkdir(), os.mkfifo(path / "zarr.json"))
    ),
    "a folder with a link to a folder": _hidden(
        lambda path, victim: (path.mkdir(), (path / "commits").symlink_to(victim / "commits"))
    ),
    "a store that someone renamed": _renamed_store,
    "a folder with a marker and a file": _with_files(MARKER, "thesis.txt"),
    "a folder with two markers": _with_files(MARKER, MARKER.replace("0", "1")),
    "a left folder with a file": _left(lambda folder, victim: (folder / "thesis.txt").write_text("work")),
    "a left folder with a hidden file": _left(lambda folder, victim: (folder / ".profile").write_text("")),
    "a left folder with a file deep in it": _left(
        lambda folder, victim: (folder / "posterior/io/thesis.txt").write_text("work")
    ),
    "a left folder with a file beside the commits": _left(
        lambda folder, victim: (folder / "commits/thesis.txt").write_text("work")
    ),
    "a left folder with a link to a folder": _replaced("posterior", lambda path, v: path.symlink_to(v)),
    "a left folder with a deep link to a folder": _replaced(
        "posterior/io", lambda path, victim: path.symlink_to(victim / "posterior/io")
    ),
    "a left folder with a link to a file": _replaced(
        "posterior/zarr.json", lambda path, victim: path.symlink_to(victim / "zarr.json")
    ),
    "a left folder with a broken link": _replaced(
        "commits/lock", lambda path, victim: path.symlink_to(victim / "new")
    ),
    "a left folder with a pipe": _replaced("posterior/io/zarr.json", lambda path, victim: os.mkfifo(path)),
    "a left folder with a file as a folder": _replaced("posterior", lambda path, victim: path.write_text("")),
    "a left folder with a folder as a file": _replaced("zarr.json", lambda path, victim: path.mkdir()),
    "a left folder whose marker is gone": _left(lambda folder, victim: _marker_of(folder).unlink()),
    "a left folder whose marker is a link": _marker_replaced(
        lambda path, victim: path.symlink_to(victim / MARKER)
    ),
    "a left folder whose marker is a broken link": _marker_replaced(
        lambda path, victim: path.symlink_to(victim / "new")
    ),
    "a left folder whose marker is a pipe": _marker_replaced(lambda path, victim: os.mkfifo(path)),
    "a left folder whose marker is a folder": _marker_replaced(lambda path, victim: path.mkdir()),
}

_SWAP = """
import os, sys

path, aside, other, how, count = *sys.argv[1:5], int(sys.argv[5])
for _ in range(count):
    try:
        os.rename(path, aside)
        os.symlink(other, path) if how == "link" else os.rename(other, path)
    except OSError:
        pass
    try:
        os.unlink(path) if how == "link" else os.rename(path, other)
    except OSError:
        pass
    try:
        os.rename(aside, path)
    except OSError:
        pass
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
