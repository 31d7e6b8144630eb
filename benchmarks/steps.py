"""Microseconds per leapfrog step of a chain for rayfbnn and JAX, timed alternately in one run on one core.

    make peers                                 # once: the environment with JAX
    python benchmarks/steps.py           # or make bench-steps

For each shape: ours with every kernel, JAX with its best number of chains, both with 16, 256 and 4,096
chains; medians, and the ratio of ours to JAX's best. The machine's sgemm rate is measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402, after the threads are set
from machine import PEERS, append, conditions, heading, peers_python, pin  # noqa: E402

from rayfbnn.arrays import Array  # noqa: E402
from rayfbnn.model.sampled import SampledPosterior  # noqa: E402
from rayfbnn.state import Advance, ChainState, Trajectory  # noqa: E402
from rayfbnn.timing import steps  # noqa: E402
from rayfbnn.timing import steps as step_times  # noqa: E402

ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


class Ours:
    """One kernel on one problem."""

    def __init__(self, posterior: SampledPosterior, name: str, advance: Advance, chains: int) -> None:
        self.name, self.chains = name, chains
        self._posterior, self._advance = posterior, advance
        self._state, _ = step_times.started(posterior, chains)
        self._stepsizes = stepsizes(posterior, self._state)

    def seconds(self, n_steps: int) -> float:
        started = time.perf_counter()
        self.end(n_steps)
        return time.perf_counter() - started

    def end(self, n_steps: int) -> Array:
        """Final position of a trajectory."""
        state = self._state
        start = Trajectory(state.position, state.momentum, state.precisions, self._stepsizes)
        return self._advance(self._posterior, start, n_steps=n_steps)[0].position


class Jax:
    """A process of the peers' environment that times JAX."""

    def __init__(self, python: str, script: str = "jax_steps.py") -> None:
        environment = os.environ | {"XLA_FLAGS": ONE_THREAD, "JAX_PLATFORMS": "cpu"}
        self._process = subprocess.Popen(
            [python, str(Path(__file__).parent / script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("the process with JAX has ended; what it said is above")
        return json.loads(line)  # type: ignore[no-any-return]

    def load(self, posterior: SampledPosterior, chains: int, folder: Path) -> None:
        """Send the problem: cases, start, precisions and stepsizes as for our kernels."""
        state, _ = step_times.started(posterior, chains)
        arrays = {
            "inputs": posterior.inputs[:-1],
            "targets": posterior.targets.astype(posterior.dtype),
            "noise": np.asarray(0.3**-2, dtype=posterior.dtype),
            "prior": np.ones(posterior.n_parameters, dtype=posterior.dtype),
            "position": state.position,
            "momentum": state.momentum,
            "stepsizes": stepsizes(posterior, state),
        }
        np.savez(folder / "problem.npz", **arrays)
        self.ask(do="load", path=str(folder / "problem.npz"), layers=layers_of(posterior))

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


def stepsizes(posterior: SampledPosterior, state: ChainState) -> Array:
    return (step_times.STEPSIZE * posterior.stepsizes(state.precisions)).astype(posterior.dtype)


def layers_of(posterior: SampledPosterior) -> list[tuple[int, tuple[int, ...], int]]:
    """(start of the weights, their shape, start of the biases) of each layer in the flat vector."""
    starts = posterior.parameter_layout.slices
    groups = {group.name: group for group in posterior.network.groups()}
    weights = [name for name in groups if name[0] in "ih"]
    biases = [name for name in groups if name[0] == "b"]
    return [
        (starts[weight].start, groups[weight].shape, starts[bias].start)
        for weight, bias in zip(weights, biases, strict=True)
    ]


def rounds(contestants: dict[str, Any], *, repeats: int, seconds: float) -> dict[str, float]:
    """Median microseconds per step and chain of each contestant, taking turns.

    Each is (a function from a number of steps to seconds, its number of chains).
    """
    steps: dict[str, int] = {}
    times_of: dict[str, list[float]] = {}
    for name, (run, _) in contestants.items():
        run(2)
        steps[name] = max(2, min(100_000, int(seconds / (run(2) / 3))))
        run(steps[name])  # JAX compiles for each length
        times_of[name] = []
    for _ in range(repeats):
        for name, (run, chains) in contestants.items():
            times_of[name].append(1e6 * run(steps[name]) / (steps[name] + 1) / chains)
    return {name: statistics.median(times) for name, times in times_of.items()}


def sgemm_rate(size: int = 1536, repeats: int = 5) -> float:
    """GFLOP/s of a square float32 product on this core, the median."""
    a = np.full((size, size), 0.5, dtype=np.float32)
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        a @ a
        times.append(time.perf_counter() - started)
    return 2e-9 * size**3 / statistics.median(times)


def measure(shape: str, dtype: steps.Dtype, jax: Jax | None, arguments: argparse.Namespace) -> dict[str, Any]:
    """All rows of one shape."""
    posterior = step_times.generated_posterior(shape, dtype=dtype)
    (n_in, *hidden, _), n_cases = step_times.parsed_shape(shape)
    most = max(1, arguments.memory // (max([n_in, *hidden]) * n_cases))
    many = sorted({min(chains, most) for chains in arguments.chains})
    few = sorted({min(chains, most) for chains in arguments.jax_chains})
    ours = {
        (name, chains): Ours(posterior, name, advance, chains)
        for name, advance in step_times.kernels_of(posterior)
        for chains in many
    }
    contestants = {f"{name}, {n} chains": (kernel.seconds, n) for (name, n), kernel in ours.items()}
    with tempfile.TemporaryDirectory() as folder:
        if jax is not None:
            jax.load(posterior, max(many + few), Path(folder))
            check_agreement(jax, ours, min(many), dtype)
            for chains in sorted({*many, *few}):
                contestants[f"JAX, {chains} chains"] = (
                    lambda steps, chains=chains: jax.ask(do="time", chains=chains, steps=steps)["seconds"],
                    chains,
                )
        medians = rounds(contestants, repeats=arguments.repeats, seconds=arguments.seconds)
    best = (
        min((medians[f"JAX, {chains} chains"] for chains in few), default=None) if jax is not None else None
    )
    operations = step_times.floating_point_operations(posterior)
    return {
        "shape": shape,
        "dtype": dtype,
        "us_per_step": medians,
        "jax_best_us": best,
        "ratio_to_jax_best": {name: us / best for name, us in medians.items()} if best else {},
        "gflops": {name: 1e-3 * operations / us for name, us in medians.items()},
        "sgemm": sgemm_rate(),
    }


def check_agreement(jax: Jax, ours: dict[Any, Ours], chains: int, dtype: str) -> None:
    """Check that both do the same work: after 20 steps they must be at the same place."""
    end = np.array(jax.ask(do="end", chains=chains, steps=20)["position"])
    for name, kernel in ours.items():
        difference = abs(kernel.end(20)[0] - end).max() / abs(end).max()
        if not difference < 1e-3:
            raise SystemExit(f"{name} and JAX ({dtype}) end at different places: {difference:.2g}")


def table(rows: list[dict[str, Any]]) -> str:
    lines = ["| network / cases | dtype | code | us per step | over JAX's best | GFLOP/s | of sgemm |"]
    lines.append("|---|---|---|---|---|---|---|")
    for row in rows:
        for name, us in row["us_per_step"].items():
            ratio = row["ratio_to_jax_best"].get(name)
            lines.append(
                f"| {row['shape']} | {row['dtype']} | {name} | {us:.4g} |"
                f" {'-' if ratio is None else f'{ratio:.2f}'} | {row['gflops'][name]:.3g} |"
                f" {row['gflops'][name] / row['sgemm']:.2f} |"
            )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=list(step_times.STANDARD_SHAPES))
    parser.add_argument("--dtypes", nargs="+", default=["float32"], choices=["float32", "float64"])
    parser.add_argument("--chains", type=int, nargs="+", default=[16, 256, 4096], help="of both")
    parser.add_argument(
        "--jax-chains", type=int, nargs="+", default=[1, 4, 16, 64], help="JAX's best of these"
    )
    parser.add_argument("--memory", type=int, default=2**28, help="values of the widest layer at most")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.2, help="of each trajectory, at least two steps")
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)), help="which both run on")
    parser.add_argument("--peers", type=Path, default=PEERS, help="the interpreter that has JAX")
    parser.add_argument("--no-jax", action="store_true")
    parser.add_argument("--out", type=Path, help="a file that a line of JSON for each shape is added to")
    options = parser.parse_args(arguments)
    os.environ["JAX_ENABLE_X64"] = "1" if "float64" in options.dtypes else "0"
    about = conditions(chains=options.chains, jax_chains=options.jax_chains, repeats=options.repeats)
    pin(options.core)
    jax = None if options.no_jax else Jax(peers_python(options.peers))
    print(heading(about), flush=True)
    rows = []
    try:
        for shape in options.shapes:
            for dtype in options.dtypes:
                rows.append(measure(shape, dtype, jax, options))
                append(options.out, {"benchmark": "steps", **about, **rows[-1]})
                print(table(rows[-1:]), flush=True)
                print(f"sgemm {rows[-1]['sgemm']:.3g} GFLOP/s\n", flush=True)
    finally:
        if jax is not None:
            jax.close()


if __name__ == "__main__":
    main()
