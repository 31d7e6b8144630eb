"""Chains are divided over GPUs, with an actor for each; Ray is told of GPUs that are not there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rayfbnn.errors import StoreMismatchError, WorkerError
from rayfbnn.run import hardware, resuming
from rayfbnn.run.executor import InProcess
from rayfbnn.run.on_ray import executor
from rayfbnn.run.on_ray.executor import RayExecutor
from tests.support.cluster.standin_ray import StandinRay
from tests.support.small import assert_same_draws, make_store, small_spec


def ray_with(gpus: int) -> StandinRay:
    ray = StandinRay()
    ray.add("node", 64, gpus)
    return ray


@pytest.mark.parametrize(
    "workers, address, expected",
    [(0, None, 1), (None, None, 4), (2, None, 2), (9, None, 4), (None, "auto", 8)],
)
def test_a_run_uses_the_gpus_that_it_has_workers_for(
    monkeypatch: pytest.MonkeyPatch, workers: int | None, address: str | None, expected: int
) -> None:
    monkeypatch.setattr(hardware, "gpus_here", lambda: 4)
    monkeypatch.setattr(hardware, "connect", lambda workers, address: (ray_with(8), False))
    assert hardware.n_gpus(workers, address) == expected


@pytest.mark.parametrize(
    "workers, is_ours, n_gpus, expected",
    [(None, True, 4, 4), (9, True, 4, 4), (2, True, 4, 2), (9, False, 4, 9)],
)
def test_there_is_an_actor_for_each_gpu(
    monkeypatch: pytest.MonkeyPatch, workers: int | None, is_ours: bool, n_gpus: int, expected: int
) -> None:
    ray = ray_with(n_gpus)
    monkeypatch.setattr(executor, "connect", lambda workers, address: (ray, is_ours))
    assert RayExecutor(workers=workers, gpus_per_worker=1)._wanted_workers() == expected


def test_actors_do_not_wait_for_a_gpu_that_ray_does_not_find(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "connect", lambda workers, address: (ray_with(0), True))
    with pytest.raises(WorkerError, match="Ray finds no GPU here; use workers = 0"):
        RayExecutor(workers=2, gpus_per_worker=1)._wanted_workers()
    assert RayExecutor(workers=2, gpus_per_worker=0)._wanted_workers() == 2


def spec_of(folder: Path, **changes: Any) -> Any:
    return small_spec(folder, **{"device": "gpu", "chains_per_batch": None, "chains": 10} | changes)


def test_a_gpu_has_all_its_chains_in_a_batch(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    assert spec.chains_per_batch == 10
    assert spec_of(tmp_path, chains=300).chains_per_batch == 300
    assert spec.with_batches_for(1) is spec
    assert [spec.with_batches_for(n).chains_per_batch for n in (2, 3, 4, 10, 99)] == [5, 4, 3, 1, 1]
    written = small_spec(tmp_path, device="gpu", chains_per_batch=2, chains=10)
    assert written.with_batches_for(4).chains_per_batch == 2
    assert small_spec(tmp_path, chains_per_batch=None, chains=10).with_batches_for(4).chains_per_batch == 8


def test_batches_that_are_left_out_follow_from_the_chains_again(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    assert type(spec).from_json(spec.to_json()) == spec
    more = type(spec).from_dict(spec.to_dict(), ["chains=30"])
    assert more.chains_per_batch == 30


def test_a_run_is_resumed_with_the_batches_of_as_many_gpus_as_it_began_with(tmp_path: Path) -> None:
    asked = spec_of(tmp_path)
    store = make_store(tmp_path / "run.zarr", asked.with_batches_for(2))
    assert store.n_batches == 2
    assert resuming.agreed_iterations(store, asked, None) is None
    with pytest.raises(StoreMismatchError, match="chains_per_batch: was 5, now 3"):
        resuming.agreed_iterations(store, asked.with_batches_for(4), None)


# Each actor appends the GPU that Ray gave it to a file. It runs on the processor.
SCRIPT = """
import os, sys
import ray
from rayfbnn.run.on_ray import executor
from rayfbnn.run.on_ray.actors import Worker
from rayfbnn.store.store import Store


class OnGpu(Worker):
    def run_block(self, batch, *arguments):
        with open(sys.argv[2], "a") as file:
            file.write(f"{os.getpid()} {os.environ['CUDA_VISIBLE_DEVICES']}\\n")
        yield from super().run_block(batch, *arguments)


if __name__ == "__main__":
    store = Store.open(sys.argv[1])
    ray.init(address="local", num_cpus=2, num_gpus=2, include_dashboard=False, log_to_driver=False)
    executor.connect = lambda workers, address: (ray, True)
    with executor.RayExecutor(gpus_per_worker=1, worker_class=OnGpu) as actors:
        for _ in actors.run(store.path, range(store.n_batches)):
            pass
"""


@pytest.mark.long
@pytest.mark.ray
def test_each_actor_has_a_gpu_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    spec = small_spec(tmp_path, chains=8)
    store, expected = (make_store(tmp_path / f"{name}.zarr", spec) for name in ("run", "expected"))
    with InProcess() as in_process:
        list(in_process.run(expected.path, range(expected.n_batches)))
    script, devices = tmp_path / "driver.py", tmp_path / "devices.txt"
    script.write_text(SCRIPT.replace("sys.argv[2], ", f"{json.dumps(str(devices))}, "))
    subprocess.run([sys.executable, str(script), str(store.path)], check=True, timeout=120)
    pairs = {tuple(line.split()) for line in devices.read_text().splitlines()}
    assert len(pairs) == 2 and {device for _, device in pairs} == {"0", "1"}
    assert_same_draws(store.path, expected.path)
