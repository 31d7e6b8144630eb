"""No output of predict and plot replaces an input or anything in a store."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from rayfbnn import api
from rayfbnn.errors import ConfigError
from rayfbnn.store import store as of_store
from rayfbnn.store.appending import append
from rayfbnn.store.store import Store
from tests.support.small import small_spec

HERE: dict[str, Any] = {"workers": 0, "progress": False}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run in run.zarr, its train.csv, and new cases in new.csv."""
    folder = tmp_path_factory.mktemp("finished")
    api.sample(small_spec(folder), folder / "run.zarr", **HERE)
    (folder / "new.csv").write_text("x1,x2,y\n0.5,1,2\n1,2,3\n")
    return folder


@pytest.fixture
def folder(finished: Path) -> Path:
    """The finished run's folder, which all tests share because none may change a file in it."""
    return finished


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize(
    "spelling", ["itself", "another spelling", "symbolic link", "hard link", "link to its folder"]
)
@pytest.mark.parametrize("name", ["new.csv", "train.csv"])
def test_predict_does_not_write_over_its_input(
    folder: Path, tmp_path: Path, name: str, spelling: str
) -> None:
    file, link = folder / name, tmp_path / "link.csv"
    if spelling == "itself":
        out = file
    elif spelling == "another spelling":
        out = folder / "run.zarr" / ".." / name
    elif spelling == "symbolic link":
        link.symlink_to(file)
        out = link
    elif spelling == "hard link":
        os.link(file, link)
        out = link
    else:
        (tmp_path / "folder").symlink_to(folder)
        out = tmp_path / "folder" / name
    before = tree(folder)
    with pytest.raises(ConfigError, match=rf"out: .* is the input .*{name} itself"):
        api.predict(folder / "run.zarr", data=folder / "new.csv", out=out)
    assert tree(folder) == before


@pytest.mark.parametrize(
    ("verb", "where"),
    [
        ("predict", "run.zarr/table.csv"),
        ("predict", "run.zarr/posterior/table.csv"),
        ("predict", "link/table.csv"),
        ("plot", "run.zarr"),
        ("plot", "run.zarr/plots"),
        ("plot", "link"),
    ],
)
def test_nothing_is_written_inside_a_store(folder: Path, tmp_path: Path, verb: str, where: str) -> None:
    (tmp_path / "link").symlink_to(folder / "run.zarr" / "commits")
    out = (tmp_path if where.startswith("link") else folder) / where
    before = tree(folder)
    data = {"data": folder / "new.csv"} if verb == "predict" else {}
    with pytest.raises(ConfigError, match="out: .* lies inside the store .*run.zarr"):
        getattr(api, verb)(folder / "run.zarr", out=out, **data)
    assert tree(folder) == before


def test_plot_does_not_draw_over_its_input(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "new.csv", tmp_path / "overview.png")
    with pytest.raises(ConfigError, match=r"out: .* is the input .*overview\.png itself"):
        api.plot(folder / "run.zarr", out=tmp_path, data=tmp_path / "overview.png")
    assert (tmp_path / "overview.png").read_bytes() == (folder / "new.csv").read_bytes()


def test_a_store_is_not_created_inside_a_store(folder: Path, tmp_path: Path) -> None:
    before = tree(folder)
    with pytest.raises(ConfigError, match="lies inside the store .*run.zarr"):
        api.sample(small_spec(tmp_path), folder / "run.zarr" / "inner.zarr", **HERE)
    assert tree(folder) == before


def test_an_old_table_is_replaced(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "old.csv").write_text("old")
    api.predict(folder / "run.zarr", data=folder / "new.csv", out=tmp_path / "old.csv")
    assert (tmp_path / "old.csv").read_text().startswith("y_mean,")


@pytest.mark.parametrize("length", [201, 300])
@pytest.mark.parametrize(
    ("verb", "suffix", "arguments"),
    [
        ("predict", ".csv", {"data": "new.csv"}),
        ("loo", ".csv", {}),
        ("report", ".html", {}),
        ("export", ".npz", {}),
        ("plot", "", {}),
    ],
)
def test_a_name_that_is_too_long_is_refused(
    folder: Path, verb: str, suffix: str, arguments: dict[str, str], length: int
) -> None:
    before = tree(folder)
    data = {name: folder / value for name, value in arguments.items()}
    with pytest.raises(ConfigError, match="the name is longer than 200 bytes"):
        getattr(api, verb)(folder / "run.zarr", out=folder / ("x" * length + suffix), **data)
    assert tree(folder) == before


def test_a_file_that_cannot_be_written_to_is_not_replaced(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system lets root write everywhere, so its answer is replaced."""
    out = tmp_path / "old.csv"
    out.write_text("old")
    may = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != out and may(path, mode))
    with pytest.raises(ConfigError, match=r"out: .*old\.csv cannot be written to"):
        api.predict(folder / "run.zarr", data=folder / "new.csv", out=out)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"old.csv": "old"}


def test_a_pipe_is_not_replaced_by_a_file(folder: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(ConfigError, match=r"out: .*pipe\.csv is not an ordinary file"):
        api.predict(folder / "run.zarr", data=folder / "new.csv", out=tmp_path / "pipe.csv")
    assert (tmp_path / "pipe.csv").is_fifo()


def test_a_link_is_followed_and_permissions_stay(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    target, link = tmp_path / "target" / "real.csv", tmp_path / "link.csv"
    target.write_text("old")
    target.chmod(0o600)
    link.symlink_to(target)
    api.predict(folder / "run.zarr", data=folder / "new.csv", out=link)
    assert link.is_symlink()
    assert target.read_text().startswith("y_mean,")
    assert target.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["link.csv", "real.csv", "target"]


@pytest.mark.parametrize("verb", ["prior", "reject"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, OSError])
def test_draws_that_are_cut_short_leave_no_store(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, error: type[BaseException]
) -> None:
    n_commits = 0

    def second_fails(*arguments: Any) -> Any:
        nonlocal n_commits
        n_commits += 1
        if n_commits == 2:
            raise error
        return append(*arguments)

    monkeypatch.setattr(of_store, "append", second_fails)
    draws = {"draws": 10, "set": ["data.standardize=[]", "model.noise=10"]}
    with pytest.raises(error):
        getattr(api, verb)(small_spec(tmp_path), tmp_path / "new.zarr", **draws)
    assert n_commits == 2
    assert [path.name for path in tmp_path.iterdir()] == ["train.csv"]
    monkeypatch.undo()
    getattr(api, verb)(small_spec(tmp_path), tmp_path / "new.zarr", **draws)
    assert Store.open(tmp_path / "new.zarr").committed_draws == 10
