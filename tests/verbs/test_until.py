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
from rayfbnn.data import read_training
from rayfbnn.errors import ConfigError
from rayfbnn.run import running
from rayfbnn.run.executor import InProcess
from rayfbnn.run.job import Progress
from rayfbnn.run.progress import Display
from rayfbnn.run.running import RunOptions
from rayfbnn.spec import RunSpec, run_spec
from rayfbnn.spec.text import to_toml
from rayfbnn.store.store import Store
from rayfbnn.verbs.until import read_seconds
from tests.support.small import assert_same_draws, make_store, small, small_spec, write_train

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
    def update(shown: Display, progress: Progress) -> None:
        if progress.is_complete and progress.batch == 2:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Display, "update", update)
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


def of_open_length(folder: Path, **changes: Any) -> RunSpec:
    """Return a run without phases, which has 350 iterations at most instead of thousands."""
    write_train(folder)
    changes = {"phase": None, "chains": 4, "model": {"kind": "count"}, "draws_per_block": None} | changes
    text = (folder / "train.csv").read_text().splitlines()
    rows = [f"{row.rpartition(',')[0]},{number % 3}" for number, row in enumerate(text[1:])]
    (folder / "train.csv").write_text("\n".join([text[0], *rows]) + "\n")
    return RunSpec.from_dict(small(**changes), base_dir=folder)


