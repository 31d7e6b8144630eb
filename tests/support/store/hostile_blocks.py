"""Stores that someone has made to do harm, through their blocks and segments."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rayfbnn.store.segments.payload import joined, split
from tests.support.store.forging import chain_again, forge, sealed

Attack = Callable[[Path, Path], object]  # changes a store, with a folder outside of it at hand

BLOCK = "commits/batch0000/000002.block"
SEGMENT = "commits/batch0001/000002.segment"
HUGE = 10**18


def parts(file: Path) -> tuple[dict[str, Any], bytes]:
    """The record in the file of a block or segment, and the arrays after it."""
    record, payload = split(file.read_bytes(), file)
    document: dict[str, Any] = json.loads(record)
    return document, bytes(payload)


def put(file: Path, document: dict[str, Any], payload: bytes) -> None:
    """Write a block or segment whose seal and digests fit, and seal all that follows from it again."""
    document |= {"payload": hashlib.sha256(payload).hexdigest()}
    file.write_bytes(joined(sealed(document), payload))
    chain_again(file.parents[2])


def changed(name: str, change: Callable[[dict[str, Any]], object]) -> Attack:
    def attack(store: Path, outside: Path) -> None:
        document, payload = parts(store / name)
        change(document)
        put(store / name, document, payload)

    return attack


def with_payload(name: str, change: Callable[[bytes], bytes]) -> Attack:
    def attack(store: Path, outside: Path) -> None:
        document, payload = parts(store / name)
        put(store / name, document, change(payload))

    return attack


def with_line(line: bytes) -> Attack:
    def attack(store: Path, outside: Path) -> None:
        raw = (store / BLOCK).read_bytes()
        (store / BLOCK).write_bytes(line + raw[raw.index(b"\n") + 1 :])

    return attack


def replaced(name: str, make: Callable[[Path, Path], object]) -> Attack:
    def attack(store: Path, outside: Path) -> None:
        (store / name).unlink()
        make(store / name, outside)

    return attack


def header(**values: Any) -> Attack:
    def attack(store: Path, outside: Path) -> None:
        forge(store / "zarr.json", lambda root: root["attributes"]["header"].update(values))

    return attack


def many_names(store: Path, outside: Path) -> None:
    for number in range(1000, 31_000):
        (store / f"commits/batch0000/{number:06d}.block").touch()


def copied(source: str, to: str) -> Attack:
    def attack(store: Path, outside: Path) -> None:
        (store / to).write_bytes((store / source).read_bytes())

    return attack


def _kinds(name: str) -> dict[str, Attack]:
    kind = name.rpartition(".")[2]
    return {
        f"a {kind} that is a link to a file outside": replaced(
            name, lambda path, outside: path.symlink_to(outside / "secret.txt")
        ),
        f"a {kind} that is a link to nothing": replaced(
            name, lambda path, outside: path.symlink_to(outside / "new")
        ),
        f"a {kind} that is a link to /dev/zero": replaced(
            name, lambda path, outside: path.symlink_to("/dev/zero")
        ),
        f"a {kind} that is a pipe": replaced(name, lambda path, outside: os.mkfifo(path)),
        f"a {kind} that is a folder": replaced(name, lambda path, outside: path.mkdir()),
        f"a {kind} of two gigabytes": replaced(name, lambda path, outside: _sparse(path, 2**31)),
        f"an empty {kind}": replaced(name, lambda path, outside: path.touch()),
        f"a {kind} without arrays": with_payload(name, lambda payload: b""),
        f"a {kind} with more arrays": with_payload(name, lambda payload: payload + b"\0" * 1000),
        f"a {kind} with fewer arrays": with_payload(name, lambda payload: payload[:-8]),
        f"a {kind} with 10**6 draws": changed(name, lambda record: record.update(n_draws=10**6)),
        f"a {kind} with 10**18 draws": changed(name, lambda record: record.update(n_draws=HUGE)),
        f"a {kind} with -1 draws": changed(name, lambda record: record.update(n_draws=-1)),
        f"a {kind} that begins at draw 10**6": changed(name, lambda record: record.update(first_draw=10**6)),
        f"a {kind} without a section": changed(name, lambda record: record.update(section=None)),
        f"a {kind} of batch 10**9": changed(name, lambda record: record.update(batch=10**9)),
        f"a {kind} number 10**15": changed(name, lambda record: record.update(block=10**15)),
        f"a {kind} with a state of files": changed(
            name, lambda record: record.update(state={"state/position/c.0.0.0": "0" * 64})
        ),
        f"a {kind} with 10**15 iterations": changed(name, lambda record: record.update(n_iterations=10**15)),
        f"a {kind} with another key": changed(name, lambda record: record.update(also=1)),
    }


def _sparse(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.truncate(size)


CORPUS: dict[str, Attack] = {
    **_kinds(BLOCK),
    **_kinds(SEGMENT),
    "a record of 10**9 - 1 bytes": with_line(b"rayfbnn record, bytes: 999999999\n"),
    "a record of no bytes": with_line(b"rayfbnn record, bytes: 000000000\n"),
    "a record of -1 bytes": with_line(b"rayfbnn record, bytes: -00000001\n"),
    "a record of bytes that are no number": with_line(b"rayfbnn record, bytes: 0000000x1\n"),
    "a record of bytes in other digits": with_line("rayfbnn record, bytes: 00000000٣\n".encode()),
    "a file without a first line": with_line(b""),
    "a block that names chunks": changed(
        BLOCK, lambda record: record.update(chunks={"posterior/io/c.0.0.0.0": "0" * 64})
    ),
    "a block that is a segment": changed(
        BLOCK, lambda record: record.update(segment={"first_block": 2, "last": "0" * 64})
    ),
    "a segment that is a block": changed(SEGMENT, lambda record: record.pop("segment")),
    "a segment that ends before it begins": changed(SEGMENT, lambda record: record.update(block=1)),
    "a segment of 10**15 blocks": changed(SEGMENT, lambda record: record.update(block=10**15)),
    "a segment from block 0 on": changed(SEGMENT, lambda record: record["segment"].update(first_block=0)),
    "a segment of a block from 10**15 on": changed(
        SEGMENT, lambda record: record["segment"].update(first_block=10**15)
    ),
    "a segment with another key": changed(SEGMENT, lambda record: record["segment"].update(more=1)),
    "a segment without chunks": changed(SEGMENT, lambda record: record.update(chunks={})),
    "a segment with chunks of another batch": changed(
        SEGMENT, lambda record: record.update(chunks={"posterior/io/c.0.0.0.0": "0" * 64})
    ),
    "a segment with a path that leaves the store": changed(
        SEGMENT, lambda record: record.update(chunks={"../outside/c.0": "0" * 64})
    ),
    "a segment in place of the first block": copied(SEGMENT, "commits/batch0000/000000.segment"),
    "a block where a segment stands for it": copied(BLOCK, "commits/batch0001/000002.block"),
    "a segment within another": copied(SEGMENT, "commits/batch0001/000003.segment"),
    "30,000 empty blocks": many_names,
    "chunks of 10**9 draws": header(draws_per_chunk=10**9),
    "chunks of no draws": header(draws_per_chunk=0),
    "chunks of unknown draws": header(draws_per_chunk=None),
    "chunks of another number of draws": header(draws_per_chunk=2),
    "chunks of 10**9 cases": header(cases_per_chunk=10**9),
    "chunks of no cases": header(cases_per_chunk=0),
    "chunks of unknown cases": header(cases_per_chunk=None),
    "chunks of another number of cases": header(cases_per_chunk=2),
    "10**12 cases": header(n_cases=10**12),
    "10**12 cases in chunks of one": header(n_cases=10**12, cases_per_chunk=1),
    "a chunk of cases in another's place": copied("constant_data/inputs/c.0.0", "constant_data/inputs/c.1.0"),
    "blocks of 10**9 draws": header(draws_per_block=10**9),
    "blocks of no draws": header(draws_per_block=0),
}
