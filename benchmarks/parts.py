"""Processor time of a step whose cases are divided into parts in one process, against cases in one whole.

    python benchmarks/parts.py
    python benchmarks/parts.py --cases 20000 --parts 8

The network has 10 inputs, 100 tanh units and one output, for 8 chains in float32. A step is a multi-leap
of partial gradients or one with the full gradient; the best of three trajectories of 20 steps is taken, with
the energies at their ends.
"""

from __future__ import annotations

import argparse
import os
import time

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402, after the threads are set

from rayfbnn.kernels import choose  # noqa: E402
from rayfbnn.mcmc.leapfrog import drawn_order  # noqa: E402
from rayfbnn.model.architecture import LayerSpec, ModelSpec, NetworkSpec, PriorSpec  # noqa: E402
from rayfbnn.model.sampled import SampledPosterior  # noqa: E402
from rayfbnn.ring.shared_posterior import RingAdvance  # noqa: E402
from rayfbnn.run.in_parts import divided  # noqa: E402
from rayfbnn.state import Advance, Target, Trajectory  # noqa: E402
from rayfbnn.streams import Purpose, Streams  # noqa: E402

N_STEPS, N_CHAINS = 20, 8
PRIORS = {"ih0": "0.5:4", "bh0": "0.5", "ho0": "x0.5", "bo": "1"}


def posterior(n_cases: int) -> SampledPosterior:
    """The posterior given cases of a smooth function."""
    inputs = Streams(1, np.arange(n_cases, dtype=np.uint64)).normal(Purpose.PROPOSAL, (10,))
    priors = {
        name: PriorSpec.parse(text, key=name, two_levels=name[0] == "b") for name, text in PRIORS.items()
    }
    network = NetworkSpec(10, 1, (LayerSpec(100, "tanh"),), priors)
    model = ModelSpec("real", PriorSpec.parse("0.3:4", key="noise"))
    return SampledPosterior.from_spec(network, model, inputs, np.sin(inputs[:, :1]), dtype="float32")


def milliseconds(advance: Advance, target: Target, start: Trajectory, order: np.ndarray | None) -> float:
    """Processor time of one step."""
    advance(target, start, n_steps=1, order=order)
    times = []
    for _ in range(3):
        before = time.process_time()
        advance(target, start, n_steps=N_STEPS, order=order)
        times.append(time.process_time() - before)
    return 1e3 * min(times) / N_STEPS


def main() -> None:
    """Print a row for each number of cases."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, nargs="+", default=[2_000, 20_000, 100_000])
    parser.add_argument("--parts", type=int, default=4)
    asked = parser.parse_args()
    print("| cases | partial gradients: whole, parts | full gradients: whole, parts |\n|---|---|---|")
    for n_cases in asked.cases:
        whole = posterior(n_cases)
        shared, _ = divided(whole, asked.parts)
        streams = Streams(1, np.arange(N_CHAINS, dtype=np.uint64))
        state = whole.initial_state(streams, sigmas=0.5)
        stepsizes = 0.01 * whole.stepsizes(state.precisions)
        start = Trajectory(state.position, state.momentum, state.precisions, stepsizes)
        columns = [f"{n_cases:,}"]
        for order in (drawn_order(streams, asked.parts, "cyclic"), None):
            alone = milliseconds(choose.advance_for(whole)[0], whole, start, order)
            columns.append(f"{alone:.1f}, {milliseconds(RingAdvance(), shared, start, order):.1f}")
        print(f"| {' | '.join(columns)} |", flush=True)


if __name__ == "__main__":
    main()
