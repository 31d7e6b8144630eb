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


def _links() -> Iterator[tuple[str, Attack]]:
    for name in (
        *(
            "posterior",
            "posterior/io",
            "constant_data/inputs",
            "commits",
            "commits/batch0000",
            BLOCK,
            SEGMENT,
        ),
        *("commits/batch0000/head.json", "zarr.json", "posterior/io/zarr.json", CHUNK),
        "sample_stats/statistics/c.1.0.0",
    ):
        yield f"{name} is a link to the outside", _linked(name)
    for name in ("discarded", "tuning", "verdicts"):
        yield (
            f"commits/{name} is a link to the outside",
            lambda store, outside, name=name: (store / "commits" / name).symlink_to(outside),
        )
    half = "commits/batch0000/.000003.block.host-1-0.partial"
    batch_lock = "commits/batch0000/lock"
    for what, name, make in (
        ("a link to nothing", "commits/lock", lambda path, outside: path.symlink_to(outside / "made")),
        ("a link to a file", batch_lock, lambda path, outside: path.symlink_to(outside / "secret.txt")),
        ("a link to /dev/zero", CHUNK, lambda path, outside: path.symlink_to("/dev/zero")),
        ("a loop of links", CHUNK, lambda path, outside: path.symlink_to(path)),
        ("a folder", CHUNK, _folder),
        *(("a pipe", name, _pipe) for name in (CHUNK, "zarr.json", "commits/lock", "commits/holder.json")),
        ("a link", half, lambda path, outside: path.symlink_to(outside / "secret.txt")),
        ("a folder", half, _folder),
        ("a pipe", half, _pipe),
    ):
        yield f"{name} is {what}", replaced(name, make)


def _folder(path: Path, outside: Path) -> None:
    path.mkdir()


def _pipe(path: Path, outside: Path) -> None:
    os.mkfifo(path)


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
        *(("header.draws_per_chunk", value) for value in (10**9, 0, None, 2)),
        *(("header.cases_per_chunk", value) for value in (10**9, 0, None, 2)),
        *(("header.draws_per_block", value) for value in (10**9, 0)),
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
        *(
            (name, keys, value)
            for name in ("posterior/io", "posterior/input")
            for keys in (
                "zarr_format",
                "node_type",
                "shape",
                "data_type",
                "chunk_grid",
                "codecs",
                "fill_value",
            )
            for value in (None, True, -1, 10**18, "../outside/c.0", "|O", {"name": "other"})
        ),
    ):
        file = f"{name}/zarr.json"
        yield (
            f"{file}: {keys} = {str(value)[:50]}",
            lambda store, outside, file=file, keys=keys, value=value: forge(store / file, _set(keys, value)),
        )


def _records() -> Iterator[tuple[str, Attack]]:
    for name, keys, value in (
        *((name, *one) for name in (BLOCK, SEGMENT) for one in _OF_BOTH),
        (BLOCK, "batch", "0"),
        (BLOCK, "block", -1),
        (BLOCK, "n_iterations", 0),
        (BLOCK, "n_draws", 1.5),
        (BLOCK, "n_draws", None),
        (BLOCK, "section", "other"),
        (BLOCK, "chunks", {"posterior/io/c.0.0.0.0": DIGEST}),
        (BLOCK, "segment", {"first_block": 2, "last": DIGEST}),
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
        (SEGMENT, "segment", None),
        (SEGMENT, "block", 1),
        (SEGMENT, "segment.first_block", 0),
        (SEGMENT, "segment.first_block", 10**15),
        (SEGMENT, "segment.more", 1),
        *(
            (SEGMENT, "chunks", {file: DIGEST})
            for file in (
                *("../../outside/c.0.0.0.0", "../outside/c.0", "posterior/io/c.x.y.0.0", "posterior/io/c.0"),
                *("posterior/io/c.0.0.0.0", "posterior/io/c.99999.0.0.0", "posterior/none/c.1.0.0.0"),
            )
        ),
        (SEGMENT, "chunks", {CHUNK: "short"}),
        (SEGMENT, "chunks", [1, 2]),
        (SEGMENT, "chunks", {}),
    ):
        kind = name.rpartition(".")[2]
        yield f"record of a {kind}: {keys} = {str(value)[:60]}", changed(name, _set(keys, value))
    yield "record number 999999999", _new("commits/batch0000/999999999.block")
    yield "a record that is a list", _listed
    yield "a verdict called x.json", _new("commits/verdicts/x.json")
    yield "an empty verdict", _new("commits/verdicts/000000.json")
    yield "a tuning record of a run without any", _new("commits/tuning/000000.json")


_OF_BOTH: tuple[tuple[str, Any], ...] = (
    ("n_draws", 10**6),
    ("n_draws", 10**18),
    ("n_draws", -1),
    ("first_draw", 10**6),
    ("first_iteration", 10**15),
    ("section", None),
    ("batch", 10**9),
    ("block", 10**15),
    ("state", {"state/position/c.0.0.0": DIGEST}),
    ("n_iterations", 10**15),
    ("also", 1),
)


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
        (store / name).unlink(missing_ok=True)
        make(store / name, outside)

    return attack


def many_names(store: Path, outside: Path) -> None:
    for number in range(1000, 31_000):
        (store / f"commits/batch0000/{number:06d}.block").touch()


def copied(source: str, to: str) -> Attack:
    def attack(store: Path, outside: Path) -> None:
        (store / to).write_bytes((store / source).read_bytes())

    return attack


def _kinds(name: str) -> Iterator[tuple[str, Attack]]:
    """The file of a block or segment is something else, or has other arrays."""
    for what, make in (
        ("a link to a file outside", lambda path, outside: path.symlink_to(outside / "secret.txt")),
        ("a link to nothing", lambda path, outside: path.symlink_to(outside / "new")),
        ("a link to /dev/zero", lambda path, outside: path.symlink_to("/dev/zero")),
        ("a pipe", _pipe),
        ("a folder", _folder),
        ("two gigabytes large", lambda path, outside: _sparse(path, 2**31)),
        ("empty", lambda path, outside: path.touch()),
    ):
        yield f"{name} is {what}", replaced(name, make)
    yield f"{name} has no arrays", with_payload(name, lambda payload: b"")
    yield f"{name} has more arrays", with_payload(name, lambda payload: payload + b"\0" * 1000)
    yield f"{name} has fewer arrays", with_payload(name, lambda payload: payload[:-8])


def _sparse(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.truncate(size)


CORPUS: dict[str, Attack] = {
    **dict(_kinds(BLOCK)),
    **dict(_kinds(SEGMENT)),
    **{
        f"a record of {length} bytes": with_line(f"rayfbnn record, bytes: {length}\n".encode())
        for length in ("999999999", "000000000", "-00000001", "0000000x1", "00000000٣")
    },
    "a file without a first line": with_line(b""),
    "a segment in place of the first block": copied(SEGMENT, "commits/batch0000/000000.segment"),
    "a block where a segment stands for it": copied(BLOCK, "commits/batch0001/000002.block"),
    "a segment within another": copied(SEGMENT, "commits/batch0001/000003.segment"),
    "30,000 empty blocks": many_names,
    "10**12 cases in chunks of one": _root(
        lambda root: root["header"].update(n_cases=10**12, cases_per_chunk=1)
    ),
    "a chunk of cases in another's place": copied("constant_data/inputs/c.0.0", "constant_data/inputs/c.1.0"),
}
