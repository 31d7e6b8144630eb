"""A crash of a driver or a machine at any call to the disk around the rounds of a tuning changes no bit."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from typing import Any

import pytest

from rayfbnn.run.executor import InProcess
from rayfbnn.run.running import run_rounds
from rayfbnn.run.sampler import Sampler
from rayfbnn.spec import RunSpec
from rayfbnn.store.storage.posix import FileSystem
from rayfbnn.store.storage.protocol import PARTIAL
from rayfbnn.store.storage.system_calls import SystemCalls
from rayfbnn.store.store import Store
from tests.support.store.crashes import choices, crashes
from tests.support.store.disks import MemoryDisk
from tests.support.store.toy import PATH, create, empty_disk, opened, toy_spec

_OPERATIONS = [
    {"op": "sample-sigmas"},
    {"op": "heatbath"},
    {"op": "hybrid", "steps": "auto", "stepsize": "auto"},
]


class Enough(Exception):
    """Raised when the observed part of a run is over."""


def tuned_spec() -> RunSpec:
    phases: list[dict[str, Any]] = [
        {"iterations": 3, "keep": False, "operations": _OPERATIONS},
        {"iterations": 2, "operations": _OPERATIONS},
    ]
    return toy_spec(phase=phases)


def drive(calls: SystemCalls, *, until: int = 5) -> None:
    """Run a driver, from opening the store until every batch has committed so many iterations."""
    store = opened(calls)

    with store.lock(), InProcess() as executor:
        executor._sampler = Sampler(store)
        for _ in run_rounds(store, executor):
            if all(store.progress(batch).iteration >= until for batch in range(store.n_batches)):
                raise Enough


def drive_to(calls: SystemCalls, until: int) -> None:
    """Run `drive`, and end it as a driver that dies, without any clean-up."""
    with pytest.raises(Enough):
        drive(calls, until=until)


@cache
def first_round_done() -> MemoryDisk:
    """A store in which both batches have committed the first round, before its record exists."""
    disk = empty_disk()
    create(FileSystem(disk), spec=tuned_spec())
    drive_to(disk, 1)
    assert not disk.exists(opened(disk).tuning.file(0))
    return disk.copy()


@cache
def undisturbed() -> dict[str, bytes]:
    disk = first_round_done().copy()
    go_on(disk)
    return contents(opened(disk))


def go_on(calls: SystemCalls) -> None:
    store = opened(calls)
    with store.lock(), InProcess() as executor:
        executor._sampler = Sampler(store)
        for _ in run_rounds(store, executor):
            pass


def contents(store: Store) -> dict[str, bytes]:
    """Draws and records of the tuning, whose bytes depend only on the draws."""
    contents_ = {
        "positions": store.read_positions().tobytes(),
        "precisions": store.read_precisions().tobytes(),
    }
    for tuning_round in store.tuning.rounds:
        contents_[f"round {tuning_round.number}"] = store.fs.read(store.tuning.file(tuning_round.number))
    return contents_


def assert_sound(disk: MemoryDisk) -> None:
    """Check that nothing is damaged, and that a resumed run gives the same bits and no litter.

    A disk with the content of one that was found sound before is not run to its end again.
    """
    content = disk.content()
    if content in _sound:
        return
    report = opened(disk).verify()
    assert report.ok, report.problems
    go_on(disk)
    assert opened(disk).verify().ok
    assert contents(opened(disk)) == undisturbed()
    assert not [path for path in disk.files() if path.name.endswith(PARTIAL)]
    _sound.add(content)


_sound: set[Hashable] = set()  # the contents of the disks that were found sound


def boundary(calls: SystemCalls) -> None:
    """The disturbed work: the first round's record is made and both batches begin the second."""
    drive_to(calls, 2)


@pytest.mark.parametrize(
    ("fault", "every"), [("crash", 3), ("torn", 1), pytest.param("crash", 1, marks=pytest.mark.long)]
)
def test_a_crash_at_any_call_around_a_round_changes_no_bit(fault: str, every: int) -> None:
    disks = list(crashes(boundary, first_round_done(), fault, every=every))
    had_record = {disk.exists(PATH / "commits/tuning/000000.json") for disk in disks}
    assert had_record == {False, True}  # before and after the record was made
    for disk in disks:
        assert_sound(disk)


@pytest.mark.long
def test_power_loss_at_any_call_around_a_round_changes_no_bit() -> None:
    for at, disk in enumerate(crashes(boundary, first_round_done(), "crash")):
        assert_sound(disk.after_power_loss(choices(at)))


@pytest.mark.long
@pytest.mark.parametrize("fault", ["crash", "torn"])
def test_a_crash_at_any_call_of_a_whole_tuned_run_changes_no_bit(fault: str) -> None:
    for disk in crashes(go_on, first_round_done(), fault):
        assert_sound(disk)


def test_workers_never_go_on_without_a_synced_record() -> None:
    """When the first block of the next round is committed, its round's record survives a power loss."""
    disk = first_round_done().copy()
    drive_to(disk, 2)
    for number in range(20):
        after = disk.after_power_loss(choices(number))
        assert opened(after).tuning.is_readable(0)
        assert_sound(after)
