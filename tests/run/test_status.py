"""The status of a run, read from its store while it goes on and after it ended."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import rayfbnn
from rayfbnn import api, cli
from rayfbnn.cli import jobs
from rayfbnn.describe.status import status_text
from rayfbnn.run.sampler import Sampler
from rayfbnn.run.status import BatchStatus, Status, status_of
from rayfbnn.store.records import NO_SEAL, SEAL, seal
from rayfbnn.store.store import Store
from tests.support.small import make_store, small_spec

START = 1_000_000.0  # seconds since 1970
BLOCK = 30.0  # seconds


def half_done(folder: Path, *, host: str | None = None, pid: int | None = None) -> Store:
    """A store with three blocks of each batch, half a minute apart, and maybe a driver on record."""
    store = make_store(folder / "run.zarr", small_spec(folder))
    sampler = Sampler(store, worker="here")
    for batch in range(store.n_batches):
        for block in range(3):
            list(sampler.run_block(batch))
            time = START + BLOCK * block
            os.utime(
                folder / "run.zarr" / "commits" / f"batch{batch:04d}" / f"{block:06d}.block", (time, time)
            )
    if host is not None:
        holder = seal({"host": host, "pid": pid, SEAL: NO_SEAL})
        (folder / "run.zarr" / "commits" / "holder.json").write_bytes(holder)
    return Store.open(folder / "run.zarr")


def test_speed_and_time_left_follow_from_the_commits(tmp_path: Path) -> None:
    store = half_done(tmp_path)
    status = status_of(store, now=START + 70)
    assert not status.complete and 0 < status.done < 1
    for batch in status.batches:
        iterations = store.progress(batch.batch).iteration
        assert (batch.iteration, batch.draws) == (iterations, store.progress(batch.batch).draws)
        assert batch.seconds_since_commit == 10 and batch.seconds_of_block == BLOCK
        # The last phase has trajectories of 6 steps of 3 partitions each; the phase before has none.
        assert batch.seconds_left is not None and batch.seconds_left > 0
    assert status.seconds_left == max(batch.seconds_left or 0 for batch in status.batches)


@pytest.mark.parametrize(
    ("host", "pid", "now", "at_work"),
    [
        (None, None, START + 70, False),  # no driver on record
        (socket.gethostname(), os.getpid(), START + 1e6, True),  # its process is alive
        (socket.gethostname(), 2**22 + 1, START + 70, False),  # no machine has such a process
        ("elsewhere", 1, START + 70, True),  # it committed a moment ago
        ("elsewhere", 1, START + 60 + 6 * BLOCK, None),  # it is overdue
    ],
    ids=["none", "alive", "gone", "elsewhere", "overdue"],
)
def test_a_driver_is_found_at_work_where_that_can_be_known(
    tmp_path: Path, host: str | None, pid: int | None, now: float, at_work: bool | None
) -> None:
    status = status_of(half_done(tmp_path, host=host, pid=pid), now=now)
    assert status.at_work is at_work
    assert (status.driver is None) == (host is None)
    words = {True: "at work:", False: "nobody is at work", None: "cannot tell"}
    assert words[at_work] in status_text(status)


def test_a_store_without_draws_and_a_complete_one(tmp_path: Path) -> None:
    store = make_store(tmp_path / "run.zarr", small_spec(tmp_path))
    status = rayfbnn.status(tmp_path / "run.zarr")
    assert status.done == 0 and status.seconds_left is None and status.driver is None
    assert " 0/18 " in status_text(status) and "0.0% done" in status_text(status)
    api.resume(store.path, workers=0, progress=False)
    status = rayfbnn.status(tmp_path / "run.zarr")
    assert status.complete and status.seconds_left == pytest.approx(0.0)
    assert "complete, 10 draws of each chain\nnobody is at work\n" in status_text(status)


def test_watching_ends_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    half_done(tmp_path)
    pauses: list[float] = []

    def run_on(seconds: float) -> None:
        pauses.append(seconds)
        api.resume(tmp_path / "run.zarr", workers=0, progress=False)

    monkeypatch.setattr(jobs.time, "sleep", run_on)
    arguments = ["status", str(tmp_path / "run.zarr"), "--watch", "--every", "3", "--json"]
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == 0 and pauses == [3.0]
    first, last = (json.loads(line) for line in result.stdout.splitlines())
    assert (first["complete"], last["complete"], last["done"]) == (False, True, 1.0)


def test_a_pause_of_nothing_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli.app, ["status", str(tmp_path), "--every", "0"])
    assert result.exit_code == 2 and "every: must be" in result.stderr


@pytest.mark.parametrize(
    ("seconds", "text"), [(3.14, "3.14 s"), (45, "45 s"), (720, "12 min"), (9000, "2.5 h"), (2e5, "2.3 days")]
)
def test_times_are_short(seconds: float, text: str) -> None:
    batch: Any = {"batch": 0, "first_chain": 0, "last_chain": 1, "iteration": 5, "draws": 5}
    row = BatchStatus(**batch, seconds_since_commit=1.0, seconds_of_block=2.0, seconds_left=seconds)
    status = Status("run.zarr", 10, 10, (row,), 0.5, 0, "here pid 1", True, False)
    assert text in status_text(status).splitlines()[-1]
    assert f"complete in {text}" in status_text(status)
