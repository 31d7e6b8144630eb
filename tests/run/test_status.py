"""The status of a run, read from its store while it goes on and after it ended."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import rayfbnn
from rayfbnn import api, cli
from rayfbnn.cli import commands
from rayfbnn.run.executor import job_of
from rayfbnn.run.job import Progress
from rayfbnn.run.status import BatchStatus, Status, status_of
from rayfbnn.spec import RunSpec
from rayfbnn.store.records import NO_SEAL, SEAL, SECONDS, BatchProgress, Block, seal
from rayfbnn.store.store import Store
from tests.support.small import make_store, small, small_spec, write_train
from tests.support.store.fits import fit_spec, make_fit

START = 1_000_000.0  # seconds since 1970
BLOCK = 30.0  # seconds
HERE = {"host": socket.gethostname(), "pid": os.getpid()}  # a driver that is at work


def timed(store: Store, seconds_of: Callable[[Block], float | None]) -> Store:
    """Have the store's commits say how many seconds the blocks took; None for blocks that do not say."""
    commit = store.commit

    def with_seconds(batch: int, block: Block) -> BatchProgress:
        summary = {name: value for name, value in block.summary.items() if name != SECONDS}
        seconds = seconds_of(block)
        return commit(
            batch, replace(block, summary=summary | ({} if seconds is None else {SECONDS: seconds}))
        )

    store.commit = with_seconds  # type: ignore[method-assign]
    return store


def set_times(store: Store, commits: Sequence[float], *, made: float = START - 1000) -> None:
    """Set the time at which the store was made, and those of the last commits of its batches."""
    os.utime(Path(store.path) / "zarr.json", (made, made))
    for batch, time in enumerate(commits):
        os.utime(Path(store.path) / "commits" / f"batch{batch:04d}" / "head.json", (time, time))


def set_driver(store: Store, host: str, pid: int) -> None:
    holder = seal({"host": host, "pid": pid, SEAL: NO_SEAL})
    (Path(store.path) / "commits" / "holder.json").write_bytes(holder)


def run_blocks(
    store: Store, n_blocks: Sequence[int], seconds: float | Callable[[Block], float | None] = BLOCK
) -> Store:
    """Run so many blocks of each batch, which take so many seconds by their records."""
    job = job_of(timed(store, seconds if callable(seconds) else lambda block: seconds), worker="here")
    for batch, n in enumerate(n_blocks):
        for _ in range(n):
            list(job.run_block(batch))
    return Store.open(store.path)


def half_done(folder: Path, *, host: str | None = None, pid: int | None = None) -> Store:
    """A store with three blocks of each batch, half a minute each, and maybe a driver on record."""
    store = run_blocks(make_store(folder / "run.zarr", small_spec(folder)), [3, 3, 3])
    set_times(store, [START + 2 * BLOCK] * 3)
    if host is not None and pid is not None:
        set_driver(store, host, pid)
    return store


def small_run(folder: Path, n_blocks: Sequence[int], seconds: Any = BLOCK, **changes: Any) -> Store:
    """A store of the small run, whose blocks have 3; 4 and 1; 4, 4 and 2 iterations of its phases."""
    store = make_store(folder / "run.zarr", small_spec(folder, **changes))
    store = run_blocks(store, n_blocks, seconds)
    set_times(store, [START] * store.n_batches)
    set_driver(store, **HERE)
    return store


def test_speed_and_time_left_follow_from_the_records(tmp_path: Path) -> None:
    status = status_of(half_done(tmp_path, **HERE), now=START + 70)
    store = Store.open(tmp_path / "run.zarr")
    assert not status.complete and 0 < status.done < 1
    for batch in status.batches:
        iterations = store.progress(batch.batch).iteration
        assert (batch.iteration, batch.draws) == (iterations, store.progress(batch.batch).draws)
        assert batch.seconds_since_commit == 10 and batch.seconds_of_block == BLOCK
        # Ten iterations of 6 + 1 gradient evaluations are left; the five of 0 + 1 before took a minute.
        assert batch.seconds_left == pytest.approx(10 * 7 * 2 * BLOCK / 5)
    assert status.seconds_left == max(batch.seconds_left or 0 for batch in status.batches)


@pytest.mark.parametrize("pause", [0.0, 3600.0, 86_400.0])
def test_a_pause_between_two_blocks_is_not_the_time_of_a_block(tmp_path: Path, pause: float) -> None:
    """The run was stopped after the fifth block and resumed much later, or files were touched."""
    store = small_run(tmp_path, [5, 5, 5])
    for batch in range(store.n_batches):
        folder = tmp_path / "run.zarr" / "commits" / f"batch{batch:04d}"
        for number in range(4):
            os.utime(folder / f"{number:06d}.block", (START - pause - 1, START - pause - 1))
    for batch in status_of(store, now=START + 10).batches:
        assert batch.seconds_of_block == BLOCK
        assert batch.seconds_left == pytest.approx(BLOCK / 4 * 2)  # the last block has two iterations


