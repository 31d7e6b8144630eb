"""A file that the system cannot read is not damaged: it is reported, and repair leaves it alone."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rayfbnn.errors import StoreError, StoreMismatchError, StoreReadError
from rayfbnn.store.records import NO_SEAL, SEAL, VerifyReport, seal
from rayfbnn.store.storage.posix import FileSystem
from rayfbnn.store.storage.system_calls import SystemCalls
from rayfbnn.store.store import Store
from rayfbnn.store.verify import verify
from tests.support.store.crashes import half_way, undisturbed
from tests.support.store.disks import Failing, MemoryDisk, flipped
from tests.support.store.toy import PATH, contents, create, empty_disk, opened, run_to_end

CHUNK = PATH / "posterior/io/c.0.0.0.0"
OTHER_CHUNK = PATH / "posterior/bo/c.1.0.0"
STATE = PATH / "commits/batch0000/000002.segment"
RECORD = PATH / "commits/batch0000/000001.segment"


class Unreadable(Failing):
    """A disk where reads of `path` fail with `code` the first `times` times, or flip one bit if code is 0."""

    def __init__(self, inner: SystemCalls, path: Path, *, code: int = errno.EIO, times: int = 1) -> None:
        super().__init__(inner)
        self.path, self.code, self.times = path, code, times

    def read(self, path: Path) -> bytes:
        if path == self.path and self.times > 0:
            self.times -= 1
            if self.code:
                raise OSError(self.code, os.strerror(self.code))
            return flipped(self.inner.read(path), 9)
        return self.inner.read(path)


def finished() -> MemoryDisk:
    disk = empty_disk()
    run_to_end(create(FileSystem(disk)))
    return disk.copy()


def files(disk: MemoryDisk) -> dict[Path, bytes]:
    return {path: file.live for path, file in disk.files().items() if path.name != "lock"}


def repaired(calls: SystemCalls) -> VerifyReport:
    return Store.open(PATH, fs=FileSystem(calls), check_records=False).repair()


@pytest.mark.parametrize("path", [CHUNK, STATE, RECORD], ids=["chunk", "state", "record"])
@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.ESTALE, errno.ETIMEDOUT])
def test_repair_changes_nothing_on_account_of_a_read_error(path: Path, code: int) -> None:
    disk = finished()
    before = files(disk)
    report = repaired(Unreadable(disk, path, code=code, times=10**6))
    assert {problem.file for problem in report.problems} == {str(path.relative_to(PATH))}
    assert report.read_errors == report.problems and report.damage == () and report.repairs == ()
    assert all(os.strerror(code) in problem.what for problem in report.problems)
    assert files(disk) == before


@pytest.mark.parametrize("path", [CHUNK, STATE, RECORD], ids=["chunk", "state", "record"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT])
def test_an_error_that_passes_is_no_error(path: Path, code: int) -> None:
    disk = finished()
    expected = contents(opened(disk))
    assert repaired(Unreadable(disk, path, code=code, times=2)).ok
    assert contents(opened(Unreadable(disk, path, code=code, times=2))) == expected


def test_permissions_are_not_waited_for() -> None:
    calls = Unreadable(finished(), RECORD, code=errno.EACCES)
    assert [problem.is_read_error for problem in verify(PATH, fs=FileSystem(calls)).problems] == [True]
    assert "sleep" not in calls.log


@pytest.mark.parametrize("path", [CHUNK, STATE, RECORD], ids=["chunk", "state", "record"])
def test_what_is_whole_when_read_again_is_no_damage(path: Path) -> None:
    disk = finished()
    before = files(disk)
    report = verify(PATH, fs=FileSystem(Unreadable(disk, path, code=0)))
    assert [problem.is_read_error for problem in report.problems] == [True]
    assert "wrong on the first read, but not on the second" in report.problems[0].what
    assert not repaired(Unreadable(disk, path, code=0)).damage
    assert files(disk) == before


def test_damage_is_repaired_beside_a_file_that_cannot_be_read() -> None:
    disk = finished()
    expected, before = contents(opened(disk)), files(disk)
    disk.files()[OTHER_CHUNK].live = flipped(before[OTHER_CHUNK], 40)
    report = repaired(Unreadable(disk, CHUNK, times=10**6))
    assert {problem.file for problem in report.read_errors} == {str(CHUNK.relative_to(PATH))}
    assert {problem.file for problem in report.damage} == {str(OTHER_CHUNK.relative_to(PATH))}
    assert disk.exists(CHUNK) and not disk.exists(OTHER_CHUNK)
    run_to_end(opened(disk))
    assert contents(opened(disk)) == expected


class UnreadableFrom(Failing):
    """A disk where call number `at` fails if it reads, and with `forever` every reading call after it."""

    def pass_on(self, name: str, *args: Any) -> Any:
        is_hit = len(self.log) == self.at or (self.forever and len(self.log) > self.at)
        if is_hit and name in ("read", "listdir"):
            self.log.append(name)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        at, self.at = self.at, -1
        try:
            return super().pass_on(name, *args)
        finally:
            self.at = at


READERS: dict[str, Callable[[SystemCalls], object]] = {
    "verify": lambda calls: verify(PATH, fs=FileSystem(calls)),
    "draws": lambda calls: contents(opened(calls)),
    "open": lambda calls: opened(calls).datatree().load(),
    "resume": lambda calls: run_to_end(opened(calls)),
    "repair": repaired,
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("forever", [False, True], ids=["once", "forever"])
@pytest.mark.parametrize("every", [97, pytest.param(1, marks=pytest.mark.long)])
def test_an_error_at_any_read_loses_nothing_and_is_not_called_damage(
    reader: str, forever: bool, every: int
) -> None:
    """Each read fails in turn, once, which a second attempt mends, or from then on; all in the long test."""
    start = finished() if reader != "resume" else half_way()
    work = READERS[reader]
    rehearsal = Failing(start.copy())
    work(rehearsal)
    reads = [at for at, call in enumerate(rehearsal.log) if call in ("read", "listdir")]
    for at in reads[::every]:
        disk = start.copy()
        try:
            report = work(UnreadableFrom(disk, at=at, forever=forever))
        except StoreReadError:
            assert forever
        else:
            assert not forever or isinstance(report, VerifyReport)
            assert not isinstance(report, VerifyReport) or (report.damage, report.ok) == ((), not forever)
        store = opened(disk)
        assert store.verify().ok
        run_to_end(store)
        assert contents(opened(disk)) == undisturbed()


def test_an_unreadable_record_cannot_be_opened_and_says_why() -> None:
    with pytest.raises(StoreReadError, match=f"{RECORD}: cannot read it: Input/output error"):
        opened(Unreadable(finished(), RECORD, times=3))
    assert issubclass(StoreReadError, StoreError)


def test_a_dry_run_says_what_a_repair_does_and_changes_nothing() -> None:
    disk = finished()
    disk.files()[OTHER_CHUNK].live = flipped(disk.files()[OTHER_CHUNK].live, 40)
    disk.unlink(STATE)
    before = files(disk)
    store = Store.open(PATH, fs=FileSystem(disk), check_records=False)
    foreseen = store.repair(dry_run=True)
    assert files(disk) == before
    assert foreseen.repairs == (
        "set aside the commits of batch 0 from block 2 on",
        "set aside the commits of batch 1 from block 2 on",
        f"set aside {OTHER_CHUNK.relative_to(PATH)}",
    )
    report = store.repair()
    assert (report.problems, report.repairs) == (foreseen.problems, foreseen.repairs)
    after = files(disk)
    aside = [content for path, content in after.items() if path.parent.name == "discarded"]
    assert before[OTHER_CHUNK] in aside and len(aside) == len(before) - len(after) + len(aside) == 4
    assert set(before.values()) - set(after.values()) == {
        before[PATH / f"commits/batch000{batch}/head.json"] for batch in range(2)
    }


def test_a_store_of_another_version_is_not_repaired() -> None:
    disk = finished()
    root = json.loads(disk.read(PATH / "zarr.json"))
    root["attributes"] |= {"rayfbnn_version": "0.0.9", SEAL: NO_SEAL}
    disk.put(PATH / "zarr.json", seal(root))
    before = files(disk)
    with pytest.raises(StoreMismatchError, match=r"was made by rayfbnn 0\.0\.9"):
        repaired(disk)
    assert files(disk) == before
