"""What surrounds the sampling costs: start-up, the share of Ray, Zarr and progress, two actors against two.

    python tests/benchmarks/overheads.py startup
    python tests/benchmarks/overheads.py shares --seconds 60
    python tests/benchmarks/overheads.py scaling --seconds 60

shares   a run of so many seconds in this process, and one with a Ray actor: sampling against everything else
scaling  the same work on one actor, on two actors, and in two processes that know nothing of each other
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # keeps Ray on the loopback interface

from machine import ROOT, append, conditions, heading  # noqa: E402, after the threads are set

from rayfbnn.run.data import read_dataset  # noqa: E402
from rayfbnn.run.progress import display  # noqa: E402
from rayfbnn.run.store import Store  # noqa: E402
from rayfbnn.run.workers import Executor, InProcess, RayExecutor, Worker  # noqa: E402
from rayfbnn.spec import RunSpec  # noqa: E402

EXAMPLE = ROOT / "examples" / "robot_arm" / "hybrid.toml"
PLAN = ({"op": "sample-sigmas"}, {"op": "heatbath"})


class Times:
    """Where the time of a worker goes: in iterations, in commits; and when it began and ended."""

    def __init__(self) -> None:
        self.sampling = self.commits = 0.0
        self.began, self.ended = 0.0, 0.0

    def install(self) -> None:
        """Have the sampler of this process report here."""
        from rayfbnn.run import sampler

        inner, commit = sampler.schedule.run, sampler.Store.commit

        def run(*arguments: Any, **settings: Any) -> Iterator[Any]:
            iterations = inner(*arguments, **settings)
            while True:
                begun = time.time()
                self.began = self.began or begun
                found = next(iterations, None)
                self.sampling += time.time() - begun
                if found is None:
                    return
                yield found

        def timed_commit(*arguments: Any) -> Any:
            begun = time.time()
            result = commit(*arguments)
            self.ended = time.time()
            self.commits += self.ended - begun
            return result

        sampler.schedule.run = run
        sampler.Store.commit = timed_commit  # type: ignore[method-assign]


class TimedWorker(Worker):
    """A worker that leaves its times beside the store."""

    def __init__(self, store_path: str) -> None:
        super().__init__(store_path)
        self._times = Times()
        self._times.install()

    def run_block(self, batch: int) -> Any:
        progress = super().run_block(batch)
        path = Path(f"{self._store_path}.times-{os.getpid()}")
        path.write_text(json.dumps(vars(self._times)))
        return progress


def new_store(folder: Path, *, batches: int, iterations: int, steps: int, chains: int) -> Store:
    """A run of the robot arm: batches of so many chains, iterations of `steps` leapfrog steps."""
    raw = RunSpec.from_toml(EXAMPLE).to_dict()
    raw["data"]["train"] = str(EXAMPLE.parent / "train.csv")
    hybrid = {"op": "hybrid", "steps": steps, "stepsize": 0.1, "window": 1}
    raw["phase"] = [{"iterations": iterations, "operations": [*PLAN, hybrid]}]
    raw |= {"chains": chains * batches, "chains_per_batch": chains, "draws_per_block": 50}
    spec = RunSpec.from_dict(raw)
    return Store.create(
        folder / "run.zarr",
        spec=spec,
        data=read_dataset(spec),
        n_draws=iterations,
        chains=spec.chains,
        chains_per_batch=chains,
        draws_per_block=50,
    )


def run(store: Store, make: Callable[[], Executor], *, show: bool) -> dict[str, float]:
    """Run a store to its end: seconds in all, of starting the workers, and of showing progress."""
    shown, seconds_shown = display(store, show=show), 0.0
    begun = time.time()
    with store.lock(), shown, make() as executor:
        for progress in executor.run(store.path, range(store.n_batches)):
            before = time.time()
            shown.update(progress)
            seconds_shown += time.time() - before
        done = time.time()
    return {"begun": begun, "done": done, "ended": time.time(), "progress": seconds_shown}


def calibrated(arguments: argparse.Namespace) -> int:
    """Iterations that take so many seconds, from a short run in this process."""
    with tempfile.TemporaryDirectory() as folder:
        store = new_store(
            Path(folder), batches=1, iterations=20, steps=arguments.steps, chains=arguments.chains
        )
        found = run(store, InProcess, show=False)
    return max(10, int(arguments.seconds / ((found["done"] - found["begun"]) / 20)))


def shares(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Sampling and everything else, in this process and with one actor."""
    iterations = calibrated(arguments)
    times = Times()
    times.install()
    rows = []
    for name in ("this process", "one Ray actor"):
        with tempfile.TemporaryDirectory() as folder:
            store = new_store(
                Path(folder), batches=1, iterations=iterations, steps=arguments.steps, chains=arguments.chains
            )
            if name == "this process":
                found, worker = run(store, InProcess, show=True), vars(times)
            else:
                found = run(store, lambda: RayExecutor(workers=1, worker_class=TimedWorker), show=True)
                worker = workers_of(folder)[0]
        whole = found["done"] - (worker["began"] if name != "this process" else found["begun"])
        rows.append(
            {
                "where": name,
                "sampling": worker["sampling"],
                "commits": worker["commits"],
                "progress": found["progress"],
                "whole": whole,
                "overhead": whole / worker["sampling"] - 1,
                "before_the_first_iteration": worker["began"] - found["begun"],
                "after_the_last": found["ended"] - found["done"],
            }
        )
    return rows


