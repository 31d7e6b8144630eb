"""The display of progress during a run, by a clock that the test moves."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

from rayfbnn.mcmc.operation import Settings, Tunable
from rayfbnn.mcmc.operations import Hybrid
from rayfbnn.run import progress
from rayfbnn.run.estimate import Estimate
from rayfbnn.run.progress import LiveTable, PlainLines, Silent, display, rejection_line, show_rejection
from rayfbnn.run.sampler import Progress
from rayfbnn.spec import RunSpec
from rayfbnn.store.store import Store
from tests.support.small import make_store, small_spec

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
    assert (row.batch, row.iteration, row.draws) == ("2-3", "9/18", "1/10")
    assert (row.acceptance, row.divergences) == ("0.88", "2 (warm-up 1)")
    assert row.rate == "4"  # two chains, one draw of each in half a second


def test_what_is_not_kept_has_no_rate_of_draws(store: Store) -> None:
    news = dataclasses.replace(NEWS, phase=0, iteration=2, draws=0, acceptance=float("nan"))
    row = Estimate(store, Clock()).row(news)
    assert (row.rate, row.acceptance) == ("-", "-")


def test_the_time_left_is_reckoned_in_gradient_evaluations(store: Store) -> None:
    """3 iterations of 5 + 1 gradient evaluations, 5 of 1, 10 of 6 + 1: 93 in all, 30 of them done."""
    clock = Clock()
    estimate = Estimate(store, clock)
    estimate.row(dataclasses.replace(NEWS, iteration=0, block_iterations=0, seconds=0.0))
    clock.now += 60
    assert estimate.row(NEWS).left == "2:06"  # 63 remain at 30 a minute
    clock.now += 60 * 60
    assert estimate.row(NEWS).left == "2:08:06"


def test_what_an_earlier_run_did_takes_no_time_now(store: Store) -> None:
    news = dataclasses.replace(NEWS, seconds=7.0)
    assert Estimate(store, Clock()).row(news).left == "1:03"  # 7 done in 7 seconds, 63 remain


def test_settings_are_looked_up_once_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An iteration of tuning takes 8 + 1 gradient evaluations, then 16 + 1; later ones 1 and 6 + 1."""
    raw = small_spec(tmp_path).to_dict()
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
    estimate.row(dataclasses.replace(NEWS, iteration=0, block_iterations=0, phase=0, seconds=0.0))
    clock.now += 9
    for _ in range(3):
        left = estimate.row(dataclasses.replace(NEWS, iteration=1, phase=0)).left
        assert left == "1:33 if lengths stay"  # 2 * 9 + 5 + 70
    assert asked == [4]
    steps, clock.now = 8, clock.now + 8
    left = estimate.row(dataclasses.replace(NEWS, iteration=2, phase=0)).left
    assert left == "0:46 if lengths stay"  # 17 + 75 at 2 a second
    assert asked == [4, 8]
    left = estimate.row(dataclasses.replace(NEWS, iteration=3, phase=0)).left
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
    assert isinstance(display(store, show=False), Silent)
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
        "draws 0/90, proposals 30,000: fewer than one in 10,000 accepted, all draws take longer than 1:00"
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
