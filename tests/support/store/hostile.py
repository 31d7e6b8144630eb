"""A corpus of stores that were made to do harm."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rayfbnn.store.payload import joined, split
from tests.support.store.forging import chain_again, document, forge, sealed

CHUNK = "posterior/io/c.1.0.0.0"
DIGEST = "0" * 64


def corpus() -> dict[str, Attack]:
    """Every attack by a name that says what it is."""
    attacks = dict([*_links(), *_roots(), *_arrays(), *_records(), *_heads(), *_chunks(), *_texts()])
    return attacks | CORPUS


def _linked(name: str) -> Attack:
    """The folder or file of the store is moved outside, and a link to it is in its place."""

    def attack(store: Path, outside: Path) -> None:
        (store / name).rename(outside / "moved")
        (store / name).symlink_to(outside / "moved")

    return attack


def _in_place(name: str, make: Callable[[Path], object]) -> Attack:
    def attack(store: Path, outside: Path) -> None:
        (store / name).unlink(missing_ok=True)
        make(store / name)

    return attack


def _links() -> Iterator[tuple[str, Attack]]:
    for name in (
        "posterior",
        "posterior/io",
        "constant_data/inputs",
        "commits",
        "commits/batch0000",
        BLOCK,
        SEGMENT,
        "commits/batch0000/head.json",
        "zarr.json",
        "posterior/io/zarr.json",
        CHUNK,
        "sample_stats/statistics/c.1.0.0",
    ):
        yield f"{name} is a link to the outside", _linked(name)
    for name in ("discarded", "tuning", "verdicts"):
        yield (
            f"commits/{name} is a link to the outside",
            lambda store, outside, name=name: (store / "commits" / name).symlink_to(outside),
        )
    yield (
        "commits/lock is a link to nothing",
        _in_place("commits/lock", lambda path: path.symlink_to(path.parents[2] / "outside" / "made")),
    )
    yield (
        "a batch's lock is a link to a file outside",
        _in_place(
            "commits/batch0000/lock", lambda path: path.symlink_to(path.parents[3] / "outside" / "secret.txt")
        ),
    )
    yield (
        "a chunk is a link to /dev/zero",
        _in_place(CHUNK, lambda path: path.symlink_to("/dev/zero")),
    )
    for name in (CHUNK, "zarr.json", BLOCK, "commits/lock"):
        yield f"{name} is a pipe", _in_place(name, os.mkfifo)
    yield "the holder is a pipe", _in_place("commits/holder.json", os.mkfifo)
    half = "commits/batch0000/.000003.block.host-1-0.partial"
    for kind, make in (
        ("a link", lambda path: path.symlink_to(path.parents[3] / "outside" / "secret.txt")),
        ("a folder", os.mkdir),
        ("a pipe", os.mkfifo),
    ):
        yield f"a half-written file is {kind}", _in_place(half, make)
    yield "a chunk is a folder", _in_place(CHUNK, os.mkdir)
    yield (
        "a chunk is a loop of links",
        _in_place(CHUNK, lambda path: path.symlink_to(path)),
    )


def _root(change: Callable[[dict[str, Any]], object]) -> Attack:
    return lambda store, outside: forge(store / "zarr.json", lambda content: change(content["attributes"]))


def _set(keys: str, value: object) -> Callable[[dict[str, Any]], None]:
    """A change that puts a value at a path of keys."""

    def change(content: dict[str, Any]) -> None:
        *path, last = keys.split(".")
        inner: Any = content
        for key in path:
            inner = inner[int(key)] if isinstance(inner, list) else inner[key]
        inner[int(last) if isinstance(inner, list) else last] = value

    return change


def _roots() -> Iterator[tuple[str, Attack]]:
    for keys, value in (
        ("header.chains", 10**12),
        ("header.chains", 10**6),
        ("header.chains_per_batch", 0),
        ("header.chains_per_batch", -1),
        ("header.n_draws", 10**15),
        ("header.n_draws", 10**7),
        ("header.n_draws", -5),
        ("header.n_draws", "5"),
        ("header.n_warmup_draws", 10**7),
        ("header.n_blocks", 10**18),
        ("header.n_cases", 10**12),
        ("header.coordinate_chunk", 0),
        ("header.coordinate_chunk", 10**9),
        ("header.kind", "other"),
        ("header.kind", "prior"),
        ("header", None),
        ("header", {}),
        ("spec", []),
        ("spec", {}),
        ("spec.seed", 2**70),
        ("spec.network.hidden", [{"units": 10**9, "activation": "tanh"}]),
        ("spec.network.hidden", [{"units": 1, "activation": "tanh"}] * 5000),
        ("spec.phase.2.iterations", 10**15),
        ("spec.data.train", "/dev/zero"),
        ("spec.data.train", "../outside/secret.txt"),
        ("spec.data.inputs", ["*"]),
        ("spec.data.inputs", ["x"] * 100_000),
        ("spec.network.connections", {"io": {"file": "/dev/zero"}}),
        ("spec.network.connections", {"io": {"file": "../outside/secret.txt"}}),
        ("spec.network.connections", {"io": {"generator": "dense", "sources": 1, "destinations": 10**6}}),
        ("spec.model", {"kind": "class", "classes": 100_000}),
        ("fixed_chunks", {"/dev/zero": DIGEST}),
        ("fixed_chunks", {"../outside/secret.txt": DIGEST}),
        ("fixed_chunks", {"../outside/c.0": DIGEST}),
        ("fixed_chunks", {}),
        ("fixed_chunks", {CHUNK: DIGEST}),
        ("fixed_chunks", "text"),
        ("format_version", 1e300),
        ("format_version", True),
        ("format_version", [2]),
        ("rayfbnn_version", "\x1b[31m"),
        ("results", -1),
        ("kernel", "k" * 10**6),
        ("kernel", 5),
        ("kernel", None),
        ("head_records", "yes"),
        ("head_records", False),
        ("encoding", {"columns": 5}),
        ("encoding", {"columns": [], "inputs": [{}], "constant": {}, "labels": {}, "n_cases": 1}),
        ("other", 1),
    ):
        yield f"root: {keys} = {str(value)[:60]}", _root(_set(keys, value))
    yield "root: ten million draws in every place", _root(_many_draws)
    yield "root: a million batches in every place", _root(_many_batches)
    yield "root: chunks of 2**30 draws in every place", _root(_large_chunks)
    yield "root: nested 100,000 deep", _raw("zarr.json", b"[" * 100_000 + b"]" * 100_000)
    yield "root: 40 million values", _raw("zarr.json", b"[" + b"[]," * 20_000_000 + b"1]")
    yield "root: a sparse file of 100 GB", lambda store, outside: os.truncate(store / "zarr.json", 10**11)
    yield "an extension to 10**15 draws", _extension(n_draws=10**15, n_blocks=10**15)
    yield "an extension that is shorter", _extension(n_draws=1, n_blocks=1)
    yield (
        "extension number 999999999",
        _new("commits/extension999999999.json"),
    )
    yield (
        "another key beside the attributes",
        lambda store, outside: forge(store / "zarr.json", _set("other", 1)),
    )


def _many_draws(attributes: dict[str, Any]) -> None:
    n = 10**7
    attributes["spec"]["phase"][2]["iterations"] = n
    attributes["header"] |= {"n_draws": n, "n_blocks": n + 3, "coordinate_chunk": n}


def _many_batches(attributes: dict[str, Any]) -> None:
    for place in ("spec", "header"):
        attributes[place] |= {"chains": 10**6, "chains_per_batch": 1}


def _large_chunks(attributes: dict[str, Any]) -> None:
    attributes["spec"]["draws_per_block"] = 2**30
    attributes["header"] |= dict.fromkeys(("draws_per_block", "draws_per_chunk", "coordinate_chunk"), 2**30)


def _raw(name: str, raw: bytes) -> Attack:
    return lambda store, outside: (store / name).write_bytes(raw)


def _extension(**values: int) -> Attack:
    def attack(store: Path, outside: Path) -> None:
        spec = document(store / "zarr.json")["attributes"]["spec"]
        content = {"store": "", "number": 0, "spec": spec, **values}
        (store / "commits/extension0000.json").write_bytes(sealed(content))
        chain_again(store)

    return attack


def _arrays() -> Iterator[tuple[str, Attack]]:
    for name, keys, value in (
        ("posterior/io", "codecs", [{"name": "bytes"}, {"name": "gzip", "configuration": {"level": 5}}]),
        ("posterior/io", "codecs.0.configuration.endian", "big"),
        ("posterior/io", "codecs", []),
        ("posterior/io", "codecs", None),
        ("posterior/io", "fill_value", 7.0),
        ("posterior/io", "data_type", "int32"),
        ("posterior/io", "shape", [10**12, 5, 1, 1]),
        ("posterior/io", "shape", [3, [5], 1, 1]),
        ("posterior/io", "shape", "3511"),
        ("posterior/io", "chunk_grid", None),
        ("posterior/io", "chunk_key_encoding.configuration.separator", "/"),
        ("posterior/io", "dimension_names", ["draw", "chain", "input", "output"]),
        ("posterior/io", "attributes", {"scale_factor": 2.0}),
        ("posterior/io", "storage_transformers", [{"name": "other"}]),
        ("posterior/input", "data_type", "fixed_length_utf32"),
        ("posterior/input", "codecs.0.name", "pickle"),
        ("posterior/draw", "shape", [10**9]),
        ("posterior", "attributes", {"coordinates": "x"}),
        ("posterior", "consolidated_metadata", {"metadata": {}}),
    ):
        file = f"{name}/zarr.json"
        yield (
            f"{file}: {keys} = {str(value)[:50]}",
            lambda store, outside, file=file, keys=keys, value=value: forge(store / file, _set(keys, value)),
        )


def _records() -> Iterator[tuple[str, Attack]]:
    for name, keys, value in (
        (BLOCK, "batch", "0"),
        (BLOCK, "block", -1),
        (BLOCK, "first_iteration", 10**15),
        (BLOCK, "n_iterations", 0),
        (BLOCK, "n_draws", 10**7),
        (BLOCK, "n_draws", 1.5),
        (BLOCK, "n_draws", None),
        (BLOCK, "section", "other"),
        (SEGMENT, "chunks", {"../../outside/c.0.0.0.0": DIGEST}),
        (SEGMENT, "chunks", {"posterior/io/c.x.y.0.0": DIGEST}),
        (SEGMENT, "chunks", {"posterior/io/c.0": DIGEST}),
        (SEGMENT, "chunks", {"posterior/io/c.99999.0.0.0": DIGEST}),
        (SEGMENT, "chunks", {"posterior/none/c.1.0.0.0": DIGEST}),
        (SEGMENT, "chunks", {CHUNK: "short"}),
        (SEGMENT, "chunks", [1, 2]),
        (BLOCK, "state", {"../../outside/secret.txt": DIGEST}),
        (BLOCK, "state", None),
        (BLOCK, "progress", None),
        (BLOCK, "progress.draws", 10**7),
        (BLOCK, "progress.draws", -1),
        (BLOCK, "progress.iteration", 10**15),
        (BLOCK, "progress.totals", {"updates": "many"}),
        (BLOCK, "progress.totals", {"updates": float("nan")}),
        (BLOCK, "progress.last", {"n_accepted": None, "accepted_sum": 1.0}),
        (BLOCK, "progress.last", {"n_accepted": 1e308, "diverged": 1e308}),
        (BLOCK, "tuning", [{"trajectories": 0}]),
        (BLOCK, "tuning", "text"),
    ):
        kind = name.rpartition(".")[2]
        yield f"record of a {kind}: {keys} = {str(value)[:60]}", changed(name, _set(keys, value))
    yield "record number 999999999", _new("commits/batch0000/999999999.block")
    yield "a record that is a list", _listed
    yield "a verdict called x.json", _new("commits/verdicts/x.json")
    yield "an empty verdict", _new("commits/verdicts/000000.json")
    yield "a tuning record of a run without any", _new("commits/tuning/000000.json")


def _listed(store: Path, outside: Path) -> None:
    (store / BLOCK).write_bytes(joined(b"[]", parts(store / BLOCK)[1]))


def _new(name: str) -> Attack:
    def attack(store: Path, outside: Path) -> None:
        (store / name).parent.mkdir(exist_ok=True)
        (store / name).write_bytes(b"")

    return attack


def _heads() -> Iterator[tuple[str, Attack]]:
    for keys, value in (
        ("blocks", 10**15),
        ("blocks", -1),
        ("blocks", "3"),
        ("batch", 1),
        ("last", DIGEST),
        ("last", 5),
        ("extra", []),
    ):
        yield f"head: {keys} = {value}", _head(_set(keys, value))
    yield "the holder has control characters", _holder({"host": "\x1b[2J", "pid": 1})
    yield "the holder has no process", _holder({"host": "a"})


def _head(change: Callable[[dict[str, Any]], object]) -> Attack:
    def attack(store: Path, outside: Path) -> None:
        file = store / "commits/batch0000/head.json"
        content = document(file)
        change(content)
        file.write_bytes(sealed(content))

    return attack


def _holder(content: dict[str, Any]) -> Attack:
    return lambda store, outside: (store / "commits/holder.json").write_bytes(sealed(content))


def _chunks() -> Iterator[tuple[str, Attack]]:
    yield "a chunk that expands to 2 GB", _raw(CHUNK, gzip.compress(bytes(2 * 10**7)) * 100)
    yield "a sparse chunk of 100 GB", lambda store, outside: os.truncate(store / CHUNK, 10**11)
    yield (
        "a sparse chunk of cases of 100 GB",
        lambda store, outside: os.truncate(store / "constant_data/inputs/c.0.0", 10**11),
    )
    yield "names of 2**31 values", _raw("posterior/input/c.0", b"\xff\xff\xff\x7f" + bytes(100))
    yield (
        "a sparse chunk of names of 100 GB",
        lambda store, outside: os.truncate(store / "posterior/input/c.0", 10**11),
    )
    yield "an empty chunk of names", _raw("posterior/input/c.0", b"")


def _texts() -> Iterator[tuple[str, Attack]]:
    yield "a name of two million characters", _root(_set("spec.data.targets", ["y" * 2 * 10**6]))
    yield "half a surrogate pair as a name", _root(_set("spec.data.targets", ["\ud800"]))
    yield "a number of 5,000 digits", _raw("zarr.json", b'{"a": ' + b"1" * 5000 + b"}")


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
