"""A store that someone has made to do harm is refused, or used without any."""

from __future__ import annotations

import gzip
import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray  # noqa: F401  so that each process below has it
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from rayfbnn.store.hierarchy import text_chunk
from rayfbnn.store.payload import joined
from rayfbnn.store.storage.posix import FileSystem
from rayfbnn.store.store import Store
from tests.support.small import make_store, small_spec
from tests.support.store import forging
from tests.support.store.damages import (
    ANYTHING,
    FOLDER,
    Damage,
    content,
    in_place_of,
    make_outside,
    moved,
    put,
)
from tests.support.store.fits import run
from tests.support.store.forging import (
    VERDICT,
    chain_again,
    document,
    forge,
    outcome,
    places,
    read,
    sealed,
    set_at,
)
from tests.support.store.toy import create, step, written_by_zarr

BLOCK = "commits/batch0000/000002.block"
SEGMENT = "commits/batch0001/000002.segment"
CHUNK = "posterior/io/c.1.0.0.0"
NAMES = "posterior/input/c.0"
CASES = "constant_data/inputs/c.0.0"
LOCK, BATCH_LOCK, HOLDER = "commits/lock", "commits/batch0000/lock", "commits/holder.json"
HALF = "commits/batch0000/.000003.block.host-1-0.partial"
DIGEST = "0" * 64
FOLDERS = ("posterior", "posterior/io", "constant_data/inputs", "commits", "commits/batch0000")
KINDS_OF_FILES = (
    *("zarr.json", "posterior/io/zarr.json", CHUNK, "sample_stats/statistics/c.1.0.0", NAMES, CASES),
    *("commits/batch0000/head.json", BLOCK, SEGMENT),
)
# Values that are forged in records whose seals fit, by file and by path of keys.
OF_BLOCKS_AND_SEGMENTS: dict[str, tuple[Any, ...]] = {
    "n_draws": (10**6, 10**18, -1),
    "first_draw": (10**6,),
    "first_iteration": (10**15,),
    "section": (None,),
    "batch": (10**9,),
    "block": (10**15,),
    "state": ({"state/position/c.0.0.0": DIGEST},),
    "n_iterations": (10**15,),
    "also": (1,),
}
OF_ARRAYS: dict[str, tuple[Any, ...]] = dict.fromkeys(
    ("zarr_format", "node_type", "shape", "data_type", "chunk_grid", "codecs", "fill_value"),
    (None, True, -1, 10**18, "../outside/c.0", "|O", {"name": "other"}),
)
FORGED: dict[str, dict[str, tuple[Any, ...]]] = {
    "zarr.json": {
        "other": (1,),
        "attributes.header": (None, {}),
        "attributes.header.chains": (10**12, 10**6),
        "attributes.header.chains_per_batch": (0, -1),
        "attributes.header.n_draws": (10**15, 10**7, -5, "5"),
        "attributes.header.n_warmup_draws": (10**7,),
        "attributes.header.n_blocks": (10**18,),
        "attributes.header.n_cases": (10**12,),
        "attributes.header.coordinate_chunk": (0, 10**9),
        "attributes.header.kind": ("other", "prior"),
        "attributes.header.draws_per_chunk": (10**9, 0, None, 2),
        "attributes.header.cases_per_chunk": (10**9, 0, None, 2),
        "attributes.header.draws_per_block": (10**9, 0),
        "attributes.spec": ([], {}),
        "attributes.spec.seed": (2**70,),
        "attributes.spec.network.hidden": (
            [{"units": 10**9, "activation": "tanh"}],
            [{"units": 1, "activation": "tanh"}] * 5000,
        ),
        "attributes.spec.network.connections": (
            {"io": {"file": "/dev/zero"}},
            {"io": {"file": "../outside/thesis.txt"}},
            {"io": {"generator": "dense", "sources": 1, "destinations": 10**6}},
        ),
        "attributes.spec.phase.2.iterations": (10**15,),
        "attributes.spec.data.train": ("/dev/zero", "../outside/thesis.txt"),
        "attributes.spec.data.inputs": (["*"], ["x"] * 100_000),
        "attributes.spec.data.targets": (["y" * 2 * 10**6], ["\ud800"]),
        "attributes.spec.model": ({"kind": "class", "classes": 100_000},),
        "attributes.fixed_chunks": (
            {"/dev/zero": DIGEST},
            {"../outside/thesis.txt": DIGEST},
            {"../outside/c.0": DIGEST},
            {},
            {CHUNK: DIGEST},
            "text",
        ),
        "attributes.format_version": (1e300, True, [2]),
        "attributes.rayfbnn_version": ("\x1b[31m",),
        "attributes.results": (-1,),
        "attributes.kernel": ("k" * 10**6, 5, None),
        "attributes.head_records": ("yes", False),
        "attributes.encoding": (
            {"columns": 5},
            {"columns": [], "inputs": [{}], "constant": {}, "labels": {}, "n_cases": 1},
        ),
        "attributes.other": (1,),
    },
    "posterior/io/zarr.json": {
        **OF_ARRAYS,
        "codecs": (
            *OF_ARRAYS["codecs"],
            [{"name": "bytes"}, {"name": "gzip", "configuration": {"level": 5}}],
            [],
        ),
        "codecs.0.configuration.endian": ("big",),
        "fill_value": (*OF_ARRAYS["fill_value"], 7.0),
        "data_type": (*OF_ARRAYS["data_type"], "int32"),
        "shape": (*OF_ARRAYS["shape"], [10**12, 5, 1, 1], [3, [5], 1, 1], "3511"),
        "chunk_key_encoding.configuration.separator": ("/",),
        "dimension_names": (["draw", "chain", "input", "output"],),
        "attributes": ({"scale_factor": 2.0},),
        "storage_transformers": ([{"name": "other"}],),
    },
    "posterior/input/zarr.json": {
        **OF_ARRAYS,
        "data_type": (*OF_ARRAYS["data_type"], "fixed_length_utf32"),
        "codecs.0.name": ("pickle",),
    },
    "posterior/draw/zarr.json": {"shape": ([10**9],)},
    "posterior/zarr.json": {
        "attributes": ({"coordinates": "x"},),
        "consolidated_metadata": ({"metadata": {}},),
    },
    BLOCK: {
        **OF_BLOCKS_AND_SEGMENTS,
        "batch": (*OF_BLOCKS_AND_SEGMENTS["batch"], "0"),
        "block": (*OF_BLOCKS_AND_SEGMENTS["block"], -1),
        "n_iterations": (*OF_BLOCKS_AND_SEGMENTS["n_iterations"], 0),
        "n_draws": (*OF_BLOCKS_AND_SEGMENTS["n_draws"], 1.5, None),
        "section": (*OF_BLOCKS_AND_SEGMENTS["section"], "other"),
        "chunks": ({"posterior/io/c.0.0.0.0": DIGEST},),
        "segment": ({"first_block": 2, "last": DIGEST},),
        "state": (*OF_BLOCKS_AND_SEGMENTS["state"], {"../../outside/thesis.txt": DIGEST}, None),
        "progress": (None,),
        "progress.draws": (10**7, -1),
        "progress.iteration": (10**15,),
        "progress.totals": ({"updates": "many"}, {"updates": float("nan")}),
        "progress.last": (
            {"n_accepted": None, "accepted_sum": 1.0},
            {"n_accepted": 1e308, "diverged": 1e308},
        ),
        "tuning": ([{"trajectories": 0}], "text"),
    },
    SEGMENT: {
        **OF_BLOCKS_AND_SEGMENTS,
        "block": (*OF_BLOCKS_AND_SEGMENTS["block"], 1),
        "segment": (None,),
        "segment.first_block": (0, 10**15),
        "segment.more": (1,),
        "chunks": (
            *(
                {file: DIGEST}
                for file in (
                    *("../../outside/c.0.0.0.0", "../outside/c.0", "posterior/io/c.x.y.0.0"),
                    *("posterior/io/c.0", "posterior/io/c.0.0.0.0", "posterior/io/c.99999.0.0.0"),
                    "posterior/none/c.1.0.0.0",
                )
            ),
            {CHUNK: "short"},
            [1, 2],
            {},
        ),
    },
    "commits/batch0000/head.json": {
        "blocks": (10**15, -1, "3"),
        "batch": (1,),
        "last": (DIGEST, 5),
        "extra": ([],),
    },
}


