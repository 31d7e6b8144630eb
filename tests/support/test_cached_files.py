"""Files that are kept between runs of the tests are made once, and never left half written."""

from __future__ import annotations

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


def _write(path: Path, texts: Iterator[str]) -> None:
    path.write_text(next(texts))
