"""A study that is watched: rows of members, the line of the whole, and what drivers and readers are told."""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from rayfbnn import cli
from rayfbnn.cli import commands
from rayfbnn.output.printing import Redrawn
from rayfbnn.store.records import NO_SEAL, SEAL, seal
from rayfbnn.study import Rule, Study
from rayfbnn.study.plan import Member
from rayfbnn.study.study_status import (
    ConfigurationStatus,
    MemberStatus,
    StudyStatus,
    first_line,
    progress_line,
    seconds_left,
    watch_text,
)
from rayfbnn.verbs.sampling import resume
from tests.support.small import small_spec

LAX = Rule(max_rhat=9, max_mcse=9, least_draws=5, looks=2, cases=3)
HERE: dict[str, Any] = {"workers": 0, "progress": False}


@pytest.fixture(autouse=True)
def _lines_of_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


def make(folder: Path, seeds: int = 3) -> Study:
    spec = small_spec(folder, chains=2, chains_per_batch=2, draws_per_block=10)
    return Study.create(folder / "study", spec, seeds=seeds, rule=LAX)


def begin(study: Study, seed: int, iterations: int) -> None:
    """Sample a member to this length of its last phase, as a driver of the study would."""
    member = Member(0, seed)
    if not study.members.is_there(member):
        study.members.create(member, iterations)
    resume(str(study.members.place(member)), iterations=iterations, **HERE)


def rayfbnn(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, ["study", *(str(argument) for argument in arguments)])


def status_with(*members: MemberStatus, next_iterations: int | None = 100) -> StudyStatus:
    return StudyStatus("study", (ConfigurationStatus("the configuration", members, (), next_iterations),))


AT_WORK = MemberStatus(3, "under way", 20, "", "host pid 7", True, 60, 100, seconds_left=20.0)
READY = MemberStatus(1, "ready", 60, iteration=100, needed=100)
WAITING = MemberStatus(2, "not begun", needed=100)


def test_a_row_has_progress_speed_time_left_and_who_is_at_work() -> None:
    lines = watch_text(status_with(READY, WAITING, AT_WORK)).splitlines()
    assert lines[1].split("  ")[-1] == "driver"
    assert lines[2].split() == ["1", "ready", "100/100", "60", "-", "-", "-"]
    assert lines[3].split() == ["2", "not", "begun", "0/100", "0", "-", "-", "-"]
    assert lines[4].split() == ["3", "under", "way", "60/100", "20", "2", "0:20", "host", "pid", "7"]
    killed, elsewhere = replace(AT_WORK, at_work=False), replace(AT_WORK, at_work=None, seconds_left=None)
    assert watch_text(status_with(killed)).endswith("host pid 7 was killed")
    assert watch_text(status_with(elsewhere)).endswith("perhaps host pid 7")


def test_the_time_of_a_study_is_that_of_all_its_members() -> None:
    """40 iterations at two a second, then 100 more of the member that has not begun."""
    assert seconds_left(status_with(READY, WAITING, AT_WORK)) == 70
    line = progress_line(status_with(READY, WAITING, AT_WORK))
    assert (
        "1 of 3 members are ready for the next look, 1 at work, 53.3% of the iterations, time left 1:10"
        in line
    )
    assert seconds_left(status_with(READY, AT_WORK)) == 20
    assert progress_line(status_with(READY, WAITING)).endswith("time left -")
    assert seconds_left(status_with(AT_WORK, replace(WAITING, state="failed"))) == 20


def test_members_at_work_stay_where_there_is_little_room() -> None:
    members = [replace(WAITING, seed=seed) for seed in range(10, 30)]
    text = watch_text(status_with(*members, AT_WORK, READY), most_rows=6)
    assert len(text.splitlines()) == 2 + 6 + 1 and text.endswith("and 16 more")
    assert "host pid 7" in text and " ready " in text


