"""Costs around the kernels: start-up, Ray, Zarr and progress, workers, and updates of one step.

    python benchmarks/overheads.py startup
    python benchmarks/overheads.py shares --seconds 60
    python benchmarks/overheads.py scaling --seconds 60 --schedule plain
    python benchmarks/overheads.py updates

shares   a run of so many seconds in this process, one with a Ray actor, and one in this process whose store
         is in a bucket (moto on the loopback interface, as a process of its own): sampling against all else
scaling  the same work on one actor, on two actors, and in two processes that know nothing of each other
updates  processor time of a Gibbs draw of all precisions together with a Metropolis or Langevin update, the
         least over --repeats times ten runs of fifty

Of the robot arm. With the default schedule settings are found first, and kept draws are measured; the plain
one is of Gibbs draws of the precisions and hybrid Monte Carlo of --steps leapfrog steps. Beside other jobs
the clock says little: shares are given in processor time too, that of Ray's own processes left out.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # keeps Ray on the loopback interface

import numpy as np  # noqa: E402, after the threads are set
from machine import ROOT, append, conditions, heading  # noqa: E402

from rayfbnn.data import read_dataset  # noqa: E402
from rayfbnn.kernels import choose  # noqa: E402
from rayfbnn.mcmc import schedule  # noqa: E402
from rayfbnn.run.executor import Executor, InProcess  # noqa: E402
from rayfbnn.run.hardware import kernel_name  # noqa: E402
from rayfbnn.run.job import Progress  # noqa: E402
from rayfbnn.run.on_ray.actors import Worker  # noqa: E402
from rayfbnn.run.on_ray.executor import RayExecutor  # noqa: E402
from rayfbnn.run.progress import display  # noqa: E402
from rayfbnn.run.resuming import set_length  # noqa: E402
from rayfbnn.run.running import Gathering, run_rounds  # noqa: E402
from rayfbnn.run.sampler import build_posterior  # noqa: E402
from rayfbnn.spec import RunSpec  # noqa: E402
from rayfbnn.store.store import Store  # noqa: E402

EXAMPLE = ROOT / "examples" / "robot_arm" / "robot_arm.toml"  # has no phases
FIRST_ITERATIONS = 50  # kept draws that are timed, so that the rest takes the requested seconds


class Times:
    """Time of a worker in iterations, in energies of draws and in commits, with the first and last moment.

    `processor` is the processor time of the thread that samples; process_began and process_ended are those of
    all threads of its process.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self.sampling = self.commits = 0.0
        self.sampling_processor = self.commits_processor = 0.0
        self.began, self.ended = 0.0, 0.0
        self.process_began, self.process_ended = 0.0, 0.0

    def install(self) -> None:
        """Have the sampler of this process report here."""
        from rayfbnn.run import sampler

        inner, commit, densities = (
            sampler.schedule.Iteration.__call__,
            sampler.Store.commit,
            sampler.densities_of,
        )

        def run(*arguments: Any) -> Any:
            started, processor = time.time(), time.thread_time()
            if not self.began:
                self.began, self.process_began = started, time.process_time()
            result = inner(*arguments)
            self.sampling += time.time() - started
            self.sampling_processor += time.thread_time() - processor
            return result

        def timed_densities(*arguments: Any) -> Any:
            started, processor = time.time(), time.thread_time()
            result = densities(*arguments)
            self.sampling += time.time() - started
            self.sampling_processor += time.thread_time() - processor
            return result

        def timed_commit(*arguments: Any) -> Any:
            started, processor = time.time(), time.thread_time()
            result = commit(*arguments)
            self.ended, self.process_ended = time.time(), time.process_time()
            self.commits += self.ended - started
            self.commits_processor += time.thread_time() - processor
            return result

        sampler.schedule.Iteration.__call__ = run  # type: ignore[method-assign]
        sampler.densities_of = timed_densities
        sampler.Store.commit = timed_commit  # type: ignore[method-assign]


class TimedWorker(Worker):
    """A worker that writes its times beside the store."""

    def __init__(self, store_path: str, is_stopped: Callable[[], bool]) -> None:
        super().__init__(store_path, is_stopped)
        self._times = Times()
        self._times.install()

    def run_block(self, *arguments: Any) -> Iterator[Progress]:
        for progress in super().run_block(*arguments):
            if progress.committed:
                path = Path(f"{self._store_path}.times-{os.getpid()}")
                path.write_text(json.dumps(vars(self._times)))
            yield progress


