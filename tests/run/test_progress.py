"""The display of progress during a run, by a clock that the test moves."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest

from rayfbnn.mcmc.operation import Settings, Tunable
from rayfbnn.mcmc.operations import Hybrid
from rayfbnn.run import progress
from rayfbnn.run.estimate import Estimate
from rayfbnn.run.job import Progress
from rayfbnn.run.progress import (
    Display,
    LiveTable,
    PlainLines,
    display,
    rejection_line,
    show_rejection,
    show_share,
)
from rayfbnn.run.sampler import Sampler
from rayfbnn.spec import RunSpec
from rayfbnn.store.store import Store
from tests.support.small import make_store, small_spec
from tests.support.store.fits import fit_spec, make_fit

NEWS = Progress(
    batch=1,
    iteration=9,
    total_iterations=18,
    draws=1,
    total_draws=10,
    phase=2,
    acceptance=0.876,
    divergences=2,
    warmup_divergences=1,
    block_iterations=1,
    seconds=0.5,
    committed=True,
)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_store(tmp_path / "run.zarr", small_spec(tmp_path))


def test_a_row_says_what_is_done(store: Store) -> None:
    row = Estimate(store, Clock()).row(NEWS)
    assert (row["chains"], row["iteration"], row["draws"]) == ("2-3", "9/18", "1/10")
    assert (row["acceptance"], row["divergences"]) == ("0.88", "2 (warm-up 1)")
    assert row["draws/s"] == "4"  # two chains, one draw of each in half a second


def test_what_is_not_kept_has_no_rate_of_draws(store: Store) -> None:
    warmup = dataclasses.replace(NEWS, phase=0, iteration=2, draws=0, acceptance=float("nan"))
    row = Estimate(store, Clock()).row(warmup)
    assert (row["draws/s"], row["acceptance"]) == ("-", "-")


@pytest.fixture
def alone(tmp_path: Path) -> Store:
    """A store of one batch, of chains 0 and 1."""
    return make_store(tmp_path / "alone.zarr", small_spec(tmp_path, chains=2))


def news(**changes: Any) -> Progress:
    return dataclasses.replace(NEWS, **{"batch": 0, **changes})


def test_the_time_left_is_reckoned_in_gradient_evaluations(alone: Store) -> None:
    """Iterations of 5 + 1, 1, and 6 + 1 gradient evaluations; the last phase has 10, nine of them left."""
    clock = Clock()
    estimate = Estimate(alone, clock)
    first = news(phase=0, iteration=1, block_iterations=1, seconds=6.0)
    assert estimate.row(first)["time left"] == "1:27"  # 2 * 6 + 5 + 70 seconds remain


def test_a_phase_that_has_been_seen_has_its_own_pace(alone: Store) -> None:
    clock = Clock()
    estimate = Estimate(alone, clock)
    estimate.hear(news(phase=0, iteration=3, block_iterations=3, seconds=18.0))
    clock.now += 10
    assert estimate.row(news(phase=1, iteration=5, block_iterations=2, seconds=10.0))["time left"] == "6:05"
    clock.now += 5  # 2 * 5 seconds, and 10 * 7 * 5 for a phase of which nothing else is known
    assert estimate.row(news(phase=1, iteration=6, block_iterations=3, seconds=15.0))["time left"] == "6:00"
    clock.now += 14
    assert estimate.row(news(phase=2, iteration=10, block_iterations=2, seconds=14.0))["time left"] == "0:56"


@pytest.mark.parametrize("done", [0, 8, 14])
def test_what_an_earlier_run_did_takes_no_time_now(alone: Store, done: int) -> None:
    """A resumed run has done a block of 7 seconds, whatever was done before it."""
    resumed = news(phase=2, iteration=max(9, done + 1), seconds=7.0)
    left = 7 * (18 - resumed.iteration)
    assert Estimate(alone, Clock()).row(resumed)["time left"] == f"{left // 60}:{left % 60:02d}"


@pytest.mark.parametrize(("n_workers", "left"), [(1, "3:09"), (2, "1:34"), (3, "1:03")])
def test_batches_that_take_turns_have_a_share_of_the_workers(store: Store, n_workers: int, left: str) -> None:
    """Three batches have 9 iterations of 7 seconds left each; as many are at work as there are workers."""
    clock = Clock()
    estimate = Estimate(store, clock)
    for batch in range(n_workers):
        estimate.hear(news(batch=batch, seconds=0.0, block_iterations=0, iteration=8, committed=False))
    clock.now += 7
    for batch in range(n_workers):
        row = estimate.row(news(batch=batch, seconds=7.0))
    assert row["time left"] == left


def test_batches_that_were_complete_before_take_no_turn(tmp_path: Path) -> None:
    store = make_store(tmp_path / "run.zarr", small_spec(tmp_path))
    sampler = Sampler(store)
    for batch in (0, 2):
        while store.progress(batch).iteration < 18:
            list(sampler.run_block(batch))
    assert Estimate(store, Clock()).row(news(batch=1, seconds=7.0))["time left"] == "1:03"


def test_an_iteration_that_a_worker_lost_counts_as_time(alone: Store) -> None:
    clock = Clock()
    estimate = Estimate(alone, clock)
    for iterations in (1, 2, 3):
        estimate.hear(news(iteration=8 + iterations, block_iterations=iterations, seconds=7.0 * iterations))
    clock.now += 14 + 7  # it died; another has done one iteration
    assert estimate.row(news(iteration=9, block_iterations=1, seconds=7.0))["time left"] == "1:03"


def test_the_draws_of_a_fit_have_no_time_before_the_first(tmp_path: Path) -> None:
    store = make_fit(tmp_path / "fit.zarr", fit_spec(tmp_path, "bbb", chains=2))
    clock = Clock()
    estimate = Estimate(store, clock)
    first = dict.fromkeys(("phase", "draws"), 0)
    for batch in range(store.n_batches):
        row = estimate.row(news(batch=batch, **first, iteration=5, block_iterations=5, seconds=5.0))
    assert row["time left"] == "0:15 plus the draws"  # 15 of the 20 steps
    clock.now += 15
    for batch in range(store.n_batches):
        estimate.row(news(batch=batch, **first, iteration=20, block_iterations=15, seconds=15.0))
    clock.now += 1
    for batch in range(store.n_batches):
        row = estimate.row(news(batch=batch, phase=1, iteration=55, block_iterations=35, seconds=1.0))
    assert row["time left"] == "0:01"


def test_settings_are_looked_up_once_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An iteration of tuning takes 8 + 1 gradient evaluations, then 16 + 1; later ones 1 and 6 + 1.

    Each round of tuning has a pace of its own.
    """
    raw = small_spec(tmp_path, chains=2).to_dict()
    raw["phase"][0]["operations"][2] = {"op": "hybrid", "steps": "auto", "stepsize": 0.2}
    spec = RunSpec.from_dict(raw, base_dir=tmp_path)
    store, steps = make_store(tmp_path / "run.zarr", spec), 4
    asked: list[int] = []

    def latest() -> tuple[int, dict[Tunable, Settings]]:
        asked.append(steps)
        return 0, {Hybrid(steps="auto", stepsize=0.2): Settings(0.2, steps, 2 * steps)}

    monkeypatch.setattr(store.tuning, "latest", latest)
    clock = Clock()
    estimate = Estimate(store, clock)
    for _ in range(3):
        left = estimate.row(news(iteration=1, phase=0, seconds=9.0))["time left"]
        assert left == "1:33 at current lengths"  # 2 * 9 + 5 + 70
    assert asked == [4]
    steps, clock.now = 8, clock.now + 8.5
    left = estimate.row(news(iteration=2, phase=0, seconds=8.5))["time left"]
    assert left == "0:46 at current lengths"  # 17 + 75 at 2 a second
    assert asked == [4, 8]
    clock.now += 17 / 3
    left = estimate.row(news(iteration=3, phase=0, seconds=17 / 3))["time left"]
    assert left == "0:25"  # 75 at 3 a second; the last round is over, and no length can change any more