@pytest.mark.parametrize("everything", [False, True])
def test_gathered_blocks_keep_their_seconds_and_the_time_of_their_commit(
    tmp_path: Path, everything: bool
) -> None:
    store = small_run(tmp_path, [5, 5, 5])
    (tmp_path / "run.zarr" / "commits" / "holder.json").unlink()
    before = status_of(store, now=START + 10).batches
    with store.lock():
        for batch in range(store.n_batches):
            store.gather(batch, everything=everything)
    set_driver(store, **HERE)
    status = status_of(Store.open(store.path), now=START + 10)
    assert [one.seconds_of_block for one in status.batches] == [BLOCK] * 3
    assert [one.seconds_since_commit for one in status.batches] == [10.0] * 3
    assert [one.seconds_left for one in status.batches] == pytest.approx([BLOCK / 2] * 3)
    assert all(one.seconds_left is None for one in before)  # nobody was at work then
    segments = list((tmp_path / "run.zarr" / "commits" / "batch0000").glob("*.segment"))
    assert segments


def test_a_copy_has_the_seconds_of_its_blocks_and_no_times_of_commits(tmp_path: Path) -> None:
    """All files of a copy are of the moment of copying; four blocks took two minutes."""
    store = small_run(tmp_path, [4, 4, 4])
    shutil.copytree(store.path, tmp_path / "copy.zarr", copy_function=shutil.copyfile)
    status = rayfbnn.status(tmp_path / "copy.zarr")
    assert {one.seconds_of_block for one in status.batches} == {BLOCK}
    assert {one.seconds_since_commit for one in status.batches} == {None}
    assert str(status).splitlines()[-1].split()[-4:-1] == ["unknown", "30", "s"]
    assert "nobody is at work; continue with" in str(status)


@pytest.mark.parametrize("is_run_on", [False, True])
def test_the_driver_of_the_original_is_not_at_work_on_a_copy(tmp_path: Path, is_run_on: bool) -> None:
    """Unless the copy is run on: its driver has its lock."""
    store = small_run(tmp_path, [4, 4, 4])
    shutil.copytree(store.path, tmp_path / "copy.zarr", copy_function=shutil.copyfile)
    copy = Store.open(tmp_path / "copy.zarr")
    assert rayfbnn.status(store.path).at_work
    with copy.lock() if is_run_on else nullcontext():
        status = rayfbnn.status(copy.path)
        assert status.at_work is is_run_on
        assert (status.seconds_left is not None) == is_run_on
    set_driver(copy, "elsewhere", 1)
    assert rayfbnn.status(copy.path).driver is None


def test_a_copy_that_keeps_times_says_when_the_last_commit_was(tmp_path: Path) -> None:
    store = small_run(tmp_path, [4, 4, 4])
    shutil.copytree(store.path, tmp_path / "copy.zarr")
    status = status_of(Store.open(tmp_path / "copy.zarr"), now=START + 30)
    assert {one.seconds_since_commit for one in status.batches} == {30.0}


def test_a_commit_that_lies_in_the_future_is_by_another_clock(tmp_path: Path) -> None:
    store = small_run(tmp_path, [4, 4, 4])
    set_driver(store, "elsewhere", 1)
    behind = status_of(store, now=START - 3600)
    assert {one.seconds_since_commit for one in behind.batches} == {None} and behind.at_work is None
    nearly = status_of(store, now=START - 5)
    assert {one.seconds_since_commit for one in nearly.batches} == {0.0} and nearly.at_work is True


def no_seconds(block: Block) -> None:
    """Give blocks no seconds."""


def none_at_first(block: Block) -> float | None:
    return None if block.first_iteration < 9 else BLOCK


def test_blocks_without_seconds_have_no_speed(tmp_path: Path) -> None:
    status = status_of(small_run(tmp_path, [4, 4, 4], no_seconds), now=START + 5)
    for batch in status.batches:
        assert batch.seconds_of_block is None and batch.seconds_left is None
        assert batch.seconds_since_commit == 5.0
    assert status.at_work and status.seconds_left is None
    row = str(status).splitlines()[-1].split()
    assert row[-2:] == ["unknown", "unknown"] and "complete in" not in str(status)


def test_a_phase_whose_blocks_have_seconds_is_enough_for_the_time_left(tmp_path: Path) -> None:
    status = status_of(small_run(tmp_path, [4, 4, 4], none_at_first), now=START + 5)
    for batch in status.batches:
        assert batch.seconds_of_block is None and batch.seconds_left == pytest.approx(6 * BLOCK / 4)