def test_a_driver_says_at_once_what_it_found_and_what_it_will_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = make(tmp_path)
    begin(study, 1, 5)
    study.run(workers=0)
    first, second, *_ = capsys.readouterr().err.splitlines()
    assert first == (
        f"{study.place}: 3 members: 1 ready, 2 not begun; now to look 1, 5 iterations of the last phase,"
        " one member after another in this process"
    )
    assert second.startswith("look 1: seed ")
    study.run(workers=0)
    assert capsys.readouterr().err == ""  # nothing is left to do
    assert first_line(status_with(AT_WORK, WAITING), "in 4 processes").endswith(
        "in 4 processes; at work already: 1 driver: host pid 7"
    )


def test_progress_can_be_hidden(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path).run(**HERE)
    assert capsys.readouterr().err == ""


def test_the_status_of_a_member_has_its_iterations_and_its_driver(tmp_path: Path) -> None:
    """Ten iterations of the last phase follow eight of others; the first look needs five."""
    study = make(tmp_path)
    begin(study, 2, 3)
    holder = seal({"host": socket.gethostname(), "pid": os.getpid(), SEAL: NO_SEAL})
    (Path(str(study.members.place(Member(0, 2)))) / "commits" / "holder.json").write_bytes(holder)
    first, second, third = study.status().configurations[0].members
    assert (first.state, first.iteration, first.needed) == ("under way", 0, 13)
    assert (second.state, second.iteration, second.needed, second.draws) == ("under way", 11, 13, 3)
    assert (second.driver, second.at_work) == (f"{socket.gethostname()} pid {os.getpid()}", True)
    assert (third.state, third.iteration, third.needed) == ("not begun", 0, 13)
    assert (
        json.loads(rayfbnn("status", study.place, "--json").stdout)["configurations"][0]["members"][1][
            "iteration"
        ]
        == 11
    )


def test_watching_without_a_terminal_adds_lines_and_ends_with_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = make(tmp_path)
    pauses: list[float] = []

    def go_on(seconds: float) -> None:
        pauses.append(seconds)
        begin(study, len(pauses), 5) if len(pauses) < 3 else study.run(**HERE)

    monkeypatch.setattr(commands.time, "sleep", go_on)
    result = rayfbnn("status", study.place, "--watch", "--every", "7")
    assert result.exit_code == 0 and pauses == [7, 7, 7]
    lines = result.stdout.splitlines()
    for ready in range(3):
        assert f": {ready} of 3 members are ready for the next look" in lines[ready]
    assert lines[3] == f"{study.place}: complete, ok"
    assert "iterations/s" in lines[4] and "the configuration: 3 members: 3 ready" in result.stdout
    assert rayfbnn("status", study.place, "--every", "0").exit_code == 2


def test_on_a_terminal_the_last_answer_is_replaced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    screen = Redrawn()
    screen.answer("one\ntwo")
    screen.answer("three")
    assert capsys.readouterr().out == "one\ntwo\nthree\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    screen = Redrawn()
    screen.answer("one\ntwo and more than two\n")  # folded into four lines, the last one empty
    screen.answer("three")
    assert capsys.readouterr().out == "one\ntwo and more than\n  two\n\n\x1b[4F\x1b[Jthree\n"


def test_members_of_different_lengths_are_named_where_they_are_pooled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    study = make(tmp_path)
    begin(study, 1, 5)
    begin(study, 2, 8)
    with caplog.at_level(logging.WARNING):
        study.predict(tmp_path / "train.csv")
    different = (
        "members have different lengths: 5 draws in each chain of seed 1, 8 draws in each chain of seed 2"
    )
    assert f"{different}; longer members count for more in what is pooled" in caplog.text
    assert "seed 3 without draws are left out" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        study.diagnose()
    assert f"{different}; the first 5 of each are judged" in caplog.text
    begin(study, 1, 8)
    begin(study, 3, 8)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        study.predict(tmp_path / "train.csv")
        study.diagnose()
    assert "different lengths" not in caplog.text and "left out" not in caplog.text
