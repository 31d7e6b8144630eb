"""A file that the system cannot read is not damaged: it is reported, and repair leaves it alone."""

from __future__ import annotations

import errno
import os
from collections import Counter
from pathlib import Path

import pytest

from rayfbnn.errors import StoreError, StoreReadError
from rayfbnn.store.filesystem import FileSystem, SystemCalls
from rayfbnn.store.records import VerifyReport
from rayfbnn.store.store import Store
from rayfbnn.store.verify import verify
from tests.support.store.disks import Failing, MemoryDisk, flipped
from tests.support.store.toy import PATH, contents, create, opened, run_to_end

CHUNK = PATH / "posterior/io/c.0.0.0.0"
OTHER_CHUNK = PATH / "posterior/bo/c.1.0.0"
STATE = PATH / "state/momentum/c.2.0.0"
RECORD = PATH / "commits/batch0000/000001.json"


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
    disk = MemoryDisk()
    disk.mkdir(PATH.parent)
    run_to_end(create(FileSystem(disk)))
    return disk.copy()


def files(disk: MemoryDisk) -> dict[Path, bytes]:
    return {path: file.live for path, file in disk.files().items()}


def repaired(calls: SystemCalls) -> VerifyReport:
    return Store.open(PATH, fs=FileSystem(calls), check_records=False).repair()


@pytest.mark.parametrize("path", [CHUNK, STATE, RECORD], ids=["chunk", "state", "record"])
@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.ESTALE])
@pytest.mark.parametrize("times", [1, 10**6], ids=["once", "always"])
def test_repair_changes_nothing_on_account_of_a_read_error(path: Path, code: int, times: int) -> None:
    disk = finished()
    before = files(disk)
    report = repaired(Unreadable(disk, path, code=code, times=times))
    assert {problem.file for problem in report.problems} == {str(path.relative_to(PATH))}
    assert report.read_errors == report.problems and report.damage == ()
    assert all(os.strerror(code) in problem.what for problem in report.problems)
    assert files(disk) == before


@pytest.mark.parametrize("path", [CHUNK, STATE, RECORD], ids=["chunk", "state", "record"])
def test_what_is_whole_when_read_again_is_no_damage(path: Path) -> None:
    disk = finished()
    before = files(disk)
    report = repaired(Unreadable(disk, path, code=0))
    assert [problem.is_read_error for problem in report.problems] == [True]
    assert "read differently the second time" in report.problems[0].what
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


def test_an_error_at_any_read_is_reported_as_a_read_error_or_raised() -> None:
    """Each read of verify fails in turn; a read error is never reported as damage."""
    disk = finished()
    rehearsal = Failing(disk)
    assert verify(PATH, fs=FileSystem(rehearsal)).ok
    outcomes: Counter[str] = Counter()
    for at, call in enumerate(rehearsal.log):
        if call not in ("read", "listdir"):
            continue
        try:
            report = verify(PATH, fs=FileSystem(Failing(disk, at=at, fault="EIO")))
        except StoreReadError:
            outcomes["raised"] += 1
        else:
            assert report.damage == ()
            outcomes["reported" if report.read_errors else "silent"] += 1
    assert outcomes["reported"] > 100 and outcomes["raised"] <= 1
    assert outcomes["silent"] == 0


def test_an_unreadable_record_cannot_be_opened_and_says_why() -> None:
    with pytest.raises(StoreReadError, match=f"{RECORD}: cannot read it: Input/output error"):
        opened(Unreadable(finished(), RECORD))
    assert issubclass(StoreReadError, StoreError)
