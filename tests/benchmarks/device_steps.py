"""Leapfrog steps per second on a CUDA device: the kernels, array code, and JAX on the same card.

The last rows time `hybrid-marginal` with output layer and common precisions integrated out: first the robot
arm on the chip, then wider networks by products over all chains, with more cases than features and fewer.
Gradients are recorded as CUDA graphs of any size, to see up to which size this helps.

    python tests/benchmarks/device_steps.py [--out FILE]

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
from rayfbnn.kernels.backend import Compiled, NotCovered
from rayfbnn.kernels.cuda import network_pass as wide_pass
from rayfbnn.kernels.cuda import products as wide
from rayfbnn.kernels.cuda.advance import CudaBackend
from rayfbnn.mcmc import leapfrog  # noqa: E402
from rayfbnn.model.architecture import ModelSpec, PriorSpec  # noqa: E402
from rayfbnn.model.sampled import SampledPosterior  # noqa: E402
from rayfbnn.state import Advance, Trajectory  # noqa: E402
from rayfbnn.timing import results, shapes
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
# The robot arm of examples/robot_arm.
ROBOT_ARM = {"ih0": "1:0.2", "bh0": "1:0.2", "ho0": "x1:0.2", "bo": "1"}
NOISE = "0.1:0.2"


def measure(shape: str, chains: int, n_steps: int, *, dtype: results.Dtype, repeats: int) -> dict[str, Any]:
    """Microseconds per step and chain, steps a second, and GFLOP/s of each code on one shape."""
    posterior = shapes.generated_posterior(shape, dtype=dtype, device="gpu")
    operations = step_times.floating_point_operations(posterior)
    seconds = {
        name: event_seconds(trajectory(posterior, advance, chains, n_steps), repeats)
        for name, advance in codes(posterior).items()
    }
    if importlib.util.find_spec("jax") is not None:
        seconds["JAX"] = jax_seconds(posterior, chains, n_steps, repeats)
    row = as_row(shape, chains, n_steps, dtype, seconds)
    rates = {name: 1e-3 * operations / microseconds for name, microseconds in row["us_per_step"].items()}
    return {**row, "gflops": rates}


def measure_marginal(
    shape: str, chains: int, n_steps: int, *, dtype: results.Dtype, repeats: int
) -> dict[str, Any]:
    """Times of hybrid-marginal with the robot arm's priors, for a gradient of a trajectory, without rates."""
    made_up = shapes.generated_posterior(shape, dtype=dtype, device="gpu")
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
    seconds = {
        name: event_seconds(partial(advance, target, start, n_steps=n_steps), repeats)
        for name, advance in {"plain CuPy": leapfrog.advance, name: kernel}.items()
    }
    return as_row(f"{shape} hybrid-marginal", chains, n_steps, dtype, seconds)


def as_row(
    shape: str, chains: int, n_steps: int, dtype: results.Dtype, seconds: dict[str, float]
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
        raise SystemExit(f"the kernel and JAX end at different places: {difference:.2g}")
    return statistics.median(jax_steps.timed(problem, chains, n_steps) for _ in range(repeats))


def product_rates(size: int = 8192, repeats: int = 5) -> dict[str, float]:
    """GFLOP/s of square float32 products on this card, with TF32 and without."""
    a = cupy.full((size, size), 0.5, dtype=cupy.float32)
    rates = {}
    for name, uses_tf32 in (("float32", False), ("TF32", True)):
        with wide_pass.products(cupy, uses_tf32):
            rates[name] = 2e-9 * size**3 / event_seconds(lambda: a @ a, repeats)
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
    about = conditions(card=card, cupy=cupy.__version__, repeats=arguments.repeats, product_gflops=rates)
    print(heading(about), flush=True)
    rows = []
    for dtype in arguments.dtypes:
        kinds = [(measure, *row) for row in ROWS] + [(measure_marginal, *row) for row in MARGINAL_ROWS]
        for measured, shape, chains, n_steps in kinds:
            rows.append(measured(shape, chains, n_steps, dtype=dtype, repeats=arguments.repeats))
            append(arguments.out, {"benchmark": "device_steps", **about, **rows[-1]})
    print(table(rows, rates))


if __name__ == "__main__":
    main()
