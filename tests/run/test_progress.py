"""The display of progress during a run, by a clock that the test moves."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest

from rayfbnn.run import progress
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


def news(**changes: Any) -> Progress:
    return dataclasses.replace(NEWS, **changes)


def test_the_line_of_the_run_comes_every_five_seconds_and_at_the_end(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    with PlainLines(store, clock=clock) as shown:
        for seconds, iteration in ((0, 9), (4, 10), (2, 11)):
            clock.now += seconds
            shown.update(news(iteration=iteration))
    lines = capsys.readouterr().err.splitlines()
    shares = [f"{store.path}: {iteration / 54:.1%} done, " for iteration in (9, 11, 11)]
    assert len(lines) == 3 and all(map(str.startswith, lines, shares))


def test_a_status_that_cannot_be_read_ends_no_run(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    with PlainLines(store, clock=clock) as shown:
        shown.update(NEWS)
        monkeypatch.setattr(progress, "status_of", lambda *_, **__: Path("absent").read_text())
        clock.now += 6
        shown.update(news(iteration=10))
    assert len(set(capsys.readouterr().err.splitlines())) == 1


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


def test_a_line_is_written_where_there_is_no_terminal_and_nothing_if_not_wanted(store: Store) -> None:
    assert type(display(store, show=False)) is Display
    assert type(display(store, show=True)) is PlainLines


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
