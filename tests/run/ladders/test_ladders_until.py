"""Rounds of ladders: they end when the ladders have converged, or when more iterations cannot mend them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rayfbnn import api, cli
from rayfbnn.spec import RunSpec
from rayfbnn.store.store import Store
from tests.support.store.ladder_runs import apart_spec, assert_same_ladders, ladder_spec

HERE: dict[str, Any] = {"workers": 0, "progress": False}
SETTINGS = {"annealing": 20, "adaptation": 40}


def test_rounds_end_when_predictions_and_ladders_are_ok(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = ladder_spec(tmp_path, settings=SETTINGS, iterations=28)
    summary = api.sample(spec, tmp_path / "run.zarr", until="ok", max_time=60, workers=0)
    assert summary.ok is True and summary.word == "ladders" and summary.draws > 28
    rounds = [line for line in capsys.readouterr().err.splitlines() if line.startswith("round ")]
    # Usable predictions are not enough while a ladder has made no round trip.
    assert "28 draws in each ladder" in rounds[0] and "predictions usable" in rounds[0]
    assert "ladders not converged: going on to " in rounds[0]
    assert rounds[-1].endswith("ladders converged: ok")
    whole = spec.with_iterations(summary.draws)
    api.sample(whole, tmp_path / "whole.zarr", **HERE)
    assert_same_ladders(tmp_path / "run.zarr", tmp_path / "whole.zarr")


def test_rounds_end_early_if_neighbours_never_exchange(tmp_path: Path) -> None:
    run = tmp_path / "run.zarr"
    (tmp_path / "run.toml").write_text(apart_spec(tmp_path, iterations=400).to_toml())
    arguments = ["sample", tmp_path / "run.toml", run, "--until", "ok", "--max-time", "1h", "--workers", 0]
    result = CliRunner().invoke(cli.app, [str(one) for one in arguments])
    assert result.exit_code == 3, result.output
    why = "more iterations would not help, because noise "
    assert why in result.stderr and "exchange less than once in 400 iterations of ladder" in result.stderr
    assert "sample again with more ladder.levels or ladder.adaptation" in result.stderr
    assert "4 ladders of 400 draws" in result.stdout and why in result.stdout
    assert Store.open(run).committed_draws == 400
    verdict = api.diagnose(run).ladders
    assert verdict is not None and "exchange less than once" in verdict.obstacle
    assert not [line for line in verdict.advice if "--iterations" in line]


def test_a_length_left_open_is_found_in_rounds(tmp_path: Path) -> None:
    keys = ladder_spec(tmp_path, settings=SETTINGS).written()
    del keys["iterations"]
    spec = RunSpec.from_dict(keys, base_dir=tmp_path)
    assert spec.has_open_length
    summary = api.sample(spec, tmp_path / "run.zarr", **HERE)
    assert summary.ok is True and summary.draws in (100, 200, 400, 800)
    store = Store.open(tmp_path / "run.zarr")
    assert store.spec.phase[-1].iterations == summary.draws and api.status(store.path).complete  # type: ignore[arg-type]
    assert store.verdicts.all()[0].next_iterations == 100
