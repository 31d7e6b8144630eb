"""Processor seconds and peak memory of the verbs that read every draw, each in a process of its own.

    python -m benchmarks.reduction.verdicts                       # 64 x 62,500 draws
    python -m benchmarks.reduction.verdicts --chains 10000 --draws 400 --verbs diagnose predict report

The draws are of the robot arm's network, made up here, so that a large store takes a minute to make.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rayfbnn import RunSpec, api
from rayfbnn.data import read_dataset
from rayfbnn.state import ChainState
from rayfbnn.store.records import Block
from rayfbnn.store.store import Store

EXAMPLE = Path(__file__).parents[2] / "examples/robot_arm/robot_arm.toml"
VERBS: dict[str, Callable[[Path], object]] = {
    "diagnose": lambda path: api.diagnose(path),
    "predict": lambda path: api.predict(path, data=EXAMPLE.parent / "test.csv"),
    "report": lambda path: api.report(path, out=path.parent / "report.html"),
    "load": lambda path: api.load(path),
    "export": lambda path: api.export(path, out=path.parent / "model.npz"),
    "status": lambda path: api.status(path),
}


def make(path: Path, *, chains: int, per_batch: int, draws: int, seed: int = 1) -> Store:
    """Create a store, and commit made-up draws in blocks of one chunk."""
    raw = RunSpec.from_toml(EXAMPLE).to_dict()
    raw["data"]["train"] = str(EXAMPLE.parent / "train.csv")
    raw |= {"seed": seed, "chains": chains, "chains_per_batch": per_batch}
    raw["phase"] = [{"iterations": draws, "operations": [{"op": "heatbath"}]}]
    spec = RunSpec.from_dict(raw)
    store = Store.create(path, spec, read_dataset(spec), kernel="plain NumPy")
    random = np.random.default_rng(seed)
    with store.lock():
        for batch in range(store.n_batches):
            for first in range(0, draws, store.header.draws_per_chunk):
                n_draws = min(store.header.draws_per_chunk, draws - first)
                store.commit(
                    batch, _block(store, len(store.header.batch_chains(batch)), first, n_draws, random)
                )
                store.gather(batch)
            store.gather(batch, everything=True)
    return store


def _block(store: Store, n_chains: int, first: int, n_draws: int, random: np.random.Generator) -> Block:
    """Return a block of independent draws."""
    shape = n_chains, n_draws
    positions = random.normal(size=(*shape, store.parameter_layout.n_parameters)).astype(np.float32)
    precisions = random.gamma(5.0, size=(*shape, store.precision_layout.n_precisions))
    position = positions[:, -1]
    return Block(
        first_iteration=first + 1,
        n_iterations=n_draws,
        section="posterior",
        first_draw=first,
        positions=positions,
        precisions=precisions,
        stats={name: random.normal(size=shape) for name in ("log_likelihood", "log_prior")},
        state=ChainState(position, position, precisions[:, -1]),
        summary={"n_accepted": float(n_chains), "accepted_sum": 0.8 * n_chains, "diverged": 0.0},
    )


def measured(verb: str, path: Path) -> dict[str, float]:
    """Return seconds and megabytes of one call of a verb."""
    before, started = _processor_seconds(), time.perf_counter()
    VERBS[verb](path)
    return {
        "wall": time.perf_counter() - started,
        "processor": _processor_seconds() - before,
        "megabytes": _peak_megabytes(),
    }


def _processor_seconds() -> float:
    return sum(resource.getrusage(resource.RUSAGE_SELF)[:2])


def _peak_megabytes() -> float:
    """Return the peak of this program, without that of the process that started it, which getrusage has."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--chains", type=int, default=64)
    parser.add_argument("--chains-per-batch", type=int, help="all in one batch unless given")
    parser.add_argument("--draws", type=int, default=62_500)
    parser.add_argument("--verbs", nargs="+", default=["diagnose"], choices=VERBS)
    parser.add_argument("--store", type=Path, help="an existing store, or where to make one and keep it")
    parser.add_argument("--measure", choices=VERBS, help="of a measurement, which this script starts itself")
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measured(options.measure, options.store)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = options.store or Path(folder) / "run.zarr"
        if not path.exists():
            per_batch = options.chains_per_batch or options.chains
            make(path, chains=options.chains, per_batch=per_batch, draws=options.draws)
        for verb in options.verbs:
            command = [sys.executable, "-m", "benchmarks.reduction.verdicts", "--store", str(path)]
            output = subprocess.check_output([*command, "--measure", verb], text=True)
            figures: dict[str, Any] = json.loads(output.splitlines()[-1])
            words = "{wall:8.1f} s {processor:8.1f} s of the processor {megabytes:8.0f} MB"
            print(f"{verb:10}", words.format(**figures), flush=True)


if __name__ == "__main__":
    main()
