"""What is removed or renamed stays where it seems to be, even if a folder is swapped for a link meanwhile.

Each deletion is disturbed in two ways: by a swap before every single call to the disk in turn, and by another
process that swaps the folder again and again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rayfbnn.errors import StoreError
from rayfbnn.sklearn.base import TemporaryStore
from rayfbnn.store.storage.posix import FileSystem
from rayfbnn.store.storage.system_calls import SystemCalls
from tests.support.store.damages import (
    MARKER,
    content,
    leave_behind,
    make_outside,
    swapped_again_and_again,
)
from tests.support.store.disks import Failing
from tests.support.store.toy import create

BLOCK, HALF = "000000.block", ".000000.block.host-1-0.partial"
SWAPS = [300, pytest.param(10_000, marks=pytest.mark.long)]


class Quick(SystemCalls):
    """Calls that make nothing durable, so that more of them fall between two swaps."""

    def fsync(self, descriptor: int) -> None:
        pass

    def fsync_dir(self, path: Path) -> None:
        pass


class Swapping(Failing):
    """A disk on which a link or a folder takes a folder's place before call number `at`, for `span` calls."""

    def __init__(self, path: Path, other: Path, *, at: int, span: int, is_link: bool) -> None:
        super().__init__(Quick(), at=at)
        self.path, self.other, self.span, self.is_link = path, other, span, is_link
        self.aside = path.parent / f"{path.name}.aside"
        self.is_swapped = False

    def pass_on(self, name: str, *args: Any) -> Any:
        number = len(self.log)
        self.log.append(name)
        if number == self.at and self.path.is_dir():
            self.path.rename(self.aside)
            self.path.symlink_to(self.other) if self.is_link else self.other.rename(self.path)
            self.is_swapped = True
        if number == self.at + self.span:
            self.swap_back()
        return getattr(self.inner, name)(*args)

    def swap_back(self) -> None:
        if self.is_swapped:
            self.is_swapped = False
            with suppress(FileNotFoundError):  # the link may be in a folder that is gone
                self.path.unlink() if self.is_link else self.path.rename(self.other)
                self.aside.rename(self.path)


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    folder = make_outside(tmp_path / "victim")
    (folder / "commits/batch0000" / HALF).write_text("years of work")
    return folder