def prepared(folder: Path, arguments: argparse.Namespace, *, batches: int) -> Store:
    """A run of the robot arm, with its settings found, that will last the given seconds per batch."""
    raw = RunSpec.from_toml(EXAMPLE).to_dict()
    raw["data"]["train"] = str(EXAMPLE.parent / "train.csv")
    raw |= {"chains": arguments.chains * batches, "chains_per_batch": arguments.chains}
    if arguments.schedule == "plain":
        hybrid = {"op": "hybrid", "steps": arguments.steps, "stepsize": 0.1, "window": 1}
        raw["phase"] = [{"operations": [{"op": "sample-sigmas"}, {"op": "heatbath"}, hybrid]}]
    raw["phase"][-1]["iterations"] = FIRST_ITERATIONS
    spec = RunSpec.from_dict(raw)
    # Chunks as those of a run that was planned with its final length, so that blocks last ten seconds.
    data, kernel = read_dataset(spec), kernel_name(spec)
    store = Store.create(folder / "run.zarr", spec, data, kernel=kernel, draws_per_chunk=10_000)
    kept_from, is_last = time.time(), len(spec.phase) - 1

    with store.lock(), InProcess() as executor, Gathering(store) as gathering:
        for progress in run_rounds(store, executor):
            if progress.phase < is_last:
                kept_from = time.time()
        seconds_per_draw = (time.time() - kept_from) / (FIRST_ITERATIONS * batches)
        gathering.all()
        set_length(store, FIRST_ITERATIONS + max(10, int(arguments.seconds / seconds_per_draw)))
    return store


@contextmanager
def in_bucket(store: Store) -> Iterator[Store]:
    """A copy of the run in a bucket of moto, which runs as another process on the loopback interface."""
    from obstore.store import S3Store

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    url = f"http://127.0.0.1:{port}"
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "a-secret-of-nobody",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ENDPOINT_URL": url,
    }
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", port]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        make_bucket(f"{url}/bucket")
        bucket = S3Store("bucket")
        for file in sorted(path for path in store.path.rglob("*") if path.is_file()):
            if file.name not in ("lock", "holder.json"):
                bucket.put(f"run.zarr/{file.relative_to(store.path)}", file.read_bytes())
        yield Store.open("s3://bucket/run.zarr")
    finally:
        server.terminate()
        server.wait()


def make_bucket(url: str) -> None:
    """Make a bucket as soon as its server answers."""
    for _ in range(300):
        try:
            with urlopen(Request(url, method="PUT")):
                return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"{url} does not answer")


def copied(store: Store, folder: str) -> Store:
    """A copy of the run elsewhere, so that each measurement continues from the same iteration."""
    return Store.open(Path(shutil.copytree(store.path, Path(folder) / "run.zarr")))


def iterations_left(store: Store) -> int:
    """Remaining iterations of each batch."""
    return store.spec.total_iterations - store.progress(0).iteration


def run(store: Store, make: Callable[[], Executor], *, show: bool) -> dict[str, float]:
    """Run a store to its end; return the seconds in all, for starting workers, and for showing progress."""
    shown, seconds_shown, processor_shown = display(store, show=show), 0.0, 0.0
    started, process_began = time.time(), 0.0  # at the first iteration or soon after
    with store.lock(), shown, make() as executor, Gathering(store) as gathering:
        for progress in executor.run(store.path, range(store.n_batches)):
            process_began = process_began or time.process_time()
            before, processor = time.time(), time.thread_time()
            shown.update(progress)
            seconds_shown += time.time() - before
            processor_shown += time.thread_time() - processor
            gathering.update(progress)
        gathering.all()
        done, process_done = time.time(), time.process_time()
    return {
        "begun": started,
        "done": done,
        "ended": time.time(),
        "progress": seconds_shown,
        "progress_processor": processor_shown,
        "process_began": process_began,
        "process_done": process_done,
    }