def _keys(path: str) -> list[Any]:
    return [int(key) if key.isdigit() else key for key in path.split(".")]


def _set(file: str, values: dict[str, Any]) -> Damage:
    def change(content: dict[str, Any]) -> None:
        for path, value in values.items():
            set_at(content, _keys(path), value)

    return lambda store, outside: forge(store / file, change)


def _arrays(file: str, change: Callable[[bytes], bytes]) -> Damage:
    def damage(store: Path, outside: Path) -> None:
        forge(store / file, lambda content: None, change(read(store / file)[1] or b""))

    return damage


def _bytes(file: str, raw: bytes) -> Damage:
    def damage(store: Path, outside: Path) -> None:
        (store / file).parent.mkdir(exist_ok=True)
        (store / file).write_bytes(raw)

    return damage


def _first_line(line: bytes) -> Damage:
    def damage(store: Path, outside: Path) -> None:
        raw = (store / BLOCK).read_bytes()
        (store / BLOCK).write_bytes(line + raw[raw.index(b"\n") + 1 :])

    return damage


def _sparse(file: str) -> Damage:
    return lambda store, outside: os.truncate(store / file, 10**11)


def _copied(source: str, to: str) -> Damage:
    return lambda store, outside: shutil.copyfile(store / source, store / to)


