"""Whole runs of ladders on a device: their bits after stops and kills, and the numbers of the host."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfbnn.errors import SamplingError

pytestmark = pytest.mark.usefixtures("cupy")

_COMMAND = "from rayfbnn.cli import main; main()"
_ON_STANDIN = (
    "from tests.support.standin_cupy.install import installed\nwith installed():\n"
    "    from rayfbnn.cli import main; main()"
)
_ROOT = Path(__file__).parents[3]


@pytest.fixture
def support() -> Any:
    """The module for runs of ladders. A machine for tests of devices may lack what a store needs."""
    for name in ("pydantic", "zarr", "threadpoolctl"):
        pytest.importorskip(name)
    return importlib.import_module("tests.support.store.ladder_runs")


def on_device(**replaced: Any) -> dict[str, Any]:
    """The changes of the small configuration for a device; batches are left to the default."""
    return {"device": "gpu", "chains_per_batch": None, "dtype": "float64", **replaced}


@pytest.mark.parametrize("kind", ["real", "binary"])
def test_ladders_that_are_stopped_again_and_again_end_with_the_same_bits(
    tmp_path: Path, support: Any, kind: str
) -> None:
    """Levels of noise for one kind of targets, and powers for the other. Answers read what is left."""
    from rayfbnn import api
    from rayfbnn.run.executor import InProcess
    from rayfbnn.run.running import run_rounds

    replaced = on_device()
    if kind == "binary":
        replaced |= {"model": {"kind": "binary"}}
    spec = support.ladder_spec(tmp_path, **replaced)
    if kind == "binary":
        lines = (tmp_path / "train.csv").read_text().splitlines()
        rows = [f"{line.rpartition(',')[0]},{number % 2}" for number, line in enumerate(lines[1:])]
        (tmp_path / "train.csv").write_text("\n".join([lines[0], *rows]) + "\n")
    whole = support.run_ladders(tmp_path / "whole.zarr", spec)
    assert whole.n_batches == 1 and whole.committed_draws == 9 and "CUDA" in whole.root.kernel
    store, n_runs = support.make_store(tmp_path / "run.zarr", spec), 0
    while store.progress(0).iteration < spec.total_iterations:
        n_runs += 1
        with store.lock(), InProcess() as executor:
            for number, _ in enumerate(run_rounds(store, executor)):
                if number == 17:
                    executor.request_stop()
    assert n_runs > 3
    support.assert_same_ladders(store.path, whole.path)
    assert api.verify(tmp_path / "run.zarr").ok
    diagnosis = api.diagnose(tmp_path / "run.zarr")
    assert diagnosis.ladders is not None and diagnosis.ladders.evidence is not None
    assert np.isfinite(diagnosis.ladders.evidence.log_z).all() and diagnosis.divergences == 0
    assert len(api.predict(tmp_path / "run.zarr", data=tmp_path / "train.csv").table) == 12
    shown = api.show(tmp_path / "run.zarr")
    assert "4 ladders of 4 levels" in shown and "ladders 0-3: iteration" in shown
    assert "batches of 4 ladders, with 16 chains at all levels" in shown and "leapfrog steps: CUDA" in shown


def test_ladders_that_are_killed_go_on_to_the_same_bits(
    tmp_path: Path, support: Any, request: pytest.FixtureRequest
) -> None:
    """Each process is killed inside a block, in every phase of the run."""
    from rayfbnn import api
    from rayfbnn.errors import StoreError
    from rayfbnn.store.store import Store

    spec = support.ladder_spec(
        tmp_path,
        settings={"annealing": 8, "adaptation": 16},
        **on_device(iterations=30, draws_per_block=2),
    )
    (tmp_path / "run.toml").write_text(spec.to_toml())
    whole = support.run_ladders(tmp_path / "whole.zarr", spec)
    code = _ON_STANDIN if request.node.callspec.params["cupy"] == "stand-in" else _COMMAND
    killed = tmp_path / "killed.zarr"

    def done() -> int:
        try:
            return int(Store.open(killed).progress(0).iteration)
        except StoreError:
            return 0

    stages = set()
    for iteration in (10, 45, 54, 75):
        verb = ["resume", str(killed)] if killed.exists() else ["sample", "run.toml", str(killed)]
        process = subprocess.Popen(
            [sys.executable, "-c", code, *verb, "--workers", "0"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(_ROOT)},
            start_new_session=True,
        )
        while process.poll() is None and done() < iteration:
            time.sleep(0.01)
        assert process.poll() is None, "the run ended before it was killed"
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        stages.add((api.status(killed).stage or "").split(",")[0])
    assert stages == {"warming up", "annealing", "adapting levels", "sampling"}
    api.resume(killed, workers=0, progress=False)
    assert api.verify(killed).ok
    support.assert_same_ladders(whole.path, killed)


# The last iteration that the host has run: in the warm-up, before annealing and in it, before the first
# exchange, before a round whose settings differ, before the kept draws, and among them.
@pytest.mark.parametrize("last", [20, 44, 46, 48, 64, 89, 92])
def test_a_device_goes_on_from_a_state_of_the_host_as_the_host_does(
    tmp_path: Path, support: Any, last: int
) -> None:
    """One or two iterations. In more of them rounding grows until a decision turns on it."""
    from rayfbnn.run.executor import InProcess
    from rayfbnn.run.ladder_sampler import LadderSampler
    from rayfbnn.run.running import run_rounds
    from rayfbnn.store.store import Store

    spec = support.ladder_spec(tmp_path, settings={"adaptation": 41}, dtype="float64", chains_per_batch=4)
    host = support.make_store(tmp_path / "host.zarr", spec)
    with host.lock(), InProcess() as executor:
        for _ in run_rounds(host, executor, last=last):
            pass
    shutil.copytree(tmp_path / "host.zarr", tmp_path / "device.zarr")
    states = []
    for name in ("host", "device"):
        store = Store.open(tmp_path / f"{name}.zarr")
        if name == "device":
            object.__setattr__(store.spec, "device", "gpu")
        sampler, asked = LadderSampler(store), iter([False, True])
        assert ("CUDA" in sampler.kernel) == (name == "device")
        list(sampler.run_block(0, should_stop=lambda asked=asked: next(asked)))
        record = store.commits.last(0)
        assert record is not None and record.progress.iteration in (last + 1, last + 2)
        states.append(
            {**store.commits.named_state_after(record), "done": np.array(record.progress.iteration)}
        )
    ours, theirs = states
    assert ours.keys() == theirs.keys() and np.isfinite(ours["position"]).any()
    for name, values in ours.items():
        assert np.allclose(theirs[name], values, rtol=1e-6, atol=1e-6, equal_nan=True), name


def test_64_ladders_are_one_batch(tmp_path: Path, support: Any) -> None:
    """They run from the start to the first exchange."""
    from rayfbnn.run.executor import InProcess
    from rayfbnn.run.running import run_rounds

    settings = {"levels": 3, "warmup": 1, "annealing": 4, "adaptation": 8}
    spec = support.ladder_spec(tmp_path, settings=settings, **on_device(chains=64))
    store = support.make_store(tmp_path / "run.zarr", spec)
    assert store.n_batches == 1 and len(store.header.batch_chains(0)) == 64
    with store.lock(), InProcess() as executor:
        for _ in run_rounds(store, executor, last=46):
            pass
    record = store.commits.last(0)
    assert record is not None and len(record.tuning[0].measured.measure) == 64
    state = store.commits.named_state_after(record)
    assert state["position"].shape[:2] == (64, 3) and np.isfinite(state["position"]).all()
    assert len(np.unique(state["position"], axis=0)) == 64


def test_a_level_that_starts_at_no_finite_energy_ends_the_run(
    tmp_path: Path, support: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the ladder; the level is not at the top."""
    from rayfbnn.run.executor import InProcess
    from rayfbnn.run.ladder_sampler import LadderSampler
    from rayfbnn.run.running import run_rounds
    from rayfbnn.store.store import Store

    spec = support.ladder_spec(tmp_path, **on_device())
    store = support.make_store(tmp_path / "run.zarr", spec)
    with store.lock(), InProcess() as executor:
        for _ in run_rounds(store, executor, last=50):
            pass
    sampler = LadderSampler(Store.open(store.path))
    load = sampler._load

    def without_a_number(*arguments: Any) -> Any:
        state = load(*arguments)
        state.chain.position[2 * state.n_levels + 1] = np.nan
        return state

    monkeypatch.setattr(sampler, "_load", without_a_number)
    with pytest.raises(SamplingError, match="the starting energy of chain 2 is not finite"):
        list(sampler.run_block(0))
    assert Store.open(store.path).progress(0).iteration == 50
