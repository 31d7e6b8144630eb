"""`rayfbnn run`, which brings a run to its end from wherever it stands, and its exit codes."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from rayfbnn import api, cli
from rayfbnn.errors import StoreBusyError, StoreExistsError, StoreFullError, StoreReadError, WorkerError
from rayfbnn.spec import RunSpec
from rayfbnn.spec.text import to_toml
from rayfbnn.store import opened
from rayfbnn.store.store import Store
from rayfbnn.verbs import sampling
from tests.support.small import assert_same_draws, make_store, small, small_spec

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


DEFAULT_SCHEDULES: dict[str, dict[str, Any]] = {
    "outputs integrated out": {},
    "no automatic trajectories": {"model": {"kind": "binary"}, "network__priors": None},
    "no phase with sigmas held": {"model": {"kind": "class", "classes": 2}, "network__priors": None},
    "friction": {"method": "sghmc"},
    "ladders": {"ladder": {"levels": 3, "annealing": 5, "adaptation": 12}, "chains": 4},
}


def default_keys(folder: Path, **replaced: Any) -> dict[str, Any]:
    """The small configuration without phases, whose tuning is half as long as its last phase."""
    rows = (f"{x / 7},{x * 5 % 11 / 5},{x % 2}" for x in range(12))
    (folder / "train.csv").write_text("\n".join(["x1,x2,y", *rows]) + "\n")
    usual = {"phase": None, "draws_per_block": None, "data__standardize": None, "chains": 2}
    return small(**usual | replaced)


@pytest.mark.parametrize("name", DEFAULT_SCHEDULES)
def test_another_length_changes_the_last_phase_alone(tmp_path: Path, name: str) -> None:
    keys = default_keys(tmp_path, **DEFAULT_SCHEDULES[name])
    (tmp_path / "run.toml").write_text(to_toml({**keys, "iterations": 100}))
    spec = RunSpec.from_toml(tmp_path / "run.toml")
    api.sample(spec, tmp_path / "run.zarr", **HERE)
    shutil.copytree(tmp_path / "run.zarr", tmp_path / "resumed.zarr")
    api.resume(tmp_path / "resumed.zarr", iterations=120, **HERE)
    result = rayfbnn_run(tmp_path, "--set", "iterations=120")
    assert (result.exit_code, result.stderr) == (0, "")
    assert_same_draws(tmp_path / "run.zarr", tmp_path / "resumed.zarr")
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "run.zarr").rglob("*.json")}
    assert rayfbnn_run(tmp_path, "--set", "iterations=110").exit_code == 0
    api.sample_or_resume(spec, tmp_path / "run.zarr", set=["iterations=90"], **HERE)
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "run.zarr").rglob("*.json")} == before
    planned = [phase.iterations for phase in Store.open(tmp_path / "run.zarr").spec.phase]
    assert 50 in planned and planned[-1] == 120


def test_a_length_and_an_open_length_follow_each_other(tmp_path: Path) -> None:
    """The open length has 500 tuning iterations by default, and 100 iterations have 50."""
    keys = default_keys(tmp_path, chains=4, chains_per_batch=None)
    (tmp_path / "run.toml").write_text(to_toml(keys))
    options = ["--max-time", "0.001s"]
    assert rayfbnn_run(tmp_path, *options).exit_code == 0
    api.resume(tmp_path / "run.zarr", iterations=100, **HERE)
    assert rayfbnn_run(tmp_path, "--set", "iterations=120").exit_code == 0
    assert [phase.iterations for phase in Store.open(tmp_path / "run.zarr").spec.phase] == [40, 500, 120]
    shutil.rmtree(tmp_path / "run.zarr")
    assert rayfbnn_run(tmp_path, "--set", "iterations=100").exit_code == 0
    assert rayfbnn_run(tmp_path).exit_code == 0
    assert [phase.iterations for phase in Store.open(tmp_path / "run.zarr").spec.phase] == [40, 50, 100]


@pytest.mark.parametrize("key", ["warmup", "annealing"])
def test_another_written_length_of_a_ladder_s_phase_is_refused(tmp_path: Path, key: str) -> None:
    keys = default_keys(tmp_path, **DEFAULT_SCHEDULES["ladders"])
    make_store(tmp_path / "run.zarr", RunSpec.from_dict({**keys, "iterations": 100}, base_dir=tmp_path))
    (tmp_path / "run.toml").write_text(to_toml({**keys, "iterations": 100}))
    result = rayfbnn_run(tmp_path, "--set", f"ladder.{key}=9")
    assert result.exit_code == 2 and f"ladder.{key}: was" in result.stderr


def test_other_written_phases_are_refused(tmp_path: Path) -> None:
    """Default tuning, of at most 500 iterations, is compared with written tuning in both directions."""
    spec = RunSpec.from_dict({**default_keys(tmp_path), "iterations": 100}, base_dir=tmp_path)
    keys = spec.to_dict()
    make_store(tmp_path / "run.zarr", spec)
    keys["phase"][1]["iterations"] += 1
    (tmp_path / "run.toml").write_text(to_toml(keys))
    result = rayfbnn_run(tmp_path)
    assert result.exit_code == 2 and "phase[1].iterations: was 50, now 51" in result.stderr
    shutil.rmtree(tmp_path / "run.zarr")
    keys["phase"][1]["iterations"] = 600
    make_store(tmp_path / "run.zarr", RunSpec.from_dict(keys, base_dir=tmp_path))
    (tmp_path / "run.toml").write_text(to_toml({**default_keys(tmp_path), "iterations": 100}))
    result = rayfbnn_run(tmp_path)
    assert result.exit_code == 2 and "phase[1].iterations: was 600, now 500" in result.stderr


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

    monkeypatch.setattr(sampling, "new_store", create_first)
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
    monkeypatch.setattr(opened, "read_root", lambda *_: replace(root, version="0.0.9"))
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

    monkeypatch.setattr(sampling, "new_store", fail)
    result = rayfbnn_run(tmp_path)
    assert result.exit_code == code
    assert str(error) in result.stderr


@pytest.mark.usefixtures("spec")
def test_time_that_was_over_before_the_verdict_was_ok_is_3(tmp_path: Path) -> None:
    for _ in range(2):
        result = rayfbnn_run(tmp_path, "--until", "ok", "--for", "all", "--max-time", "0.001s")
        assert result.exit_code == 3, result.output