def _extension(n: int) -> Damage:
    def damage(store: Path, outside: Path) -> None:
        spec = document(store / "zarr.json")["attributes"]["spec"]
        record = {"store": "", "number": 0, "spec": spec, "n_draws": n, "n_blocks": n}
        (store / "commits/extension0000.json").write_bytes(sealed(record))
        chain_again(store)

    return damage


def _many_names(store: Path, outside: Path) -> None:
    for number in range(1000, 31_000):
        (store / f"commits/batch0000/{number:06d}.block").touch()


HEADER, SPEC = "attributes.header.", "attributes.spec."
CORPUS: dict[str, Damage] = {
    **dict(in_place_of(ANYTHING, *KINDS_OF_FILES, LOCK, BATCH_LOCK, HOLDER, HALF)),
    **{f"{name} is a link to where it was moved": moved(name) for name in (*FOLDERS, *KINDS_OF_FILES)},
    **{
        f"commits/{name} is a link to a folder": put(
            f"commits/{name}", lambda path, outside: path.symlink_to(outside)
        )
        for name in ("discarded", "tuning", "verdicts")
    },
    **{
        f"{file}: {path} = {str(value)[:60]}": _set(file, {path: value})
        for file, fields in FORGED.items()
        for path, values in fields.items()
        for value in values
    },
    "ten million draws in every place": _set(
        "zarr.json",
        {
            f"{SPEC}phase.2.iterations": 10**7,
            f"{HEADER}n_draws": 10**7,
            f"{HEADER}n_blocks": 10**7 + 3,
            f"{HEADER}coordinate_chunk": 10**7,
        },
    ),
    "a million batches in every place": _set(
        "zarr.json",
        {
            f"{place}{key}": n
            for place in (HEADER, SPEC)
            for key, n in (("chains", 10**6), ("chains_per_batch", 1))
        },
    ),
    "chunks of 2**30 draws in every place": _set(
        "zarr.json",
        dict.fromkeys(
            (
                f"{SPEC}draws_per_block",
                *(f"{HEADER}{key}" for key in ("draws_per_block", "draws_per_chunk", "coordinate_chunk")),
            ),
            2**30,
        ),
    ),
    "10**12 cases in chunks of one": _set(
        "zarr.json", {f"{HEADER}n_cases": 10**12, f"{HEADER}cases_per_chunk": 1}
    ),
    "an extension to 10**15 draws": _extension(10**15),
    "an extension that is shorter": _extension(1),
    **{
        f"{file} is a sparse file of 100 GB": lambda store, outside, file=file: os.truncate(
            store / file, 10**11
        )
        for file in ("zarr.json", CHUNK, CASES, NAMES)
    },
    "the root is nested 100,000 deep": _bytes("zarr.json", b"[" * 100_000 + b"]" * 100_000),
    "the root has 40 million values": _bytes("zarr.json", b"[" + b"[]," * 20_000_000 + b"1]"),
    "the root has a number of 5,000 digits": _bytes("zarr.json", b'{"a": ' + b"1" * 5000 + b"}"),
    "a chunk that expands to 2 GB": _bytes(CHUNK, gzip.compress(bytes(2 * 10**7)) * 100),
    "names of 2**31 values": _bytes(NAMES, b"\xff\xff\xff\x7f" + bytes(100)),
    **{
        f"{file} is new and empty": _bytes(file, b"")
        for file in (
            *("commits/extension999999999.json", "commits/batch0000/999999999.block"),
            *("commits/verdicts/x.json", "commits/verdicts/000000.json", "commits/tuning/000000.json"),
        )
    },
    "the holder has control characters": _bytes(HOLDER, sealed({"host": "\x1b[2J", "pid": 1})),
    "the holder has no process": _bytes(HOLDER, sealed({"host": "a"})),
    **{
        f"{file} has {what}": _arrays(file, change)
        for file in (BLOCK, SEGMENT)
        for what, change in (
            ("no arrays", lambda payload: b""),
            ("more arrays", lambda payload: payload + b"\0" * 1000),
            ("fewer arrays", lambda payload: payload[:-8]),
        )
    },
    "a record that is a list": lambda store, outside: (store / BLOCK).write_bytes(
        joined(b"[]", read(store / BLOCK)[1] or b"")
    ),
    **{
        f"a record of {length} bytes": _first_line(f"rayfbnn record, bytes: {length}\n".encode())
        for length in ("999999999", "000000000", "-00000001", "0000000x1", "00000000٣")
    },
    "a file without a first line": _first_line(b""),
    "a segment in place of the first block": _copied(SEGMENT, "commits/batch0000/000000.segment"),
    "a block where a segment stands for it": _copied(BLOCK, "commits/batch0001/000002.block"),
    "a segment within another": _copied(SEGMENT, "commits/batch0001/000003.segment"),
    "a chunk of cases in another's place": _copied(CASES, "constant_data/inputs/c.1.0"),
    "30,000 empty blocks": _many_names,
}
HARMLESS = {  # what no verb reads, or what a reader has no reason to refuse
    *(
        f"{lock} is {what}"
        for lock in (LOCK, BATCH_LOCK)
        for what in ("a pipe", "a file", "empty", "two gigabytes large")
    ),
    *(f"{HALF} is {what}" for what in ANYTHING),
    *(f"{HOLDER} is {what}" for what in ANYTHING if what not in FOLDER),
    "the holder has control characters",
    "the holder has no process",
    "zarr.json: attributes.spec.data.train = /dev/zero",
    "zarr.json: attributes.spec.data.train = ../outside/thesis.txt",
    "zarr.json: attributes.header.draws_per_block = 1000000000",
    f"{BLOCK}: progress.last = {{'n_accepted': None, 'accepted_sum': 1.0}}",
    f"{BLOCK}: progress.last = {{'n_accepted': 1e+308, 'diverged': 1e+308}}",
    "commits/batch0000/999999999.block is new and empty",
    "commits/verdicts/x.json is new and empty",
    "commits/tuning/000000.json is new and empty",
    "a block where a segment stands for it",
    "a segment within another",
    "30,000 empty blocks",
}
QUICK = 23  # one of so many attacks is in the quick tests


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store, whose run has still to be finished, and another folder outside of it.

    One batch of the store is in segments, and the other in single blocks.
    """
    folder = _with_outside(tmp_path_factory.mktemp("hostile") / "original")
    store = create(FileSystem(), folder / "toy.zarr")
    while step(store, 1):
        pass
    store.gather(1)
    for _ in range(3):
        step(store, 0)
    return folder


@pytest.fixture(scope="module")
def original_tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Such a folder whose run found its stepsizes itself, and was then made longer after a verdict."""
    folder = _with_outside(tmp_path_factory.mktemp("hostile_tuned") / "original")
    automatic = {"op": "hybrid", "steps": "auto", "stepsize": "auto"}
    phases = [
        {"iterations": 4, "keep": "warmup", "operations": [automatic]},
        {"iterations": 5, "operations": [automatic]},
    ]
    store = run(make_store(folder / "toy.zarr", small_spec(folder, phase=phases, chains=2)))
    with store.lock():
        store.verdicts.append(VERDICT)
        store.extend(store.spec.with_iterations(7), 7)
    return folder


