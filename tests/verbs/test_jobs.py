"""`rayfbnn run`, which brings a run to its end from wherever it stands, and its exit codes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from rayfbnn import api, cli
from rayfbnn.errors import StoreBusyError, StoreExistsError, StoreFullError, StoreReadError, WorkerError
from rayfbnn.spec import RunSpec
from rayfbnn.store.store import Store
from rayfbnn.verbs import jobs
from tests.support.small import assert_same_draws, make_store, small_spec

HERE: dict[str, Any] = {"workers": 0, "progress": False}


def rayfbnn_run(folder: Path, *options: object) -> Result:
    arguments = ["run", folder / "run.toml", folder / "run.zarr", "--workers", 0, "--no-progress", *options]
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


@pytest.fixture
def spec(tmp_path: Path) -> RunSpec:
    """The small configuration, which is written to run.toml too."""
    spec = small_spec(tmp_path)
    (tmp_path / "run.toml").write_text(spec.to_toml())
    return spec


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small run with 14 iterations in the last phase, sampled at once."""
    folder = tmp_path_factory.mktemp("whole")
    api.sample(small_spec(folder).with_iterations(14), folder / "run.zarr", **HERE)
    return folder / "run.zarr"


def test_one_command_samples_then_extends_then_does_nothing(
    tmp_path: Path, spec: RunSpec, whole: Path
) -> None:
    path = tmp_path / "run.zarr"
    assert rayfbnn_run(tmp_path).exit_code == 0
    assert Store.open(path).committed_draws == 10
    (tmp_path / "run.toml").write_text(spec.with_iterations(14).to_toml())
    assert rayfbnn_run(tmp_path).exit_code == 0
    assert_same_draws(path, whole)
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*.json")}
    assert rayfbnn_run(tmp_path, "--json").exit_code == 0
    assert {file: file.stat().st_mtime_ns for file in path.rglob("*.json")} == before


def test_a_store_without_draws_is_sampled(tmp_path: Path, spec: RunSpec, whole: Path) -> None:
    make_store(tmp_path / "run.zarr", spec.with_iterations(14))
    api.sample_or_resume(spec, tmp_path / "run.zarr", **HERE)  # the store is longer, and stays so
    assert_same_draws(tmp_path / "run.zarr", whole)


@pytest.mark.usefixtures("spec")
def test_a_store_that_another_process_creates_meanwhile_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def create_first(path: Path, *arguments: object) -> None:
        make_store(path, small_spec(tmp_path))
        raise StoreExistsError(f"{path}: already exists")

    monkeypatch.setattr(jobs, "new_store", create_first)
    assert rayfbnn_run(tmp_path).exit_code == 0
    assert Store.open(tmp_path / "run.zarr").committed_draws == 10


@pytest.mark.usefixtures("spec")
def test_a_store_of_another_configuration_or_version_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rayfbnn_run(tmp_path).exit_code == 0
    result = rayfbnn_run(tmp_path, "--set", "seed=8")
    assert result.exit_code == 2 and "seed" in result.stderr
    root = Store.open(tmp_path / "run.zarr").root
    monkeypatch.setattr(Store, "root", replace(root, version="0.0.9"))
    result = rayfbnn_run(tmp_path)
    assert result.exit_code == 2 and "was made by rayfbnn 0.0.9" in result.stderr


@pytest.mark.usefixtures("spec")
@pytest.mark.parametrize("wrong", ["folder", "file"])
def test_what_is_no_store_is_refused_and_left_as_it_is(tmp_path: Path, wrong: str) -> None:
    path = tmp_path / "run.zarr"
    path.mkdir() if wrong == "folder" else path.write_text("mine")
    result = rayfbnn_run(tmp_path)
    assert result.exit_code == 2 and "run.zarr" in result.stderr
    assert path.read_text() == "mine" if path.is_file() else list(path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KeyboardInterrupt("stopped: 3 of 9"), 75),
        (WorkerError("4 workers died"), 75),
        (StoreReadError("run.zarr: cannot read it"), 75),
        (StoreFullError("run.zarr: no space"), 75),
        (StoreBusyError("run.zarr: is in use"), 73),
    ],
)
@pytest.mark.usefixtures("spec")
def test_the_exit_code_says_whether_to_start_the_job_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(jobs, "new_store", fail)
    result = rayfbnn_run(tmp_path)
    assert result.exit_code == code
    assert str(error) in result.stderr


@pytest.mark.usefixtures("spec")
def test_time_that_was_over_before_the_verdict_was_ok_is_3(tmp_path: Path) -> None:
    for _ in range(2):
        result = rayfbnn_run(tmp_path, "--until", "ok", "--for", "all", "--max-time", "0.001s")
        assert result.exit_code == 3, result.output
