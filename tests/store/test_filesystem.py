"""The file system interface: the guarantees of its operations on the real file system."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rayfbnn.errors import StoreBusyError, StoreError, StoreExistsError, StoreFullError
from rayfbnn.store.storage.posix import FileSystem
from rayfbnn.store.storage.protocol import PARTIAL
from rayfbnn.store.storage.system_calls import SystemCalls

FS = FileSystem()


def test_a_failed_atomic_write_leaves_the_old_content_and_nothing_else(tmp_path: Path) -> None:
    class Full(SystemCalls):
        def fsync(self, descriptor: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    FS.write_atomic(tmp_path / "file", b"old")
    with pytest.raises(StoreFullError, match=str(tmp_path / "file")):
        FileSystem(Full()).write_atomic(tmp_path / "file", b"new")
    assert FS.read(tmp_path / "file") == b"old"
    assert FS.listdir(tmp_path) == ["file"]


def test_a_rename_loses_the_race_for_a_name_loudly(tmp_path: Path) -> None:
    class Unseen(SystemCalls):
        def exists(self, path: Path, at: int | None = None) -> bool:
            return False

    for name in ("a", "b"):
        FS.mkdir(tmp_path / name)
        FS.write_atomic(tmp_path / name / "file", name.encode())
    with pytest.raises(StoreExistsError):
        FileSystem(Unseen()).rename_new(tmp_path / "a", tmp_path / "b", below=tmp_path)
    assert FS.read(tmp_path / "b" / "file") == b"b"


def test_a_missing_file_is_told_from_an_unreadable_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        FS.read(tmp_path / "none")
    with pytest.raises(StoreError, match="it is not a file but a link, a pipe, a device or a folder"):
        FS.read(tmp_path)


def test_a_write_to_a_missing_folder_is_a_store_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot write it: No such file"):
        FS.write_atomic(tmp_path / "none" / "file", b"")


def test_waiting_for_a_lock_ends_after_its_attempts(tmp_path: Path) -> None:
    class Clock(SystemCalls):
        slept = 0.0

        def sleep(self, seconds: float) -> None:
            self.slept += seconds

    clock = Clock()
    with FS.lock(tmp_path / "lock"):
        with (
            pytest.raises(StoreBusyError, match="another process holds"),
            FileSystem(clock).lock(tmp_path / "lock", attempts=5),
        ):
            raise AssertionError
    assert clock.slept == pytest.approx(0.2)


def test_a_thread_waits_for_another_one_however_long_it_takes(tmp_path: Path) -> None:
    class NoClock(SystemCalls):
        def sleep(self, seconds: float) -> None:
            raise AssertionError("it looks again and again, and gives up")

    entered: list[str] = []
    place = tmp_path / "lock"

    def commit() -> None:
        with FileSystem(NoClock()).writer_lock(place):
            entered.append("commit")

    with ThreadPoolExecutor(1) as threads, FS.writer_lock(place):
        other = threads.submit(commit)
        with pytest.raises(TimeoutError):
            other.result(timeout=0.2)
        with FS.writer_lock(tmp_path / "other"):  # another batch need not wait
            entered.append("gather")
    other.result()
    assert entered == ["gather", "commit"]


def test_a_sweep_removes_what_is_half_written_and_nothing_else(tmp_path: Path) -> None:
    for name in ("file", f".file.host-1-0{PARTIAL}", f".other.host-2-3{PARTIAL}"):
        (tmp_path / name).write_bytes(b"")
    assert FS.sweep(tmp_path, below=tmp_path) == 2
    assert FS.listdir(tmp_path) == ["file"]
