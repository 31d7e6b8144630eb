"""A store that someone has made to do harm is refused, or used without any."""

from __future__ import annotations

import itertools
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
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
from tests.support.store import forging, hostile
from tests.support.store.fits import run
from tests.support.store.forging import VERDICT, chain_again, forge, outcome, sealed
from tests.support.store.hostile import Attack, corpus
from tests.support.store.toy import create, step, written_by_zarr

CORPUS = corpus()
HARMLESS = {  # what no verb reads, or what a reader has no reason to refuse
    "commits/lock is a pipe",
    "commits/holder.json is a pipe",
    *(
        f"commits/batch0000/.000003.block.host-1-0.partial is {what}"
        for what in ("a link", "a folder", "a pipe")
    ),
    "the holder has control characters",
    "the holder has no process",
    "root: spec.data.train = /dev/zero",
    "root: spec.data.train = ../outside/secret.txt",
    "record of a block: progress.last = {'n_accepted': None, 'accepted_sum': 1.0}",
    "record of a block: progress.last = {'n_accepted': 1e+308, 'diverged': 1e+308}",
    "record number 999999999",
    "a verdict called x.json",
    "a tuning record of a run without any",
    "a block where a segment stands for it",
    "a segment within another",
    "root: header.draws_per_block = 1000000000",
    "30,000 empty blocks",
}
QUICK = 17  # one of so many attacks is in the quick tests


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store, whose run has still to be finished, and another folder outside of it.

    One batch of the store is in segments, and the other in single blocks.
    """
    folder = _with_outside(tmp_path_factory.mktemp("hostile"))
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
    folder = _with_outside(tmp_path_factory.mktemp("hostile_tuned"))
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


def _with_outside(parent: Path) -> Path:
    folder = parent / "original"
    (folder / "outside").mkdir(parents=True)
    for name in ("secret.txt", "c.0"):
        (folder / "outside" / name).write_text("secret")
    return folder


def happens(original: Path, folder: Path, attack: Attack) -> str:
    shutil.copytree(original, folder)
    try:
        attack(folder / "toy.zarr", folder / "outside")
        before = content(folder / "outside")
        said = outcome(folder / "toy.zarr")
        return said if content(folder / "outside") == before else f"changes the outside, {said}"
    finally:
        shutil.rmtree(folder)


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


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
    assert len(CORPUS) >= 200 and set(CORPUS) >= HARMLESS
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
    honest: Attack = lambda store, outside: chain_again(store)  # noqa: E731
    assert happens(original_tuned, tmp_path / "honest", honest) == "used"


@pytest.mark.parametrize(
    ("part", "change", "what"),
    [
        ("measured", {"trajectories": 0}, "is not a record of tuning"),
        ("measured", {"lengths": [3]}, "is not a record of tuning"),
        ("measured", {"sums": [1]}, "is not a record of tuning"),
        ("measured", {"diverged": 10**6}, "is not a record of tuning"),
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
        hostile.BLOCK,
        hostile.SEGMENT,
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
    some.sampled_from(["../outside/secret.txt", "/dev/zero", "c.0", "posterior/io/c.0.0.0.0", "0" * 64]),
    some.recursive(
        some.integers() | some.text(max_size=5),
        lambda inner: some.lists(inner, max_size=4) | some.dictionaries(some.text(max_size=5), inner),
        max_leaves=8,
    ),
)


def places(value: Any, *before: Any) -> Iterator[tuple[Any, ...]]:
    """The path of every key and element of a JSON document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield (*before, key)
        yield from places(one, *before, key)


@pytest.mark.parametrize("n_examples", [4, pytest.param(300, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", FILES)
def test_no_value_of_any_field_does_harm(kind: str, n_examples: int, request: pytest.FixtureRequest) -> None:
    original = request.getfixturevalue(kind)

    @settings(max_examples=n_examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=some.data())
    def check(data: some.DataObject) -> None:
        name = data.draw(some.sampled_from(FILES[kind]), label="file")
        file = original / "toy.zarr" / name
        is_json = name.endswith(".json")
        document, payload = (json.loads(file.read_bytes()), b"") if is_json else hostile.parts(file)
        place = data.draw(some.sampled_from(list(places(document))), label="place")
        value = data.draw(VALUES, label="value")

        def attack(store: Path, outside: Path) -> None:
            inner = document
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = value
            raw = sealed(document)
            (store / name).write_bytes(raw if is_json else joined(raw, payload))
            chain_again(store)

        with tempfile.TemporaryDirectory() as folder:
            assert happens(original, Path(folder) / "attacked", attack) in ("used", "refused")

    check()
