"""The log of a run for programs: a line of JSON for each block, which cannot stop a run."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rayfbnn import api
from rayfbnn.errors import ConfigError
from rayfbnn.run import progress
from rayfbnn.run.progress import log_file
from rayfbnn.store.storage.places import place_of
from rayfbnn.store.store import Store
from tests.support.small import small_spec

HERE: dict[str, Any] = {"workers": 0, "progress": False}


def lines(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "run.zarr.log.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_every_block_has_a_line_and_every_start_its_own(tmp_path: Path) -> None:
    path = tmp_path / "run.zarr"
    api.sample(small_spec(tmp_path), path, log_format="json", **HERE)
    store, log = Store.open(path), lines(tmp_path)
    assert [log[0]["event"], log[-1]["event"], log[-1]["how"]] == ["start", "end", "complete"]
    blocks = [line for line in log if line["event"] == "block"]
    assert len(blocks) == sum(store.commits.n_blocks(batch) for batch in range(store.n_batches))
    for batch in range(store.n_batches):
        ours = [line for line in blocks if line["batch"] == batch]
        assert sum(line["iterations"] for line in ours) == ours[-1]["iteration"] == 18
        assert ours[-1]["draws"] == 10 and ours[-1]["failures"] == 0
    api.resume(path, iterations=12, log_format="json", **HERE)
    assert [line["event"] for line in lines(tmp_path)].count("start") == 2
    assert lines(tmp_path)[-1]["done"] == 20


def test_a_log_that_cannot_be_written_does_not_stop_a_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "run.zarr.log.jsonl").mkdir()
    with caplog.at_level(logging.WARNING):
        summary = api.sample(small_spec(tmp_path), tmp_path / "run.zarr", log_format="json", **HERE)
    assert summary.draws == 10
    assert "the run continues without it" in caplog.text


@pytest.mark.parametrize(
    "make",
    [
        lambda path, other: path.symlink_to(other),
        lambda path, other: path.symlink_to(other.parent),
        lambda path, other: path.symlink_to(other.parent / "new"),
        lambda path, other: path.symlink_to("/dev/null"),
        lambda path, other: path.hardlink_to(other),
        lambda path, other: os.mkfifo(path),
    ],
    ids=["link to a file", "link to a folder", "broken link", "link to a device", "hard link", "pipe"],
)
def test_a_log_is_written_into_no_file_of_others(
    make: Callable[[Path, Path], object], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "other.txt").write_text("years of work")
    make(tmp_path / "run.zarr.log.jsonl", tmp_path / "outside" / "other.txt")
    with caplog.at_level(logging.WARNING):
        assert api.sample(small_spec(tmp_path), tmp_path / "run.zarr", log_format="json", **HERE).draws == 10
    assert f"{tmp_path / 'run.zarr.log.jsonl'}: cannot write the log: " in caplog.text
    assert [path.read_text() for path in (tmp_path / "outside").iterdir()] == ["years of work"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_gives_up_the_log_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_opened", lambda file: open("/dev/full", "a", buffering=1))
    with caplog.at_level(logging.WARNING):
        assert api.sample(small_spec(tmp_path), tmp_path / "run.zarr", log_format="json", **HERE).draws == 10
    assert caplog.text.count(f"{tmp_path / 'run.zarr.log.jsonl'}: cannot write the log any more") == 1


def test_the_log_of_a_store_in_a_bucket_is_in_the_current_folder() -> None:
    assert log_file(place_of("s3://bucket/folder/run.zarr")) == Path("run.zarr.log.jsonl")


def test_another_format_is_refused_before_anything_is_created(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='log_format: must be "text" or "json", got "xml"'):
        api.sample(small_spec(tmp_path), tmp_path / "run.zarr", log_format="xml", **HERE)  # type: ignore[arg-type]
    assert not (tmp_path / "run.zarr").exists()
