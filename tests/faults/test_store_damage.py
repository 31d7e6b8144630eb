"""Damage to any file of a store is found and named, never taken for an empty store, and can be repaired."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from rayfbnn.arrays import Array
from rayfbnn.errors import StoreCorruptError, StoreError, StoreFormatError
from rayfbnn.store.records import NO_SEAL, SEAL, seal, seal_of
from rayfbnn.store.storage.posix import FileSystem
from rayfbnn.store.store import Store
from rayfbnn.store.verify import verify
from rayfbnn.streams import Purpose, Streams
from tests.support.store.crashes import half_way
from tests.support.store.disks import File, MemoryDisk, flipped
from tests.support.store.toy import PATH, contents, create, opened, run_to_end, step, toy_spec

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
    contents = {path: file.live for path, file in finished().files().items()}
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
    contents = {path: file.live for path, file in finished().files().items()}
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
    contents = {path: file.live for path, file in finished().files().items()}
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
        before = {path: file.live for path, file in disk.files().items()}
        with pytest.raises(StoreError, match=str(path)):
            opened(disk)
        with pytest.raises(StoreError, match="already exists"):
            create(FileSystem(disk))
        assert {path: file.live for path, file in disk.files().items()} == before


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
    other = MemoryDisk()
    other.mkdir(PATH.parent)
    store = create(FileSystem(other), spec=toy_spec(seed=4))
    run_to_end(store)
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
        before = {path: file.live for path, file in disk.files().items()}
        with pytest.raises(StoreCorruptError, match=f"cannot be repaired(.|\n)*{file}"):
            Store.open(PATH, fs=FileSystem(disk), check_records=False).repair()
        assert {path: file.live for path, file in disk.files().items()} == before


def test_what_a_crash_left_in_a_chunk_beyond_the_committed_draws_is_not_read() -> None:
    disk = half_way().copy()
    # Blocks 3 and later of batch 0 never happened, except that garbage lies in their place.
    garbage = PATH / "posterior/io/c.0.1.0.0"
    disk.folder(garbage.parent).change(**{garbage.name: File(b"garbage", b"garbage")})
    store = opened(disk)
    assert store.verify().ok
    run_to_end(store)
    assert store.verify().ok