def shares(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Sampling and everything else, in this process and with one actor."""
    rows = []
    with tempfile.TemporaryDirectory() as run_folder:
        store = prepared(Path(run_folder), arguments, batches=1)
        times = Times()
        times.install()
        for name in ("this process", "one Ray actor", "this process, store in a bucket"):
            with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
                is_bucket = name.endswith("bucket")
                here = stack.enter_context(in_bucket(store)) if is_bucket else copied(store, folder)
                draws = iterations_left(here)
                if name.startswith("this process"):
                    times.reset()
                    finished, worker = run(here, InProcess, show=True), vars(times)
                    whole = finished["done"] - finished["begun"]
                    processor = finished["process_done"] - worker["process_began"]
                else:
                    finished = run(here, lambda: RayExecutor(workers=1, worker_class=TimedWorker), show=True)
                    worker = workers_of(folder)[0]
                    whole = finished["done"] - worker["began"]
                    processor = finished["process_done"] - finished["process_began"]
                    processor += worker["process_ended"] - worker["process_began"]
            rows.append(
                {
                    "where": name,
                    "draws": draws,
                    "sampling": worker["sampling"],
                    "commits": worker["commits"],
                    "progress": finished["progress"],
                    "whole": whole,
                    "overhead": whole / worker["sampling"] - 1,
                    "sampling_processor": worker["sampling_processor"],
                    "commits_processor": worker["commits_processor"],
                    "progress_processor": finished["progress_processor"],
                    "whole_processor": processor,
                    "overhead_processor": processor / worker["sampling_processor"] - 1,
                    "before_the_first_iteration": worker["began"] - finished["begun"],
                    "after_the_last": finished["ended"] - finished["done"],
                }
            )
    return rows


def workers_of(folder: str) -> list[dict[str, float]]:
    """Times that the timed workers of a run wrote."""
    return [json.loads(path.read_text()) for path in sorted(Path(folder).glob("run.zarr.times-*"))]


def scaling(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Iterations per second of two batches on one actor, two actors and two processes, in turn."""
    rates_of: dict[str, list[float]] = {"one actor": [], "two actors": [], "two processes": []}
    with tempfile.TemporaryDirectory() as folder:
        store = prepared(Path(folder), arguments, batches=2)
        for _ in range(arguments.repeats):
            rates_of["one actor"].append(actors(1, store))
            rates_of["two actors"].append(actors(2, store))
            rates_of["two processes"].append(processes(store))
    rates = {name: statistics.median(values) for name, values in rates_of.items()}
    return [
        {
            "workers": name,
            "iterations_per_second": rate,
            "over_one_actor": rate / rates["one actor"],
            "over_two_processes": rate / rates["two processes"],
        }
        for name, rate in rates.items()
    ]


def actors(n: int, store: Store) -> float:
    with tempfile.TemporaryDirectory() as folder:
        here = copied(store, folder)
        iterations = here.n_batches * iterations_left(here)
        run(here, lambda: RayExecutor(workers=n, worker_class=TimedWorker), show=False)
        return rate(workers_of(folder), iterations)


def processes(store: Store) -> float:
    """Start a process for each batch of the store."""
    command = [sys.executable, __file__, "one", "--store", str(store.path), "--batch"]
    # Each waits for a line before it begins, so that none has the machine to itself while others start.
    started = [
        subprocess.Popen([*command, str(batch)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for batch in range(store.n_batches)
    ]
    for process in started:
        assert process.stdout is not None
        process.stdout.readline()
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [process.communicate()[0] for process in started]
    return rate([json.loads(answer) for answer in answers], store.n_batches * iterations_left(store))


def one(arguments: argparse.Namespace) -> None:
    """Sample one batch of a copy of a store in this process, one of two, and print the times."""
    times = Times()
    times.install()
    with tempfile.TemporaryDirectory() as folder:
        store = copied(Store.open(arguments.store), folder)
        print("ready", flush=True)
        sys.stdin.readline()
        with store.lock(), InProcess() as executor:
            for _ in executor.run(store.path, [arguments.batch]):
                pass
    print(json.dumps(vars(times)))


def rate(workers: list[dict[str, float]], iterations: int) -> float:
    """Iterations per second from the start of the first worker to the end of the last."""
    return iterations / (
        max(seconds_per_draw["ended"] for seconds_per_draw in workers)
        - min(seconds_per_draw["began"] for seconds_per_draw in workers)
    )


def startup(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Seconds that a user waits before anything is sampled, as the median of several starts."""
    python, program = sys.executable, [sys.executable, "-c", "from rayfbnn.cli import main; main()"]
    example = EXAMPLE.parent / "hybrid.toml"
    short = ["--set", "chains=2", "--set", "chains_per_batch=1", "--no-progress"]
    short += ["--set", "phase[3].iterations=4", "--set", "phase[3].operations[2].steps=20"]
    for number in range(3):
        short += ["--set", f"phase[{number}].iterations=1"]
    short += ["--set", 'phase[0].operations=[{op="heatbath"}]', "--set", "phase[2].operations[2].steps=20"]
    sample = [*program, "sample", str(example), "STORE", *short]
    commands: dict[str, list[str]] = {
        "import rayfbnn": [python, "-c", "import rayfbnn"],
        "rayfbnn --help": [*program, "--help"],
        "rayfbnn show": [*program, "show", str(example)],
        "a tiny run, --workers 0": [*sample, "--workers", "0"],
        "a tiny run, --workers 2 (Ray)": [*sample, "--workers", "2"],
    }
    rows = []
    for name, command in commands.items():
        times = []
        for _ in range(arguments.repeats):
            with tempfile.TemporaryDirectory() as folder:
                full = [part if part != "STORE" else str(Path(folder) / "run.zarr") for part in command]
                started = time.time()
                subprocess.run(full, check=True, capture_output=True)
                times.append(time.time() - started)
        rows.append({"what": name, "seconds": statistics.median(times)})
    return rows


GIBBS = {"op": "sample-sigmas"}
PAIRS: dict[str, list[dict[str, Any]]] = {
    "sample-sigmas, metropolis": [GIBBS, {"op": "metropolis", "stepsize": 0.05}],
    "sample-sigmas, langevin": [GIBBS, {"op": "heatbath"}, {"op": "hybrid", "steps": 1, "stepsize": 0.3}],
}


def updates(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Microseconds of processor time of each pair of updates for one chain and for four."""
    rows = []
    for name, operations in PAIRS.items():
        row: dict[str, Any] = {"updates": name}
        for n_chains in (1, 4):
            row[f"us_for_{n_chains}"] = 1e6 * seconds_of_pair(operations, n_chains, arguments.repeats)
        rows.append(row)
    return rows


def seconds_of_pair(operations: list[dict[str, Any]], n_chains: int, repeats: int, times: int = 50) -> float:
    """Processor seconds of `operations` on the robot arm, for all chains together."""
    raw = RunSpec.from_toml(EXAMPLE).to_dict()
    raw["data"]["train"] = str(EXAMPLE.parent / "train.csv")
    repeated = {"op": "repeat", "times": times, "operations": operations}
    spec = RunSpec.from_dict(
        raw | {"dtype": "float32", "phase": [{"iterations": 1, "operations": [repeated]}]}
    )
    target = build_posterior(spec, read_dataset(spec), device="cpu")
    advance, _ = choose.advance_for(target)
    iteration = schedule.build_iteration(
        spec.phase[0].operations, target=target, updates=target.updates, advance=advance
    )
    streams = choose.streams_class("cpu")(1, np.arange(n_chains, dtype=np.uint64))
    state, seconds = target.initial_state(streams, sigmas=0.5), []
    for number in range(10 * repeats):
        started = time.thread_time()
        state, _ = iteration(state, streams.at(iteration=number + 1))
        seconds.append((time.thread_time() - started) / times)
    return min(seconds)


def table(rows: list[dict[str, Any]]) -> str:
    names = list(rows[0])
    lines = ["| " + " | ".join(name.replace("_", " ") for name in names) + " |", "|---" * len(names) + "|"]
    for row in rows:
        cells = [f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values()]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["startup", "shares", "scaling", "updates", "one"])
    parser.add_argument("--seconds", type=float, default=60.0, help="of sampling, in each run")
    parser.add_argument("--schedule", choices=["default", "plain"], default="default")
    parser.add_argument("--steps", type=int, default=4000, help="leapfrog steps of an iteration, if plain")
    parser.add_argument("--chains", type=int, default=8, help="of a batch")
    parser.add_argument("--store", type=Path, help="of `one`, which scaling starts")
    parser.add_argument("--batch", type=int, default=0, help="of `one`")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="a file that a line of JSON is added to")
    options = parser.parse_args(arguments)
    if options.what == "one":
        one(options)
        return
    about = conditions(schedule=options.schedule, chains=options.chains, steps=options.steps)
    print(heading(about) + "\n", flush=True)
    rows = {"startup": startup, "shares": shares, "scaling": scaling, "updates": updates}[options.what](
        options
    )
    append(options.out, {"benchmark": options.what, **about, "rows": rows})
    print(table(rows))


if __name__ == "__main__":
    main()