def _with_outside(folder: Path) -> Path:
    folder.mkdir()
    make_outside(folder / "outside")
    return folder


def happens(original: Path, folder: Path, attack: Damage) -> str:
    shutil.copytree(original, folder)
    try:
        attack(folder / "toy.zarr", folder / "outside")
        before = content(folder / "outside")
        said = outcome(folder / "toy.zarr")
        return said if content(folder / "outside") == before else f"changes the outside, {said}"
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("use", [lambda store: time.sleep(60), lambda store: all(itertools.repeat(True))])
def test_waiting_and_working_without_end_are_seen(
    use: Callable[[Path], Any], original: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forging, "_read", use)
    monkeypatch.setattr(forging, "MOST_SECONDS", 0.2)
    monkeypatch.setattr(forging, "MOST_WAITING", 2)
    assert outcome(original / "toy.zarr") == "hangs"


@pytest.mark.parametrize(
    "name",
    [
        name if number % QUICK == 0 else pytest.param(name, marks=pytest.mark.long)
        for number, name in enumerate(CORPUS)
    ],
)
def test_a_hostile_store_does_no_harm(name: str, original: Path, tmp_path: Path) -> None:
    said = happens(original, tmp_path / "attacked", CORPUS[name])
    assert said == ("used" if name in HARMLESS else "refused")