def workers_of(folder: str) -> list[dict[str, float]]:
    """What the timed workers of a run left."""
    return [json.loads(path.read_text()) for path in sorted(Path(folder).glob("run.zarr.times-*"))]


def scaling(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Iterations of a batch a second: one actor, two actors, two processes; taking turns."""
    iterations = calibrated(arguments)
    found: dict[str, list[float]] = {"one actor": [], "two actors": [], "two processes": []}
    for _ in range(arguments.repeats):
        found["one actor"].append(actors(1, iterations, arguments))
        found["two actors"].append(actors(2, iterations, arguments))
        found["two processes"].append(processes(2, iterations, arguments))
    rates = {name: statistics.median(values) for name, values in found.items()}
    return [
        {
            "workers": name,
            "iterations_per_second": rate,
            "over_one_actor": rate / rates["one actor"],
            "over_two_processes": rate / rates["two processes"],
        }
        for name, rate in rates.items()
    ]


def actors(n: int, iterations: int, arguments: argparse.Namespace) -> float:
    with tempfile.TemporaryDirectory() as folder:
        store = new_store(
            Path(folder), batches=n, iterations=iterations, steps=arguments.steps, chains=arguments.chains
        )
        run(store, lambda: RayExecutor(workers=n, worker_class=TimedWorker), show=False)
        return rate(workers_of(folder), n * iterations)


def processes(n: int, iterations: int, arguments: argparse.Namespace) -> float:
    command = [sys.executable, __file__, "one", "--iterations", str(iterations)]
    command += ["--steps", str(arguments.steps), "--chains", str(arguments.chains)]
    # Each waits for a line before it begins, so that neither has the machine to itself while one starts.
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(n)
    ]
    for process in started:
        assert process.stdout is not None
        process.stdout.readline()
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [process.communicate()[0] for process in started]
    return rate([json.loads(answer) for answer in answers], n * iterations)


def one(arguments: argparse.Namespace) -> None:
    """One of two processes: sample alone, print the times."""
    times = Times()
    times.install()
    with tempfile.TemporaryDirectory() as folder:
        store = new_store(
            Path(folder),
            batches=1,
            iterations=arguments.iterations,
            steps=arguments.steps,
            chains=arguments.chains,
        )
        print("ready", flush=True)
        sys.stdin.readline()
        run(store, InProcess, show=False)
    print(json.dumps(vars(times)))


def rate(workers: list[dict[str, float]], iterations: int) -> float:
    """Iterations a second from the first worker's beginning to the last one's end."""
    return iterations / (max(each["ended"] for each in workers) - min(each["began"] for each in workers))


def startup(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Seconds of what a user waits for before anything is sampled; the median of repeats."""
    python, program = sys.executable, [sys.executable, "-c", "from rayfbnn.cli import main; main()"]
    short = ["--set", "chains=2", "--set", "chains_per_batch=1", "--no-progress"]
    short += ["--set", "phase[3].iterations=4", "--set", "phase[3].operations[2].steps=20"]
    for number in range(3):
        short += ["--set", f"phase[{number}].iterations=1"]
    short += ["--set", 'phase[0].operations=[{op="heatbath"}]', "--set", "phase[2].operations[2].steps=20"]
    sample = [*program, "sample", str(EXAMPLE), "STORE", *short]
    commands: dict[str, list[str]] = {
        "import rayfbnn": [python, "-c", "import rayfbnn"],
        "rayfbnn --help": [*program, "--help"],
        "rayfbnn show": [*program, "show", str(EXAMPLE)],
        "a tiny run, --workers 0": [*sample, "--workers", "0"],
        "a tiny run, --workers 2 (Ray)": [*sample, "--workers", "2"],
    }
    rows = []
    for name, command in commands.items():
        times = []
        for _ in range(arguments.repeats):
            with tempfile.TemporaryDirectory() as folder:
                full = [part if part != "STORE" else str(Path(folder) / "run.zarr") for part in command]
                begun = time.time()
                subprocess.run(full, check=True, capture_output=True)
                times.append(time.time() - begun)
        rows.append({"what": name, "seconds": statistics.median(times)})
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    names = list(rows[0])
    lines = ["| " + " | ".join(name.replace("_", " ") for name in names) + " |", "|---" * len(names) + "|"]
    for row in rows:
        cells = [f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values()]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["startup", "shares", "scaling", "one"])
    parser.add_argument("--seconds", type=float, default=60.0, help="of sampling, in each run")
    parser.add_argument("--steps", type=int, default=4000, help="leapfrog steps of an iteration")
    parser.add_argument("--chains", type=int, default=8, help="of a batch")
    parser.add_argument("--iterations", type=int, default=20, help="of `one`, which scaling starts")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="a file that a line of JSON is added to")
    given = parser.parse_args(arguments)
    if given.what == "one":
        one(given)
        return
    about = conditions(chains=given.chains, steps=given.steps)
    print(heading(about) + "\n", flush=True)
    rows = {"startup": startup, "shares": shares, "scaling": scaling}[given.what](given)
    append(given.out, {"benchmark": given.what, **about, "rows": rows})
    print(table(rows))


if __name__ == "__main__":
    main()
