"""Making a store removes and changes nothing of others, whatever has the name of its hidden folder."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rayfbnn import api, cli
from rayfbnn.errors import StoreBusyError, StoreExistsError, StoreForeignError
from rayfbnn.store.creation import is_ours
from rayfbnn.store.storage.posix import FileSystem
from rayfbnn.store.storage.system_calls import SystemCalls
from rayfbnn.store.store import Store
from tests.support.small import small_spec
from tests.support.store.damages import (
    ANYTHING,
    FILE,
    FOLDER,
    LINKS,
    MARKER,
    Damage,
    content,
    in_place_of,
    leave_behind,
    make_outside,
    put,
)
from tests.support.store.fits import SETTINGS, fit_spec, make_fit
from tests.support.store.toy import create

SAMPLE = ("sample", "run.toml", "toy.zarr", "--workers", "0", "--no-progress")
VERBS = {
    "sample": SAMPLE,
    "run": ("run", *SAMPLE[1:]),
    "prior": ("prior", "run.toml", "toy.zarr", "--draws", "2"),
}
HIDDEN = ".toy.zarr.creating"


def _file(path: Path, text: str = "years of work") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _with(*names: str) -> Damage:
    """A folder of someone's files in the place of the hidden folder."""
    return lambda root, outside: [_file(root / HIDDEN / name) for name in names]


def _left(change: Damage) -> Damage:
    """A folder that a killed creation left, and that someone changed since."""

    def plant(root: Path, outside: Path) -> None:
        folder = leave_behind(root / "toy.zarr")
        assert {"posterior", "commits"} <= {path.name for path in folder.iterdir()}
        change(folder, outside)

    return plant


def _marker(make: Damage) -> Damage:
    """Something in the place of the marker of such a folder."""

    def change(folder: Path, outside: Path) -> None:
        (marker,) = folder.glob(".creating.*")
        marker.unlink()
        make(marker, outside)

    return change


def _alike(name: str) -> Damage:
    """A link to what someone else has under the same name."""
    return put(name, lambda path, outside: path.symlink_to(outside / name))


PLANTS: dict[str, Damage] = {
    **{what: put(HIDDEN, make) for what, make in ANYTHING.items() if what not in FOLDER},
    "a link to an empty folder": put(HIDDEN, lambda path, outside: path.symlink_to(outside / "empty")),
    "a relative link to a folder": put(
        HIDDEN, lambda path, outside: path.symlink_to(f"../{outside.name}", target_is_directory=True)
    ),
    "a folder with a file": _with("thesis.txt"),
    "a folder with a folder": lambda root, outside: (root / HIDDEN / "photos").mkdir(parents=True),
    "a folder with a file deep in it": _with("posterior/io/photos/thesis.txt"),
    "a folder with files named as those of a store": _with("zarr.json", "commits/lock"),
    "a folder with an empty file": lambda root, outside: _file(root / HIDDEN / "thesis.txt", ""),
    "a folder with a pipe named as a file of a store": lambda root, outside: (
        (root / HIDDEN).mkdir(),
        os.mkfifo(root / HIDDEN / "zarr.json"),
    ),
    "a folder with a link to a folder": lambda root, outside: (
        (root / HIDDEN).mkdir(),
        (root / HIDDEN / "commits").symlink_to(outside / "commits"),
    ),
    "a store that someone renamed": lambda root, outside: create(FileSystem(), root / "toy.zarr").path.rename(
        root / HIDDEN
    ),
    "a folder with a marker and a file": _with(MARKER, "thesis.txt"),
    "a folder with two markers": _with(MARKER, MARKER.replace("0", "1")),
    **{
        f"a left folder with {name}": _left(lambda folder, outside, name=name: _file(folder / name))
        for name in ("thesis.txt", ".profile", "posterior/io/thesis.txt", "commits/thesis.txt")
    },
    **{
        f"a left folder whose {what}": _left(damage)
        for what, damage in (
            *in_place_of(LINKS, "posterior", "posterior/io", "posterior/io/zarr.json", "commits/lock"),
            *in_place_of(LINKS, "posterior/zarr.json"),
            *in_place_of(FILE, "posterior"),
            *in_place_of(FOLDER, "zarr.json"),
            *(
                (f"{name} is a link to its like", _alike(name))
                for name in ("posterior/io", "posterior/zarr.json")
            ),
            *((f"marker is {what}", _marker(make)) for what, make in (LINKS | FOLDER).items()),
            ("marker is gone", _marker(lambda path, outside: None)),
            (
                "marker is a link to its like",
                _marker(lambda path, outside: path.symlink_to(outside / MARKER)),
            ),
        )
    },
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a configuration, beside a folder of someone's files."""
    make_outside(tmp_path / "victim")
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "run.toml").write_text(small_spec(folder).to_toml())
    monkeypatch.chdir(folder)
    return folder


