"""A file is replaced whole, or left as it was."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from rayfbnn.errors import ConfigError
from rayfbnn.output.whole_file import whole_file


def test_a_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old")
    with whole_file(tmp_path / "a.txt") as unfinished:
        unfinished.write(b"new")
        assert (tmp_path / "a.txt").read_text() == "old"
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a.txt": "new"}


def test_an_error_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old")
    with pytest.raises(ValueError, match="halfway"), whole_file(tmp_path / "a.txt") as unfinished:
        unfinished.write(b"half")
        raise ValueError("halfway")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a.txt": "old"}


def test_two_that_write_the_same_file_do_not_mix(tmp_path: Path) -> None:
    with whole_file(tmp_path / "a.txt") as first, whole_file(tmp_path / "a.txt") as second:
        first.write(b"first")
        second.write(b"second")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a.txt": "first"}


def test_a_kill_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old")
    child = os.fork()
    if child == 0:
        with whole_file(tmp_path / "a.txt") as unfinished:
            unfinished.write(b"half")
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert (tmp_path / "a.txt").read_text() == "old"


@pytest.mark.parametrize("target", ["other.txt", "new.txt", "."])
def test_a_link_that_someone_put_in_the_way_is_not_written_through(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "other.txt").write_text("years of work")
    monkeypatch.setattr(os, "urandom", bytes)  # a name that can be told before
    planted = tmp_path / ".a.txt.00000000.unfinished"
    planted.symlink_to(tmp_path / "outside" / target)
    with pytest.raises(ConfigError, match="File exists"), whole_file(tmp_path / "a.txt") as unfinished:
        unfinished.write(b"new")
    assert planted.is_symlink() and not (tmp_path / "a.txt").exists()
    assert [path.read_text() for path in (tmp_path / "outside").iterdir()] == ["years of work"]
