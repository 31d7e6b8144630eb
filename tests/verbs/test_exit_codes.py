"""Exit codes of every command, as the table in docs/running.md has them, where STORE is not a store.

Commands that messages suggest can be pasted into a shell, also if a path has blanks.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import zarr
from typer.testing import CliRunner

import rayfbnn
from rayfbnn import cli
from rayfbnn.run.running import _advice_on_interrupt
from rayfbnn.store.hierarchy import METADATA
from rayfbnn.store.storage.places import as_typed, near
from rayfbnn.store.store import Store
from tests.support.small import make_store, small_spec

PAGE = Path(__file__).parents[2] / "docs" / "running.md"
# The commands that read a store: their arguments, with the store to read named STORE.
READ_A_STORE = {
    "resume": ("STORE", "--workers", "0", "--no-progress"),
    "predict": ("STORE", "--data", "train.csv", "--out", "new.csv"),
    "diagnose": ("STORE",),
    "loo": ("STORE", "--out", "new.csv"),
    "check": ("STORE", "exact.zarr"),
    "show": ("STORE",),
    "verify": ("STORE",),
    "plot": ("STORE", "--out", "new"),
    "report": ("STORE", "--out", "new.html"),
    "export": ("STORE", "--out", "new.npz"),
}
CASES = [
    *READ_A_STORE.items(),
    ("check", ("run.zarr", "STORE")),
    ("predict", ("run.zarr", "STORE", "--data", "train.csv")),
    ("loo", ("run.zarr", "STORE")),
    ("verify", ("STORE", "--repair")),
    ("report", ("run.zarr", "STORE", "--out", "new.html")),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store without draws in run.zarr, and what is none: a file, an empty folder, a Zarr group."""
    folder = tmp_path_factory.mktemp("codes")
    make_store(folder / "run.zarr", small_spec(folder))
    (folder / "empty").mkdir()
    zarr.create_group(folder / "other.zarr", attributes={"title": "of another program"})
    (folder / "dangling.zarr").symlink_to(folder / "nothing")
    return folder


@pytest.mark.parametrize(
    ("verb", "arguments", "wrong"),
    [(*case, wrong) for case in CASES for wrong in ("missing.zarr", "other.zarr")]
    + [
        (verb, READ_A_STORE[verb], wrong)
        for verb in ("show", "verify", "diagnose")
        for wrong in ("train.csv", "empty", "dangling.zarr", "x" * 300, "no/where.zarr")
    ],
)
def test_a_missing_or_wrong_store_exits_with_2_and_leaves_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, verb: str, arguments: tuple[str, ...], wrong: str
) -> None:
    monkeypatch.chdir(folder)
    before = sorted(folder.rglob("*"))
    given = [wrong if argument == "STORE" else argument for argument in arguments]
    result = CliRunner().invoke(cli.app, [verb, *given])
    assert result.exit_code == 2, result.output
    assert wrong[:70] in result.stderr.replace("\n", "")
    assert result.stdout == ""
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("verb", ["resume", "show", "verify"])
def test_a_store_whose_metadata_are_gone_is_damaged_and_exits_with_1(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    make_store(tmp_path / "run.zarr", small_spec(tmp_path))
    (tmp_path / "run.zarr" / METADATA).unlink()
    monkeypatch.chdir(tmp_path)
    given = ["run.zarr" if argument == "STORE" else argument for argument in READ_A_STORE[verb]]
    result = CliRunner().invoke(cli.app, [verb, *given])
    assert result.exit_code == 1, result.output
    assert f"{METADATA}: missing" in result.output


def test_the_table_names_every_command() -> None:
    table = re.findall(r"^\| `([a-z]+)` \|", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    names = [command.callback.__name__ for command in cli.app.registered_commands if command.callback]
    assert sorted(table) == sorted(names)


NAMES = ["run.zarr", "my run.zarr", "it's $HOME.zarr", "a;b.zarr"]


@pytest.mark.parametrize("name", NAMES)
def test_a_place_in_a_command_is_one_word(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shlex.split(as_typed(tmp_path / name)) == [name] and near(tmp_path / name) == name


def test_the_command_to_go_on_can_be_pasted(tmp_path: Path) -> None:
    path = tmp_path / "my run.zarr"
    rayfbnn.sample(small_spec(tmp_path), path, workers=0, progress=False)
    with pytest.raises(KeyboardInterrupt) as raised, _advice_on_interrupt(Store.open(path)):
        raise KeyboardInterrupt
    command = str(raised.value).partition("continue with: ")[2]
    assert shlex.split(command) == ["rayfbnn", "resume", str(path)]
    diagnosis = rayfbnn.diagnose(path)
    commands = [text.partition("continue with: ")[2] for text in str(diagnosis).splitlines()]
    assert all(str(path.name) in shlex.split(one)[2] for one in commands if one.startswith("rayfbnn resume"))
