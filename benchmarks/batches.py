"""Microseconds a step of sghmc and bbb on batches, beside a leapfrog step of as many cases and beside JAX.

    make peers                                 # once: the environment with JAX
    python benchmarks/batches.py         # or make bench-batches

All are timed in turns, in one run on one core; medians of the processor's time, to which other programs add
little. The leapfrog steps are those of a posterior with as many cases as a batch has, so that they have
neither random numbers nor a choice of cases. A step of bbb has two draws, one the mirror image of the other,
and so two gradients: its time and ratio are for each gradient. Times are for each chain, or start. JAX has
all steps in one compiled function, with its own permutations and normal numbers, and Adam for bbb; the better
of one chain and of all is taken.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402, after the threads are set
from machine import PEERS, append, conditions, heading, peers_python, pin  # noqa: E402
from steps import Jax, layers_of  # noqa: E402

from rayfbnn.approximate.variational import Variational  # noqa: E402
from rayfbnn.kernels import choose  # noqa: E402
from rayfbnn.mcmc.sghmc import sghmc  # noqa: E402
from rayfbnn.model.approximated_posterior import ApproximatedPosterior  # noqa: E402
from rayfbnn.state import ChainState, Trajectory  # noqa: E402
from rayfbnn.streams import Streams  # noqa: E402
from rayfbnn.timing import steps as step_times  # noqa: E402
from rayfbnn.timing.steps import generated_posterior  # noqa: E402

SHAPES = {"2-16-2/200": (50, 100, 200), "784-100-10/5000": (100, 500)}
CHAINS = 8
Run = Callable[[int], float]
"""Seconds of so many steps of all chains."""


def posterior_of(shape: str) -> ApproximatedPosterior:
    made = generated_posterior(shape)
    cases = made.inputs[:-1].T.astype(np.float64), made.targets.T
    return ApproximatedPosterior.from_spec(made.network, made.model, *cases, dtype=made.dtype)


def seconds_of(function: Callable[[], Any]) -> float:
    started = time.process_time()
    function()
    return time.process_time() - started


def leapfrog(shape: str, n_cases: int) -> Run:
    posterior = posterior_of(f"{shape.partition('/')[0]}/{n_cases}")
    advance, _ = choose.advance_for(posterior)
    state, _ = step_times.started(posterior, CHAINS)
    start = Trajectory(state.position, state.momentum, state.precisions, stepsizes(posterior, state))
    # n_steps steps have n_steps + 1 gradients
    return lambda n: seconds_of(lambda: advance(posterior, start, n_steps=max(n - 1, 1)))


def stepsizes(posterior: ApproximatedPosterior, state: ChainState) -> Any:
    return (step_times.STEPSIZE * posterior.stepsizes(state.precisions)).astype(posterior.dtype)


def streams_of() -> Streams:
    return choose.streams_class("cpu")(1, np.arange(CHAINS, dtype=np.uint64), iteration=1)


def with_friction(posterior: ApproximatedPosterior, batch: int | None) -> Run:
    advance, _ = choose.advance_for(posterior)
    state, _ = step_times.started(posterior, CHAINS)
    streams = streams_of()

    def run(n: int) -> float:
        return seconds_of(
            lambda: sghmc(
                state, streams, target=posterior, advance=advance, steps=n, stepsize=0.1, batch=batch
            )
        )

    return run


def backprop(posterior: ApproximatedPosterior, batch: int | None) -> Run:
    advance, _ = choose.advance_for(posterior)
    fit = Variational(batch=batch, precisions="fixed", rate=1e-3).build(posterior, lambda: advance)
    assert fit.compiled is not None
    streams = streams_of()
    initial = fit.initial(streams.at(iteration=0))

    def run(n: int) -> float:
        def steps() -> None:
            state, done = initial, 0
            while done < n:
                state, objectives = fit.steps(state, streams.at(iteration=done + 1), n - done)
                done += len(objectives)

        return seconds_of(steps)

    return run


def jax_run(jax: Jax, method: str, chains: int, batch: int) -> Run:
    def run(n: int) -> float:
        answer = jax.ask(do="time", method=method, chains=chains, batch=batch, steps=n)
        return float(answer["seconds"])

    return run


def medians(
    contestants: dict[str, tuple[Run, int]], *, n_batches: int, repeats: int, seconds: float
) -> dict[str, float]:
    """Median microseconds a step and chain of each contestant, given with its number of chains.

    All take whole passes of n_batches steps, which have one permutation of the cases each.
    """
    steps = {}
    for name, (run, _) in contestants.items():
        run(n_batches)
        steps[name] = n_batches * max(1, min(4000, int(seconds / run(n_batches))))
        run(steps[name])  # JAX compiles for each length
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, (run, chains) in contestants.items():
            times[name].append(1e6 * run(steps[name]) / steps[name] / chains)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("shapes", nargs="*", default=list(SHAPES), help=", ".join(SHAPES))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="for each of the repeats")
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)), help="that all run on")
    parser.add_argument("--peers", type=Path, default=PEERS, help="the interpreter with JAX")
    parser.add_argument("--out", type=Path, help="a file that a line of JSON for each row is added to")
    given = parser.parse_args()
    python = peers_python(given.peers)
    about = conditions(chains=CHAINS)
    pin(given.core)
    print(heading(about) + "\n")
    print("| network, cases | batch | leapfrog | sghmc | ratio | JAX | bbb, a gradient | ratio | JAX |")
    print("|---|---|---|---|---|---|---|---|---|")
    jax = Jax(python, "peers/jax_batches.py")
    for shape in given.shapes:
        posterior = posterior_of(shape)
        with tempfile.TemporaryDirectory() as folder:
            send(jax, posterior, Path(folder))
        for batch in SHAPES[shape]:
            size = None if batch == posterior.n_cases else batch
            contestants = {
                "leapfrog": (leapfrog(shape, batch), CHAINS),
                "sghmc": (with_friction(posterior, size), CHAINS),
                "bbb": (backprop(posterior, size), 2 * CHAINS),
                **{
                    f"jax {method} {chains}": (jax_run(jax, method, chains, batch), of_step * chains)
                    for method, of_step in (("sghmc", 1), ("bbb", 2))
                    for chains in (1, CHAINS)
                },
            }
            found = medians(
                contestants,
                n_batches=posterior.n_cases // batch,
                repeats=given.repeats,
                seconds=given.seconds,
            )
            best = {
                method: min(found[f"jax {method} {n}"] for n in (1, CHAINS)) for method in ("sghmc", "bbb")
            }
            append(given.out, {"benchmark": "batches", **about, "shape": shape, "batch": batch, **found})
            cells = [shape, "all" if size is None else str(batch), f"{found['leapfrog']:.3g}"]
            for method in ("sghmc", "bbb"):
                cells += [
                    f"{found[method]:.3g}",
                    f"{found[method] / found['leapfrog']:.2f}",
                    f"{best[method]:.3g}",
                ]
            print("| " + " | ".join(cells) + " |", flush=True)
    jax.close()


def send(jax: Jax, posterior: ApproximatedPosterior, folder: Path) -> None:
    """Send the cases, a start, and the precisions."""
    state, _ = step_times.started(posterior, CHAINS)
    np.savez(
        folder / "problem.npz",
        inputs=posterior.inputs[:-1].T,
        targets=posterior.targets.T.astype(posterior.dtype),
        noise=np.asarray(0.3**-2, dtype=posterior.dtype),
        prior=np.ones(posterior.n_parameters, dtype=posterior.dtype),
        position=state.position,
        momentum=state.momentum,
        stepsizes=stepsizes(posterior, state),
    )
    jax.ask(do="load", path=str(folder / "problem.npz"), layers=layers_of(posterior))


if __name__ == "__main__":
    main()
