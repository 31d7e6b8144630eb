"""Runs in rounds on real Ray: the workers of the first round run the later ones too."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rayfbnn import api
from rayfbnn.answers import diagnostics
from rayfbnn.answers.diagnostics import Diagnosis
from rayfbnn.answers.judging.verdicts import Verdict
from rayfbnn.store.store import Store
from tests.support.small import assert_same_draws, small_spec

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]
pytest.importorskip("ray")

LENGTHS = (10, 20, 33)  # iterations of the last phase in each round


@pytest.fixture
def in_three_rounds(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Return a function that makes runs ok in the third round, and has something happen after the first."""
    judge = diagnostics.diagnose_draws

    def arrange(happens: Callable[[], None]) -> None:
        verdicts: Iterator[Verdict] = iter(
            [
                Verdict("predictions", "not usable"),
                Verdict("predictions", "not usable", iterations=LENGTHS[-1]),
                Verdict("predictions", "usable"),
            ]
        )

        def judge_in_turn(store: Any, **settings: Any) -> Diagnosis:
            verdict = next(verdicts)
            if verdict.grade == "not usable" and verdict.iterations is None:
                happens()
            return replace(judge(store, **settings), predictions=verdict)

        monkeypatch.setattr(diagnostics, "diagnose_draws", judge_in_turn)

    return arrange


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a run that had the final length from the start, done in this process."""
    folder = tmp_path_factory.mktemp("whole")
    spec = small_spec(folder).with_iterations(LENGTHS[-1])
    api.sample(spec, folder / "run.zarr", workers=0, progress=False)
    return folder / "run.zarr"


def workers_by_round(run: Path) -> list[set[str]]:
    """Return the names of the workers of each round, as the log of a run has them."""
    rounds: list[set[str]] = []
    for line in Path(f"{run}.log.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "start":
            rounds.append(set())
        elif event["event"] == "block":
            rounds[-1].add(event["worker"])
    return rounds


def test_the_same_workers_run_all_rounds(
    tmp_path: Path, whole: Path, in_three_rounds: Callable[[Callable[[], None]], None]
) -> None:
    in_three_rounds(lambda: None)
    settings: Any = {"workers": 2, "progress": False, "log_format": "json"}
    summary = api.sample(small_spec(tmp_path), tmp_path / "run.zarr", until="ok", max_time="1h", **settings)
    assert summary.ok is True and summary.failures == 0
    rounds = workers_by_round(tmp_path / "run.zarr")
    assert len(rounds) == len(LENGTHS) and all(rounds)
    assert len(set.union(*rounds)) <= 2  # workers of their own for each round would be three at least
    assert_same_draws(tmp_path / "run.zarr", whole)


def test_a_worker_lost_between_two_rounds_is_replaced_and_counts_against_no_block(
    tmp_path: Path, whole: Path, in_three_rounds: Callable[[Callable[[], None]], None]
) -> None:
    run = tmp_path / "run.zarr"

    def lose_the_worker() -> None:
        ((worker,),) = workers_by_round(run)
        pid = int(worker.rpartition(" pid ")[2])
        os.kill(pid, signal.SIGKILL)
        while Path(f"/proc/{pid}").exists():
            time.sleep(0.01)

    in_three_rounds(lose_the_worker)
    settings: Any = {"workers": 1, "max_failures": 0, "progress": False, "log_format": "json"}
    summary = api.sample(small_spec(tmp_path), run, until="ok", max_time="1h", **settings)
    assert summary.ok is True
    assert summary.failures == 1  # of the whole run, although the last round lost none
    first, second, third = workers_by_round(run)
    assert first != second == third
    assert_same_draws(run, whole)
    assert Store.open(run).verify().ok
