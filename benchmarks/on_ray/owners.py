"""Processor time and memory of training cases shared out among Ray actors, against all in one process.

    python -m benchmarks.on_ray.owners
    python -m benchmarks.on_ray.owners --cases 10000 --inputs 784 --classes 10
    python -m benchmarks.on_ray.owners --cases 200000 --inputs 100 --units 10 --parts 4 --owners 4

The same run in parts is done by owners and homes on Ray (docs/scaling.md), in this process alone, and in as
many processes at a time as there are owners, which slow each other down as owners do; all of it in turns, and
the ratios are those of medians. Processor time is that of all processes together, from the commit of as many
blocks as there are batches to the end.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402, after the threads are set

from rayfbnn.run.executor import Executor, InProcess  # noqa: E402
from rayfbnn.run.on_ray.executor import RayExecutor  # noqa: E402
from rayfbnn.spec import RunSpec  # noqa: E402
from rayfbnn.store.store import Store  # noqa: E402
from tests.support.drivers import descendants  # noqa: E402
from tests.support.small import make_store  # noqa: E402

_STEPS = 10


def spec_of(asked: argparse.Namespace, folder: Path) -> RunSpec:
    """Write a table of random inputs, and return a run of partial gradients on it."""
    generator = np.random.default_rng(1)
    inputs = generator.normal(size=(asked.cases, asked.inputs)).astype(np.float32)
    targets = inputs[:, : asked.classes].argmax(axis=1) if asked.classes else np.sin(inputs[:, 0])
    names = [f"x{number}" for number in range(asked.inputs)]
    header = ",".join([*names, "y"])
    table = np.column_stack([inputs, targets])
    np.savetxt(folder / "train.csv", table, "%.5g", delimiter=",", header=header, comments="")
    hybrid = {"op": "hybrid", "steps": _STEPS, "stepsize": 0.05, "partitions": asked.parts, "order": "cyclic"}
    operations = [{"op": "sample-sigmas"}, {"op": "heatbath"}, hybrid]
    kind = {"kind": "class", "classes": asked.classes} if asked.classes else {"kind": "real"}
    raw = {
        "seed": 1,
        "chains": asked.batches * asked.chains,
        "chains_per_batch": asked.chains,
        "draws_per_block": asked.block,
        "dtype": "float32",
        "data": {"train": "train.csv", "inputs": names, "targets": ["y"], "parts": asked.parts},
        "model": kind,
        "network": {"hidden": [{"units": asked.units, "activation": "tanh"}]},
        "phase": [{"iterations": asked.iterations, "operations": operations}],
    }
    return RunSpec.from_dict(raw, base_dir=folder)


def actors() -> dict[int, str]:
    """Process ids of the homes and owners that this process has on Ray, with what they are."""
    kinds = {"ray::PartsWorker": "owner", "ray::Worker": "home"}
    processes = descendants(os.getpid())
    return {pid: kind for pid, line in processes for start, kind in kinds.items() if line.startswith(start)}


def seconds_of(pid: int) -> float:
    """Processor time of a process, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def megabytes_of(pid: int) -> float:
    """Resident memory of a process now, in megabytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def measure(executor: Executor, store: Store) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Run a store; return the seconds after the first blocks, and the memory of each process, by kind."""
    n_committed, begun = 0, {}
    with executor:
        for progress in executor.run(store.path, range(store.n_batches)):
            if not progress.committed:  # to look for processes takes the driver some time itself
                continue
            n_committed += 1
            processes = {os.getpid(): "driver", **actors()}
            seconds = {pid: seconds_of(pid) for pid in processes}
            if n_committed == store.n_batches and not begun:
                begun = seconds
        memory: dict[str, list[float]] = {}
        by_kind: dict[str, float] = {}
        for pid, kind in processes.items():
            memory.setdefault(kind, []).append(megabytes_of(pid))
            by_kind[kind] = by_kind.get(kind, 0.0) + seconds[pid] - begun.get(pid, 0.0)
    return by_kind, memory


def seconds_alone(path: Path) -> float:
    """Run a store in this process, and return the seconds after the first blocks."""
    return sum(measure(InProcess(), Store.open(str(path)))[0].values())


def main() -> None:
    """Print seconds and memory on Ray, and seconds without it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    defaults = {"cases": 100_000, "inputs": 10, "units": 100, "classes": 0, "parts": 2, "owners": 2}
    for name, value in {
        **defaults,
        "batches": 4,
        "chains": 4,
        "iterations": 8,
        "block": 1,
        "repeats": 3,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    asked = parser.parse_args()
    times: dict[str, list[float]] = {"on Ray": [], "alone": [], "at a time": []}
    with tempfile.TemporaryDirectory() as text:
        spec = spec_of(asked, Path(text))
        for number in range(asked.repeats):
            folder = Path(text) / str(number)
            folder.mkdir()
            paths = [folder / f"{name}.zarr" for name in ("ring", "alone", *range(asked.owners))]
            stores = [make_store(path, spec) for path in paths]
            times["on Ray"].append(seconds_on_ray(asked, stores[0]))
            times["alone"].append(seconds_alone(paths[1]))
            with ProcessPoolExecutor(asked.owners, get_context("spawn")) as pool:
                times["at a time"].append(statistics.fmean(pool.map(seconds_alone, paths[2:])))
            print("; ".join(f"{name} {values[-1]:.1f} s" for name, values in times.items()), flush=True)
    on_ray, alone, at_once = (statistics.median(values) for values in times.values())
    print(
        f"medians: {on_ray:.1f} s on Ray, {on_ray / alone:.3f} times the {alone:.1f} s of one process alone"
    )
    print(f"and {on_ray / at_once:.3f} times the {at_once:.1f} s of each of {asked.owners} at a time")


def seconds_on_ray(asked: argparse.Namespace, store: Store) -> float:
    """Run a store in parts on Ray, print what each kind of process took, and return the seconds of all."""
    by_kind, memory = measure(RayExecutor(workers=asked.owners, n_parts=asked.parts), store)
    for kind, values in sorted(memory.items()):
        print(
            f"  {kind}: {by_kind[kind]:.1f} s, {min(values):.0f} to {max(values):.0f} MB each,"
            f" {len(values)} processes"
        )
    return sum(by_kind.values())


if __name__ == "__main__":
    main()
