"""A minute's look at a device: each way of launching a kernel, once, and whether its numbers are right.

    python -m benchmarks.device.smoke [--small] [--only CHECK ...] [--without-pool] [--out FILE]

A line of JSON for each check. A check that fails does not keep the others from running, and the
exit code is then 1.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import append, conditions
from rayfbnn.arrays import to_host
from rayfbnn.kernels.backend import Compiled, NotCovered
from rayfbnn.kernels.cuda import cublas, products
from rayfbnn.kernels.cuda.advance import CudaBackend
from rayfbnn.kernels.cuda.graphs import Recordings, cuda_graph
from rayfbnn.kernels.cuda.streams import DeviceStreams
from rayfbnn.mcmc import leapfrog
from rayfbnn.mcmc.hybrid import hybrid, whole_hybrid_of
from rayfbnn.mcmc.ladder import records
from rayfbnn.mcmc.ladder.iteration import build
from rayfbnn.mcmc.operations import Heatbath, Hybrid
from rayfbnn.model.ladder_path import path_of
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.state import Advance, Trajectory
from rayfbnn.streams import Purpose, Streams
from rayfbnn.timing import steps as step_times

# Largest differences that rounding explains: of float32 sums after some steps, and of TF32 in gradients.
FLOAT32, TF32 = 1e-4, 5e-3
ENERGY = 1e-2  # of energy changes, on whose differences of order one decisions turn


def streams(n_chains: int = 1000) -> float:
    """Worst difference between normal numbers of the device and of the host."""
    import cupy

    there = DeviceStreams(7, cupy.arange(n_chains, dtype=cupy.uint64), 3)
    here = Streams(7, np.arange(n_chains, dtype=np.uint64), 3)
    drawn = [source.normal(Purpose.MOMENTUM, (33,)) for source in (there, here)]
    return float(np.abs(to_host(drawn[0]) - drawn[1]).max())


def against_array_code(
    shape: str, chains: int, n_steps: int, expected: str, compiled: Callable[[SampledPosterior], Advance]
) -> float:
    """Worst relative difference of a kernel's trajectory from that of array code on the device."""
    import cupy

    posterior, start = started(shape, chains)
    name = kernel_name(posterior)
    if expected not in name:
        raise AssertionError(f"{shape} is run by {name!r}, not by {expected!r}")
    ends = [advance(posterior, start, n_steps=n_steps) for advance in (compiled(posterior), leapfrog.advance)]
    arrays = [(end.position, end.momentum, potential) for end, potential in ends]
    return max(
        float(cupy.abs(values - others).max() / cupy.abs(others).max())
        for values, others in zip(*arrays, strict=True)
    )


def started(shape: str, chains: int) -> tuple[SampledPosterior, Trajectory]:
    """A posterior of random numbers on the device, and the start of a trajectory there."""
    posterior = step_times.generated_posterior(shape, dtype="float32", device="gpu")
    state, _ = step_times.started(posterior, chains)
    stepsizes = (step_times.STEPSIZE * posterior.stepsizes(state.precisions)).astype(posterior.dtype)
    return posterior, Trajectory(state.position, state.momentum, state.precisions, stepsizes)


def kernel_name(posterior: SampledPosterior) -> str:
    """The name of the kernel that the device would run."""
    compiled = CudaBackend(uses_graphs=False).compile(posterior)
    return compiled.name if isinstance(compiled, Compiled) else compiled.reason


def whole_update(shape: str, chains: int, n_steps: int) -> float:
    """Worst difference between the energy changes of whole updates in one launch and in array code."""
    import cupy

    posterior, _ = started(shape, chains)
    state, _ = step_times.started(posterior, chains)
    random = DeviceStreams(1, cupy.arange(chains, dtype=cupy.uint64), 1)
    update = partial(hybrid, target=posterior, steps=n_steps, stepsize=step_times.STEPSIZE, window=3)
    if whole_hybrid_of(launched(posterior), posterior) is None:
        raise AssertionError(f"{shape} has no kernel of whole updates")
    changes = [
        update(state, random, advance=advance)[1].energy_change
        for advance in (launched(posterior), leapfrog.advance)
    ]
    return float(cupy.abs(changes[0] - changes[1]).max())


