"""Memory of a worker: what each step from an open store to the second block adds, and the peak meanwhile.

    python benchmarks/worker_memory.py                      # 200,000 cases of 100 inputs
    python benchmarks/worker_memory.py --cases 50000 --inputs 20 --partitions 8

One process creates a store with generated cases, and another does in it what a worker does: it opens the
store, loads the cases, and runs two blocks with full gradients and two with partial ones. What is printed of
each step, in MB and as a multiple of the cases in float32: the memory that the process holds after it, and
the most that it held during it, both beyond what it held before the store was opened. Memory is the resident
set, without the pages of files.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402, after the threads are set
from machine import append, conditions, heading  # noqa: E402

from rayfbnn.data import read_training  # noqa: E402
from rayfbnn.run.hardware import kernel_name  # noqa: E402
from rayfbnn.run.sampler import Sampler  # noqa: E402
from rayfbnn.spec import RunSpec  # noqa: E402
from rayfbnn.store.store import Store  # noqa: E402
from rayfbnn.streams import Purpose, Streams  # noqa: E402

CONFIGURATION = """
seed = 1
chains = 1
draws_per_block = 1
dtype = "{dtype}"

[data]
inputs = [{names}]
targets = ["y"]
standardize = ["inputs", "targets"]

[network]
hidden = [{{units = {hidden}, activation = "tanh"}}]

[network.priors]
ih0 = "x0.1:0.5:1"
bh0 = "0.1:0.5"
ho0 = "x0.1:0.5"
bo = "1"

[model]
kind = "real"
noise = "0.1:0.5"

[[phase]]
iterations = 2
operations = [
    {{op = "sample-sigmas"}},
    {{op = "heatbath"}},
    {{op = "hybrid", steps = 2, stepsize = 0.1}},
]

[[phase]]
iterations = 2
operations = [
    {{op = "sample-sigmas"}},
    {{op = "heatbath"}},
    {{op = "hybrid", steps = {steps}, stepsize = 0.1, partitions = {partitions}}},
]
"""


def create(path: Path, arguments: argparse.Namespace) -> None:
    """Create a store with generated cases."""
    names = [f"x{number}" for number in range(arguments.inputs)]
    text = CONFIGURATION.format(
        names=", ".join(f'"{name}"' for name in names),
        dtype=arguments.dtype,
        hidden=arguments.hidden,
        steps=arguments.partitions,
        partitions=arguments.partitions,
    )
    configuration = path.with_name("run.toml")
    configuration.write_text(text, encoding="utf-8")
    streams = Streams(1, np.arange(arguments.cases, dtype=np.uint64))
    inputs = streams.normal(Purpose.PROPOSAL, (arguments.inputs,))
    targets = inputs[:, :1] + 0.1 * streams.normal(Purpose.TARGET_VALUE, (1,))
    spec, dataset = read_training(RunSpec.from_toml(configuration), (inputs, targets))
    Store.create(path, spec, dataset, kernel=kernel_name(spec))


def work(path: Path, arguments: argparse.Namespace) -> None:
    """Do what a worker does, and print the memory of each step."""
    base, size = held(), 4e-6 * arguments.cases * arguments.inputs
    print(f"{size:.0f} MB of cases in float32; before the store is opened the process holds {base:.0f} MB")
    print("| step | held, MB | most, MB | held, of the cases | most, of the cases |\n|---|---|---|---|---|")

    @contextmanager
    def step(name: str) -> Iterator[None]:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins at the present size
        yield
        now, most = held() - base, peak() - base
        print(f"| {name} | {now:.0f} | {most:.0f} | {now / size:.2f} | {most / size:.2f} |")
        record = {"step": name, "held": now, "most": most, "cases": size}
        append(arguments.out, {**conditions(), **record})

    with step("open the store"):
        store = Store.open(path)
    with step("load the cases"):
        sampler = Sampler(store)
    for name in ("full gradients", "full gradients again", "partial gradients", "partial gradients again"):
        with step(name):
            for _ in sampler.run_block(0):
                pass


def held() -> float:
    """Return the memory that this process holds, in MB, without the pages of files."""
    return _status("RssAnon")


def peak() -> float:
    """Return the most that this process has held since the peak was set back, in MB."""
    return _status("VmHWM") - _status("RssFile") - _status("RssShmem")


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1.024e-3 for line in lines if line.startswith(f"{name}:"))


def main() -> None:
    """Create a store in one process, and measure in another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cases", type=int, default=200_000)
    parser.add_argument("--inputs", type=int, default=100)
    parser.add_argument("--hidden", type=int, default=8)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64"])
    parser.add_argument("--out", type=Path, help="file that records are appended to")
    parser.add_argument("--create", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.create:
        create(arguments.create, arguments)
        return
    if arguments.work:
        work(arguments.work, arguments)
        return
    print(heading(conditions()), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for job in ("--create", "--work"):
            command = [sys.executable, __file__, *sys.argv[1:], job, str(Path(folder) / "run.zarr")]
            subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
