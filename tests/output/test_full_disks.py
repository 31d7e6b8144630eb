"""Every verb that writes results: without space, or where no file can be, it says so and leaves nothing."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rayfbnn import api, cli
from rayfbnn.errors import ConfigError, OutputError, OutputFullError
from rayfbnn.output.whole_file import whole_file, whole_files
from rayfbnn.sklearn.base import TemporaryStore
from rayfbnn.store.store import Store
from rayfbnn.study import Rule, Study
from tests.support.marks import some_long
from tests.support.output.forked import small_disk, small_files
from tests.support.small import small_spec

VERBS: dict[str, tuple[str, ...]] = {
    "new.csv": ("predict", "run.zarr", "--data", "train.csv", "--out", "OUT"),
    "new.parquet": ("predict", "run.zarr", "--data", "train.csv", "--contributions", "--out", "OUT"),
    "loo.csv": ("loo", "run.zarr", "--out", "OUT"),
    "new.html": ("report", "run.zarr", "--no-progress", "--out", "OUT"),
    "new.npz": ("export", "run.zarr", "--out", "OUT"),
    "plots": ("plot", "run.zarr", "--out", "OUT"),
    "study.html": ("study", "report", "study", "--out", "OUT"),
    "study.csv": ("study", "predict", "study", "--data", "train.csv", "--out", "OUT"),
    "study": ("study", "create", "OUT", "run.toml", "--seeds", "2"),
    "prior.zarr": ("prior", "run.toml", "OUT", "--draws", "5"),
    "demo": ("demo", "OUT", "--workers", "0", "--no-progress"),
}
REPLACED = ["new.csv", "new.parquet", "new.html", "new.npz", "plots/traces.png", "study.html"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, a study with draws, and 200 cases in train.csv."""
    folder = tmp_path_factory.mktemp("full")
    spec = small_spec(folder)
    api.sample(spec, folder / "run.zarr", workers=0, progress=False)
    (folder / "run.toml").write_text(spec.to_toml())
    rule = Rule(least_draws=10, looks=1)
    study = Study.create(folder / "study", folder / "run.toml", seeds=2, rule=rule)
    study.run(workers=0, progress=False)
    return folder


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 kB."""
    with small_disk(tmp_path / "disk", "8k") as disk:
        if disk is None:
            pytest.skip("needs the right to mount a file system")
        yield disk


def invoked(folder: Path, arguments: tuple[str, ...], out: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(folder)
    given = [str(out) if argument == "OUT" else argument for argument in arguments]
    return CliRunner().invoke(cli.app, given)


def tree(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def _refused_without_space(result: Any, out: Path) -> None:
    assert result.exit_code == 75, result.output
    *_, last = result.stderr.splitlines()
    assert "no space to write it" in last
    assert out.name in last
    assert "Traceback" not in result.output


@pytest.mark.parametrize("name", some_long(VERBS, ["new.html"]))
def test_a_full_disk_ends_with_75_and_leaves_nothing(
    folder: Path, disk: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (disk / "filling").write_bytes(bytes(8192))
    before = tree(disk)
    result = invoked(folder, VERBS[name], disk / name, monkeypatch)
    if name in ("study", "prior.zarr"):  # the draws planned are refused as more than the disk has room for
        assert (result.exit_code, "and 0 bytes are left" in result.stderr) == (2, True)
    else:
        _refused_without_space(result, disk / name)
    assert tree(disk) == before


@pytest.mark.parametrize("name", some_long(REPLACED, ["new.html", "plots/traces.png"]))
def test_a_limit_of_file_sizes_ends_with_75_and_keeps_the_old_output(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    old = tmp_path / name
    old.parent.mkdir(exist_ok=True)
    old.write_text("old")
    before = tree(tmp_path)
    out = name.partition("/")[0]
    with small_files(256):
        result = invoked(folder, VERBS[out], tmp_path / out, monkeypatch)
    _refused_without_space(result, tmp_path / name)
    assert tree(tmp_path) == before


def test_pictures_that_fitted_are_not_left_without_the_others(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rayfbnn.output import whole_file as module

    create, n_files = module._create, 0

    def third_fails(path: Path) -> Any:
        nonlocal n_files
        n_files += ".png." in path.name
        if n_files == 3:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        return create(path)

    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "traces.png").write_text("old")
    before = tree(tmp_path)
    monkeypatch.setattr(module, "_create", third_fails)
    result = invoked(folder, VERBS["plots"], tmp_path / "plots", monkeypatch)
    assert result.exit_code == 75, result.output
    assert "Disk quota exceeded" in result.stderr
    assert tree(tmp_path) == before


@pytest.mark.parametrize("place", ["/proc", "/sys", "/sys/kernel"])
@pytest.mark.parametrize("name", VERBS)
def test_a_place_that_takes_no_files_is_refused_before_anything_is_computed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, place: str
) -> None:
    if not Path(place).is_dir():
        pytest.skip(f"there is no {place} here")
    for name_of_reader in ("read_positions", "read_precisions"):
        monkeypatch.setattr(Store, name_of_reader, None)
    result = invoked(folder, VERBS[name], Path(place) / name, monkeypatch)
    assert result.exit_code == 2, result.output
    assert place in result.stderr
    assert len(result.stderr.splitlines()) == 1


ERRORS = {
    errno.ENOSPC: OutputFullError,
    errno.EDQUOT: OutputFullError,
    errno.EFBIG: OutputFullError,
    errno.EROFS: ConfigError,
    errno.EACCES: ConfigError,
    errno.ENAMETOOLONG: ConfigError,
    errno.ENOENT: ConfigError,
    errno.EIO: OutputError,
}


@pytest.mark.parametrize("number", ERRORS, ids=errno.errorcode.get)
@pytest.mark.parametrize("call", ["open", "fsync", "replace"])
def test_each_error_of_the_system_is_one_line_and_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    def fail(*arguments: object, **more: object) -> None:
        raise OSError(number, os.strerror(number))

    (tmp_path / "a.csv").write_text("old")
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(ERRORS[number]) as caught, whole_file(tmp_path / "a.csv") as file:
        file.write(b"new")
    monkeypatch.undo()
    assert type(caught.value) is ERRORS[number]
    assert str(tmp_path / "a.csv") in str(caught.value)
    assert os.strerror(number) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert tree(tmp_path) == {"a.csv": b"old"}


def test_a_folder_that_vanishes_meanwhile_is_a_bad_output(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with (
        pytest.raises(ConfigError, match=r"out: .*a\.csv cannot be written \(No such file"),
        whole_file(tmp_path / "there" / "a.csv") as file,
    ):
        file.write(b"new")
        shutil.rmtree(tmp_path / "there")
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("kind", ["file", "link", "broken link", "folder"])
def test_an_unfinished_file_is_never_one_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(os, "urandom", bytes)
    taken, precious = tmp_path / f".a.csv.{bytes(4).hex()}.unfinished", tmp_path / "precious"
    if kind != "broken link":
        precious.write_text("precious")
    if kind == "folder":
        taken.mkdir()
    elif kind == "file":
        taken.write_text("of somebody else")
    else:
        taken.symlink_to(precious)
    before = tree(tmp_path)
    with pytest.raises(ConfigError), whole_file(tmp_path / "a.csv") as file:
        file.write(b"new")
    assert tree(tmp_path) == before
    assert taken.is_symlink() == (kind in ("link", "broken link"))


@pytest.mark.parametrize("is_new", [True, False])
def test_files_that_belong_together_appear_together(tmp_path: Path, is_new: bool) -> None:
    folder = tmp_path / "folder"
    if not is_new:
        folder.mkdir()
    with pytest.raises(KeyboardInterrupt), whole_files(folder):
        with whole_file(folder / "a") as file:
            file.write(b"a")
        raise KeyboardInterrupt
    assert tree(tmp_path) == ({} if is_new else {"folder": None})
    with whole_files(folder):
        for name in "ab":
            with whole_file(folder / name) as file:
                file.write(name.encode())
            assert not (folder / name).exists()
    assert tree(folder) == {"a": b"a", "b": b"b"}


def test_an_error_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old")
    with pytest.raises(ValueError, match="halfway"), whole_file(tmp_path / "a.txt") as unfinished:
        unfinished.write(b"half")
        raise ValueError("halfway")
    assert tree(tmp_path) == {"a.txt": b"old"}


def test_two_that_write_the_same_file_do_not_mix_and_the_later_one_remains(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old")
    with whole_file(tmp_path / "a.txt") as first, whole_file(tmp_path / "a.txt") as second:
        first.write(b"first")
        second.write(b"second")
        assert (tmp_path / "a.txt").read_text() == "old"
    assert tree(tmp_path) == {"a.txt": b"first"}


def test_a_kill_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old")
    child = os.fork()
    if child == 0:
        with whole_file(tmp_path / "a.txt") as unfinished:
            unfinished.write(b"half")
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert (tmp_path / "a.txt").read_text() == "old"


def test_estimators_say_that_their_temporary_disk_is_full(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(disk))
    store = TemporaryStore()
    store.path.mkdir()
    (store.path / "draws").write_bytes(b"1" * 3000)
    with monkeypatch.context() as without_check:  # these files are no store
        without_check.setattr(TemporaryStore, "check", lambda self: None)
        unpickled = pickle.loads(pickle.dumps(store))
    (disk / "filling").write_bytes(bytes(4096))
    with pytest.raises(OutputFullError, match="no space to write it"):
        _ = unpickled.path
    monkeypatch.setattr(tempfile, "tempdir", "/proc")
    with pytest.raises(ConfigError, match="TMPDIR"):
        TemporaryStore()