def by_phase(block: Block) -> float:
    """Iterations of the first phase take a second, those of the second two, and those of the last ten."""
    number = block.first_iteration
    return block.n_iterations * (1.0 if number <= 3 else 2.0 if number <= 8 else 10.0)


@pytest.mark.parametrize(("n_blocks", "left"), [(4, 60.0), (5, 20.0)])
def test_the_time_left_is_that_of_the_phases_that_are_left(
    tmp_path: Path, n_blocks: int, left: float
) -> None:
    status = status_of(small_run(tmp_path, [n_blocks] * 3, by_phase), now=START + 5)
    assert [one.seconds_left for one in status.batches] == pytest.approx([left] * 3)


def test_a_segment_over_two_phases_counts_for_both(tmp_path: Path) -> None:
    raw = small(chains=2, draws_per_block=None, phase=None)
    heatbath = [{"op": "heatbath"}]
    raw["phase"] = [
        {"iterations": n, "keep": keep, "operations": heatbath}
        for n, keep in ((2, False), (6, False), (8, True))
    ]
    write_train(tmp_path)
    spec = RunSpec.from_dict(raw, base_dir=tmp_path)
    store = run_blocks(make_store(tmp_path / "run.zarr", spec), [2], lambda block: 3.0 * block.n_iterations)
    with store.lock():
        store.gather(0, everything=True)
    set_times(store, [START])
    set_driver(store, **HERE)
    status = status_of(Store.open(store.path), now=START)
    assert status.batches[0].seconds_left == pytest.approx(3.0 * 8)


def test_a_round_of_tuning_goes_on_at_the_pace_of_the_last(tmp_path: Path) -> None:
    """Each round is an iteration here; they took 1 and 2 seconds, and a third follows."""
    raw = small(chains=2)
    raw["phase"][0]["operations"][2] = {"op": "hybrid", "steps": "auto", "stepsize": 0.2}
    raw["phase"] = [raw["phase"][0], {"iterations": 4, "operations": [{"op": "heatbath"}]}]
    write_train(tmp_path)
    spec = RunSpec.from_dict(raw, base_dir=tmp_path)
    store = timed(make_store(tmp_path / "run.zarr", spec), lambda block: float(block.first_iteration))
    job = job_of(store, worker="here")
    for number in range(2):
        list(job.run_block(0))
        store.tuning.publish(number)
    set_times(store, [START])
    set_driver(store, **HERE)
    (batch,) = status_of(Store.open(store.path), now=START).batches
    cost = 1 + job.store.tuning.latest()[1].popitem()[1].steps
    assert batch.seconds_left is not None and batch.seconds_left == pytest.approx(
        2.0 + 4 * 2.0 / cost, rel=0.3
    )


@pytest.mark.parametrize(
    ("commits", "share"),
    [
        ([START, START - 1, START - 29], 1.0),  # all at work
        ([START, START - 31, START - 62], 3.0),  # one worker takes them in turn
        ([START, START - 2, START - 33], 1.5),  # two workers
    ],
    ids=["three workers", "one worker", "two workers"],
)
def test_batches_that_take_turns_have_a_share_of_the_workers(
    tmp_path: Path, commits: list[float], share: float
) -> None:
    store = small_run(tmp_path, [5, 5, 5])
    set_times(store, commits)
    status = status_of(store, now=START + 1)
    assert [one.seconds_left for one in status.batches] == pytest.approx([share * BLOCK / 2] * 3)
    assert status.seconds_left == pytest.approx(share * BLOCK / 2)


def test_batches_that_are_complete_take_no_turn(tmp_path: Path) -> None:
    store = small_run(tmp_path, [6, 5, 6])
    set_times(store, [START, START - 50, START - 100])
    status = status_of(store, now=START + 1)
    assert [one.seconds_left for one in status.batches] == pytest.approx([0, BLOCK / 2, 0])


def test_a_batch_that_has_not_begun_is_like_the_others(tmp_path: Path) -> None:
    """One worker has done two blocks of the first batch, eight iterations of ten seconds in all."""
    changes = {"phase": [{"iterations": 10, "operations": [{"op": "heatbath"}]}]}
    store = small_run(tmp_path, [2, 0, 0], 40.0, **changes)
    status = status_of(store, now=START + 1)
    assert [one.seconds_left for one in status.batches] == pytest.approx([60.0, 220.0, 220.0])


def test_where_nobody_is_at_work_no_time_is_left(tmp_path: Path) -> None:
    store = small_run(tmp_path, [4, 4, 4])
    for host, pid in ((socket.gethostname(), 2**22 + 1), ("elsewhere", 1)):
        set_driver(store, host, pid)
        status = status_of(store, now=START + 1e6)
        assert status.seconds_left is None and not status.at_work
        assert all(batch.seconds_left is None for batch in status.batches)
        assert str(status).splitlines()[-1].split()[-1] == "-"
        assert "complete in" not in str(status)


