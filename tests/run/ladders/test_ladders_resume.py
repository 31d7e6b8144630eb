"""Ladders that are stopped or killed anywhere, or handed from worker to worker, end with the same bits."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from rayfbnn import api
from rayfbnn.errors import StoreError
from rayfbnn.run.executor import InProcess
from rayfbnn.run.on_ray.actors import Worker
from rayfbnn.run.running import run_rounds
from rayfbnn.store.catalogue import LADDER
from rayfbnn.store.rounds import LadderStarts, starting_round
from rayfbnn.store.store import Store
from tests.support.small import make_store
from tests.support.store.ladder_runs import assert_same_ladders, contents, ladder_spec, run_ladders


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ladders")
    store = run_ladders(folder / "whole.zarr", ladder_spec(folder))
    assert store.committed_draws == 9 and api.verify(folder / "whole.zarr").ok
    return folder / "whole.zarr"


def test_a_draw_has_the_measures_of_all_levels(undisturbed: Path) -> None:
    store = Store.open(undisturbed)
    shapes = {"log_rss": (4, 9, 4), "forward": (4, 9, 3), "reverse": (4, 9, 3), "replica": (4, 9)}
    for name, shape in shapes.items():
        values = store.hierarchy.read(f"{LADDER}/{name}")
        assert values.shape == shape and np.isfinite(values).all()
    assert store.datatree()[LADDER]["family"].values.tolist() == ["chains", "prior"] * 2
    # The last level is the posterior: its residuals are those of the draw before the exchange or after it.
    replicas = store.hierarchy.read(f"{LADDER}/replica")
    assert set(np.unique(replicas)) <= {0, 1, 2, 3} and len(np.unique(replicas)) > 1


def test_measurements_without_noise_give_no_levels_of_noise(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no noise of the chains was measured"):
        starting_round(ladder_spec(tmp_path), [LadderStarts(8, ())], None)


def test_ladders_that_are_stopped_again_and_again_end_with_the_same_bits(
    tmp_path: Path, undisturbed: Path
) -> None:
    store = make_store(tmp_path / "run.zarr", ladder_spec(tmp_path))
    total, n_runs = store.spec.total_iterations, 0
    while any(store.progress(batch).iteration < total for batch in range(2)):
        n_runs += 1
        with store.lock(), InProcess() as executor:
            for number, _ in enumerate(run_rounds(store, executor)):
                if number == 17:
                    executor.request_stop()
    assert n_runs > 5
    assert_same_ladders(store.path, undisturbed)


def test_blocks_may_end_anywhere(tmp_path: Path, undisturbed: Path) -> None:
    store = run_ladders(tmp_path / "run.zarr", ladder_spec(tmp_path, draws_per_block=1))
    assert_same_ladders(store.path, undisturbed)


def test_ladders_do_not_depend_on_their_batch(tmp_path: Path, undisturbed: Path) -> None:
    """In one batch the rows of all ladders are updated together."""
    store = run_ladders(tmp_path / "run.zarr", ladder_spec(tmp_path, chains_per_batch=4))
    ours, theirs = contents(store.path), contents(undisturbed)
    assert ours.keys() == theirs.keys()
    for name, values in ours.items():
        assert values.tobytes() == theirs[name].tobytes(), name


def test_workers_in_turn_run_the_same_bits(tmp_path: Path, undisturbed: Path) -> None:
    store = make_store(tmp_path / "run.zarr", ladder_spec(tmp_path))
    two, turn = [Worker(str(store.path)) for _ in range(2)], 0
    with store.lock():
        for tuning_round in store.tuning.rounds:
            for batch in (1, 0):
                while store.progress(batch).iteration < tuning_round.last:
                    list(two[turn % 2].run_block(batch))
                    turn += 1
            store.tuning.publish(tuning_round.number)
    for batch in (1, 0):
        while store.progress(batch).iteration < store.spec.total_iterations:
            list(two[turn % 2].run_block(batch))
            turn += 1
    assert_same_ladders(store.path, undisturbed)


def test_a_longer_run_begins_with_the_draws_of_the_shorter_one(tmp_path: Path, undisturbed: Path) -> None:
    shutil.copytree(undisturbed, tmp_path / "run.zarr")
    api.resume(tmp_path / "run.zarr", iterations=14, workers=0, progress=False)
    longer = run_ladders(tmp_path / "longer.zarr", ladder_spec(tmp_path, iterations=14))
    assert_same_ladders(tmp_path / "run.zarr", longer.path)


def test_a_damaged_state_is_found_and_computed_again(tmp_path: Path, undisturbed: Path) -> None:
    path = tmp_path / "run.zarr"
    shutil.copytree(undisturbed, path)
    store = Store.open(path)
    last = store.commits.last(1)
    assert last is not None
    file = Path(str(store.commits.files.file_of(last)))
    raw = bytearray(file.read_bytes())
    raw[-9] ^= 1  # the state is the end of the file
    file.write_bytes(bytes(raw))
    report = api.verify(path, repair=True)
    assert any(file.name in problem.file for problem in report.problems)
    api.resume(path, workers=0, progress=False)
    assert api.verify(path).ok
    assert_same_ladders(path, undisturbed)


def test_a_wrong_record_of_levels_is_found_and_computed_again(tmp_path: Path, undisturbed: Path) -> None:
    path = tmp_path / "run.zarr"
    shutil.copytree(undisturbed, path)
    store = Store.open(path)
    number = next(one.number for one in store.tuning.rounds if one.of == "ladders")
    file = Path(str(store.tuning.file(number)))
    earlier = Path(str(store.tuning.file(number - 1)))
    file.write_bytes(earlier.read_bytes())  # whole, but of another round
    assert [problem.file for problem in api.verify(path).problems] == [f"commits/tuning/{number:06d}.json"]
    api.verify(path, repair=True)
    api.resume(path, workers=0, progress=False)
    assert api.verify(path).ok
    assert_same_ladders(path, undisturbed)


@pytest.mark.long
@pytest.mark.ray
def test_any_number_of_workers_runs_the_same_bits(tmp_path: Path, undisturbed: Path) -> None:
    pytest.importorskip("ray")
    spec = ladder_spec(tmp_path)
    for workers in (1, 2):
        api.sample(spec, tmp_path / f"{workers}.zarr", workers=workers, progress=False)
        assert_same_ladders(tmp_path / f"{workers}.zarr", undisturbed)


@pytest.mark.long
def test_ladders_that_are_killed_go_on_to_the_same_bits(tmp_path: Path) -> None:
    """Each process is killed inside a block, in every phase of the run."""
    settings = {"annealing": 60, "adaptation": 120}
    spec = ladder_spec(tmp_path, settings=settings, iterations=200, draws_per_block=4)
    (tmp_path / "run.toml").write_text(spec.to_toml())
    run_ladders(tmp_path / "whole.zarr", spec)
    killed = tmp_path / "killed.zarr"
    command = [sys.executable, "-c", "from rayfbnn.cli import main; main()"]
    stages: set[str | None] = set()
    for share in np.linspace(0.03, 0.85, 11):
        options = ["--workers", "0"]
        verb = ["resume", str(killed)] if killed.exists() else ["sample", "run.toml", str(killed)]
        process = subprocess.Popen([*command, *verb, *options], cwd=tmp_path, start_new_session=True)
        while process.poll() is None and _done(killed) < share:
            time.sleep(0.003)
        assert process.poll() is None, "the run ended before it was killed"
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        if killed.exists():
            stages.add((api.status(killed).stage or "").split(",")[0])
    assert stages == {"warming up", "annealing", "adapting levels", "sampling"}
    api.resume(killed, workers=0, progress=False)
    assert api.verify(killed).ok
    assert_same_ladders(tmp_path / "whole.zarr", killed)


def _done(path: Path) -> float:
    """Return the share of all iterations that are committed; 0 before there is a store."""
    try:
        store = Store.open(path)
    except StoreError:
        return 0.0
    done = sum(progress.iteration for progress in store.all_progress())
    return done / (store.n_batches * store.spec.total_iterations)
