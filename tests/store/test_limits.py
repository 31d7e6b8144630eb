"""Lengths and sizes that no memory or disk can hold are refused before anything is recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rayfbnn import api
from rayfbnn.api import prior, resume, sample
from rayfbnn.errors import ConfigError
from rayfbnn.spec import RunSpec
from rayfbnn.store import creation
from rayfbnn.store.storage.posix import FileSystem
from rayfbnn.store.store import Store
from tests.support.small import assert_same_draws, make_store, small_spec
from tests.support.store.disks import MemoryDisk
from tests.support.store.toy import PATH, create, opened, run_to_end, toy_spec

HERE: dict[str, Any] = {"workers": 0, "progress": False}
GB = 10**9


@pytest.fixture
def memory_of_8_gb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(creation, "memory_of_machine", lambda: 8 * GB)


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.usefixtures("memory_of_8_gb")
def test_a_length_that_no_memory_holds_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "run.zarr"
    sample(small_spec(tmp_path), path, **HERE)
    before = files(path)
    with pytest.raises(ConfigError, match=r"phase\[2\]\.iterations: .* of memory.*got 4000000000"):
        resume(path, iterations=4_000_000_000, **HERE)
    assert files(path) == before
    assert resume(path, iterations=11, **HERE).draws == 11


@pytest.mark.parametrize("at_limit", [0, 1])
def test_the_limit_that_an_error_names_is_the_largest_length_that_is_taken(
    monkeypatch: pytest.MonkeyPatch, at_limit: int
) -> None:
    """The disk has room for a run of some hundred draws."""
    disk = MemoryDisk()
    disk.mkdir(PATH.parent)
    store = create(FileSystem(disk))
    run_to_end(store)
    disk.free = 30_000
    before = {path: file.live for path, file in disk.files().items()}
    with pytest.raises(ConfigError, match=r"must be at most (\d+), got 100000") as error:
        store.extend(toy_spec().with_iterations(100_000), 100_000)
    most = int(str(error.value).partition("at most ")[2].partition(",")[0])
    assert {path: file.live for path, file in disk.files().items()} == before
    assert 20 < most < 1000
    longer = toy_spec().with_iterations(most + at_limit)
    if at_limit == 0:
        opened(disk).extend(longer, most)
    else:
        with pytest.raises(ConfigError, match="disk space"):
            opened(disk).extend(longer, most + 1)


@pytest.mark.parametrize(
    ("replaced", "key"),
    [
        ({"draws_per_block": 4_000_000_000}, r"draws_per_block: .*at most \d+, got 4000000000"),
        ({"iterations": 2_500_000_000}, r"phase\[\d\]\.iterations: .*of memory.*got 2500000000"),
        ({"chains": 1_000_000_000}, r"chains: .*got 1000000000"),
        (
            {"chains": 400_000, "iterations": 4_000_000},
            r"phase\[\d\]\.iterations: .*disk.*got 4000000",
        ),
    ],
)
@pytest.mark.usefixtures("memory_of_8_gb")
def test_a_run_that_does_not_fit_creates_nothing(tmp_path: Path, replaced: dict[str, Any], key: str) -> None:
    spec = small_spec(tmp_path, phase=None, **replaced)
    before = files(tmp_path)
    with pytest.raises(ConfigError, match=key):
        make_store(tmp_path / "run.zarr", spec)
    assert files(tmp_path) == before


@pytest.mark.usefixtures("memory_of_8_gb")
def test_draws_from_the_prior_that_do_not_fit_create_nothing(tmp_path: Path) -> None:
    spec: RunSpec = small_spec(tmp_path)
    with pytest.raises(ConfigError, match=r"draws: .*got 4000000000"):
        prior(spec, tmp_path / "prior.zarr", draws=4_000_000_000)
    assert not (tmp_path / "prior.zarr").exists()
    assert Store.open(make_store(tmp_path / "run.zarr", spec).path).committed_draws == 0


@pytest.mark.parametrize(
    ("verb", "arguments", "key"),
    [
        ("reject", {"draws": 10, "proposals_per_round": 10**12}, "proposals_per_round"),
        ("reject", {"draws": 10**12}, "draws"),
        ("evidence", {"temperatures": 10**15}, "temperatures"),
        ("prior", {"draws": 10**12}, "draws"),
    ],
)
def test_draws_that_no_memory_holds_are_refused_before_any_is_made(
    tmp_path: Path, verb: str, arguments: dict[str, Any], key: str
) -> None:
    spec = small_spec(tmp_path)
    before = files(tmp_path)
    places = [] if verb == "evidence" else [tmp_path / "new.zarr"]
    with pytest.raises(ConfigError, match=rf"{key}: .* of memory.* it must be at most \d+, got 10+$"):
        getattr(api, verb)(spec, *places, **arguments)
    assert files(tmp_path) == before
    assert not list(tmp_path.glob(".*"))


def test_a_length_can_be_taken_back_while_nothing_of_it_is_sampled(tmp_path: Path) -> None:
    """Afterwards the run is as if it had never been longer, and can be made longer again."""
    spec = small_spec(tmp_path)
    for name in ("run.zarr", "straight.zarr"):
        sample(spec, tmp_path / name, **HERE)
    store = Store.open(tmp_path / "run.zarr")
    store.extend(store.spec.with_iterations(1000), 1000)
    assert Store.open(tmp_path / "run.zarr").root.header.n_draws == 1000
    assert resume(tmp_path / "run.zarr", iterations=10, **HERE).draws == 10
    assert not api.verify(tmp_path / "run.zarr").problems
    for array in ("posterior/draw", "posterior/bo", "sample_stats/energy"):
        names = [
            sorted(path.name for path in (tmp_path / name / array).rglob("*"))
            for name in ("run.zarr", "straight.zarr")
        ]
        assert names[0] == names[1]
    for name in ("run.zarr", "straight.zarr"):
        assert resume(tmp_path / name, iterations=14, **HERE).draws == 14
        assert not api.verify(tmp_path / name).problems
    assert_same_draws(tmp_path / "run.zarr", tmp_path / "straight.zarr")


def test_a_length_of_which_some_is_sampled_is_taken_back_as_far_as_that(tmp_path: Path) -> None:
    path = tmp_path / "run.zarr"
    sample(small_spec(tmp_path), path, **HERE)
    before = files(path)
    with pytest.raises(ConfigError, match="10 of the 10 iterations of the last phase are already.* got 9"):
        resume(path, iterations=9, **HERE)
    assert files(path) == before
