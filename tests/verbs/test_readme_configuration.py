"""Every command works with the README's own configuration, which has no phases."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from rayfbnn import cli
from rayfbnn.model import integrated, posterior, sampled
from rayfbnn.model.network import Activity, forward
from rayfbnn.streams import Purpose, Streams
from rayfbnn.timing import forecast as run_times
from rayfbnn.timing import steps as step_times
from rayfbnn.verbs.sampling import sample as rayfbnn_sample
from tests.support.pages import ROOT, first_problem

SHORT = ("--set", "chains=2", "--set", "iterations=6")
HERE = ("--workers", 0, "--no-progress")


def rayfbnn(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def succeeded(*arguments: object) -> str:
    """Standard output of a command that must succeed."""
    result = rayfbnn(*arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def write_cases(path: Path, n_cases: int) -> None:
    """A training file with columns x1, x2, y."""
    one_chain = Streams(seed=1, chains=np.zeros(1, dtype=np.uint64))
    values = one_chain.normal(Purpose.TARGET_VALUE, (n_cases, 3))[0]
    rows = [",".join(f"{value:.4f}" for value in row) for row in values]
    path.write_text("\n".join(["x1,x2,y", *rows, ""]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """run.toml from the README, train.csv of twelve cases, and a finished run.zarr, which no test changes."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "run.toml").write_text(first_problem())
    write_cases(folder / "train.csv", 12)
    succeeded("sample", folder / "run.toml", folder / "run.zarr", *SHORT, *HERE)
    return folder


@pytest.fixture
def quick_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time each operation once, with two steps."""
    for module in (step_times, run_times):
        monkeypatch.setattr(module, "repeated", lambda run, *, seconds: [run()])
        monkeypatch.setattr(module, "steps_within", lambda seconds_per_step, seconds: 2)


def test_a_run_is_shown_judged_predicted_from_verified_and_made_longer(folder: Path, tmp_path: Path) -> None:
    run, data, out = tmp_path / "run.zarr", folder / "train.csv", tmp_path / "predictions.csv"
    shutil.copytree(folder / "run.zarr", run)
    assert "hybrid-marginal" in succeeded("show", folder / "run.toml")
    assert "6 draws each" in succeeded("show", run)
    result = rayfbnn("diagnose", run)
    assert result.exit_code == cli.NOT_CONVERGED  # six draws are too few
    assert "sigma_noise" in result.stdout and "not ok:" in result.stdout
    assert "log_probability" in succeeded("predict", run, "--data", data, "--out", out)
    assert len(out.read_text().splitlines()) == 1 + 12
    assert ", 0 problems" in succeeded("verify", run)
    assert "2 chains of 8 draws" in succeeded("resume", run, "--iterations", 8, *HERE)


def test_fourteen_frames_lead_from_sample_to_the_pass_through_the_network(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    depths = set()

    def counted(*arguments: Any, **options: Any) -> Activity:
        depth, frame = 1, sys._getframe(1)  # the pass itself is one frame
        while frame.f_code is not rayfbnn_sample.__code__:
            depth += "/rayfbnn/" in frame.f_code.co_filename
            assert frame.f_back is not None
            frame = frame.f_back
        depths.add(depth + 1)
        return forward(*arguments, **options)

    for module in (posterior, sampled, integrated):
        monkeypatch.setattr(module, "forward", counted)
    monkeypatch.setenv("RAYFBNN_KERNELS", "plain")
    changes = ["chains=2", "iterations=2"]
    rayfbnn_sample(folder / "run.toml", tmp_path / "run.zarr", set=changes, workers=0, progress=False)
    assert max(depths) == 14


@pytest.mark.usefixtures("quick_timing")
@pytest.mark.parametrize("name", ["readme", "robot_arm"])
def test_bench_estimates_the_whole_run(folder: Path, name: str) -> None:
    path = folder / "run.toml" if name == "readme" else ROOT / "examples" / "robot_arm" / "robot_arm.toml"
    assert "the whole run: " in succeeded("bench", path, *SHORT, "--no-progress")


def test_check_compares_a_run_with_exact_draws(folder: Path, tmp_path: Path) -> None:
    write_cases(tmp_path / "train.csv", 2)  # of three cases, one proposal in 10,000 is accepted
    (tmp_path / "run.toml").write_text(first_problem())
    succeeded("reject", tmp_path / "run.toml", tmp_path / "exact.zarr", "--draws", 8, "--no-progress")
    succeeded("sample", tmp_path / "run.toml", tmp_path / "run.zarr", *SHORT, *HERE)
    result = rayfbnn("check", tmp_path / "run.zarr", tmp_path / "exact.zarr")
    assert result.exit_code == 1  # six draws are too few
    assert "sigma_ih0" in result.stdout and "effective draws below 100" in result.stderr


def test_prior_draws_can_be_predicted_and_plotted(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the plots extra is not installed")
    succeeded("prior", folder / "run.toml", tmp_path / "prior.zarr", "--draws", 3)
    assert "cases" in succeeded("predict", tmp_path / "prior.zarr", "--data", folder / "train.csv")
    assert "functions.png" in succeeded("plot", tmp_path / "prior.zarr", "--out", tmp_path / "plots")


@pytest.mark.usefixtures("undrawn_pictures")  # tests/verbs/test_demo.py draws them
def test_plot_makes_every_picture(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the plots extra is not installed")
    data = ("--data", folder / "train.csv")
    pictures = succeeded("plot", folder / "run.zarr", "--out", tmp_path / "plots", *data).split()
    assert {Path(picture).name for picture in pictures} >= {"traces.png", "bands.png", "predicted.png"}


def test_evidence_needs_no_phases(folder: Path) -> None:
    arguments = ("--set=chains=4", "--temperatures", 5, "--json")
    assert json.loads(succeeded("evidence", folder / "run.toml", *arguments))["runs"] == 4
