"""The time left of ladders: it is not far off even in the first iterations of the warm-up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rayfbnn.run.estimate import Estimate, relative_times
from rayfbnn.run.executor import InProcess
from rayfbnn.run.job import Progress
from rayfbnn.run.running import run_rounds
from rayfbnn.store.store import Store
from tests.support.small import make_store, write_train
from tests.support.store.ladder_runs import ladder_spec


def made(folder: Path, *, n_cases: int = 12, iterations: int = 400) -> Store:
    spec = ladder_spec(
        folder, settings={"warmup": 40, "annealing": 20, "adaptation": 60}, iterations=iterations
    )
    write_train(folder, n_cases=n_cases)
    return make_store(folder / "run.zarr", spec)


def test_gradients_count_for_more_in_larger_tables(tmp_path: Path) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    small.mkdir()
    large.mkdir()
    of_small = relative_times(made(small))
    assert of_small[-1] < 2 * of_small[0]  # what is not gradients takes as long with one chain as with levels
    of_large = relative_times(made(large, n_cases=20_000))
    # A pair of ladders takes 704 gradients or more, the chain takes 16.
    assert of_large[-1] > 10 * of_large[0] and of_large[-1] == of_large[-2]


def test_commits_of_rounds_are_not_taken_for_time_of_iterations(tmp_path: Path) -> None:
    """On a disk each round of one iteration takes much longer to commit than to sample."""
    store, now = made(tmp_path), [0.0]
    estimate = Estimate(store, clock=lambda: now[0])
    warm, commit = 0.002, 0.020
    for iteration in range(1, 4):
        for batch in range(2):
            now[0] += warm + commit
            row = estimate.row(_committed(store, batch, iteration, warm + commit, commit))
    times = relative_times(store)
    left = [phase.iterations * time for phase, time in zip(store.spec.phase, times, strict=True)]
    rounds = sum(one.last > 3 for one in store.tuning.rounds)
    alone = warm * (sum(left) / times[0] - 3) + rounds * commit
    assert _seconds(row["time left"]) == pytest.approx(2 * alone, abs=1)  # one worker has two batches
    assert _seconds(row["time left"]) < 10  # 538 iterations of 22 ms, times more gradients, were 20 minutes


def _committed(store: Store, batch: int, iteration: int, seconds: float, commit: float) -> Progress:
    return Progress(
        batch=batch,
        iteration=iteration,
        total_iterations=store.spec.total_iterations,
        draws=0,
        total_draws=store.spec.kept_draws,
        phase=0,
        acceptance=0.8,
        divergences=0,
        warmup_divergences=0,
        block_iterations=1,
        seconds=seconds,
        committed=True,
        commit_seconds=commit,
    )


def _seconds(left: str) -> float:
    minutes, seconds = left.split()[0].split(":")
    return 60 * int(minutes) + int(seconds)


def test_a_commit_is_a_part_of_the_time_of_its_block(tmp_path: Path) -> None:
    store = made(tmp_path)
    with store.lock(), InProcess() as executor:
        every = list(run_rounds(store, executor, last=3))
    committed = [one for one in every if one.committed and one.block_iterations]
    assert len(committed) == 6 and all(0 < one.commit_seconds < one.seconds for one in committed)
    assert all(one.commit_seconds == 0 for one in every if not one.committed)


def test_commits_of_kept_draws_are_a_part_of_their_time(tmp_path: Path) -> None:
    """Blocks of few draws, which a configuration may ask for, are committed as often in the time left."""
    store, now = made(tmp_path), [0.0]
    estimate = Estimate(store, clock=lambda: now[0])
    first = store.spec.total_iterations - 400
    for iteration in (first + 1, first + 2):
        for batch in range(2):
            now[0] += 0.1
            kept = replace(_committed(store, batch, iteration, 0.1, 0.09), phase=4)
            row = estimate.row(kept)
    assert _seconds(row["time left"]) == pytest.approx(2 * 398 * 0.1, abs=1)


def test_a_slow_commit_makes_no_time_negative(tmp_path: Path) -> None:
    """The clock of a commit may end later than that of its block."""
    store, now = made(tmp_path), [0.0]
    estimate = Estimate(store, clock=lambda: now[0])
    for batch in range(2):
        now[0] += 5.0
        row = estimate.row(_committed(store, batch, 1, 5.0, 5.1))
    rounds = sum(one.last > 1 for one in store.tuning.rounds)
    assert _seconds(row["time left"]) == pytest.approx(2 * rounds * 5.1, abs=1)
