"""Commands that messages suggest can be pasted into a shell, also if a path has blanks."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

import rayfbnn
from rayfbnn.run.running import _how_to_go_on
from rayfbnn.store.storage.places import as_typed, near
from rayfbnn.store.store import Store
from tests.support.small import small_spec

NAMES = ["run.zarr", "my run.zarr", "it's $HOME.zarr", "a;b.zarr"]


@pytest.mark.parametrize("name", NAMES)
def test_a_place_in_a_command_is_one_word(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shlex.split(as_typed(tmp_path / name)) == [name] and near(tmp_path / name) == name


def test_the_command_to_go_on_can_be_pasted(tmp_path: Path) -> None:
    path = tmp_path / "my run.zarr"
    rayfbnn.sample(small_spec(tmp_path), path, workers=0, progress=False)
    command = _how_to_go_on(Store.open(path)).partition("continue with: ")[2]
    assert shlex.split(command) == ["rayfbnn", "resume", str(path)]
    diagnosis = rayfbnn.diagnose(path)
    commands = [text.partition("continue with: ")[2] for text in str(diagnosis).splitlines()]
    assert all(str(path.name) in shlex.split(one)[2] for one in commands if one.startswith("rayfbnn resume"))
