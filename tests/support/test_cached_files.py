"""Files that are kept between runs of the tests are made once, and never left half written."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import cached_files
from tests.support.cached_files import CachedFiles


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_files, "FOLDER", tmp_path)


def test_a_file_is_made_once() -> None:
    texts = iter(["first", "second"])
    paths = [CachedFiles("kind", "same").file("name", lambda path: _write(path, texts)) for _ in range(2)]
    assert [path.read_text() for path in paths] == ["first", "first"]


def test_another_compiler_makes_its_own_file() -> None:
    texts = iter(["first", "second"])
    paths = [
        CachedFiles("kind", compiler).file("name", lambda path: _write(path, texts)) for compiler in "ab"
    ]
    assert [path.read_text() for path in paths] == ["first", "second"]


def test_a_file_that_could_not_be_made_is_not_there() -> None:
    files = CachedFiles("kind", "same")

    def fail(path: Path) -> None:
        path.write_text("half")
        raise ValueError

    with pytest.raises(ValueError):
        files.file("name", fail)
    assert list(files.path.iterdir()) == []


def test_a_file_that_no_test_has_used_for_a_week_is_removed() -> None:
    files = CachedFiles("kind", "same")
    old, new = (files.file(name, lambda path: _write(path, iter(["text"]))) for name in ("old", "new"))
    eight_days_ago = time.time() - 8 * 24 * 3600
    os.utime(old, (eight_days_ago, eight_days_ago))
    assert list(CachedFiles("kind", "same").path.iterdir()) == [new]


def test_nothing_behind_a_link_is_removed(tmp_path: Path) -> None:
    (tmp_path / "outside" / "folder").mkdir(parents=True)
    (tmp_path / "outside" / "file").write_text("years of work")
    files = CachedFiles("kind", "same")
    (files.path / "link to a folder").symlink_to(tmp_path / "outside")
    (files.path / "broken link").symlink_to(tmp_path / "new")
    (tmp_path / "kind-of-others").symlink_to(tmp_path / "outside")
    eight_days_ago = time.time() - 8 * 24 * 3600
    for path in (*(tmp_path / "outside").iterdir(), *files.path.iterdir()):
        os.utime(path, (eight_days_ago, eight_days_ago), follow_symlinks=False)
    CachedFiles("kind", "same")
    assert sorted(path.name for path in (tmp_path / "outside").iterdir()) == ["file", "folder"]
    assert list(files.path.iterdir()) == []


def _write(path: Path, texts: Iterator[str]) -> None:
    path.write_text(next(texts))
