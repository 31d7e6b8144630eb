"""An operation that fails raises a StoreError that says what and where; committed draws stay."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from rayfbnn.errors import StoreError, StoreExistsError, StoreFullError
from rayfbnn.store.storage.posix import FileSystem
from rayfbnn.store.storage.protocol import PARTIAL
from rayfbnn.store.storage.system_calls import SystemCalls
from tests.support.store.crashes import assert_sound, commit_one, half_way
from tests.support.store.disks import Failing, MemoryDisk
from tests.support.store.toy import PATH, create, empty_disk, next_block, opened, step

WRITING = {"open_new", "write", "fsync", "link", "replace", "mkdir"}


def failures(
    fault: str, calls: set[str], *, forever: bool = False
) -> list[tuple[str, MemoryDisk, StoreError | None]]:
    """Results of committing a block with a fault at each of these calls in turn: call, disk, error."""
    rehearsal = Failing(half_way().copy())
    commit_one(rehearsal)
    outcomes = []
    for at, call in enumerate(rehearsal.log):
        if call in calls:
            disk = half_way().copy()
            error: StoreError | None = None
            try:
                commit_one(Failing(disk, at=at, fault=fault, forever=forever))
            except StoreError as exc:
                error = exc
            disk.reboot()
            outcomes.append((call, disk, error))
    return outcomes


def test_a_full_disk_is_a_store_full_error_and_leaves_no_litter() -> None:
    for call, disk, error in failures("ENOSPC", {"write", "fsync", "link"}):
        assert isinstance(error, StoreFullError), call
        assert error.exit_code == 75
        assert str(PATH) in str(error)
        assert not [path for path in disk.files() if path.name.endswith(PARTIAL)]
        assert_sound(disk, at_least=2)


def test_a_full_disk_says_how_many_draws_are_kept() -> None:
    calls = Failing(half_way().copy(), fault="ENOSPC")
    store = opened(calls)
    calls.at = len(calls.log) + calls_before_fsync()
    with pytest.raises(StoreFullError, match="batch 0 has 2 draws committed"):
        step(store, 0)


@pytest.mark.parametrize("fault", ["EIO", "EIO after"])
def test_an_input_output_error_at_any_call_is_a_store_error_and_loses_nothing(fault: str) -> None:
    calls = {"write", "fsync", "replace", "link", "fsync_dir", "lock"}
    n_errors = 0
    for number, (call, disk, error) in enumerate(failures(fault, calls if fault == "EIO" else WRITING)):
        assert error is not None, call
        assert str(PATH) in str(error) and "Input/output error" in str(error)
        n_errors += 1
        if number % 4 == 0 or call in ("link", "fsync_dir"):
            assert_sound(disk, at_least=2)
    assert n_errors > 30


@pytest.mark.parametrize(("call", "least"), [("read", 30), ("listdir", 1)])
def test_what_stays_unreadable_is_an_error_and_not_an_empty_store(call: str, least: int) -> None:
    rehearsal = Failing(half_way().copy())
    opened(rehearsal)
    places = [at for at, name in enumerate(rehearsal.log) if name == call]
    assert len(places) >= least
    action = {"read": "read", "listdir": "list"}[call]
    for at in places:
        disk = half_way().copy()
        before = disk.contents()
        with pytest.raises(StoreError, match=f"cannot {action} it: Input/output error"):
            opened(Failing(disk, at=at, fault="EIO", forever=True))
        assert disk.contents() == before


def test_a_write_that_takes_half_is_gone_on_with() -> None:
    for call, disk, error in failures("short", {"write"})[::4]:
        assert error is None, call
        assert_sound(disk, at_least=3)


def test_a_failed_fsync_is_not_tried_again() -> None:
    calls = Failing(half_way().copy(), fault="EIO")
    store = opened(calls)
    calls.at = len(calls.log) + calls_before_fsync()
    with pytest.raises(StoreError, match="Input/output error"):
        step(store, 0)
    assert calls.log[calls.at :] == [
        "fsync",
        "close",
        "unlink",
        "close",
    ]  # first the temporary file's, then the lock's


def calls_before_fsync() -> int:
    """Number of calls that a commit makes before its first fsync."""
    calls = Failing(half_way().copy())
    store = opened(calls)
    n_calls = len(calls.log)
    step(store, 0)
    return calls.log[n_calls:].index("fsync")


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_file_system_without_hard_links_does(code: int) -> None:
    class NoLinks(Failing):
        def link(self, source: Path, destination: Path) -> None:
            raise OSError(code, "no links here")

    disk = half_way().copy()
    commit_one(NoLinks(disk))
    assert_sound(disk, at_least=3)


def test_a_commit_that_failed_after_its_record_was_published_is_taken_for_done() -> None:
    """Fault 3: the worker dies, or seems dead, after the commit, and its block is committed again."""
    disk = half_way().copy()
    store = opened(disk)
    block = next_block(store, 0)
    assert block is not None
    rehearsal = Failing(disk.copy())
    opened(rehearsal).commit(0, block)
    after_link = len(rehearsal.log) - 1 - rehearsal.log[::-1].index("link") + 2
    calls = Failing(disk, at=after_link, fault="EIO")
    other = opened(calls)
    with pytest.raises(StoreError):
        other.commit(0, block)
    assert calls.log[after_link] == "fsync_dir"
    before = disk.contents()
    assert store.commit(0, block).draws == 3
    after = disk.contents()
    head = store.commits.head_file(0)  # which the first attempt did not come to
    assert after.pop(head) != before.pop(head) and after == before


def test_create_on_a_full_disk_leaves_nothing() -> None:
    rehearsal = Failing(empty_disk())
    create(FileSystem(rehearsal))
    for at in [at for at, call in enumerate(rehearsal.log) if call == "write"][::17]:
        disk = empty_disk()
        # One write fails in all, because a full disk still lets files be removed.
        with pytest.raises(StoreFullError):
            create(FileSystem(Failing(disk, at=at, fault="ENOSPC")))
        assert disk.listdir(PATH.parent) == []


@pytest.mark.parametrize("make", [MemoryDisk.mkdir, lambda disk, path: disk.close(disk.open_new(path))])
def test_create_never_touches_what_is_there(make: Callable[[SystemCalls, Path], None]) -> None:
    disk = empty_disk()
    make(disk, PATH)
    with pytest.raises(StoreExistsError, match=str(PATH)):
        create(FileSystem(disk))
    assert disk.listdir(PATH.parent) == [PATH.name]


def test_create_says_when_its_folder_is_missing() -> None:
    with pytest.raises(StoreError, match="No such file"):
        create(FileSystem(empty_disk()), Path("/nowhere/toy.zarr"))
