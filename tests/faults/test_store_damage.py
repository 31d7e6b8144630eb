"""Damage to any file of a store, or a whole file in the wrong place, is found and named, and can be repaired.

Nothing that reads a store uses such files without saying so, or takes a damaged store for an empty one.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import google_crc32c
import numpy as np
import pytest

from rayfbnn.arrays import Array
from rayfbnn.errors import StoreCorruptError, StoreError, StoreFormatError
from rayfbnn.store.payload import joined, split
from rayfbnn.store.records import HEAD, NO_SEAL, SEAL, seal, seal_of
from rayfbnn.store.storage.posix import FileSystem
from rayfbnn.store.store import Store
from rayfbnn.store.verify import verify
from rayfbnn.streams import Purpose, Streams
from tests.support.store.crashes import half_way
from tests.support.store.disks import File, MemoryDisk, flipped
from tests.support.store.toy import PATH, contents, create, empty_disk, opened, run_to_end, step, toy_spec

Item = TypeVar("Item")
Files = Mapping[str, bytes]  # by the path in the store
Change = dict[str, bytes | None]  # new contents, None for what is removed
ROOT = PATH / "zarr.json"
EXTENSION = PATH / "commits/extension0000.json"
ENDS = (1, 3, 5, 6, 8, 9, 12)
SEALED = (".json", ".segment", ".block")


@cache
def finished() -> MemoryDisk:
    """A complete run that was extended once; the blocks since then are not gathered."""
    disk = half_way().copy()
    run_to_end(opened(disk))
    store = opened(disk)
    store.extend(toy_spec().with_iterations(9), 9)
    for batch in range(store.n_batches):
        while step(store, batch, ends=ENDS):
            pass
    return disk.copy()


@cache
def expected() -> dict[str, bytes]:
    return contents(opened(finished()))


def damaged(change: dict[Path, Callable[[bytes], bytes | None]]) -> MemoryDisk:
    """The finished store with changed files, or without those for which the change returns None."""
    disk = finished().copy()
    files = disk.files()
    for path, new_content in change.items():
        content = new_content(files[path].live)
        if content is None:
            disk.unlink(path)
        else:
            files[path].live = content
    return disk


def is_record(path: Path) -> bool:
    return path.parent.name.startswith("batch") and path.suffix in SEALED


def apart() -> list[set[Path]]:
    """The non-empty files in sets, so that damage to one file does not hide damage to another of its set."""
    files = {path for path, file in finished().files().items() if file.live}
    records = {path for path in files if is_record(path)}
    return [{ROOT}, {EXTENSION}, records, files - records - {ROOT, EXTENSION}]


def named(disk: MemoryDisk) -> set[Path]:
    return {PATH / problem.file for problem in verify(PATH, fs=FileSystem(disk)).problems}


def test_an_undamaged_store_has_no_problem_and_every_file_is_checked() -> None:
    report = opened(finished()).verify()
    assert report.ok
    assert report.files_checked == sum(len(part) for part in apart())


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.long), 11])
def test_one_flipped_bit_in_any_byte_of_any_file_is_found_and_named(step: int) -> None:
    """The long test takes every byte, the quick one every eleventh."""
    contents = finished().contents()
    for files in apart():
        # Sealed files are tested byte by byte, with the function that verify calls; chunks by verify, all at
        # once.
        for path in files:
            if path.suffix == ".json":
                for byte in range(0, len(contents[path]), step):
                    with pytest.raises(StoreCorruptError):
                        seal_of(flipped(contents[path], byte * 8 + byte % 8), path)
        chunks = {path for path in files if path.suffix != ".json"}
        for byte in range(0, max((len(contents[path]) for path in chunks), default=1), step):
            wrong = {path for path in files if byte < len(contents[path])}
            bit = byte * 8 + byte % 8
            disk = damaged({path: lambda raw, bit=bit: flipped(raw, bit) for path in wrong})
            assert named(disk) == wrong, byte


def test_of_2000_random_flips_none_is_silent() -> None:
    contents = finished().contents()
    paths = sorted(contents)
    ends = np.cumsum([len(contents[path]) * 8 for path in paths])
    numbers = Streams(17, np.arange(1, dtype=np.uint64)).uniform(Purpose.PROPOSAL, (2000,))[0]
    n_flips = 0
    for flips in batches((int(number * ends[-1]) for number in numbers), paths, ends):
        disk = damaged({path: lambda raw, bit=bit: flipped(raw, bit) for path, bit in flips.items()})
        assert named(disk) == set(flips)
        n_flips += len(flips)
    assert n_flips == 2000


def batches(bits: Iterator[int], paths: list[Path], ends: Array) -> Iterator[dict[Path, int]]:
    """The flips in groups that verify can tell apart: each file once, from one of the sets above."""
    open_groups: dict[int, list[dict[Path, int]]] = defaultdict(list)
    sets = apart()
    for bit in bits:
        index = int(np.searchsorted(ends, bit, side="right"))
        path, within = paths[index], bit - (int(ends[index - 1]) if index else 0)
        which = next(number for number, files in enumerate(sets) if path in files)
        group = next((group for group in open_groups[which] if path not in group), None)
        if group is None:
            group = {}
            open_groups[which].append(group)
        group[path] = within
    for groups in open_groups.values():
        yield from groups


@pytest.mark.parametrize("kind", range(4), ids=["root", "extension", "records", "the rest"])
def test_a_truncated_file_is_found_and_named(kind: int) -> None:
    contents = finished().contents()
    files = apart()[kind]
    longest = max(len(contents[path]) for path in files)
    for length in [0, 1, *range(64, longest, 64 if kind < 3 else 256), -1]:
        wrong = {path for path in files if length < len(contents[path])}
        assert named(damaged({path: lambda raw, n=length: raw[:n] for path in wrong})) == wrong


def test_a_missing_file_is_found_and_named() -> None:
    assert named(damaged({ROOT: lambda raw: None})) == {ROOT}
    _, _, records, rest = apart()
    assert named(damaged(dict.fromkeys(rest, lambda raw: None))) == rest
    middle = PATH / "commits/batch0000/000005.block"
    assert named(damaged({middle: lambda raw: None})) == {middle}
    # Which kind of file stood for a block is not known without it.
    segment = PATH / "commits/batch0000/000002.segment"
    assert named(damaged({segment: lambda raw: None})) == {segment.with_suffix(".block")}


def test_metadata_and_records_that_cannot_be_read_are_never_created_again() -> None:
    files = [path for path in finished().files() if path.suffix in SEALED]
    assert {path.suffix for path in files} == set(SEALED) and len(files) == 58
    for number, path in enumerate(files):
        changes: list[Callable[[bytes], bytes | None]] = [
            lambda raw: b"",
            lambda raw: b"\0" * len(raw),
            lambda raw: b"{}",
            lambda raw: raw[: len(raw) // 2],
        ]
        disk = damaged({path: changes[number % 4]})
        before = disk.contents()
        with pytest.raises(StoreError, match=str(path)):
            opened(disk)
        with pytest.raises(StoreError, match="already exists"):
            create(FileSystem(disk))
        assert disk.contents() == before


def test_a_store_of_another_program_or_version_is_refused_untouched() -> None:
    def changed(**attributes: object) -> MemoryDisk:
        document = json.loads(finished().read(ROOT))
        document["attributes"] |= {**attributes, SEAL: NO_SEAL}
        return damaged({ROOT: lambda raw: seal(document)})

    for version in (1, 2, 3, 5, True, 4.5, "4", None):
        with pytest.raises(StoreFormatError, match="is not supported; this version reads format 4"):
            opened(changed(format_version=version))
    with pytest.raises(StoreError, match="is not a rayfbnn store"):
        opened(changed(format="other"))
    with pytest.raises(StoreError, match="does not exist"):
        opened(finished(), PATH.parent / "nothing.zarr")
    with pytest.raises(StoreError, match="it is not a store, or it is damaged"):
        opened(finished(), PATH.parent)


def test_a_record_of_another_store_is_found_and_named() -> None:
    other = empty_disk()
    run_to_end(create(FileSystem(other), spec=toy_spec(seed=4)))
    record = PATH / "commits/batch0000/000002.segment"
    disk = damaged({record: lambda raw: other.read(record)})
    assert named(disk) >= {record}
    with pytest.raises(StoreCorruptError, match="of another store"):
        opened(disk)


def test_a_problem_says_which_batch_block_and_draws() -> None:
    path = PATH / "posterior/io/c.0.1.0.0"  # draws 3 and 4 of the first batch: block 4
    report = opened(damaged({path: lambda raw: flipped(raw, 5)})).verify()
    assert [(each.batch, each.block, each.draws) for each in report.problems] == [
        (0, 4, range(3, 5)),
    ]
    assert "checksum" in report.problems[0].what
    assert not any(
        "`verify` lists" in problem.what for problem in report.problems
    )  # the content of the message


def test_a_damaged_chunk_is_an_error_that_names_it_when_read() -> None:
    path = PATH / "posterior/io/c.1.1.0.0"
    for change in (lambda raw: flipped(raw, 9), lambda raw: raw[:-3], lambda raw: None):
        store = opened(damaged({path: change}))
        with pytest.raises(
            StoreCorruptError, match=rf"{path}: .*chains 2 to 2, draws 3 to 5.*`verify` lists"
        ):
            store.read_positions()
        assert store.read_positions(slice(0, 3)).shape == (3, 3, 2)
        assert store.read_positions(chains=slice(0, 2)).shape == (2, 9, 2)
    state = PATH / "commits/batch0000/000006.block"
    with pytest.raises(StoreCorruptError, match=str(state)):
        opened(damaged({state: lambda raw: flipped(raw, 8 * len(raw) - 1)})).load_state(0)
    training = PATH / "constant_data/inputs/c.0.0"
    with pytest.raises(StoreCorruptError, match=str(training)):
        _ = opened(damaged({training: lambda raw: flipped(raw, 9)})).data


@pytest.mark.parametrize(
    "file",
    [
        "posterior/io/c.0.0.0.0",
        "posterior/sigma_io/c.1.1",
        "sample_stats/statistics/c.0.1.0",
        "warmup_posterior/bo/c.0.0.0",
        "commits/batch0000/000004.segment",
        "commits/batch0000/000006.block",
        "commits/batch0001/000000.segment",
    ],
)
@pytest.mark.parametrize("change", [lambda raw: flipped(raw, 40), lambda raw: raw[:20], lambda raw: None])
def test_a_repaired_store_is_run_again_to_the_same_bits(
    file: str, change: Callable[[bytes], bytes | None]
) -> None:
    disk = damaged({PATH / file: change})
    store = Store.open(PATH, fs=FileSystem(disk), check_records=False)
    known = {file, file.replace(".segment", ".block")}  # a missing one may have been either
    assert any(problem.file in known for problem in store.repair().problems)
    again = opened(disk)
    assert again.verify().ok
    assert again.committed_draws < 9
    again.datatree().load()
    run_to_end(again, ends=ENDS)
    assert contents(opened(disk)) == expected()
    assert opened(disk).verify().ok


def test_what_is_in_no_block_cannot_be_repaired_and_is_left_as_it_is() -> None:
    for file in ("constant_data/inputs/c.0.0", "posterior/draw/c.0", "posterior/chain/c.0"):
        disk = damaged(
            {
                PATH / file: lambda raw: flipped(raw, 3),
                PATH / "commits/batch0000/000000.segment": lambda raw: None,
            }
        )
        before = disk.contents()
        with pytest.raises(StoreCorruptError, match=f"cannot be repaired(.|\n)*{file}"):
            Store.open(PATH, fs=FileSystem(disk), check_records=False).repair()
        assert disk.contents() == before


def test_what_a_crash_left_in_a_chunk_beyond_the_committed_draws_is_not_read() -> None:
    disk = half_way().copy()
    # Blocks 3 and later of batch 0 never happened, except that garbage lies in their place.
    garbage = PATH / "posterior/io/c.0.1.0.0"
    disk.folder(garbage.parent).change(**{garbage.name: File(b"garbage", b"garbage")})
    store = opened(disk)
    assert store.verify().ok
    run_to_end(store)
    assert store.verify().ok


# Whole files in the wrong place.


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
    step(opened(disk), 0, ends=ENDS[:5])
    opened(disk).gather(0)
    step(opened(disk), 0, ends=ENDS[:5])
    return disk.copy()


@cache
def stores() -> Stores:
    """A run with one batch at its end and the other a draw before it, the same earlier, and another run."""
    other = empty_disk()
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
    run_to_end(store, ends=ENDS[:5])
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