def refusal(*arguments: str) -> str:
    """Return the message of a refused verb: one line with the name of the hidden folder."""
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == 2, (arguments, result.output)
    assert f"{HIDDEN}: " in result.stderr and "Traceback" not in result.output
    return " ".join(result.stderr.split())


@pytest.mark.parametrize(
    "name",
    [
        name if number % 3 == 0 else pytest.param(name, marks=pytest.mark.long)
        for number, name in enumerate(PLANTS)
    ],
)
def test_what_is_planted_is_refused_and_nothing_changes(name: str, here: Path) -> None:
    PLANTS[name](here, here.parent / "victim")
    before = content(here.parent)
    with pytest.raises(StoreForeignError, match="move it elsewhere, or remove it"):
        create(FileSystem(), here / "toy.zarr")
    assert content(here.parent) == before


@pytest.mark.parametrize(
    ("verb", "name"),
    [
        ("sample", "a link to a folder"),
        ("sample", "a left folder with thesis.txt"),
        ("run", "a broken link"),
        ("run", "a folder with a file"),
        ("run", "a left folder whose posterior is a link to a folder"),
        ("prior", "a link to a folder"),
        ("prior", "a pipe"),
        ("prior", "a store that someone renamed"),
    ],
)
def test_a_verb_refuses_what_is_planted_in_one_line(verb: str, name: str, here: Path) -> None:
    PLANTS[name](here, here.parent / "victim")
    before = content(here.parent)
    assert len(refusal(*VERBS[verb])) < 400
    assert content(here.parent) == before


@pytest.mark.long
@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_refuses_everything_that_is_planted(verb: str, here: Path) -> None:
    for name, plant in PLANTS.items():
        place = here / re.sub(r"[ /]", "-", name)
        place.mkdir()
        plant(place, here.parent / "victim")
        before = content(here.parent)
        refusal(*VERBS[verb][:2], str(place / "toy.zarr"), *VERBS[verb][3:])
        assert content(here.parent) == before, name


@pytest.mark.parametrize("at", [1, 2, 4, 7, 12, 30, 90, 250, 400])
def test_what_a_killed_creation_left_is_cleared_by_the_next(at: int, here: Path) -> None:
    folder = leave_behind(here / "toy.zarr", at=at)
    assert folder.is_dir() or at < 3
    assert create(FileSystem(), here / "toy.zarr").verify().ok
    assert not folder.exists()
    assert not [path.name for path in (here / "toy.zarr").iterdir() if path.name.startswith(".")]


def test_half_written_files_of_other_hosts_are_cleared(here: Path) -> None:
    folder = leave_behind(here / "toy.zarr")
    for name in (".zarr.json.host-1-0", "commits/.lock.a.b-c.example-77-12", ".probe.host-3-4"):
        path = folder / f"{name}.partial"
        path.write_text("")
    assert create(FileSystem(), here / "toy.zarr").verify().ok
    assert not folder.exists()


