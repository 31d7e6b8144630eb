"""Runs in rounds: the draws of a run of the final length, the decisions on record, and the end in time."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner, Result

from rayfbnn import api, cli
from rayfbnn.answers import diagnostics
from rayfbnn.answers.diagnostics import Diagnosis
from rayfbnn.answers.judging.verdicts import Verdict
from rayfbnn.errors import ConfigError
from rayfbnn.run.progress import Silent
from rayfbnn.run.sampler import Progress
from rayfbnn.store.store import Store
from rayfbnn.verbs.until import read_seconds
from tests.support.small import assert_same_draws, small_spec

HERE = {"workers": 0, "progress": False}


def rayfbnn(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


@pytest.fixture
def ok_in_third_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes predictions not usable in two rounds, the second time with advice on iterations; then usable."""
    verdicts: Iterator[Verdict] = iter(
        [
            Verdict("predictions", "not usable"),
            Verdict("predictions", "not usable", iterations=33),
            Verdict("predictions", "usable"),
        ]
    )
    judge = diagnostics.diagnose_draws

    def judge_in_turn(store: Any, **settings: Any) -> Diagnosis:
        return replace(judge(store, **settings), predictions=next(verdicts))

    monkeypatch.setattr(diagnostics, "diagnose_draws", judge_in_turn)


@pytest.mark.usefixtures("ok_in_third_round")
def test_draws_are_those_of_a_run_of_the_final_length(tmp_path: Path) -> None:
    spec = small_spec(tmp_path)
    summary = api.sample(spec, tmp_path / "rounds.zarr", until="ok", max_time="1h", **HERE)  # type: ignore[arg-type]
    assert summary.ok is True and summary.draws == 33  # 10, twice as many, then as advised
    whole = api.sample(spec.with_iterations(33), tmp_path / "whole.zarr", **HERE)  # type: ignore[arg-type]
    assert whole.ok is None
    assert_same_draws(tmp_path / "rounds.zarr", tmp_path / "whole.zarr")


@pytest.mark.usefixtures("ok_in_third_round")
def test_each_round_is_printed_and_on_record(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(small_spec(tmp_path).to_toml())
    run = tmp_path / "run.zarr"
    arguments = ("--until", "ok", "--max-time", "1h", "--workers", 0, "--json")
    result = rayfbnn("sample", tmp_path / "run.toml", run, *arguments)
    assert result.exit_code == 0 and json.loads(result.stdout)["ok"] is True
    lines = [line for line in result.stderr.splitlines() if line.startswith("round ")]
    assert [line.rpartition(": ")[2] for line in lines] == [
        "going on to 20 iterations",
        "going on to 33 iterations",
        "ok",
    ]
    records = Store.open(run).verdicts.all()
    assert [(record.iterations, record.next_iterations) for record in records] == [
        (10, 20),
        (20, 33),
        (33, None),
    ]
    assert [record.predictions for record in records] == ["not usable", "not usable", "usable"]
    assert [record.ok for record in records] == [False, False, True]
    assert "round 2: 20 draws in each chain, predictions not usable" in api.show(run)
    assert api.verify(run).problems == ()


def test_a_run_that_is_not_ok_in_time_ends_with_3_and_is_resumed_to_the_same_draws(tmp_path: Path) -> None:
    spec = small_spec(tmp_path)
    (tmp_path / "run.toml").write_text(spec.to_toml())
    run, arguments = tmp_path / "run.zarr", ("--until", "ok", "--for", "all", "--workers", 0)
    result = rayfbnn("sample", tmp_path / "run.toml", run, *arguments, "--max-time", "0.001s")
    assert result.exit_code == 3, result.output
    assert "not ok, since " in result.stderr
    assert "the time is over; continue with: rayfbnn resume" in result.stderr
    (record,) = Store.open(run).verdicts.all()
    assert record.decisive == "all" and not record.ok and record.next_iterations is None
    api.resume(run, **HERE)  # type: ignore[arg-type]
    api.sample(spec, tmp_path / "whole.zarr", **HERE)  # type: ignore[arg-type]
    assert_same_draws(run, tmp_path / "whole.zarr")


@pytest.mark.usefixtures("ok_in_third_round")
def test_a_finished_run_goes_on_in_rounds(tmp_path: Path) -> None:
    run = tmp_path / "run.zarr"
    api.sample(small_spec(tmp_path), run, **HERE)  # type: ignore[arg-type]
    summary = api.resume(run, until="ok", max_time=3600, **HERE)  # type: ignore[arg-type]
    assert summary.ok is True and summary.draws == 33


@pytest.mark.usefixtures("ok_in_third_round")
def test_a_signal_after_the_last_commit_of_a_round_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def update(shown: Silent, progress: Progress) -> None:
        if progress.is_complete and progress.batch == 2:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Silent, "update", update)
    run = tmp_path / "run.zarr"
    with pytest.raises(KeyboardInterrupt, match="continue with: rayfbnn resume"):
        api.sample(small_spec(tmp_path), run, until="ok", max_time="1h", **HERE)  # type: ignore[arg-type]
    assert Store.open(run).committed_draws == 10 and Store.open(run).verdicts.all() == []


