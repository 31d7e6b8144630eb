"""Leapfrog steps per second on a CUDA device: the kernels, array code, and JAX on the same card.

The last rows time `hybrid-marginal` with output layer and common precisions integrated out: first the robot
arm on the chip, then wider networks by products over all chains, with more cases than features and fewer.
Gradients are recorded as CUDA graphs of any size, to see up to which size this helps.

    python benchmarks/device_steps.py [--out FILE]

The script needs CuPy and a device. JAX is timed if the same interpreter has it, and then both must end their
trajectories at the same place. Times are measured by the device's own events, as medians after a warm-up. The
rate of the card's matrix products is measured in the same run. Data are random numbers from streams.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

# Otherwise JAX would take the memory of the others.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import cupy  # noqa: E402, after JAX's settings
import numpy as np  # noqa: E402
from machine import append, conditions, heading  # noqa: E402
from steps import layers_of, stepsizes  # noqa: E402

from rayfbnn.arrays import Array, to_host  # noqa: E402
from rayfbnn.kernels import choose
from rayfbnn.kernels.backend import Compiled, NotCovered
from rayfbnn.kernels.cuda import cublas
from rayfbnn.kernels.cuda import products as wide
from rayfbnn.kernels.cuda.advance import CudaBackend
from rayfbnn.kernels.cuda.streams import DeviceStreams
from rayfbnn.mcmc import leapfrog, schedule  # noqa: E402
from rayfbnn.mcmc.operations import Heatbath, Hybrid, SampleSigmas
from rayfbnn.model.architecture import ModelSpec, PriorSpec  # noqa: E402
from rayfbnn.model.sampled import SampledPosterior  # noqa: E402
from rayfbnn.state import Advance, Trajectory  # noqa: E402
from rayfbnn.streams import Purpose
from rayfbnn.timing import steps
from rayfbnn.timing import steps as step_times

# Shape, chains and steps of a trajectory; long trajectories where launches would otherwise dominate.
ROWS = [
    ("1-8-1/100", 4096, 1000),
    ("2-16-2/200", 256, 1000),
    ("2-16-2/200", 4096, 1000),
    ("2-16-2/200", 16_384, 500),
    ("10-100-1/1000", 1024, 100),
    ("13-50-50-1/506", 1024, 100),
    ("784-100-10/60000", 32, 10),
    ("784-100-10/1000", 8, 100),  # Each kernel has little to do: the case for CUDA graphs.
]
MARGINAL_ROWS = [
    ("2-16-2/200", 4096, 200),
    ("10-200-1/1000", 256, 50),
    ("10-200-1/150", 256, 50),
]
# Whole iterations on the chip, whose windows and decisions are in the launch of the trajectory.
ITERATION_ROWS = [("2-16-2/200", 4096, 1000)]
# The robot arm of examples/robot_arm.
ROBOT_ARM = {"ih0": "1:0.2", "bh0": "1:0.2", "ho0": "x1:0.2", "bo": "1"}
NOISE = "0.1:0.2"


def measure(shape: str, chains: int, n_steps: int, *, dtype: steps.Dtype, repeats: int) -> dict[str, Any]:
    """Microseconds per step and chain, steps a second, and GFLOP/s of each code on one shape."""
    posterior = step_times.generated_posterior(shape, dtype=dtype, device="gpu")
    operations = step_times.floating_point_operations(posterior)
    runs = {
        name: partial(event_seconds, trajectory(posterior, advance, chains, n_steps), repeats)
        for name, advance in codes(posterior).items()
    }
    if importlib.util.find_spec("jax") is not None:
        runs["JAX"] = partial(jax_seconds, posterior, chains, n_steps, repeats)
    seconds, errors = timed(runs)
    row = {**as_row(shape, chains, n_steps, dtype, seconds), "errors": errors}
    rates = {name: 1e-3 * operations / microseconds for name, microseconds in row["us_per_step"].items()}
    return {**row, "gflops": rates}


def measure_marginal(
    shape: str, chains: int, n_steps: int, *, dtype: steps.Dtype, repeats: int
) -> dict[str, Any]:
    """Times of hybrid-marginal with the robot arm's priors, for a gradient of a trajectory, without rates."""
    made_up = step_times.generated_posterior(shape, dtype=dtype, device="gpu")
    priors = {name: PriorSpec.parse(text, key=name) for name, text in ROBOT_ARM.items()}
    model = ModelSpec("real", PriorSpec.parse(NOISE, key="noise"))
    network = replace(made_up.network, priors=priors)
    values = made_up.targets.T
    posterior = SampledPosterior.from_spec(
        network, model, made_up.inputs[:-1].T, values, dtype=dtype, xp=cupy
    )
    state, streams = step_times.started(posterior, chains)
    target = posterior.marginal(("outputs", "precisions")).given(state, streams)
    first = target.start(state, streams)
    compiled = CudaBackend(uses_graphs=False).compile(target)
    assert isinstance(compiled, Compiled), compiled
    kernel, name = compiled.advance, compiled.name
    factor = (step_times.STEPSIZE * target.stepsizes(first.precisions)).astype(posterior.dtype)
    start = Trajectory(first.position, first.momentum, first.precisions, factor)
    seconds, errors = timed(
        {
            name: partial(event_seconds, partial(advance, target, start, n_steps=n_steps), repeats)
            for name, advance in {"plain CuPy": leapfrog.advance, name: kernel}.items()
        }
    )
    row = as_row(f"{shape} hybrid-marginal", chains, n_steps, dtype, seconds)
    return {**row, "errors": errors}


