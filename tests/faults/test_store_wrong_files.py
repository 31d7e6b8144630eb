"""Whole files in the wrong place: nothing that reads a store uses them without saying so."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from rayfbnn.errors import StoreCorruptError
from rayfbnn.store.checking.verify import verify
from rayfbnn.store.storage.posix import FileSystem
from rayfbnn.store.store import Store
from tests.support.store.crashes import half_way
from tests.support.store.damages import KINDS, Change, Stores, damage
from tests.support.store.disks import MemoryDisk
from tests.support.store.toy import PATH, contents, create, opened, run_to_end, step, toy_spec

ENDS = (1, 3, 5, 6, 8)


def files(disk: MemoryDisk) -> dict[str, bytes]:
    return {str(path.relative_to(PATH)): file.live for path, file in disk.files().items()}


@cache
def before() -> MemoryDisk:
    """A chunk of the first batch is begun by a segment."""
    disk = half_way().copy()
    opened(disk).gather(0, everything=True)
    return disk.copy()


@cache
def now() -> MemoryDisk:
    """The chunk is full, and the draw after it is in a single block; one draw is still to come."""
    disk = before().copy()
    step(opened(disk), 0, ends=ENDS)
    opened(disk).gather(0)
    step(opened(disk), 0, ends=ENDS)
    return disk.copy()


@cache
def stores() -> Stores:
    """A run with one batch at its end and the other a draw before it, the same earlier, and another run."""
    other = MemoryDisk()
    other.mkdir(PATH.parent)
    run_to_end(create(FileSystem(other), spec=toy_spec(seed=4)))
    return Stores(files(now()), files(before()), files(other))


def changed(change: Change) -> MemoryDisk:
    disk = now().copy()
    for name, content in change.items():
        disk.put(PATH / name, content)
    return disk


def whole(store: Store) -> dict[str, bytes]:
    """All that `rayfbnn.open` gives, loaded."""
    tree = store.datatree()
    return {
        f"{name}/{variable}": tree[name][variable].to_numpy().tobytes()
        for name in tree.children
        for variable in tree[name].variables
        if tree[name][variable].dtype != object
    }


def resumed(store: Store) -> dict[str, bytes]:
    run_to_end(store, ends=ENDS)
    return contents(Store.open(store.path, fs=store.fs))


READERS: dict[str, Callable[[Store], dict[str, bytes]]] = {
    "draws": contents,
    "open": whole,
    "resume": resumed,
}


@cache
def right(reader: str) -> dict[str, bytes]:
    return READERS[reader](opened(changed({})))


def outcome(change: Change, reader: str) -> str:
    """ "error", "right" where what was changed is not read or not needed, or "silent"."""
    try:
        values = READERS[reader](opened(changed(change)))
    except StoreCorruptError as exc:
        assert str(PATH) in str(exc)
        return "error"
    return "right" if values == right(reader) else "silent"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_damages", [1, pytest.param(77, marks=pytest.mark.long)])
def test_whole_files_in_the_wrong_place_are_never_used(kind: str, n_damages: int) -> None:
    """1,232 damages in the long tests; each is an error, or changes nothing of what is read."""
    first = list(KINDS).index(kind)
    for number in range(first, first + n_damages * len(KINDS), len(KINDS)):
        name, change = damage(number, stores())
        assert name == kind
        for reader in READERS:
            assert outcome(change, reader) != "silent", (number, reader, list(change))
        assert not verify(PATH, fs=FileSystem(changed(change))).ok


@pytest.mark.parametrize("kind", ["the last record removed", "last records removed", "a wrong head"])
def test_lost_records_are_seen_by_every_reader(kind: str) -> None:
    for number in range(list(KINDS).index(kind), 2 * len(KINDS), len(KINDS)):
        _, change = damage(number, stores())
        assert [outcome(change, reader) for reader in READERS] == ["error"] * len(READERS)


@pytest.mark.parametrize("kind", ["a record removed", "the last record removed", "a wrong head"])
def test_lost_records_and_heads_are_repaired(kind: str) -> None:
    for number in range(list(KINDS).index(kind), 2 * len(KINDS), len(KINDS)):
        disk = changed(damage(number, stores())[1])
        store = Store.open(PATH, fs=FileSystem(disk), check_records=False)
        assert not store.repair().ok
        assert store.verify().ok
        assert resumed(opened(disk)) == right("resume")
