"""The tasks of a reduction on Ray: the same bits, errors by name, and workers that die."""

from __future__ import annotations

import math
import os
import pickle
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rayfbnn import api
from rayfbnn.answers.loo import leave_out
from rayfbnn.answers.predict import predict_from_draws
from rayfbnn.arrays import Array
from rayfbnn.draws.subsets import chosen
from rayfbnn.draws.view import Draws, committed
from rayfbnn.errors import ConfigError, StoreCorruptError, StoreError
from rayfbnn.reduce import predictive
from rayfbnn.reduce.importance import TileJob, leave_out_tile, tile_jobs
from rayfbnn.reduce.on_ray import OnRay
from rayfbnn.reduce.passes import TasksInProcess
from rayfbnn.reduce.tile import Reader, units_of
from rayfbnn.store.store import Store
from tests.support.small import small_spec


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Draws:
    folder = tmp_path_factory.mktemp("run")
    api.sample(small_spec(folder), folder / "run.zarr", workers=0, progress=False)
    return committed(Store.open(folder / "run.zarr"))


@pytest.fixture(scope="module")
def on_ray(ray_session: None) -> OnRay:
    return OnRay(None, None)  # the Ray of the test session, which stays


def inputs_of(run: Draws, n: int = 700) -> np.ndarray:
    return np.linspace(-1, 1, n * run.data.n_inputs).reshape(n, -1)


def first_position(reader: Reader, job: int) -> float:
    return float(reader.block(next(iter(units_of(reader.runs)))).positions[0, 0]) + job


def die_once(reader: Reader, job: tuple[str, int]) -> int:
    """Kill the worker that gets here first."""
    mark, number = job
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return number
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def fail(reader: Reader, job: int) -> int:
    raise StoreCorruptError(f"chunk {job} is damaged")


@pytest.mark.ray
def test_predictions_on_ray_have_the_same_bits(run: Draws, on_ray: OnRay) -> None:
    inputs = inputs_of(run)
    here, there = (
        predict_from_draws([run], inputs, executor=who).table for who in (TasksInProcess(), on_ray)
    )
    pd.testing.assert_frame_equal(here, there, check_exact=True)


@pytest.mark.ray
def test_a_search_that_begins_with_some_draws_has_the_same_bits_on_ray(
    run: Draws, on_ray: OnRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs, pooled; the workers get the groups of draws from the driver."""
    for name in ("_MANY", "_MANY_CASES"):
        monkeypatch.setattr(predictive, name, 1)
    runs, inputs = [run, chosen(run, skip=1)], inputs_of(run)
    monkeypatch.setattr("rayfbnn.answers.predict.check_independent", lambda runs: None)  # a run given twice
    here, there = (predict_from_draws(runs, inputs, executor=who).table for who in (TasksInProcess(), on_ray))
    pd.testing.assert_frame_equal(here, there, check_exact=True)


@pytest.mark.ray
def test_cases_left_out_on_ray_have_the_same_bits(run: Draws, on_ray: OnRay) -> None:
    small_tiles = 2 * 8 * run.total * 2.0
    here = leave_out(run, memory_bytes=small_tiles)
    there = leave_out(run, executor=on_ray, memory_bytes=small_tiles)
    pd.testing.assert_frame_equal(here.table(), there.table(), check_exact=True)


def leave_out_and_die_once(reader: Reader, job: tuple[str, TileJob]) -> Array:
    mark, tile = job
    die_once(reader, (mark, 0))
    return leave_out_tile(reader, tile)


@pytest.mark.ray
def test_a_worker_that_dies_costs_its_tile_only(run: Draws, on_ray: OnRay, tmp_path: Path) -> None:
    data, two_cases = run.data, 2 * 2 * 8 * run.total
    tiles = tile_jobs([run], data.standardized_inputs, data.standardized_targets, memory_bytes=two_cases)
    assert len(tiles) == 6
    expected = [leave_out_tile(Reader([run]), tile) for tile in tiles]
    jobs = [(str(tmp_path / "died"), tile) for tile in tiles]
    found = list(on_ray.map(leave_out_and_die_once, [run], jobs))
    assert (tmp_path / "died").exists()
    np.testing.assert_array_equal(found, expected)


def test_a_view_opens_its_store_again_when_it_is_unpickled(run: Draws) -> None:
    some = chosen(run, skip=1)
    again = pickle.loads(pickle.dumps(some))
    assert again.store is not some.store and again.n_draws == some.n_draws
    np.testing.assert_array_equal(again.positions(), some.positions())


@pytest.mark.ray
def test_results_come_in_the_order_of_the_jobs(run: Draws, on_ray: OnRay) -> None:
    runs = [run]
    expected = list(TasksInProcess().map(first_position, runs, range(40)))
    assert list(on_ray.map(first_position, runs, range(40))) == expected


@pytest.mark.ray
def test_the_task_of_a_worker_that_dies_is_run_again(run: Draws, on_ray: OnRay, tmp_path: Path) -> None:
    jobs = [(str(tmp_path / "died"), number) for number in range(12)]
    assert list(on_ray.map(die_once, [run], jobs)) == list(range(12))
    assert (tmp_path / "died").exists()


@pytest.mark.ray
def test_an_error_of_a_task_is_raised_as_it_is(run: Draws, on_ray: OnRay) -> None:
    with pytest.raises(StoreError, match="chunk 0 is damaged"):
        list(on_ray.map(fail, [run], range(3)))


def test_fewer_draws_are_counted(run: Draws) -> None:
    path, data = run.path, inputs_of(run, 5)
    summary = api.predict(str(path), data=data, draws=2 * run.n_chains).summary
    assert summary["draws"] == 2 * run.n_chains and summary["of_draws"] == run.total
    assert "of_draws" not in api.predict(str(path), data=data).summary


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draws": 1}, "draws: must be at least"),
        ({"draws": 0}, "draws: must be at least 1, got 0"),
        ({"max_mcse": -1e-9}, "max_mcse: must be above 0, such as 0.01, or 0 for all draws, got -1e-09"),
        ({"max_mcse": math.nan}, "max_mcse: must be above 0"),
        ({"max_mcse": math.inf}, "max_mcse: must be above 0"),
        ({"draws": 50, "max_mcse": 0.1}, "give either draws or max_mcse"),
        ({"workers": -1}, "workers: must be at least 0"),
        ({"workers": 0, "address": "auto"}, "workers: 0 computes in this process"),
    ],
)
def test_wrong_options_are_refused(run: Draws, options: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        api.predict(str(run.path), data=inputs_of(run, 5), **options)  # type: ignore[arg-type]