def measure_iterations(
    shape: str, chains: int, n_steps: int, *, dtype: steps.Dtype, repeats: int
) -> dict[str, Any]:
    """Times of whole iterations for a step of their trajectories, with a window and without."""
    posterior = step_times.generated_posterior(shape, dtype=dtype, device="gpu")
    state, _ = step_times.started(posterior, chains)
    random = DeviceStreams(1, cupy.arange(chains, dtype=cupy.uint64), 1)
    runs = {}
    for window in (1, 10):
        hybrid = Hybrid(steps=n_steps, stepsize=step_times.STEPSIZE, window=window)
        iteration = schedule.build_iteration(
            (SampleSigmas(), Heatbath(), hybrid),
            target=posterior,
            updates=posterior.updates,
            advance=choose.advance_for(posterior)[0],
        )
        runs[f"iterations, window {window}"] = partial(
            event_seconds, partial(iteration, state, random), repeats
        )
    seconds, errors = timed(runs)
    return {**as_row(f"{shape} hybrid", chains, n_steps, dtype, seconds), "errors": errors}


def timed(runs: dict[str, Callable[[], float]]) -> tuple[dict[str, float], dict[str, str]]:
    """Seconds of each code that runs, and the error of each that does not.

    A code whose CUDA graph could not be recorded gets another name.
    """
    seconds, errors = {}, {}
    for name, run in runs.items():
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                taken = run()
            except Exception:
                errors[name] = traceback.format_exc()
                print(f"{name}: {errors[name]}", file=sys.stderr, flush=True)
                continue
        reasons = [str(warning.message) for warning in said if "CUDA graphs" in str(warning.message)]
        if reasons:
            errors[name] = reasons[0]
        seconds[f"{name}, but launched one by one" if reasons else name] = taken
    return seconds, errors


def as_row(
    shape: str, chains: int, n_steps: int, dtype: steps.Dtype, seconds: dict[str, float]
) -> dict[str, Any]:
    per_step = {name: taken / (n_steps + 1) / chains for name, taken in seconds.items()}
    return {
        "shape": shape,
        "dtype": dtype,
        "chains": chains,
        "us_per_step": {name: 1e6 * s for name, s in per_step.items()},
        "steps_per_second": {name: 1 / s for name, s in per_step.items()},
        "gflops": {},
    }


def codes(posterior: SampledPosterior) -> dict[str, Advance]:
    """Array code and the chosen kernel with and without graphs; for products, also without TF32."""
    advances: dict[str, Advance] = {"plain CuPy": leapfrog.advance}
    for uses_graphs in (False, True):  # a network that fits on the chip has one name, and is timed once
        compiled = CudaBackend(uses_graphs).compile(posterior)
        assert isinstance(compiled, Compiled), compiled
        name = compiled.name
        advances.setdefault(name, compiled.advance)
    if "products" in name:
        exact = wide.compile_for(posterior, uses_tf32=False)
        assert not isinstance(exact, NotCovered)
        advances["CUDA, products over all chains, float32 throughout"] = exact
    return advances


def trajectory(
    posterior: SampledPosterior, advance: Advance, chains: int, n_steps: int
) -> Callable[[], tuple[Trajectory, Array]]:
    """A trajectory of all chains whose starting values are already on the device."""
    state, _ = step_times.started(posterior, chains)
    factor = stepsizes(posterior, state)
    start = Trajectory(state.position, state.momentum, state.precisions, factor)
    return partial(advance, posterior, start, n_steps=n_steps)


def event_seconds(run: Callable[[], Any], repeats: int) -> float:
    """Median time on the device, after a warm-up that compiles and allocates."""
    run()
    times = []
    for _ in range(repeats):
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(1e-3 * cupy.cuda.get_elapsed_time(begin, end))
    return statistics.median(times)


