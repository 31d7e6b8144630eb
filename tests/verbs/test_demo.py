"""The demonstration, with a schedule of a few seconds."""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rayfbnn import api, cli, demo
from rayfbnn.data import read_dataset
from rayfbnn.spec import RunSpec
from rayfbnn.store.store import Store
from tests.support.small import contents


@pytest.fixture(autouse=True)
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The example's data and model, with ten short iterations."""
    folder = tmp_path / "example"
    shutil.copytree(demo.example(), folder)
    raw = RunSpec.from_toml(folder / "robot_arm.toml").to_dict()
    operations = [{"op": "sample-sigmas"}, {"op": "heatbath"}, {"op": "hybrid", "steps": 10, "stepsize": 0.3}]
    raw |= {"chains": 4, "chains_per_batch": 2, "phase": [{"iterations": 10, "operations": operations}]}
    (folder / "robot_arm.toml").write_text(RunSpec.from_dict(raw).to_toml())
    monkeypatch.setattr(demo, "example", lambda: folder)
    return folder


def run_demo(folder: Path) -> Result:
    return CliRunner().invoke(cli.app, ["demo", str(folder), "--workers", "0", "--no-progress"])


def test_the_example_is_shipped_and_its_configuration_is_valid() -> None:
    original = Path(demo.__file__).parent.parent / "examples" / "robot_arm"
    for name in demo.FILES:
        assert (original / name).is_file()
    spec = RunSpec.from_toml(original / "robot_arm.toml")
    assert read_dataset(spec).n_cases == 200
    build = tomllib.loads((original.parent.parent / "pyproject.toml").read_text())["tool"]["scikit-build"]
    assert build["wheel"]["packages"]["rayfbnn/examples/robot_arm"] == "examples/robot_arm"


def test_the_demo_samples_reports_and_says_where_the_pictures_are(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    result = run_demo(tmp_path / "demo")
    assert result.exit_code == 0, result.output
    assert "sigma_noise" in result.stdout and "rhat" in result.stdout
    assert re.search(r"squared_error +[0-9.]+ \+- [0-9.]+", result.stdout)
    pictures = [line for line in result.stdout.splitlines() if line.endswith(".png")]
    assert str(tmp_path / "demo" / "predicted.png") in pictures
    assert all(Path(picture).read_bytes().startswith(b"\x89PNG") for picture in pictures)
    assert len((tmp_path / "demo" / "predictions.csv").read_text().splitlines()) == 201


@pytest.mark.parametrize("name", ["robot_arm.toml", "train.csv"])
def test_the_demo_copies_nothing_through_a_broken_link(name: str, tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / name).symlink_to(tmp_path / "outside")
    assert run_demo(tmp_path / "demo").exit_code == 2
    assert not (tmp_path / "outside").exists()


@pytest.mark.usefixtures("undrawn_pictures")
def test_a_second_demo_only_reports_again(tmp_path: Path) -> None:
    first = run_demo(tmp_path / "demo")
    before = contents(tmp_path / "demo" / "run.zarr")
    second = run_demo(tmp_path / "demo")
    assert second.exit_code == 0
    assert second.stdout == first.stdout
    after = contents(tmp_path / "demo" / "run.zarr")
    assert all(before[name].tobytes() == after[name].tobytes() for name in before)


@pytest.mark.usefixtures("undrawn_pictures")
def test_an_unfinished_demo_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("rayfbnn.run.running.Loop.run", stop)
        assert run_demo(tmp_path / "demo").exit_code == 130
    assert Store.open(tmp_path / "demo" / "run.zarr").committed_draws == 0
    assert run_demo(tmp_path / "demo").exit_code == 0
    assert Store.open(tmp_path / "demo" / "run.zarr").committed_draws == 10


@pytest.mark.long
@pytest.mark.usefixtures("undrawn_pictures")
def test_the_demo_reports_on_a_run_that_was_made_longer(tmp_path: Path, example: Path) -> None:
    assert run_demo(tmp_path / "demo").exit_code == 0
    store = tmp_path / "demo" / "run.zarr"
    planned = api.open(store)["posterior"].sizes["draw"]
    api.resume(store, iterations=planned + 3, workers=0, progress=False)
    assert run_demo(tmp_path / "demo").exit_code == 0
    assert api.open(store)["posterior"].sizes["draw"] == planned + 3


def test_the_demo_does_not_touch_another_run(tmp_path: Path, example: Path) -> None:
    folder = tmp_path / "demo"
    folder.mkdir()
    api.sample(example / "robot_arm.toml", folder / "run.zarr", set=["seed=2"], workers=0, progress=False)
    before = contents(folder / "run.zarr")
    result = run_demo(folder)
    assert result.exit_code == 2
    assert "seed: was 2, now 1" in result.stderr
    assert contents(folder / "run.zarr")["positions"].tobytes() == before["positions"].tobytes()


def test_a_file_in_the_demos_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "demo").write_text("mine")
    assert run_demo(tmp_path / "demo").exit_code == 2
    assert (tmp_path / "demo").read_text() == "mine"
