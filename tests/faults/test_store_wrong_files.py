"""Whole files in the wrong place: nothing that reads a store uses them without saying so."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import google_crc32c
import numpy as np
import pytest

from rayfbnn.errors import StoreCorruptError
from rayfbnn.store.payload import joined, split
from rayfbnn.store.records import HEAD, NO_SEAL, SEAL, seal
from rayfbnn.store.storage.posix import FileSystem
from rayfbnn.store.store import Store
from rayfbnn.store.verify import verify
from rayfbnn.streams import Purpose, Streams
from tests.support.store.crashes import half_way
from tests.support.store.disks import MemoryDisk
from tests.support.store.toy import PATH, contents, create, opened, run_to_end, step, toy_spec

Item = TypeVar("Item")
Files = Mapping[str, bytes]  # by the path in the store
Change = dict[str, bytes | None]  # new contents, None for what is removed


@dataclass(frozen=True)
class Stores:
    """A store, the same store some blocks earlier, and one of another run with the same configuration."""

    now: Files
    earlier: Files
    other: Files


class Chooser:
    """Chooses from lists by a number, the same way each time."""

    def __init__(self, number: int) -> None:
        streams = Streams(number, np.arange(1, dtype=np.uint64))
        self._numbers = iter(streams.uniform(Purpose.ACCEPT, (64,))[0])

    def below(self, n: int) -> int:
        return int(next(self._numbers) * n)

    def one(self, some: list[Item]) -> Item:
        return some[self.below(len(some))]


def damage(number: int, stores: Stores) -> tuple[str, Change]:
    """Return damage number `number`: its kind in words, and the files that it changes."""
    kinds = list(KINDS)
    name = kinds[number % len(kinds)]
    for attempt in range(50):
        change = KINDS[name](Chooser(number * 50 + attempt), stores)
        if change and all(stores.now.get(file) != content for file, content in change.items()):
            return name, change
    raise AssertionError(f"found no files for damage {number}: {name}")


def _chunks(files: Files) -> list[str]:
    """The chunks of draws."""
    return [
        file
        for file in sorted(files)
        if file.startswith(("posterior/", "warmup_", "sample_")) and "/c." in file and file.count(".") > 1
    ]


def _records(files: Files) -> list[str]:
    return [file for file in sorted(files) if file.endswith((".block", ".segment"))]


def _parts(raw: bytes) -> tuple[dict[str, Any], bytes]:
    """The record in the file of a block or segment, and the arrays after it."""
    record, payload = split(raw, Path("a record"))
    document: dict[str, Any] = json.loads(record)
    return document, bytes(payload)


def _swapped_chunks(choose: Chooser, stores: Stores) -> Change:
    one = choose.one(_chunks(stores.now))
    size = len(stores.now[one])
    other = choose.one([file for file in _chunks(stores.now) if len(stores.now[file]) == size])
    return {one: stores.now[other], other: stores.now[one]} if one != other else {}


def _earlier_chunk(choose: Chooser, stores: Stores) -> Change:
    file = choose.one([file for file in _chunks(stores.earlier) if stores.earlier[file] != stores.now[file]])
    return {file: stores.earlier[file]}


def _other_block(choose: Chooser, stores: Stores) -> Change:
    file = choose.one(_chunks(stores.now))
    folder = file.rpartition("/")[0]
    return {
        file: stores.now[choose.one([one for one in _chunks(stores.now) if one.startswith(folder + "/")])]
    }


def _other_run(choose: Chooser, stores: Stores) -> Change:
    file = choose.one(_chunks(stores.now))
    return {file: stores.other[file]}


def _rewritten(choose: Chooser, stores: Stores) -> Change:
    """Another number at the start of a chunk, which is always a draw, with the crc32c that belongs to it."""
    file = choose.one(_chunks(stores.now))
    raw = bytearray(stores.now[file][:-4])
    raw[choose.below(4)] ^= 1 << choose.below(8)
    return {file: bytes(raw) + int(google_crc32c.value(bytes(raw))).to_bytes(4, "little")}


def _removed_tail(choose: Chooser, stores: Stores) -> Change:
    """The last records of a batch, one or more."""
    folder = choose.one(_records(stores.now)).rpartition("/")[0]
    records = [file for file in _records(stores.now) if file.startswith(folder + "/")]
    return dict.fromkeys(records[choose.below(len(records)) :])


def _removed_last(choose: Chooser, stores: Stores) -> Change:
    folder = choose.one(_records(stores.now)).rpartition("/")[0]
    return {[file for file in _records(stores.now) if file.startswith(folder + "/")][-1]: None}


def _removed_record(choose: Chooser, stores: Stores) -> Change:
    return {choose.one(_records(stores.now)): None}


def _repeated_record(choose: Chooser, stores: Stores) -> Change:
    """A record once more, in the place of another or behind the last."""
    record = choose.one(_records(stores.now))
    folder, _, name = record.rpartition("/")
    block = _parts(stores.now[record])[0]["block"]
    return {f"{folder}/{block + 1:06d}.{name.rpartition('.')[2]}": stores.now[record]}


def _swapped_records(choose: Chooser, stores: Stores) -> Change:
    one, other = choose.one(_records(stores.now)), choose.one(_records(stores.now))
    return {one: stores.now[other], other: stores.now[one]} if one != other else {}


def _other_record(choose: Chooser, stores: Stores) -> Change:
    record = choose.one([record for record in _records(stores.now) if record in stores.other])
    return {record: stores.other[record]}


def _resealed_record(choose: Chooser, stores: Stores) -> Change:
    """A digest, or a number of draws, changed by someone who made the seal anew."""
    record = choose.one(_records(stores.now))
    document, payload = _parts(stores.now[record])
    digests = document["chunks"]
    if digests and choose.below(2):
        digests[choose.one(sorted(digests))] = "0" * 64
    else:
        document["progress"]["draws"] += 1
    return {record: joined(seal({**document, SEAL: NO_SEAL}), payload)}


def _rewritten_block(choose: Chooser, stores: Stores) -> Change:
    """Another value in the arrays of a block, with the digest and the seal that belong to it."""
    record = choose.one([record for record in _records(stores.now) if record.endswith(".block")])
    document, payload = _parts(stores.now[record])
    changed = bytearray(payload)
    changed[choose.below(len(changed))] ^= 1 << choose.below(8)
    document["payload"] = hashlib.sha256(changed).hexdigest()
    return {record: joined(seal({**document, SEAL: NO_SEAL}), bytes(changed))}


def _cut_payload(choose: Chooser, stores: Stores) -> Change:
    """A block or segment without the end of its arrays."""
    record = choose.one(_records(stores.now))
    return {record: stores.now[record][: -1 - choose.below(20)]}


def _other_kind(choose: Chooser, stores: Stores) -> Change:
    """A segment in the place of a block, or the other way round."""
    record = choose.one(_records(stores.now))
    kinds = {"block": "segment", "segment": "block"}
    stem, _, kind = record.rpartition(".")
    return {record: None, f"{stem}.{kinds[kind]}": stores.now[record]}


def _wrong_head(choose: Chooser, stores: Stores) -> Change:
    """The head of another batch or of another run, or none."""
    heads = [file for file in sorted(stores.now) if file.endswith(f"/{HEAD}")]
    head = choose.one(heads)
    contents: list[bytes | None] = [None, stores.other[head], stores.now[choose.one(heads)]]
    return {head: choose.one(contents)}


KINDS: dict[str, Callable[[Chooser, Stores], Change]] = {
    "swapped chunks": _swapped_chunks,
    "a chunk as it was earlier": _earlier_chunk,
    "a chunk of another block or batch": _other_block,
    "a chunk of another run": _other_run,
    "a chunk with a changed value": _rewritten,
    "last records removed": _removed_tail,
    "the last record removed": _removed_last,
    "a record removed": _removed_record,
    "a record repeated": _repeated_record,
    "swapped records": _swapped_records,
    "a record of another run": _other_record,
    "a changed record, sealed again": _resealed_record,
    "a wrong head": _wrong_head,
    "a changed block, sealed again": _rewritten_block,
    "a block that was cut": _cut_payload,
    "a segment as a block": _other_kind,
}


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
        named = {problem.file for problem in verify(PATH, fs=FileSystem(changed(change))).problems}
        assert named and (not kind.startswith("swapped") or named >= set(change))


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
