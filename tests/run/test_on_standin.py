"""Whole runs on a device, with the stand-in for CuPy: draws, resuming, and when the host waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rayfbnn
from rayfbnn import arrays
from rayfbnn.arrays import gpu_is_available
from rayfbnn.errors import SamplingError
from rayfbnn.kernels import choose
from rayfbnn.kernels.cuda import advance as cuda
from rayfbnn.kernels.cuda import cublas, launch_plan
from rayfbnn.kernels.cuda.graphs import Recordings
from rayfbnn.mcmc import schedule
from rayfbnn.run import job as blocks
from rayfbnn.run.job import Progress
from rayfbnn.run.sampler import Sampler
from rayfbnn.store.catalogue import STATS
from rayfbnn.store.store import Store
from tests.support.shim.compiled import needs_gxx
from tests.support.small import assert_same_draws, make_store, small_spec
from tests.support.standin_cupy import log
from tests.support.standin_cupy.install import installed
from tests.support.store.fits import run, run_all

pytestmark = needs_gxx
GIBBS = [{"op": "sample-sigmas"}, {"op": "heatbath", "decay": 0.3}]
WINDOWS = {"op": "hybrid", "steps": 6, "window": 2, "partitions": 3, "stepsize": 0.3}
MARGINAL = {"op": "hybrid-marginal", "over": ["outputs", "precisions"], "steps": 4, "stepsize": 0.3}


@pytest.fixture(autouse=True)
def cupy() -> Iterator[Any]:
    with installed() as module:
        yield module


def compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **replaced: Any) -> str:
    """Compare the kernel of two runs on the device, the second with stops, with the host's array code."""
    phase = [{"iterations": 4, "operations": [*GIBBS, WINDOWS, MARGINAL]}]
    replaced |= {"phase": phase, "chains": 3}
    monkeypatch.setenv(choose.VARIABLE, "plain")
    host = run_all(make_store(tmp_path / "host.zarr", small_spec(tmp_path, **replaced)))
    monkeypatch.delenv(choose.VARIABLE)
    spec = small_spec(tmp_path, device="gpu", **replaced)
    there = run_all(make_store(tmp_path / "there.zarr", spec))
    stopped = run_all(make_store(tmp_path / "stopped.zarr", spec), stop_every=2)
    assert_same_draws(there.path, stopped.path)
    tolerance = 1e-9 if spec.dtype == "float64" else 1e-3
    assert np.abs(there.read_positions() - host.read_positions()).max() < tolerance
    return Sampler(Store.open(there.path)).kernel


def test_a_run_is_that_of_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """First windows, partial gradients and persistence, then integrated variables; a stop changes no bit."""
    assert "a warp a chain" in compare(tmp_path, monkeypatch, dtype="float64")


def test_a_run_finds_the_settings_that_the_host_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    automatic = {**MARGINAL, "steps": "auto", "stepsize": "auto", "scaling": "auto"}
    operations = [*GIBBS, automatic]
    phases = [
        {"iterations": 5, "keep": False, "operations": operations},
        {"iterations": 2, "operations": operations},
    ]
    replaced: dict[str, Any] = {"phase": phases, "chains": 3, "dtype": "float64"}
    monkeypatch.setenv(choose.VARIABLE, "plain")
    host = run(make_store(tmp_path / "host.zarr", small_spec(tmp_path, **replaced)))
    monkeypatch.delenv(choose.VARIABLE)
    there = run(make_store(tmp_path / "there.zarr", small_spec(tmp_path, device="gpu", **replaced)))
    ((operation, expected),) = host.tuning.latest()[1].items()
    settings = there.tuning.latest()[1][operation]
    assert settings.steps == expected.steps and settings.stepsize == pytest.approx(
        expected.stepsize, rel=1e-8
    )
    assert settings.scales == pytest.approx(expected.scales, rel=1e-8) and max(settings.scales) > 1
    assert np.abs(there.read_positions() - host.read_positions()).max() < 1e-6


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("kernel", ["warp", "block", "products"])
def test_a_run_through_each_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: str, dtype: str
) -> None:
    if kernel != "warp":
        monkeypatch.setattr(launch_plan, "_MAX_WARP_WORDS", 0)
    if kernel == "products":
        monkeypatch.setattr(cuda, "shared_memory_of_device", lambda: 0)
    assert kernel in compare(tmp_path, monkeypatch, dtype=dtype)


