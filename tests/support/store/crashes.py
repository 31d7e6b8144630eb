"""Crashes at every call to a disk, and checks of the store after each."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import cache

import numpy as np
import pytest

from rayfbnn.store.storage.protocol import PARTIAL
from rayfbnn.store.storage.system_calls import SystemCalls
from rayfbnn.streams import Purpose, Streams
from tests.support.store.disks import READING, Crash, Failing, MemoryDisk
from tests.support.store.toy import contents, half_run, opened, run_to_end, step


@cache
def half_way() -> MemoryDisk:
    disk = MemoryDisk()
    half_run(disk)
    return disk.copy()


@cache
def undisturbed() -> dict[str, bytes]:
    disk = half_way().copy()
    run_to_end(opened(disk))
    return contents(opened(disk))


def commit_one(calls: SystemCalls) -> None:
    """Open and lock the store, commit one block, and gather the chunk that it fills.

    The tests disturb this work.
    """
    store = opened(calls)
    with store.lock():
        step(store, 0)
        store.gather(0)


def crashes(
    work: Callable[[SystemCalls], None],
    start: MemoryDisk,
    fault: str,
    *,
    every: int = 1,
    until: int | None = None,
) -> Iterator[MemoryDisk]:
    """The disk after a crash at each call that changes it, or at one in `every` of the first `until`."""
    rehearsal = Failing(start.copy())
    work(rehearsal)
    changing = [
        at for at, call in enumerate(rehearsal.log) if call not in {*READING, "close", "lock", "flock"}
    ]
    for at in changing[:until:every]:
        if fault == "torn" and rehearsal.log[at] != "write":
            continue
        disk = start.copy()
        with pytest.raises(Crash):
            work(Failing(disk, at=at, fault=fault))
        disk.reboot()
        yield disk


def assert_sound(disk: MemoryDisk, *, at_least: int) -> None:
    """Check that nothing is damaged or lost, and that a resumed run gives the same bits and no litter.

    A disk with the content of one that was found sound before is not run to its end again: many calls, such
    as a sync, change nothing that the next process finds.
    """
    content = disk.content()
    if content not in _committed_draws:
        _committed_draws[content] = _draws_of_sound(disk)
    assert _committed_draws[content] >= at_least


_committed_draws: dict[Hashable, int] = {}  # by the content of each disk that was found sound


def _draws_of_sound(disk: MemoryDisk) -> int:
    """Check all that `assert_sound` does, and return how many draws were committed before the run went on."""
    store = opened(disk)
    report = store.verify()
    assert report.ok, report.problems
    n_draws = store.committed_draws
    whole = np.frombuffer(undisturbed()["positions"], dtype=np.float32).reshape(3, 5, -1)
    assert (store.read_positions() == whole[:, :n_draws]).all()
    run_to_end(store)
    assert contents(opened(disk)) == undisturbed()
    assert not [path for path in disk.files() if path.name.endswith((PARTIAL, ".block"))]
    return n_draws


def choices(seed: int) -> Callable[[], float]:
    numbers = iter(Streams(seed, np.arange(1, dtype=np.uint64)).uniform(Purpose.ACCEPT, (5000,))[0])
    return lambda: float(next(numbers))
