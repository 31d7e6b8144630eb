"""Prints microseconds per leapfrog step per chain for networks of the sizes in docs/benchmarks.md.

One process, one thread of BLAS; the median of repeats, with the fastest beside it to show how quiet the
machine was. Run by `make bench`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402, after the threads are set

from rayfbnn.architecture import LayerSpec, ModelSpec, NetworkSpec, PriorSpec  # noqa: E402
from rayfbnn.mcmc.leapfrog import advance  # noqa: E402
from rayfbnn.model.posterior import Posterior  # noqa: E402
from rayfbnn.streams import Purpose, Streams  # noqa: E402

# inputs, hidden layers, outputs, cases: Neal's first network, the robot arm, a wide layer, two layers
SHAPES = [(1, (8,), 1, 100), (2, (16,), 2, 200), (10, (100,), 1, 1000), (13, (50, 50), 1, 506)]
SECONDS_A_REPEAT = 0.2  # long enough that the clock's and the loop's own costs do not show


def build(shape: tuple[int, tuple[int, ...], int, int], dtype: str) -> Posterior:
    """A posterior of the shape, on made-up cases, inputs feeding the first hidden layer only."""
    n_inputs, hidden, n_outputs, n_cases = shape
    names = ["ih0", *(f"h{layer - 1}h{layer}" for layer in range(1, len(hidden)))]
    names += [f"bh{layer}" for layer in range(len(hidden))] + [f"ho{len(hidden) - 1}", "bo"]
    network = NetworkSpec(
        inputs=n_inputs,
        outputs=n_outputs,
        hidden=tuple(LayerSpec(units, "tanh") for units in hidden),
        priors={name: PriorSpec(1.0) for name in names},
    )
    streams = Streams(seed=1, chains=np.zeros(1, dtype=np.uint64))
    inputs = streams.normal(Purpose.PROPOSAL, (n_cases, n_inputs))[0]
    targets = streams.normal(Purpose.TARGET_VALUE, (n_cases, n_outputs))[0]
    return Posterior.of(network, ModelSpec("real", PriorSpec(0.3)), inputs, targets, dtype=dtype)


def microseconds(
    posterior: Posterior, *, n_chains: int, n_partitions: int, repeats: int
) -> tuple[float, float]:
    """Median and least time of a leapfrog step of one chain, n_chains advancing together."""
    streams = Streams(seed=2, chains=np.arange(n_chains, dtype=np.uint64))
    state = posterior.initial_state(streams, sigmas=0.5)
    stepsizes = (0.1 * posterior.stepsizes(state.precisions)).astype(posterior.dtype)
    order = streams.permutation(n_partitions, Purpose.PARTITION_ORDER) if n_partitions > 1 else None

    def steps(n_steps: int) -> None:
        advance(
            posterior,
            state.position,
            state.momentum,
            state.precisions,
            stepsizes,
            n_steps=n_steps,
            order=order,
        )

    seconds(steps, 2)  # the first call allocates
    n_steps = max(2, int(SECONDS_A_REPEAT / (seconds(steps, 20) / 20)))
    times = [seconds(steps, n_steps) / n_steps / n_chains * 1e6 for _ in range(repeats)]
    return statistics.median(times), min(times)


def seconds(steps: Callable[[int], None], n_steps: int) -> float:
    start = time.perf_counter()
    steps(n_steps)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chains", type=int, default=8, help="chains advanced together")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--partitions", type=int, nargs="+", default=[1, 4])
    arguments = parser.parse_args()
    print(f"microseconds per leapfrog step per chain, {arguments.chains} chains together, one core, CPU")
    print(f"median (least) of {arguments.repeats} repeats; plain code, NumPy {np.__version__}\n")
    print("| network / cases | dtype | " + " | ".join(f"K = {k}" for k in arguments.partitions) + " |")
    print("|---|---|" + "---|" * len(arguments.partitions))
    for shape in SHAPES:
        for dtype in ("float32", "float64"):
            posterior = build(shape, dtype)
            cells = []
            for n_partitions in arguments.partitions:
                median, least = microseconds(
                    posterior,
                    n_chains=arguments.chains,
                    n_partitions=n_partitions,
                    repeats=arguments.repeats,
                )
                cells.append(f"{median:.1f} ({least:.1f})")
            name = f"{shape[0]}-{'-'.join(map(str, shape[1]))}-{shape[2]} / {shape[3]}"
            print(f"| {name} | {dtype} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
