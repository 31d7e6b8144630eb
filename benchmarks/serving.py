"""Predictions from draws in memory: milliseconds for one row, and time and memory for many.

    python benchmarks/serving.py
    python benchmarks/serving.py --rows 10000 --draws 2000

Of the robot arm with its default schedule. Times are of the processor, with one thread.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402, after the threads are set
from machine import ROOT, conditions, heading  # noqa: E402

import rayfbnn  # noqa: E402
from rayfbnn.store.store import Store  # noqa: E402

EXAMPLE = ROOT / "examples" / "robot_arm" / "robot_arm.toml"


def peak_megabytes() -> float:
    """The most memory that this process has had so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--draws", type=int, default=None)
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--max-memory", type=float, default=64e6)
    arguments = parser.parse_args()
    print(heading(conditions()))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.zarr"
        length = [f"iterations={arguments.iterations}"]
        rayfbnn.sample(EXAMPLE, path, set=length, workers=0, progress=False)
        began = time.process_time()
        predictor = rayfbnn.load(path, draws=arguments.draws, max_memory=arguments.max_memory)
        loading = time.process_time() - began
        inputs = Store.open(path).data.inputs
    predictor.predict(inputs[0])
    times = []
    for call in range(arguments.calls):
        began = time.process_time()
        predictor.predict(inputs[call % len(inputs)])
        times.append(1e3 * (time.process_time() - began))
    rows = np.resize(inputs, (arguments.rows, inputs.shape[1]))
    before, began = peak_megabytes(), time.process_time()
    predictor.predict(rows)
    result = {
        "draws": predictor.n_draws,
        "mcse": predictor.mcse,
        "loading_s": loading,
        "one_row_ms": float(np.median(times)),
        "one_row_ms_95": float(np.quantile(times, 0.95)),
        "rows": arguments.rows,
        "rows_s": time.process_time() - began,
        "rows_megabytes": peak_megabytes() - before,
        "max_memory_megabytes": arguments.max_memory / 1e6,
    }
    for name, value in result.items():
        print(f"{name:24} {value:.4g}")


if __name__ == "__main__":
    main()
