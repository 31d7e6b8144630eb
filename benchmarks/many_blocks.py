"""The time until a store of many blocks is open and its run can go on, and the memory that this takes.

    python benchmarks/many_blocks.py --blocks 100 10000

Each block is one draw of 8 chains of the robot arm's network, made up here, and gathered as a driver does.
Every measurement is made in a process of its own: `Store.open`, then what `resume` does before it samples
(the lock, acceptances so far, the state after the last block).
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from machine import ROOT, append, conditions, heading

from rayfbnn.data import read_dataset
from rayfbnn.spec import RunSpec
from rayfbnn.state import ChainState
from rayfbnn.store.records import Block
from rayfbnn.store.store import Store

EXAMPLE = ROOT / "examples" / "robot_arm" / "robot_arm.toml"
CHAINS = 8


def fill(path: Path, n_blocks: int) -> None:
    """Create a store and commit its blocks."""
    raw = RunSpec.from_toml(EXAMPLE).to_dict()
    raw["data"]["train"] = str(EXAMPLE.parent / "train.csv")
    raw |= {"chains": CHAINS, "chains_per_batch": CHAINS, "draws_per_block": 1}
    raw["phase"] = [{"iterations": n_blocks + 1, "operations": [{"op": "heatbath"}]}]
    spec = RunSpec.from_dict(raw)
    store = Store.create(path, spec, read_dataset(spec), kernel="plain NumPy")
    position = np.zeros((CHAINS, store.parameter_layout.n_parameters), dtype=np.float32)
    precisions = np.ones((CHAINS, store.precision_layout.n_precisions))
    summary = {"n_accepted": 8.0, "accepted_sum": 7.0, "diverged": 0.0}
    with store.lock():
        for number in range(n_blocks):
            block = Block(
                first_iteration=number + 1,
                n_iterations=1,
                section="posterior",
                first_draw=number,
                positions=position[:, None] + number,
                precisions=precisions[:, None],
                state=ChainState(position + number, position, precisions),
                summary=summary,
            )
            store.commit(0, block)
            store.gather(0)


def opening(path: Path) -> dict[str, float]:
    """Seconds until the store is open and until its run can go on, and the megabytes that this took."""
    before, started = memory(), time.perf_counter()
    store = Store.open(path)
    opened = time.perf_counter()
    with store.lock():
        store.updates()
        assert store.load_state(0) is not None
        return {
            "open": opened - started,
            "resume": time.perf_counter() - started,
            "megabytes": memory() - before,
        }


def memory() -> float:
    """The memory of this process, in megabytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def measured(n_blocks: int, repeats: int) -> dict[str, Any]:
    """Medians of several processes, with how many files the commits are."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.zarr"
        fill(path, n_blocks)
        command = [sys.executable, __file__, "--open", str(path)]
        runs = [json.loads(subprocess.check_output(command)) for _ in range(repeats)]
        n_files = sum(1 for _ in (path / "commits/batch0000").iterdir())
    medians = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    return {"blocks": n_blocks, "files": n_files, **medians}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--blocks", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--open", type=Path, help="of a measurement, which this script starts itself")
    parser.add_argument("--out", type=Path, help="a file that a line of JSON is added to")
    options = parser.parse_args(arguments)
    if options.open is not None:
        print(json.dumps(opening(options.open)))
        return
    about = conditions()
    print(
        heading(about)
        + "\n\n| blocks | files of commits | open, s | until it can go on, s | MB |\n|---|---|---|---|---|"
    )
    rows = []
    for n_blocks in options.blocks:
        row = measured(n_blocks, options.repeats)
        rows.append(row)
        cells = [f"{value:.2f}" if isinstance(value, float) else str(value) for value in row.values()]
        print(f"| {' | '.join(cells)} |", flush=True)
    append(options.out, {"benchmark": "many blocks", **about, "rows": rows})


if __name__ == "__main__":
    main()