@pytest.fixture
def short_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the default schedule 10 iterations that tune and at most 350 that are kept."""
    written = run_spec.default_phases

    def phases(*arguments: Any, **options: Any) -> Any:
        made = written(*arguments, **{**options, "iterations": options["iterations"] or 350})
        return tuple(
            phase if phase.keep is True else phase.model_copy(update={"iterations": 10}) for phase in made
        )

    monkeypatch.setattr(run_spec, "default_phases", phases)


def verdicts_in_turn(monkeypatch: pytest.MonkeyPatch, *grades: str) -> None:
    remaining = iter(grades)
    judge = diagnostics.diagnose_draws

    def judge_in_turn(store: Any, **settings: Any) -> Diagnosis:
        found = judge(store, **settings)
        verdict = Verdict("predictions", next(remaining), reasons=("of the test",))  # type: ignore[arg-type]
        return replace(found, predictions=verdict)

    monkeypatch.setattr(diagnostics, "diagnose_draws", judge_in_turn)


@pytest.mark.usefixtures("short_default")
def test_a_run_of_open_length_ends_with_the_first_verdict_that_is_ok(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdicts_in_turn(monkeypatch, "not usable", "usable")
    spec, run = of_open_length(tmp_path), tmp_path / "run.zarr"
    summary = api.sample(spec, run, **HERE)  # type: ignore[arg-type]
    assert summary.ok is True and summary.draws == 200
    store = Store.open(run)
    assert store.spec.phase[-1].iterations == 200 and api.status(run).complete
    assert [(record.draws, record.next_iterations) for record in store.verdicts.all()] == [
        (0, 100),
        (100, 200),
        (200, None),
    ]
    assert "round 1: 100 draws" in api.show(run) and api.verify(run).problems == ()
    written = RunSpec.from_dict(spec.to_dict(), base_dir=tmp_path).with_iterations(200)
    whole = api.sample(written, tmp_path / "whole.zarr", **HERE)  # type: ignore[arg-type]
    assert whole.ok is None
    assert_same_draws(run, tmp_path / "whole.zarr")


@pytest.mark.usefixtures("short_default")
def test_a_run_of_open_length_that_is_never_ok_has_the_default_length_and_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdicts_in_turn(monkeypatch, *["not usable"] * 3)
    spec = of_open_length(tmp_path)
    result = rayfbnn(
        "sample", write_open(tmp_path, spec), tmp_path / "run.zarr", "--workers", 0, "--no-progress"
    )
    assert result.exit_code == 0, result.output  # nobody asked for a verdict
    assert "not ok; continue with: rayfbnn resume" in result.stdout
    assert "--until ok --max-time 30m" in result.stdout
    store = Store.open(tmp_path / "run.zarr")
    assert [record.draws for record in store.verdicts.all()] == [0, 100, 200, 350]
    assert store.committed_draws == 350


def write_open(folder: Path, spec: RunSpec) -> Path:
    path = folder / "open.toml"
    path.write_text(to_toml(spec.written()))
    return path


@pytest.mark.usefixtures("short_default")
def test_a_run_of_open_length_that_was_stopped_goes_on_in_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdicts_in_turn(monkeypatch, "not usable", "usable", "usable")
    run, spec = tmp_path / "run.zarr", of_open_length(tmp_path)
    is_stopped: list[bool] = []

    def update(shown: Display, progress: Progress) -> None:
        if progress.draws == 150 and not is_stopped:
            is_stopped.append(True)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Display, "update", update)
    with pytest.raises(KeyboardInterrupt, match="continue with: rayfbnn resume"):
        api.sample(spec, run, **HERE)  # type: ignore[arg-type]
    assert 100 < max(progress.draws for progress in Store.open(run).all_progress()) < 200
    summary = api.resume(run, spec=spec, **HERE)  # type: ignore[arg-type]
    assert summary.ok is True and summary.draws == 200
    again = api.sample_or_resume(spec, run, **HERE)  # type: ignore[arg-type]
    assert again.draws == 200  # it is ok, so nothing is left to do
    longer = api.resume(run, iterations=220, **HERE)  # type: ignore[arg-type]
    assert longer.ok is None and longer.draws == 220


@pytest.mark.usefixtures("short_default")
def test_a_written_length_and_a_single_chain_are_run_without_rounds(tmp_path: Path) -> None:
    exact = api.sample(of_open_length(tmp_path, iterations=7), tmp_path / "exact.zarr", **HERE)  # type: ignore[arg-type]
    assert exact.ok is None and exact.draws == 7
    alone = api.sample(of_open_length(tmp_path, chains=1), tmp_path / "alone.zarr", **HERE)  # type: ignore[arg-type]
    assert alone.ok is None and alone.draws == 350


@pytest.mark.usefixtures("short_default")
def test_a_run_of_open_length_may_have_a_time_limit_of_its_own(tmp_path: Path) -> None:
    spec = of_open_length(tmp_path)
    summary = api.sample(spec, tmp_path / "run.zarr", max_time=0.001, **HERE)  # type: ignore[arg-type]
    assert summary.ok is False and summary.draws < 350
    assert Store.open(tmp_path / "run.zarr").spec.phase[-1].iterations == 350


@pytest.mark.usefixtures("short_default")
def test_the_first_seconds_are_run_in_this_process_and_then_workers_are_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdicts_in_turn(monkeypatch, "usable", "usable")
    called: list[int] = []

    def never(store: Store, n_batches: int, options: RunOptions) -> InProcess:
        called.append(1 if options.workers is None else 0)
        return InProcess()

    monkeypatch.setattr(running, "new_executor", never)
    monkeypatch.setattr(running, "_SECONDS_HERE", 0.05)
    spec = of_open_length(tmp_path, chains_per_batch=2)
    api.sample(spec, tmp_path / "two.zarr", progress=False)
    assert called[0] == 0 and called[-1] == 1
    called.clear()
    api.sample(of_open_length(tmp_path, chains_per_batch=4), tmp_path / "one.zarr", progress=False)
    assert called == [0]  # a single batch
    assert_same_positions(tmp_path / "one.zarr", tmp_path / "two.zarr")


def assert_same_positions(path: Path, other: Path) -> None:
    assert Store.open(path).read_positions().tobytes() == Store.open(other).read_positions().tobytes()


@pytest.mark.usefixtures("short_default")
def test_a_run_that_was_stopped_while_its_batches_differ_goes_on_to_the_recorded_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of chains may be far apart, and a run cannot become shorter than any has sampled."""
    verdicts_in_turn(monkeypatch, "usable")
    spec, run = of_open_length(tmp_path, chains_per_batch=2, draws_per_block=70), tmp_path / "run.zarr"
    store = make_store(run, read_training(spec)[0])
    begin = store.spec.total_iterations - 350
    with store.lock(), InProcess() as executor:
        list(running.run_rounds(store, executor, last=begin + 20))
        list(executor.run(run, [1], until=begin + 130))
    summary = api.sample_or_resume(spec, run, **HERE)
    assert summary.ok is True and summary.draws == 200 and api.status(run).complete