def test_the_draws_of_a_fit_have_no_time_before_the_first(tmp_path: Path) -> None:
    """Twenty steps of a second, then 70 draws in blocks of a second."""
    spec = fit_spec(tmp_path, "bbb", chains=2)
    store = make_fit(tmp_path / "run.zarr", spec)
    job = job_of(timed(store, lambda block: 1.0), worker="here")
    for batch in range(store.n_batches):
        list(job.run_block(batch))
    set_driver(store, **HERE)
    status = rayfbnn.status(tmp_path / "run.zarr")
    assert {one.seconds_of_block for one in status.batches} == {1.0}
    assert status.at_work and {one.seconds_left for one in status.batches} == {None}
    (tmp_path / "run.zarr" / "commits" / "holder.json").unlink()
    api.resume(store.path, workers=0, progress=False)
    assert rayfbnn.status(store.path).complete and rayfbnn.status(store.path).seconds_left == 0


def test_a_resumed_run_says_how_long_its_blocks_took(tmp_path: Path) -> None:
    """The seconds of the blocks are those of the workers, whatever the files' times are."""
    store = half_done(tmp_path)
    os.utime(tmp_path / "run.zarr" / "zarr.json")
    api.resume(store.path, workers=0, progress=False)
    store = Store.open(store.path)
    assert store.seconds is not None
    for batch in rayfbnn.status(store.path).batches:
        totals = store.progress(batch.batch).totals
        n_blocks = store.progress(batch.batch).blocks
        assert batch.seconds_of_block is not None
        assert batch.seconds_of_block <= totals[SECONDS] / (n_blocks - 5)
        assert totals[SECONDS] >= 3 * BLOCK  # those before the stop are among them


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
    assert words[at_work] in str(status)


def test_a_store_without_draws_and_a_complete_one(tmp_path: Path) -> None:
    store = make_store(tmp_path / "run.zarr", small_spec(tmp_path))
    status = rayfbnn.status(tmp_path / "run.zarr")
    assert status.done == 0 and status.seconds_left is None and status.driver is None
    assert " 0/18 " in str(status) and "0.0% done" in str(status)
    api.resume(store.path, workers=0, progress=False)
    status = rayfbnn.status(tmp_path / "run.zarr")
    assert status.complete and status.seconds_left == pytest.approx(0.0)
    assert "complete, 10 draws of each chain\nnobody is at work\n" in str(status)


def test_the_seconds_of_blocks_are_printed_and_in_json(tmp_path: Path) -> None:
    small_run(tmp_path, [5, 5, 5])
    result = CliRunner().invoke(cli.app, ["status", str(tmp_path / "run.zarr")])
    assert "30 s" in result.stdout.splitlines()[-1]
    document = CliRunner().invoke(cli.app, ["status", str(tmp_path / "run.zarr"), "--json"])
    batches = json.loads(document.stdout)["batches"]
    assert [batch["seconds_of_block"] for batch in batches] == [BLOCK] * 3


def test_a_driver_shows_what_its_workers_have_done_since_the_last_commit(tmp_path: Path) -> None:
    """Two batches are at work: a block of the first is committed, and nothing of the others."""
    changes = {"phase": [{"iterations": 10, "operations": [{"op": "heatbath"}]}]}
    store = small_run(tmp_path, [1, 0, 0], 40.0, **changes)
    common: dict[str, Any] = {"total_iterations": 10, "total_draws": 10, "phase": 0, "divergences": 3}
    latest = {
        batch: Progress(
            batch,
            iteration=iteration,
            draws=iteration,
            acceptance=0.876,
            warmup_divergences=1,
            block_iterations=2,
            seconds=20.0,
            committed=False,
            **common,
        )
        for batch, iteration in ((0, 6), (1, 2))
    }
    status = status_of(store, now=START + 1, latest=latest)
    assert [one.iteration for one in status.batches] == [6, 2, 0] and status.at_work is True
    # Ten seconds an iteration: 40, 80 and 100 for one worker, and two are at work on three batches.
    assert [one.seconds_left for one in status.batches] == pytest.approx([60.0, 110.0, 110.0])
    row = str(status).splitlines()[-3]
    assert "6/10" in row and "0.88  3 (warm-up 1)" in row


def test_watching_ends_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    half_done(tmp_path)
    pauses: list[float] = []
    sleep = commands.time.sleep

    def run_on(seconds: float) -> None:
        pauses.append(seconds)
        commands.time.sleep = sleep  # the run itself may wait for the lock of a batch
        api.resume(tmp_path / "run.zarr", workers=0, progress=False)

    monkeypatch.setattr(commands.time, "sleep", run_on)
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
    assert text in str(status).splitlines()[-1]
    assert f"complete in {text}" in str(status)