def jax_seconds(posterior: SampledPosterior, chains: int, n_steps: int, repeats: int) -> float:
    """Time of JAX on the same card, jitted and vmapped; it must end where the kernel does."""
    import jax_steps

    state, _ = step_times.started(posterior, chains)
    arrays = {
        "inputs": to_host(posterior.inputs[:-1]),
        "targets": to_host(posterior.targets).astype(posterior.dtype),
        "noise": np.asarray(0.3**-2, dtype=posterior.dtype),
        "prior": np.ones(posterior.n_parameters, dtype=posterior.dtype),
        "position": to_host(state.position),
        "momentum": to_host(state.momentum),
        "stepsizes": to_host(stepsizes(posterior, state)),
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "problem.npz"
        np.savez(path, **arrays)
        problem = jax_steps.load({"path": str(path), "layers": layers_of(posterior)})
    compiled = CudaBackend(uses_graphs=False).compile(posterior)
    assert isinstance(compiled, Compiled), compiled
    our_end = to_host(trajectory(posterior, compiled.advance, chains, 2)()[0].position[0])
    difference = np.abs(our_end - jax_steps.trajectory_end(problem, chains, 2)).max() / np.abs(our_end).max()
    if not difference < 5e-3:  # TF32 is accurate to 1e-3
        raise ValueError(f"the kernel and JAX end at different places: {difference:.2g}")
    return statistics.median(jax_steps.timed(problem, chains, n_steps) for _ in range(repeats))


def product_rates(size: int = 8192, repeats: int = 5) -> dict[str, float]:
    """GFLOP/s of square float32 products of random numbers on this card, with TF32 and without.

    Constants would take less power, so that the card would keep a higher clock than it has with real data.
    """
    random = DeviceStreams(1, cupy.arange(size, dtype=cupy.uint64))
    a = random.normal(Purpose.PROPOSAL, (size,)).astype(cupy.float32)
    rates = {}
    for name, uses_tf32 in (("float32", False), ("TF32", True)):
        product = partial(cublas.product, a, a, uses_tf32=uses_tf32)
        rates[name] = 2e-9 * size**3 / event_seconds(product, repeats)
    return rates


def table(rows: list[dict[str, Any]], rates: dict[str, float]) -> str:
    lines = [
        "| network / cases | dtype | chains | code | us per step | steps a second | of the card's product |"
    ]
    lines.append("|---|---|---|---|---|---|---|")
    for row in rows:
        for name, us in row["us_per_step"].items():
            rate = rates["TF32" if "TF32" in name else "float32"]
            share = f"{row['gflops'][name] / rate:.2f}" if name in row["gflops"] else "-"
            lines.append(
                f"| {row['shape']} | {row['dtype']} | {row['chains']} | {name} | {us:.4g} |"
                f" {row['steps_per_second'][name]:.3g} | {share} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--dtypes", nargs="+", default=["float32"], choices=["float32", "float64"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, help="a file that a line of JSON for each row is added to")
    arguments = parser.parse_args()
    if "float64" in arguments.dtypes:
        os.environ["JAX_ENABLE_X64"] = "1"
    wide._MOST_BYTES_TO_RECORD = sys.maxsize
    card = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    rates = product_rates()
    about = conditions(device=card, cupy=cupy.__version__, repeats=arguments.repeats, product_gflops=rates)
    print(heading(about), flush=True)
    rows = []
    for dtype in arguments.dtypes:
        kinds = [(measure, *row) for row in ROWS] + [(measure_marginal, *row) for row in MARGINAL_ROWS]
        kinds += [(measure_iterations, *row) for row in ITERATION_ROWS]
        for measured, shape, chains, n_steps in kinds:
            row = row_or_error(measured, shape, chains, n_steps, dtype=dtype, repeats=arguments.repeats)
            append(arguments.out, {"benchmark": "device_steps", **about, **row})
            rows.append(row)
            cupy.get_default_memory_pool().free_all_blocks()
    print(table(rows, rates))
    if any(row["errors"] for row in rows):
        raise SystemExit("some codes did not run; their errors are above and in the results")


def row_or_error(measured: Callable[..., dict[str, Any]], shape: str, *arguments: Any, **options: Any) -> Any:
    """A row, or one without times if it could not be prepared."""
    try:
        return measured(shape, *arguments, **options)
    except Exception:
        error = traceback.format_exc()
        print(error, file=sys.stderr, flush=True)
        chains, n_steps = arguments
        return {**as_row(shape, chains, n_steps, options["dtype"], {}), "errors": {"all": error}}


if __name__ == "__main__":
    main()
