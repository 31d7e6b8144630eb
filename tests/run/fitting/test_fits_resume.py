"""Fits that are stopped anywhere, or handed from worker to worker, end with the same bits."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rayfbnn import api
from rayfbnn.approximate.variational import VariationalFit
from rayfbnn.arrays import Array
from rayfbnn.errors import StoreError
from rayfbnn.kernels.cpu.compiled_module import instruction_sets
from rayfbnn.run.executor import InProcess
from rayfbnn.run.fitter import Fitter, approximation_of, build_fit
from rayfbnn.run.on_ray.actors import Worker
from rayfbnn.spec import RunSpec
from rayfbnn.store.store import Store
from tests.support.small import assert_same_draws, small, write_train
from tests.support.store.fits import SETTINGS, fit_spec, make_fit

METHODS = tuple(SETTINGS)


def contents(path: object) -> dict[str, Array]:
    """Return all that a fit leaves: draws, densities and states, by name."""
    store = Store.open(str(path))
    names = ("log_likelihood", "log_prior", "log_q")
    found = {"positions": store.read_positions(), "precisions": store.read_precisions()}
    found |= {name: store.read_stat(name) for name in names}
    for batch in range(store.n_batches):
        last = store.commits.last(batch)
        assert last is not None
        found |= {f"{batch} {name}": values for name, values in store.commits.named_state_after(last).items()}
    return found


def assert_same_fit(path: object, other: object) -> None:
    ours, theirs = contents(path), contents(other)
    assert ours.keys() == theirs.keys()
    for name, values in ours.items():
        assert values.tobytes() == theirs[name].tobytes(), name


QUICK = ("laplace", "bbb")
EACH = [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in METHODS]


@pytest.fixture(scope="module", params=EACH)
def undisturbed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    store = make_fit(folder / f"{request.param}.zarr", fit_spec(folder, request.param))
    with InProcess() as executor:
        last = {progress.batch: progress for progress in executor.run(store.path, range(store.n_batches))}
    assert sorted(last) == [0, 1] and all(progress.is_complete for progress in last.values())
    assert Store.open(store.path).committed_draws == 70
    return Path(str(store.path))


def test_a_fit_that_is_stopped_again_and_again_ends_with_the_same_bits(
    tmp_path: Path, undisturbed: Path
) -> None:
    store = make_fit(tmp_path / "run.zarr", fit_spec(tmp_path, undisturbed.stem))
    total, n_runs = store.spec.total_iterations, 0
    while any(store.progress(batch).iteration < total for batch in range(2)):
        n_runs += 1
        with InProcess() as executor:
            for number, _ in enumerate(executor.run(store.path, range(2))):
                if number == 2:
                    executor.request_stop()
    assert n_runs > 2
    assert_same_fit(store.path, undisturbed)


def test_workers_in_turn_fit_the_same_bits(tmp_path: Path, undisturbed: Path) -> None:
    store = make_fit(tmp_path / "run.zarr", fit_spec(tmp_path, undisturbed.stem))
    two, turn = [Worker(str(store.path)) for _ in range(2)], 0
    for batch in (1, 0):
        while not list(two[turn % 2].run_block(batch))[-1].is_complete:
            turn += 1
    assert_same_fit(store.path, undisturbed)


def test_verify_finds_a_changed_bit_in_the_state_of_a_fit(tmp_path: Path, undisturbed: Path) -> None:
    path = tmp_path / undisturbed.name
    shutil.copytree(undisturbed, path)
    assert api.verify(path).ok
    store = Store.open(str(path))
    last = store.commits.last(1)
    assert last is not None
    file = Path(str(store.commits.files.file_of(last)))
    raw = bytearray(file.read_bytes())
    raw[-9] ^= 1  # the state is the end of the file
    file.write_bytes(bytes(raw))
    report = api.verify(path)
    assert not report.ok and any(file.name in problem.file for problem in report.problems)


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.parametrize("method", METHODS)
def test_any_number_of_workers_fits_the_same_bits(tmp_path: Path, method: str) -> None:
    pytest.importorskip("ray")
    spec = fit_spec(tmp_path, method)
    for workers in (0, 2):
        api.sample(spec, tmp_path / f"{workers}.zarr", method=method, workers=workers, progress=False)
    assert_same_fit(tmp_path / "0.zarr", tmp_path / "2.zarr")


@pytest.mark.long
@pytest.mark.parametrize("method", [*METHODS, "sghmc"])
def test_a_fit_that_is_killed_goes_on_to_the_same_bits(tmp_path: Path, method: str) -> None:
    """Each process is killed after a block that it committed, inside the next one, and before the last."""
    spec, assert_same = long_sghmc(tmp_path) if method == "sghmc" else long_fit(tmp_path, method)
    (tmp_path / "run.toml").write_text(spec.to_toml())
    api.sample(spec, tmp_path / "whole.zarr", workers=0, progress=False)
    code = "from rayfbnn.cli import main; main()"
    command = [sys.executable, "-c", code, "run", "run.toml", "killed.zarr", "--workers", "0"]
    seconds_before, started = 0.0, time.monotonic()
    for seconds in (0.0, 0.02, 0.1):
        before = steps_committed(tmp_path / "killed.zarr")
        process = subprocess.Popen(command, cwd=tmp_path, start_new_session=True)
        while process.poll() is None and steps_committed(tmp_path / "killed.zarr") <= before:
            time.sleep(0.005)
        assert process.poll() is None, "the fit ended before it was killed"
        time.sleep(seconds)
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        store = Store.open(str(tmp_path / "killed.zarr"))
        total = store.spec.total_iterations * store.n_batches
        assert before < steps_committed(tmp_path / "killed.zarr") < total
        assert store.seconds is not None and store.seconds > seconds_before
        seconds_before = store.seconds
    subprocess.run(command, cwd=tmp_path, check=True)
    assert_same(tmp_path / "whole.zarr", tmp_path / "killed.zarr")
    in_all = Store.open(str(tmp_path / "killed.zarr")).seconds
    assert in_all is not None and seconds_before < in_all < time.monotonic() - started


def long_fit(folder: Path, method: str) -> tuple[RunSpec, Callable[[Path, Path], None]]:
    """Return a fit of some seconds, and what holds two of its stores against each other."""
    longer = {
        "vep": {"sweeps": 300, "tolerance": 1e-300},
        "laplace": {"steps": 200, "precisions": "evidence", "starts": 80},  # a start takes some hundredths
        "bbb": {"steps": 100_000},  # compiled
    }
    settings = longer.get(method, {"steps": 6000})
    return fit_spec(folder, method, settings={**settings, "draws": 500}), assert_same_fit


def long_sghmc(folder: Path) -> tuple[RunSpec, Callable[[Path, Path], None]]:
    """Return a run of some seconds by sghmc on batches, with precisions drawn, and what compares two."""
    operations = [{"op": "sample-sigmas"}, {"op": "sghmc", "steps": 300, "batch": 5, "stepsize": 0.1}]
    phases = [
        {"iterations": n, "keep": keep, "operations": operations} for n, keep in ((200, False), (800, True))
    ]
    write_train(folder)
    raw = small(draws_per_block=100) | {"methods": {"sghmc": {"phase": phases}}}
    return RunSpec.from_dict(raw, base_dir=folder).for_method("sghmc"), assert_same_draws


def steps_committed(path: Path) -> int:
    """Return how many steps and draws all batches of a store have committed, 0 before there is a store."""
    try:
        store = Store.open(str(path))
    except StoreError:
        return 0
    return sum(store.progress(batch).iteration for batch in range(store.n_batches))


def test_a_fit_stays_with_the_kernel_that_it_was_begun_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Array code and compiled code round differently, and a machine may offer more than one of them."""
    monkeypatch.setenv("RAYFBNN_KERNELS", "plain")
    run = api.sample(fit_spec(tmp_path, "bbb"), tmp_path / "run.zarr", workers=0, progress=False)
    monkeypatch.delenv("RAYFBNN_KERNELS")
    fit = Fitter(Store.open(str(run.path))).fit
    assert isinstance(fit, VariationalFit) and fit.compiled is None
    if instruction_sets():
        approximation = approximation_of(fit_spec(tmp_path, "bbb"))
        begun_now = build_fit(approximation, Fitter(Store.open(str(run.path))).posterior)
        assert isinstance(begun_now, VariationalFit) and begun_now.compiled is not None