def ladders(shape: str, n_ladders: int, n_steps: int) -> float:
    """Worst difference between the energy changes of all levels of ladders, by kernels and by array code."""
    import cupy

    posterior = step_times.generated_posterior(shape, dtype="float32", device="gpu")
    path, operations = path_of(posterior), (Heatbath(), Hybrid(steps="auto", stepsize="auto"))
    stepsizes = tuple(step_times.STEPSIZE * factor for factor in (1.0, 0.8, 0.6, 0.4))
    settings = records.LadderSettings(
        (-1.0, 0.0, 1.0), stepsizes, (n_steps, n_steps, 2 * n_steps, 2 * n_steps)
    )
    streams = DeviceStreams(1, cupy.asarray(records.rows_of(range(n_ladders), settings.n_levels)))
    state = records.started(path.prior_draw(streams.at(iteration=0)), settings.n_levels)
    changes = []
    for advance in (launched(posterior), leapfrog.advance):
        iteration = build(path, operations, settings, n_ladders=n_ladders, advance=advance)
        changes.append(iteration(state, streams.at(iteration=1))[1].energy_change)
    return float(cupy.abs(changes[0] - changes[1]).max())


def launched(posterior: SampledPosterior) -> Advance:
    """The kernel that the device would run, without graphs."""
    compiled = CudaBackend(uses_graphs=False).compile(posterior)
    assert isinstance(compiled, Compiled), compiled.reason
    return compiled.advance


def recorded(posterior: SampledPosterior) -> Advance:
    """Products whose gradients are CUDA graphs."""
    advance = products.compile_for(posterior, recordings=Recordings())
    assert not isinstance(advance, NotCovered), advance.reason
    return advance


def graph(size: int = 64) -> float:
    """How far a product in a graph is from what it should be."""
    import cupy

    a = cupy.ones((size, size), dtype=cupy.float32)
    out = cupy.zeros_like(a)

    def compute() -> None:
        out[...] = cublas.product(a, a, uses_tf32=False) + 1

    compute()
    out.fill(0)
    cuda_graph(compute)()
    return float(cupy.abs(out - (size + 1)).max())


def checks(*, is_small: bool) -> dict[str, tuple[Callable[[], float], float]]:
    """The checks, with the largest number that is right for each."""
    chains, large = (8, "784-100-10/300") if is_small else (64, "784-100-10/1000")
    return {
        "random numbers": (streams, 1e-9),
        "a warp for each chain": (
            partial(against_array_code, "2-16-2/200", chains, 20, "a warp a chain", launched),
            FLOAT32,
        ),
        "a block for each chain": (
            partial(against_array_code, "13-50-50-1/506", chains, 5, "a block a chain", launched),
            FLOAT32,
        ),
        "whole updates": (partial(whole_update, "2-16-2/200", chains, 20), ENERGY),
        "ladders": (partial(ladders, "2-16-2/200", chains // 4, 10), ENERGY),
        "products over all chains": (
            partial(against_array_code, large, 8, 5, "products over all chains", launched),
            TF32,
        ),
        "a graph": (graph, 0.0),
        "products in graphs": (
            partial(against_array_code, large, 8, 10, "products over all chains", recorded),
            TF32,
        ),
    }


def run(check: Callable[[], float], most: float) -> dict[str, Any]:
    """The result of a check, or the error that it raised."""
    begin = time.perf_counter()
    try:
        value = check()
        result: dict[str, Any] = {"value": value, "most": most, "ok": bool(value <= most)}
    except Exception:
        result = {"error": traceback.format_exc(), "ok": False}
    return {"seconds": round(time.perf_counter() - begin, 2), **result}


def main() -> int:
    """Run all checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--small", action="store_true", help="fewer chains and cases, as for a sanitizer")
    names = list(checks(is_small=True))
    parser.add_argument("--only", nargs="+", choices=names, metavar="CHECK", help=", ".join(names))
    parser.add_argument("--without-pool", action="store_true", help="no memory pool, which hides overruns")
    parser.add_argument("--out", type=Path, help="a file that a line of JSON for each check is added to")
    arguments = parser.parse_args()
    import cupy

    if arguments.without_pool:
        cupy.cuda.set_allocator(None)
    about = conditions(device=cupy.cuda.runtime.getDeviceProperties(0)["name"].decode())
    is_ok = True
    all_checks = checks(is_small=arguments.small)
    chosen = arguments.only or list(all_checks)
    for name in chosen:
        check, most = all_checks[name]
        result = run(check, most)
        is_ok &= result["ok"]
        said = result.get("error") or f"{result['value']:.2g}, at most {most:.2g}"
        print(f"{name}: {'ok' if result['ok'] else 'FAILED'}: {said}", flush=True)
        append(arguments.out, {"benchmark": "device_smoke", "check": name, **about, **result})
    return 0 if is_ok else 1


if __name__ == "__main__":
    sys.exit(main())