@pytest.fixture
def here(tmp_path: Path) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("every", [307, pytest.param(23, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("name", "is_link"), [("", True), ("", False), ("posterior", True), ("commits/batch0000", True)]
)
def test_a_swap_at_any_call_of_a_creation_changes_nothing_elsewhere(
    here: Path, victim: Path, name: str, is_link: bool, every: int
) -> None:
    """The swap lasts for one call or for all; folders in the hidden one are swapped while it is cleared.

    The link leads to a folder that looks like one of ours in every file.
    """
    place, hidden = here / "toy.zarr", here / ".toy.zarr.creating"
    left = leave_behind(place).rename(here.parent / "left")
    victim = shutil.copytree(left, here.parent / "alike") if is_link else victim
    shutil.copytree(left, hidden)
    rehearsal = Failing(Quick())
    create(FileSystem(rehearsal), place)
    n_calls = rehearsal.log.index("open_new") if name else len(rehearsal.log)
    before, n_refused = content(victim), 0
    for at in range(every // 20, n_calls, every // 3 if name else every):
        for span in (1, 10**6):
            shutil.rmtree(here)
            here.mkdir()
            shutil.copytree(left, hidden)
            calls = Swapping(hidden / name, victim / name, at=at, span=span, is_link=is_link)
            try:
                create(FileSystem(calls), place)
            except StoreError:
                n_refused += 1
            calls.swap_back()
            assert content(victim) == before, (at, rehearsal.log[at], span)
    assert n_refused > 0


def clearing(here: Path, left: Path, count: int, swapped: Path, other: Path, how: str) -> None:
    """Make stores where others were left, while a folder is swapped."""
    place, staged = here / "toy.zarr", here / "staged"
    with swapped_again_and_again(swapped, other, how, count) as goes_on:
        while goes_on():
            shutil.copytree(left, staged)
            with suppress(OSError):
                staged.rename(here / ".toy.zarr.creating")
            with suppress(StoreError):
                create(FileSystem(Quick()), place)
            for path in (place, staged):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)


@pytest.mark.parametrize("count", SWAPS)
@pytest.mark.parametrize("how", ["link", "folder"])
def test_a_race_with_a_creation_changes_nothing_elsewhere(
    here: Path, victim: Path, how: str, count: int
) -> None:
    left = leave_behind(here / "toy.zarr").rename(here.parent / "left")
    victim = shutil.copytree(left, here.parent / "alike") if how == "link" else victim
    before = content(victim)
    clearing(here, left, count, here / ".toy.zarr.creating", victim, how)
    for path in (here / ".toy.zarr.creating", here / "toy.zarr"):
        if not victim.exists() and (path / "thesis.txt").exists() and not path.is_symlink():
            path.rename(victim)
    assert content(victim) == before


def _unlink(storage: FileSystem, store: Path) -> None:
    storage.unlink(store / "commits" / "batch0000" / BLOCK, below=store)


def _sweep(storage: FileSystem, store: Path) -> None:
    storage.sweep(store / "commits" / "batch0000", below=store)


def _set_aside(storage: FileSystem, store: Path) -> None:
    kept = store / "discarded" / str(len(list((store / "discarded").iterdir())))
    storage.rename_new(store / "commits" / "batch0000" / BLOCK, kept, below=store)


@pytest.mark.parametrize("count", SWAPS)
@pytest.mark.parametrize("name", ["commits", "commits/batch0000"])
@pytest.mark.parametrize("remove", [_unlink, _sweep, _set_aside])
def test_a_race_with_a_deletion_in_a_store_changes_nothing_elsewhere(
    remove: Callable[[FileSystem, Path], None], name: str, count: int, here: Path, victim: Path
) -> None:
    store = here / "toy.zarr"
    for folder in ("commits/batch0000", "discarded"):
        (store / folder).mkdir(parents=True)
    real = os.open(store / "commits" / "batch0000", os.O_RDONLY)
    before, n_removed = content(victim), 0
    with swapped_again_and_again(store / name, victim / name, "link", count) as goes_on:
        while goes_on():
            for file in (BLOCK, HALF):
                os.close(os.open(file, os.O_CREAT | os.O_WRONLY, dir_fd=real))
            with suppress(StoreError):
                remove(FileSystem(Quick()), store)
            n_removed += len(os.listdir(real)) < 2
    os.close(real)
    assert n_removed > 0
    assert content(victim) == before


@pytest.mark.parametrize("remove", [_unlink, _sweep, _set_aside])
@pytest.mark.parametrize("name", ["commits", "commits/batch0000"])
def test_a_deletion_in_a_store_follows_no_link(
    remove: Callable[[FileSystem, Path], None], name: str, here: Path, victim: Path
) -> None:
    store = here / "toy.zarr"
    for folder in ("commits/batch0000", "discarded"):
        (store / folder).mkdir(parents=True)
    shutil.rmtree(store / name)
    (store / name).symlink_to(victim / name)
    before = content(here.parent)
    with pytest.raises(StoreError, match="a part of its path is a link"):
        remove(FileSystem(), store)
    assert content(here.parent) == before


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("commits")])
def test_a_sweep_removes_no_folder_pipe_or_link(make: Callable[[Path], object], here: Path) -> None:
    (here / "commits" / "batch0000").mkdir(parents=True)
    for name in (HALF, MARKER, "download.partial", ".x.partial"):
        make(here / "commits" / "batch0000" / name)
    before = content(here)
    _sweep(FileSystem(), here)
    assert content(here) == before


def test_a_sweep_removes_no_file_whose_name_is_not_ours(here: Path) -> None:
    (here / "commits" / "batch0000").mkdir(parents=True)
    for name in ("download.partial", ".x.partial", ".x.y-1.partial", f"{HALF}.bak", HALF, MARKER):
        (here / "commits" / "batch0000" / name).write_text("")
    assert FileSystem().sweep(here / "commits" / "batch0000", below=here) == 2
    assert sorted(os.listdir(here / "commits" / "batch0000")) == [
        f"{HALF}.bak",
        ".x.partial",
        ".x.y-1.partial",
        "download.partial",
    ]


@pytest.mark.parametrize("how", ["link", "folder"])
def test_an_estimator_removes_only_the_folder_that_it_made(
    how: str, here: Path, victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(here))
    temporary = TemporaryStore()
    folder = temporary.path.parent
    folder.rename(here / "aside")
    folder.symlink_to(victim) if how == "link" else victim.rename(folder)
    before = content(here.parent)
    del temporary
    assert content(here.parent) == before


@pytest.mark.parametrize("count", SWAPS)
@pytest.mark.parametrize("how", ["link", "folder"])
def test_a_race_with_an_estimator_that_goes_changes_nothing_elsewhere(
    how: str, count: int, here: Path, victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(here))
    before = content(victim)
    for number in range(3 if count < 1000 else 20):
        temporary = TemporaryStore()
        for inner in range(300):
            (temporary.path / "commits" / str(inner)).mkdir(parents=True)
        with swapped_again_and_again(temporary.path.parent, victim, how, count // 20) as goes_on:
            del temporary
            while goes_on():
                pass
        assert content(victim) == before, number