def test_a_run_with_graphs_is_that_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The network runs by products; in place of a graph, its launches are repeated."""
    monkeypatch.setattr(launch_plan, "_MAX_WARP_WORDS", 0)
    monkeypatch.setattr(cuda, "shared_memory_of_device", lambda: 0)
    monkeypatch.setattr(cublas, "product", lambda a, b, uses_tf32: a @ b)
    n_launched = 0

    def record(function: Callable[[], None]) -> Callable[[], None]:
        def launch() -> None:
            nonlocal n_launched
            n_launched += 1
            function()

        return launch

    monkeypatch.setattr(cuda, "Recordings", partial(Recordings, record))
    phase = [{"iterations": 4, "operations": [*GIBBS, {"op": "hybrid", "steps": 9, "stepsize": 0.3}]}]
    spec = small_spec(tmp_path, device="gpu", phase=phase, chains=3)
    there = make_store(tmp_path / "there.zarr", spec)
    monkeypatch.setenv(choose.VARIABLE, "launches")
    without = make_store(tmp_path / "without.zarr", spec)
    monkeypatch.delenv(choose.VARIABLE)
    run_all(without)
    assert n_launched == 0
    monkeypatch.setenv(choose.VARIABLE, "launches")  # a run keeps its kernel, whatever a worker would choose
    run_all(there, stop_every=2)
    assert_same_draws(there.path, without.path)
    assert n_launched >= 2 * 4 * 10  # gradients of two batches, and one for each recording
    assert "full gradients as CUDA graphs" in Sampler(there).kernel


def of_two_blocks(tmp_path: Path, name: str) -> Store:
    """A run of blocks of 8 iterations with two chains each, whose trajectories are launched on the chip."""
    phase = [{"iterations": 16, "operations": [*GIBBS, MARGINAL]}]
    spec = small_spec(tmp_path, device="gpu", phase=phase, draws_per_block=8, chains=2, dtype="float64")
    return make_store(tmp_path / name, spec)


def run_block(sampler: Sampler) -> list[Progress]:
    return list(sampler.run_block(0))


def test_draws_leave_once_a_block_beside_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host waits for a few numbers of each iteration, and for draws only once there is more to do."""
    left = []

    def copies_to_host(batch_arrays: dict[str, Any]) -> Callable[[], dict[str, Any]]:
        left.append({name: array.shape for name, array in batch_arrays.items()})
        return arrays.copies_to_host(batch_arrays)

    monkeypatch.setattr(blocks, "copies_to_host", copies_to_host)
    sampler = Sampler(of_two_blocks(tmp_path, "run.zarr"))
    with log.recorded() as entries:
        run_block(sampler)
    # An iteration launches the whole update, and the stored energy. The iteration that was begun ahead
    # launches its stored energy once its block is run.
    launches, ahead = 2, 1
    n_launched, asked = 0, []
    for entry in entries:
        n_launched += entry.what in ("hybrid", "advance")
        if entry.kind in ("read", "wait"):
            asked.append((entry.what, n_launched))
    beside = [launches * (number + 2) for number in range(7)]
    at_the_end = [launches * 8 + ahead] * 3  # the last iteration's numbers, the draws, the state
    assert asked == [("event.synchronize", n) for n in (*beside, *at_the_end)]
    n_parameters = sampler.posterior.n_parameters
    assert [shapes["position"] for shapes in left if "position" in shapes] == [
        (2, 8, n_parameters),
        (2, n_parameters),
    ]
    with log.recorded() as entries:
        run_block(sampler)
    n_launched = sum(entry.what in ("hybrid", "advance") for entry in entries)
    assert n_launched == launches * 8 - ahead


@pytest.mark.parametrize("happens", ["nothing", "another worker", "no memory", "parts"])
def test_what_was_begun_ahead_changes_no_draw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, happens: str
) -> None:
    """Compare with blocks that each start from the store, whatever happens between two of them."""
    expected = of_two_blocks(tmp_path, "expected.zarr")
    for _ in range(2):
        run_block(Sampler(expected))
    store = of_two_blocks(tmp_path, "run.zarr")
    if happens == "parts":
        monkeypatch.setattr(blocks, "MOST_BYTES", 1000)
    sampler = Sampler(store)
    with monkeypatch.context() as patched:
        if happens == "no memory":
            run = schedule.Iteration.__call__

            def run_out(iteration: Any, state: Any, streams: Any) -> Any:
                if streams.iteration == 9:
                    raise MemoryError
                return run(iteration, state, streams)

            patched.setattr(schedule.Iteration, "__call__", run_out)
        assert run_block(sampler)[-1].committed
    if happens == "another worker":
        other = Sampler(store)
        # One iteration: the work begun ahead does not fit this block.
        list(other.run_block(0, should_stop=lambda: True))
    while not run_block(sampler)[-1].is_complete:
        pass
    assert np.array_equal(store.read_positions(), expected.read_positions())
    assert np.array_equal(store.read_precisions(), expected.read_precisions())
    for name in STATS:
        assert np.array_equal(store.read_stat(name), expected.read_stat(name), equal_nan=True), name


def test_settings_are_found_on_a_device(tmp_path: Path) -> None:
    """Rounds of tuning run through `sample` in this process; later iterations use their settings."""
    automatic = {**MARGINAL, "steps": "auto", "stepsize": "auto"}
    phase = [
        {"iterations": 3, "keep": False, "operations": [*GIBBS, automatic]},
        {"iterations": 2, "operations": [*GIBBS, automatic]},
    ]
    spec = small_spec(tmp_path, device="gpu", phase=phase, chains=2, dtype="float64")
    rayfbnn.sample(spec, tmp_path / "run.zarr", workers=0, progress=False)
    rayfbnn.resume(tmp_path / "run.zarr", iterations=4, workers=0, progress=False)
    store = Store.open(tmp_path / "run.zarr")
    assert np.isfinite(store.read_positions()).all()
    assert store.tuning.latest()[0] == 3


def test_a_start_that_is_not_finite_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    phase = [{"iterations": 2, "operations": [*GIBBS[1:], WINDOWS]}]
    spec = small_spec(tmp_path, device="gpu", phase=phase, chains=2, dtype="float64")
    sampler = Sampler(make_store(tmp_path / "run.zarr", spec))
    load = sampler._load

    def without_a_number(batch: int, streams: Any) -> Any:
        state = load(batch, streams)
        state.position[1] = np.nan
        return state

    monkeypatch.setattr(sampler, "_load", without_a_number)
    with pytest.raises(SamplingError, match="the starting energy of chain 1 is not finite"):
        list(sampler.run_block(0))


def test_cupy_without_a_driver_is_no_device(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver() -> bool:
        raise cupy.cuda.runtime.CUDARuntimeError("cudaErrorInsufficientDriver")

    assert gpu_is_available()
    monkeypatch.setattr(cupy, "is_available", no_driver)
    assert not gpu_is_available()