def test_the_corpus_is_large_and_an_honest_store_is_used(original: Path, tmp_path: Path) -> None:
    assert len(CORPUS) >= 400 and set(CORPUS) >= HARMLESS
    assert happens(original, tmp_path / "honest", lambda store, outside: chain_again(store)) == "used"


def test_names_are_compared_with_what_zarr_writes(original: Path) -> None:
    plans = Store.open(original / "toy.zarr").hierarchy.plans
    texts = [plan for plan in plans.values() if plan.is_text]
    assert len(texts) >= 6
    for plan in texts:
        odd = replace(plan, shape=(3,), chunks=(3,), values=np.array(["", "ä, ß", "x" * 300], dtype=object))
        for names in (plan, odd):
            assert written_by_zarr(names, names.values) == text_chunk(names)
            assert len(text_chunk(names)) == names.most_bytes


def test_an_honest_run_with_such_records_is_used(original_tuned: Path, tmp_path: Path) -> None:
    honest: Damage = lambda store, outside: chain_again(store)  # noqa: E731
    assert happens(original_tuned, tmp_path / "honest", honest) == "used"


@pytest.mark.parametrize(
    ("part", "change", "what"),
    [
        ("measured", {"trajectories": 0}, "its measurements are out of range"),
        ("measured", {"lengths": [3]}, "it does not have measurements of hybrid"),
        ("measured", {"sums": [1]}, "its measurements are of different numbers of levels"),
        ("measured", {"diverged": 10**6}, "its measurements are out of range"),
        ("settings", {"steps": 17}, "has settings that tuning cannot give hybrid"),
        ("settings", {"longest": 10**6}, "has settings that tuning cannot give hybrid"),
        ("settings", {"scales": [2.0]}, "has settings that tuning cannot give hybrid"),
    ],
)
def test_records_that_no_round_of_tuning_makes_are_refused(
    original_tuned: Path, tmp_path: Path, part: str, change: dict[str, Any], what: str
) -> None:
    store = shutil.copytree(original_tuned / "toy.zarr", tmp_path / "toy.zarr")
    file = store / "commits/tuning/000000.json"
    forge(file, lambda content: content["operations"][0][part].update(change))
    problem = Store.open(store).verify().problems[0]
    assert problem.file == "commits/tuning/000000.json" and what in problem.what


# Random values of any field of any kind of file.

FILES = {
    "original": (
        "zarr.json",
        "posterior/io/zarr.json",
        "posterior/input/zarr.json",
        "commits/batch0000/head.json",
        BLOCK,
        SEGMENT,
    ),
    "original_tuned": (
        "commits/extension0000.json",
        "commits/tuning/000000.json",
        "commits/tuning/000003.json",
        "commits/verdicts/000000.json",
    ),
}
VALUES = some.one_of(
    some.none(),
    some.booleans(),
    some.integers(),
    some.sampled_from([-1, 0, 2**31, 2**53, 2**63, 10**6, 10**7, 10**15, 1e308, 1e-308, float("nan")]),
    some.text(max_size=20),
    some.sampled_from(["../outside/thesis.txt", "/dev/zero", "c.0", "posterior/io/c.0.0.0.0", "0" * 64]),
    some.recursive(
        some.integers() | some.text(max_size=5),
        lambda inner: some.lists(inner, max_size=4) | some.dictionaries(some.text(max_size=5), inner),
        max_leaves=8,
    ),
)


@pytest.mark.parametrize("n_examples", [4, pytest.param(300, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", FILES)
def test_no_value_of_any_field_does_harm(kind: str, n_examples: int, request: pytest.FixtureRequest) -> None:
    original = request.getfixturevalue(kind)

    @settings(max_examples=n_examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=some.data())
    def check(data: some.DataObject) -> None:
        name = data.draw(some.sampled_from(FILES[kind]), label="file")
        place = data.draw(
            some.sampled_from(list(places(document(original / "toy.zarr" / name)))), label="place"
        )
        value = data.draw(VALUES, label="value")

        def attack(store: Path, outside: Path) -> None:
            record, payload = read(store / name)
            set_at(record, place, value)
            (store / name).write_bytes(sealed(record, payload))
            chain_again(store)

        with tempfile.TemporaryDirectory() as folder:
            assert happens(original, Path(folder) / "attacked", attack) in ("used", "refused")

    check()
