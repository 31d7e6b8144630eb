"""Processor and wall-clock seconds of predictions pooled over many seeds, in this process and on workers.

    python -m benchmarks.reduction                  # 8 seeds x 64 chains x 2,000 draws, 5,000 cases
    python -m benchmarks.reduction --seeds 2 --draws 200 --cases 500

The runs are of the robot arm, with short trajectories: what is measured is the reduction. With the peers'
environment (`make peers`), JAX predicts 1,000 cases from the draws of the first seed as well.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from rayfbnn import RunSpec, api
from rayfbnn.answers.predict import predict_from_draws
from rayfbnn.draws.view import Draws, committed
from rayfbnn.model.likelihood.data_model import QUANTILES
from rayfbnn.reduce.on_ray import OnRay
from rayfbnn.reduce.passes import TaskExecutor, TasksInProcess
from rayfbnn.reduce.predictive import joined, summaries
from rayfbnn.reduce.tile import Reader, Unit
from rayfbnn.store.store import Store

EXAMPLE = Path(__file__).parents[2] / "examples/robot_arm/hybrid.toml"
SHORT = {"op": "hybrid", "steps": 4, "window": 2, "stepsize": 0.3}


def sampled(folder: Path, seed: int, chains: int, draws: int) -> Path:
    """Sample a run with short trajectories, and return its store."""
    spec = RunSpec.from_toml(EXAMPLE).to_dict()
    operations = [{"op": "sample-sigmas"}, {"op": "heatbath"}, SHORT]
    spec |= {"seed": seed, "chains": chains, "phase": [{"iterations": draws, "operations": operations}]}
    spec["data"]["train"] = str(EXAMPLE.parent / "train.csv")
    path = folder / f"{seed}.zarr"
    api.sample(spec, path, workers=0, progress=False)
    return path


def report(name: str, executor: TaskExecutor, runs: list[Draws], inputs: np.ndarray) -> None:
    """Print the time and the rate of one prediction."""
    wall, cpu = time.perf_counter(), _processor_seconds()
    table = predict_from_draws(runs, inputs, executor=executor).table
    wall, cpu = time.perf_counter() - wall, _processor_seconds() - cpu
    passes = sum(run.total for run in runs) * len(table)
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    print(f"{name:12} {wall:8.1f} s {cpu:10.1f} s here {passes / wall:12.3g} passes/s {megabytes:8.0f} MB")


def against_jax(python: Path, run: Draws, inputs: np.ndarray, folder: Path) -> None:
    """Print processor seconds of moments alone and with quantiles, the best of three each."""
    block = Reader([run], kept_bytes=0).block(Unit(0, (0, run.n_chains), (0, run.n_draws)))
    parts = run.parameter_layout.views(block.positions)
    names = {"weights": "ih0", "biases": "bh0", "out_weights": "ho0", "out_biases": "bo"}
    arrays = {name: parts[group] for name, group in names.items()}
    arrays |= {"inputs": inputs, "noise": block.sigmas[:, 0]}
    np.savez(folder / "arrays.npz", **{name: part.astype(np.float32) for name, part in arrays.items()})
    script = Path(__file__).parent / "jax_predictions.py"
    answer = subprocess.run(
        [python, script, folder / "arrays.npz"], check=True, stdout=subprocess.PIPE, text=True
    )
    jax = json.loads(answer.stdout)
    for name, wanted in {"moments": {}, "quantiles": QUANTILES}.items():
        times = []
        for _ in range(3):
            started = _processor_seconds()
            found = joined(
                summaries([run], inputs, executor=TasksInProcess(), quantiles=wanted, memory_bytes=256e6)
            )
            times.append(_processor_seconds() - started)
        ours, theirs = (
            run.total / (seconds / len(inputs)) for seconds in (min(times), jax[name] * len(inputs))
        )
        print(f"{name:12} {ours:12.3g} passes/s, JAX {jax['jax']} {theirs:12.3g}, ratio {ours / theirs:.1f}")
    sums = np.array(jax["sums"]) / run.total
    np.testing.assert_allclose(sums, found.mean[:3], rtol=1e-3, atol=1e-3)


def _processor_seconds() -> float:
    return sum(resource.getrusage(resource.RUSAGE_SELF)[:2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, usual in {"seeds": 8, "chains": 64, "draws": 2000, "cases": 5000, "workers": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--jax", type=Path, default=Path(".venv-peers/bin/python"), help="Python with JAX")
    options = parser.parse_args()
    inputs = np.random.default_rng(0).normal(size=(options.cases, 2))
    with tempfile.TemporaryDirectory() as folder:
        jobs = [(Path(folder), seed, options.chains, options.draws) for seed in range(1, options.seeds + 1)]
        with get_context("fork").Pool(1) as other:  # the memory shown is then that of predictions
            runs = [committed(Store.open(path)) for path in other.starmap(sampled, jobs)]
        if options.jax.exists():
            against_jax(options.jax, runs[0], inputs[:1000], Path(folder))
        report("in process", TasksInProcess(), runs, inputs)
        with OnRay(options.workers, None) as workers:
            report("first time", workers, runs, inputs)
            report(f"{options.workers} workers", workers, runs, inputs)


if __name__ == "__main__":
    main()