def test_damaged_records_are_reported_and_set_aside(tmp_path: Path) -> None:
    run = tmp_path / "run.zarr"
    lax = {"until": "ok", "max_time": 0.001}
    api.sample(small_spec(tmp_path), run, **lax, **HERE)  # type: ignore[arg-type]
    record = run / "commits" / "verdicts" / "000000.json"
    record.write_bytes(record.read_bytes().replace(b'"seconds"', b'"minutes"'))
    (problem,) = api.verify(run).problems
    assert problem.file == "commits/verdicts/000000.json"
    api.verify(run, repair=True)
    assert api.verify(run).problems == () and Store.open(run).verdicts.all() == []


@pytest.mark.parametrize(
    ("value", "seconds"), [("90s", 90), ("30m", 1800), ("1h30m", 5400), ("2.5", 2.5), (7, 7), (0.5, 0.5)]
)
def test_times_are_seconds_or_have_units(value: str | float, seconds: float) -> None:
    assert read_seconds(value) == seconds


@pytest.mark.parametrize("value", ["", "m", "soon", "-5", "0", "30 x", "nan", 0])
def test_other_times_are_refused(value: str | float) -> None:
    with pytest.raises(ConfigError, match=r"max_time: must be a time above 0"):
        read_seconds(value)


@pytest.mark.parametrize(
    ("arguments", "changes", "message"),
    [
        ({"until": "ok"}, {}, "max_time: must be given with until"),
        ({"max_time": 5}, {}, 'max_time: only for a run with until = "ok", got 5'),
        ({"until": "done", "max_time": 5}, {}, 'until: must be "ok", got "done"'),
        ({"until": "ok", "max_time": 5, "decisive": "sigmas"}, {}, "decisive: must be"),
        ({"until": "ok", "max_time": 5}, {"chains": 1}, "until: one chain cannot be judged"),
    ],
)
def test_a_wrong_goal_is_refused_before_anything_is_created(
    tmp_path: Path, arguments: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        api.sample(small_spec(tmp_path, **changes), tmp_path / "run.zarr", **arguments, **HERE)  # type: ignore[arg-type]
    assert not (tmp_path / "run.zarr").exists()


def test_a_goal_is_checked_once_the_inputs_follow_from_the_table(tmp_path: Path) -> None:
    """Before the table is read there is no schedule yet."""
    keys = {"data": {"targets": ["y"]}, "model": {"kind": "real"}, "chains": 1}
    table = pd.DataFrame({"x": [0.1, 0.7, 0.4], "y": [1.0, 2.0, 4.0]})
    with pytest.raises(ConfigError, match="until: one chain cannot be judged"):
        api.sample(keys, tmp_path / "run.zarr", data=table, until="ok", max_time=1)
    assert list(tmp_path.iterdir()) == []
