"""Recently read contents share one limit in a process."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

import rayfbnn
from rayfbnn.draws.view import committed
from rayfbnn.store import block_files, hierarchy
from rayfbnn.store.storage.recent import Recent
from rayfbnn.store.store import Store
from tests.support.small import small_spec


class Reader:
    """Something that can be collected."""


def test_the_oldest_contents_of_all_readers_are_dropped() -> None:
    recent = Recent(10)
    readers = Reader(), Reader()
    first, second = (recent.number_of(reader) for reader in readers)
    recent.keep(first, "a", "A", 4)
    recent.keep(second, "a", "B", 4)
    assert (recent.get(first, "a"), recent.get(second, "a")) == ("A", "B")
    recent.keep(second, "b", "C", 4)
    assert (recent.get(first, "a"), recent.get(second, "a"), recent.get(second, "b")) == (None, "B", "C")
    recent.keep(second, "a", "D", 6)  # replaces B
    assert (recent.get(second, "a"), recent.get(second, "b")) == ("D", "C")
    recent.keep(first, "large", "E", 100)
    assert recent.get(first, "large") == "E" and recent.get(second, "a") is None
    recent.drop(first, "large")
    recent.drop(first, "large")
    recent.keep(second, "c", "F", 10)
    assert recent.get(second, "c") == "F" and recent.get(first, "large") is None


def test_contents_are_dropped_with_their_reader() -> None:
    recent, readers = Recent(10), [Reader(), Reader()]
    gone, left = (recent.number_of(reader) for reader in readers)
    recent.keep(gone, "a", "A", 5)
    recent.keep(left, "a", "B", 5)
    del readers[0]
    gc.collect()
    assert recent.get(gone, "a") is None and recent.get(left, "a") == "B"
    recent.keep(left, "b", "C", 5)  # in the room of A
    assert recent.get(left, "a") == "B"


def test_many_stores_share_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each store of a study once kept its own, and a process took gigabytes for forty of them."""
    here: dict[str, Any] = {"workers": 0, "progress": False}
    limits = Recent(20_000), Recent(20_000)
    monkeypatch.setattr(hierarchy, "_chunks", limits[0])
    monkeypatch.setattr(block_files, "_arrays", limits[1])
    phase = [{"iterations": 60, "operations": [{"op": "metropolis", "stepsize": 0.1}]}]
    stores = []
    for seed in range(6):
        spec = small_spec(tmp_path, seed=seed, chains=4, phase=phase)
        rayfbnn.sample(spec, tmp_path / f"{seed}.zarr", **here)
        stores.append(Store.open(tmp_path / f"{seed}.zarr"))
    for store in stores:
        assert committed(store).positions().shape[:1] == (4,)
    sizes = [[size for _, size in recent._kept.values()] for recent in limits]
    assert any(sizes)
    for recent, of_limit in zip(limits, sizes, strict=True):
        assert sum(of_limit) == recent._n_bytes <= max([20_000, *of_limit])
