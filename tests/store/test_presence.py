"""A run is resumed only if every file that it builds on is there, with its size."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rayfbnn import api, cli
from rayfbnn.errors import StoreCorruptError
from rayfbnn.run.resuming import take_up
from rayfbnn.store.storage.bucket import Bucket
from rayfbnn.store.storage.objects import ObjectStorage
from rayfbnn.store.storage.places import ObjectPath
from rayfbnn.store.store import Store
from rayfbnn.study.plan import Member
from rayfbnn.study.rule import Rule
from rayfbnn.study.study import Study
from tests.support.small import make_store, small_spec
from tests.support.store.fits import fit_spec
from tests.support.store.ladder_runs import ladder_spec

HERE: dict[str, Any] = {"workers": 0, "progress": False}
DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "gone": lambda content: None,
    "short": lambda content: content[:-9],
    "empty": lambda content: b"",
}


def with_warmup(path: Path) -> None:
    api.sample(small_spec(path.parent), path, **HERE)
    api.resume(path, iterations=12, **HERE)


RUNS: dict[str, tuple[Callable[[Path], object], str]] = {
    "all files of a run with warm-up and an extension": (with_warmup, ""),
    "ladders": (lambda path: api.sample(ladder_spec(path.parent), path, **HERE), "ladder/|tuning/"),
    "a fit": (
        lambda path: api.sample(fit_spec(path.parent, "laplace"), path, method="laplace", **HERE),
        "posterior/|segment",
    ),
}


def files_below(path: Path) -> list[Path]:
    """Every file of a store but locks."""
    return sorted(file for file in path.rglob("*") if file.is_file() and file.name != "lock")


@pytest.mark.parametrize("name", RUNS)
def test_a_complete_run_that_lacks_a_file_is_not_resumed(tmp_path: Path, name: str) -> None:
    path, (make, chosen) = tmp_path / "run.zarr", RUNS[name]
    make(path)
    files = [file for file in files_below(path) if re.search(chosen, str(file.relative_to(path)))]
    assert len(files) > 20
    for file, damage in zip(files, cycle(DAMAGES.values()), strict=False):
        content = file.read_bytes()
        damaged = damage(content)
        file.unlink() if damaged is None else file.write_bytes(damaged)
        there = files_below(path)
        if damaged is None and file.parent.name == "tuning":  # it follows from the commits
            api.resume(path, **HERE)
            assert file.read_bytes() == content
            continue
        with pytest.raises(StoreCorruptError) as error:
            api.resume(path, **HERE)
        assert files_below(path) == there
        # A segment that is gone cannot be told from its first block that is gone.
        assert str(file).removesuffix(".segment") in str(error.value) and "\n" not in str(error.value)
        file.write_bytes(content)
    api.resume(path, **HERE)


@pytest.mark.parametrize("damage", DAMAGES)
def test_run_and_resume_end_with_1_before_they_sample_or_lengthen(tmp_path: Path, damage: str) -> None:
    path, spec = tmp_path / "run.zarr", small_spec(tmp_path)
    (tmp_path / "run.toml").write_text(spec.to_toml())
    api.sample(spec, path, **HERE)
    file = path / "posterior" / "sigma_ih0" / "c.1.0"
    damaged = DAMAGES[damage](file.read_bytes())
    file.unlink() if damaged is None else file.write_bytes(damaged)
    there = files_below(path)
    (tmp_path / "longer.toml").write_text(spec.with_iterations(14).to_toml())
    for command in (
        ["run", tmp_path / "run.toml", path],
        ["run", tmp_path / "longer.toml", path],
        ["resume", path, "--iterations", 14],
    ):
        result = CliRunner().invoke(cli.app, [*map(str, command), "--workers", "0", "--no-progress"])
        assert result.exit_code == 1
        assert str(file) in result.stderr and result.stderr.count("\n") == 1
        assert files_below(path) == there


def test_an_extension_that_is_gone_is_missed_although_no_draw_needs_it(tmp_path: Path) -> None:
    path = tmp_path / "run.zarr"
    store = make_store(path, small_spec(tmp_path))
    store.extend(store.spec.with_iterations(14), 14)
    record = path / "commits" / "extension0000.json"
    record.unlink()
    with pytest.raises(StoreCorruptError, match=f"{record}: missing"):
        api.resume(path, **HERE)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_run_in_a_bucket_that_lacks_an_object_is_not_resumed(tmp_path: Path, damage: str) -> None:
    from obstore.store import MemoryStore

    run, objects = tmp_path / "run.zarr", MemoryStore()
    api.sample(small_spec(tmp_path), run, **HERE)
    fs, place = ObjectStorage(Bucket(objects)), ObjectPath("s3", "bucket", "runs/run.zarr")
    for file in files_below(run):
        objects.put(f"{place.key}/{file.relative_to(run)}", file.read_bytes())
    for key in ("posterior/ih0/c.0.0.0.0", "sample_stats/statistics/c.2.0.0", "constant_data/inputs/c.0.0"):
        content = bytes(objects.get(f"{place.key}/{key}").bytes())
        damaged = DAMAGES[damage](content)
        objects.delete(f"{place.key}/{key}")
        if damaged is not None:
            objects.put(f"{place.key}/{key}", damaged)
        store = Store.open(place, fs=fs)
        with store.lock(), pytest.raises(StoreCorruptError, match=key):
            take_up(store, 14)
        assert Store.open(place, fs=fs).root.n_extensions == 0
        objects.put(f"{place.key}/{key}", content)


def test_the_members_of_a_study_are_checked_although_it_is_complete(tmp_path: Path) -> None:
    study = Study.create(tmp_path / "study", small_spec(tmp_path), seeds=2, rule=Rule(looks=1))
    study.run(workers=0, progress=False)
    assert study.is_complete
    file = study.members.place(Member(0, 2)) / "posterior" / "bo" / "c.0.0.0"
    file.unlink()
    result = CliRunner().invoke(cli.app, ["study", "run", str(tmp_path / "study"), "--workers", "0"])
    assert result.exit_code == 1 and str(file) in result.stderr