def test_lines_come_with_commits_but_not_too_often(store: Store) -> None:
    clock, lines = Clock(), list[str]()
    with PlainLines(store, write=lines.append, clock=clock) as shown:
        shown.update(dataclasses.replace(NEWS, committed=False))
        assert lines == []
        shown.update(NEWS)
        shown.update(NEWS)
        assert len(lines) == 1
        shown.update(dataclasses.replace(NEWS, batch=0))
        clock.now += 6
        shown.update(NEWS)
        assert len(lines) == 3
        shown.update(dataclasses.replace(NEWS, iteration=18))
        assert len(lines) == 4  # the end is always shown
    assert lines[0].startswith(
        "chains 2-3: iteration 9/18, draws 1/10, acceptance 0.88, divergences 2 (warm-up 1), 4 draws/s"
    )


def test_a_table_is_drawn_on_a_terminal(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    shown = display(store, show=True)
    assert isinstance(shown, LiveTable)
    with shown:
        shown.update(NEWS)
        shown.note("a stop was asked for")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "time left" in captured.err and "9/18" in captured.err
    # After the last row, as part of the redrawn text: a line written in between would tear the table.
    assert "a stop was asked for" in captured.err.rpartition("9/18")[2]


def test_lines_are_written_where_there_is_no_terminal_and_nothing_if_not_wanted(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert type(display(store, show=False)) is Display
    shown = display(store, show=True)
    assert isinstance(shown, PlainLines)
    with shown:
        shown.update(NEWS)
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1


def test_a_line_of_rejection_estimates_the_time_that_is_left() -> None:
    assert rejection_line(20, 4_000, 100, seconds=10.0) == (
        "draws 20/100, proposals 4,000: one in 200 accepted, time left 0:40"
    )


def test_a_line_of_rejection_has_a_bound_while_none_is_accepted() -> None:
    assert rejection_line(0, 30_000, 90, seconds=2.0) == (
        "draws 0/90, proposals 30,000: fewer than one in 10,000 accepted, time left more than 1:00"
    )


def test_the_first_line_of_rejection_comes_after_a_second(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    monkeypatch.setattr(progress.time, "monotonic", clock)
    with show_rejection(90, show=True) as on_progress:
        for seconds in (0.5, 0.6, 1.0, 4.5):  # at 0.5, 1.1, 2.1 and 6.6 seconds
            clock.now += seconds
            on_progress(0, 3_000)
    lines = capsys.readouterr().err.splitlines()
    assert [line.rsplit(" ", 1)[1] for line in lines] == ["0:33", "3:18"]


def test_long_work_is_forecast_with_advice_and_then_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    with show_share("predict", advice="take fewer draws") as on_progress:
        for now in range(1, 200):  # 200 seconds in all; standard error is no terminal here
            on_progress(now / 200)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "predict: about 3:20 in all; take fewer draws"
    assert lines[1] == "predict: 31.5% done, time left 2:17"
    assert len(lines) == 4


def test_short_work_is_not_talked_about(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    with show_share("predict") as on_progress:
        for now in range(1, 19):
            on_progress(now / 19)
    assert capsys.readouterr().err == ""
