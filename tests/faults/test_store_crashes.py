"""No draw is lost if a process dies or a machine loses power at any call to the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayfbnn.errors import StoreError
from rayfbnn.store.storage.posix import FileSystem
from rayfbnn.store.storage.system_calls import SystemCalls
from tests.support.store.crashes import assert_sound, choices, commit_one, crashes, half_way, undisturbed
from tests.support.store.disks import Failing
from tests.support.store.toy import PATH, contents, create, empty_disk, opened, run_to_end, step, toy_spec


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("fault", ["crash", "torn"])
def test_a_crash_at_any_call_of_a_commit_loses_no_bit(fault: str, every: int) -> None:
    for disk in crashes(commit_one, half_way(), fault, every=every):
        assert_sound(disk, at_least=2)


@pytest.mark.long
@pytest.mark.parametrize("fault", ["crash", "torn"])
def test_a_crash_at_any_call_of_a_whole_run_loses_no_bit(fault: str) -> None:
    for disk in crashes(lambda calls: run_to_end(opened(calls)), half_way(), fault):
        assert_sound(disk, at_least=2)


def test_a_committed_block_survives_a_crash_just_after() -> None:
    disk = half_way().copy()
    calls = Failing(disk)
    store = opened(calls)
    step(store, 0)
    calls.is_dead = True
    disk.reboot()
    assert_sound(disk, at_least=3)


@pytest.mark.parametrize(
    "number", [0, *(pytest.param(number, marks=pytest.mark.long) for number in range(1, 20))]
)
def test_power_loss_at_any_call_of_a_commit_loses_no_bit(number: int) -> None:
    """Content that was not synced is dropped, kept, cut or zeroed; each number makes another combination.

    Number 0, which is run every time, has a third of the calls.
    """
    for at, disk in enumerate(crashes(commit_one, half_way(), "crash", every=1 if number else 3)):
        assert_sound(disk.after_power_loss(choices(at * 20 + number)), at_least=2)


def test_a_committed_block_survives_power_loss() -> None:
    for number in range(8):
        disk = half_way().copy()
        step(opened(disk), 0)
        assert_sound(disk.after_power_loss(choices(number)), at_least=3)


def test_the_power_loss_model_sees_a_missing_sync() -> None:
    """The test above can fail: without syncs of files, or of folders, a committed block is lost."""

    class Careless(Failing):
        def fsync(self, descriptor: int) -> None:
            pass

    class CarelessOfNames(Failing):
        def fsync_dir(self, path: Path) -> None:
            pass

    for kind in (Careless, CarelessOfNames):
        n_lost = 0
        for number in range(20):
            disk = half_way().copy()
            step(opened(kind(disk)), 0)
            try:
                assert_sound(disk.after_power_loss(choices(number)), at_least=3)
            except (AssertionError, StoreError):
                n_lost += 1
        assert n_lost > 5, kind


@pytest.mark.parametrize("every", [29, pytest.param(1, marks=pytest.mark.long)])
def test_a_crash_at_any_call_of_create_leaves_nothing_or_all(every: int) -> None:
    work = crashes(lambda calls: none(create(FileSystem(calls))), empty_disk(), "crash", every=every)
    for number, disk in enumerate(work):
        for after in (disk, disk.after_power_loss(choices(number))):
            store = opened(after) if after.exists(PATH) else create(FileSystem(after))
            assert store.verify().ok
            assert after.listdir(PATH.parent) == [PATH.name]


@pytest.mark.parametrize("every", [13, pytest.param(1, marks=pytest.mark.long)])
def test_a_crash_while_a_crashed_creation_is_cleared_leaves_what_the_next_clears(every: int) -> None:
    after_crashes = crashes(lambda calls: none(create(FileSystem(calls))), empty_disk(), "crash", every=90)
    *_, left = (disk for disk in after_crashes if not disk.exists(PATH))
    n_files = len(left.files())
    assert n_files > 30 and left.listdir(PATH.parent) == [f".{PATH.name}.creating"]
    work = crashes(
        lambda calls: none(create(FileSystem(calls))), left.copy(), "crash", every=every, until=2 * n_files
    )
    for number, disk in enumerate(work):
        for after in (disk, disk.after_power_loss(choices(number))):
            assert create(FileSystem(after)).verify().ok
            assert after.listdir(PATH.parent) == [PATH.name]


@pytest.mark.parametrize("every", [19, pytest.param(1, marks=pytest.mark.long)])
def test_a_crash_at_any_call_of_extend_leaves_the_old_run_or_the_new(every: int) -> None:
    start = half_way().copy()
    run_to_end(opened(start))
    longer = toy_spec().with_iterations(9)

    def extend(calls: SystemCalls) -> None:
        opened(calls).extend(longer, 9)

    whole = start.copy()
    extend(whole)
    ends = (1, 3, 5, 6, 8, 10, 12)
    run_to_end(opened(whole), ends=ends)
    expected = contents(opened(whole))
    for number, disk in enumerate(crashes(extend, start.copy(), "crash", every=every)):
        for after in (disk, disk.after_power_loss(choices(number))):
            store = opened(after)
            assert store.verify().ok
            assert contents(store) == undisturbed()
            assert store.datatree()["posterior"].sizes["draw"] == 5
            if number % 5 == 0:
                store.extend(longer, 9)
                run_to_end(store, ends=ends)
                assert contents(opened(after)) == expected


@pytest.mark.parametrize("every", [37, pytest.param(1, marks=pytest.mark.long)])
def test_a_crash_at_any_call_of_taking_a_length_back_leaves_one_of_the_two_lengths(every: int) -> None:
    start = half_way().copy()
    run_to_end(opened(start))
    shorter, longer = opened(start).spec, toy_spec().with_iterations(40)
    opened(start).extend(longer, 40)

    def take_back(calls: SystemCalls) -> None:
        opened(calls).extend(shorter, 5)

    for number, disk in enumerate(crashes(take_back, start.copy(), "crash", every=every)):
        for after in (disk, disk.after_power_loss(choices(number))):
            store = opened(after)
            assert store.verify().ok
            assert contents(store) == undisturbed()
            assert store.root.header.n_draws in (5, 40)
            assert store.datatree()["posterior"].sizes["draw"] == 5
            store.extend(shorter, 5)
            assert opened(after).verify().ok
            if number % 5 == 0:
                store.extend(toy_spec().with_iterations(9), 9)
                assert opened(after).verify().ok
                assert opened(after).root.header.n_draws == 9


def none(_: object) -> None:
    return None