@pytest.mark.parametrize(
    "make",
    [
        lambda path: create(FileSystem(), path),
        lambda path: api.prior("run.toml", path, draws=5),
        lambda path: api.prior("run.toml", path, draws=5, set=["dtype=float64"]),
        lambda path: api.reject("exact.toml", path, draws=2),
        *(lambda path, m=method: make_fit(path, fit_spec(path.parent, m)) for method in SETTINGS),
    ],
)
def test_all_that_a_creation_writes_is_known_as_ours(
    make: Callable[[Path], object], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it writes and removes again, such as the blocks of draws that it gathers, is ours too."""
    (here / "exact.toml").write_text(small_spec(here, model__noise="3:3").to_toml())
    written: set[str] = set()
    for call in ("link", "replace", "mkdir"):
        monkeypatch.setattr(SystemCalls, call, _noting(getattr(SystemCalls, call), call, written))
    make(here / "toy.zarr")
    assert len(written) > 20 and {"zarr.json", "commits/", "posterior/zarr.json"} <= written
    assert {key for key in written if not is_ours(key)} == {"probe"}


def _noting(call: Callable[..., None], name: str, written: set[str]) -> Callable[..., None]:
    """The call, which notes the key of what it makes in a folder that is open."""

    def noting(calls: SystemCalls, *arguments: Any) -> None:
        path = arguments[0] if name == "mkdir" else arguments[1]
        match = re.fullmatch(r"/proc/self/fd/\d+/(.+)", str(path))
        if match is not None:
            written.add(match[1] + "/" * (name == "mkdir"))
        call(calls, *arguments)

    return noting


def test_an_empty_folder_is_taken_over(here: Path) -> None:
    (here / ".toy.zarr.creating").mkdir()
    assert create(FileSystem(), here / "toy.zarr").verify().ok
    assert not (here / ".toy.zarr.creating").exists()


def test_folders_and_empty_files_without_a_marker_are_refused(here: Path) -> None:
    for folder in ("commits/batch0000", "posterior/io"):
        (here / ".toy.zarr.creating" / folder).mkdir(parents=True)
    (here / ".toy.zarr.creating" / "commits" / "lock").touch()
    before = content(here)
    with pytest.raises(StoreForeignError, match="contains commits, which is not part of an unfinished store"):
        create(FileSystem(), here / "toy.zarr")
    assert content(here) == before


def test_the_parent_folder_may_be_a_link(here: Path) -> None:
    (here / "elsewhere").mkdir()
    (here / "link").symlink_to("elsewhere")
    leave_behind(here / "link" / "toy.zarr")
    assert create(FileSystem(), here / "link" / "toy.zarr").verify().ok
    assert [path.name for path in (here / "elsewhere").iterdir()] == ["toy.zarr"]


def test_one_of_two_that_make_the_same_store_is_refused(here: Path) -> None:
    storage = FileSystem()
    with storage.creation(here / "toy.zarr", "lock", is_ours) as building:
        storage.write_atomic(building / "zarr.json", b"")
        before = content(here)
        with pytest.raises(StoreBusyError, match="another process is making this store"):
            create(FileSystem(), here / "toy.zarr")
        assert content(here) == before
    assert [path.name for path in (here / "toy.zarr").iterdir()] == ["zarr.json"]


def attempt(place: Path) -> int:
    """Make a store in another process and return its number, which ends with 0, or 1 if it is refused."""
    child = os.fork()
    if child == 0:
        code = 2
        try:
            create(FileSystem(), place)
            code = 0
        except (StoreBusyError, StoreExistsError):
            code = 1
        finally:
            os._exit(code)
    return child


@pytest.mark.parametrize("n_rounds", [3, pytest.param(60, marks=pytest.mark.long)])
@pytest.mark.parametrize("is_left", [False, True], ids=["nothing there", "a left folder"])
def test_exactly_one_of_three_that_make_a_store_at_once_makes_it(
    is_left: bool, n_rounds: int, here: Path
) -> None:
    for number in range(n_rounds):
        place = here / f"toy{number}.zarr"
        if is_left:
            leave_behind(place)
        children = [attempt(place) for _ in range(3)]
        codes = sorted(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)
        assert codes == [0, 1, 1]
        assert Store.open(place).verify().ok
        assert not (here / f".{place.name}.creating").exists()


def test_an_error_while_a_store_is_made_names_its_folder_and_not_a_descriptor(here: Path) -> None:
    storage = FileSystem()
    with (
        pytest.raises(StoreExistsError, match=r"here/\.toy\.zarr\.creating/a: already") as error,
        storage.creation(here / "toy.zarr", "lock", is_ours) as building,
    ):
        raise StoreExistsError(f"{building / 'a'}: already exists")
    assert "/proc/" not in str(error.value)
    assert not (here / ".toy.zarr.creating").exists()
