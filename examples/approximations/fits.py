"""Fits approximate posteriors from Python, and compares each with a store whose draws count as exact.

    python fits.py out/hmc.zarr --data test.csv --methods laplace,bbb,vep

The methods are

    laplace   MacKay's Gaussian approximation at the start of greatest evidence, linear about the mode
    committee the three starts of greatest evidence in equal shares
    sampled   the same draws, with the outputs of their own networks
    map       the mode alone
    bbb       Bayes by Backprop, the start of the greatest bound
    vep, adf  expectation propagation with sites, and one pass without

It prints the table of `rayfbnn compare`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from rayfbnn.approximate.laplace import Laplace, LaplaceSettings, member_weights
from rayfbnn.approximate.propagation import Propagation, PropagationSettings
from rayfbnn.approximate.variational import Variational, VariationalSettings
from rayfbnn.arrays import Array
from rayfbnn.data import read_cases
from rayfbnn.model.approximation.posterior import ApproximatedPosterior
from rayfbnn.reduce.comparing.answers import Answers, answers, answers_of, merged
from rayfbnn.reduce.comparing.comparison import Compared, averages
from rayfbnn.reduce.comparing.distances import distances
from rayfbnn.reduce.comparing.halves import halves
from rayfbnn.reduce.comparing.scores import scores
from rayfbnn.reduce.comparing.table import Comparison
from rayfbnn.store.store import Store
from rayfbnn.streams import Streams

DRAWS = 2000
MEMORY_BYTES = 64e6
AT_ONCE = 200  # draws
PIECE = 100  # cases whose outputs of all draws are in memory at once


@dataclass(frozen=True)
class Fit:
    """Draws of the chosen starts of a fit, what it took, and an estimate or a bound of the log evidence.

    positions (n_chosen, n_draws, n_parameters), precisions (n_chosen, n_draws, n_precisions); modes
    (n_chosen, n_parameters) if outputs are linear about them.
    """

    positions: Array
    precisions: Array
    log_evidence: float
    seconds: float
    gradients: int
    modes: Array | None = None


Method = Callable[[ApproximatedPosterior, int, int], Fit]


def streams_of(seed: int, n_starts: int) -> Streams:
    """Return the random numbers of a fit."""
    return Streams(seed, np.arange(n_starts, dtype=np.uint64))


def laplace(
    posterior: ApproximatedPosterior, seed: int, starts: int, *, kind: str = "linear", members: int = 1
) -> Fit:
    """Fit Gaussian approximations, and take the starts of greatest evidence that are modes."""
    begin = time.perf_counter()
    random = streams_of(seed, starts)
    is_fixed = not posterior.precision_layout.is_free.any()
    settings = LaplaceSettings(precisions="fixed" if is_fixed else "evidence")
    method = Laplace(posterior, settings)
    state, number = method.initial(random), 0
    while not method.is_complete(state) and number < settings.steps:
        number += 1
        state, _ = method.step(state, random.at(iteration=number))
    modes = method.modes(state)
    chosen = np.flatnonzero(member_weights(modes, members))
    positions, precisions, _ = method.draws(state, random, DRAWS)
    log_evidence = float(modes.log_evidence[chosen].max())
    n_gradients = starts * (settings.first + (number - 1) * settings.between)  # each with a curvature
    if kind == "mode":
        positions, precisions = modes.mode[:, None], modes.precisions[:, None]
    seconds = time.perf_counter() - begin
    linear = modes.mode[chosen] if kind == "linear" else None
    return Fit(positions[chosen], precisions[chosen], log_evidence, seconds, n_gradients, linear)


def bbb(
    posterior: ApproximatedPosterior, seed: int, starts: int, *, steps: int = 4000, rate: float = 0.02
) -> Fit:
    """Fit by Bayes by Backprop, and take the start of the greatest bound."""
    begin = time.perf_counter()
    random = streams_of(seed, starts)
    is_fixed = not posterior.precision_layout.is_free.any()
    settings = VariationalSettings(
        steps=steps, samples=8, rate=rate, initial_sd=0.127, precisions="fixed" if is_fixed else "expected"
    )
    method = Variational(posterior, settings)
    state = method.initial(random)
    for number in range(1, steps + 1):
        state, _ = method.step(state, random.at(iteration=number))
    bound, _ = method.bound(state, Streams(seed, np.zeros(starts, dtype=np.uint64)))
    best = [int(bound.argmax())]
    positions, precisions, _ = method.draws(state, random, DRAWS)
    seconds = time.perf_counter() - begin
    return Fit(
        positions[best], precisions[best], float(bound.max()), seconds, starts * steps * settings.samples
    )


def vep(
    posterior: ApproximatedPosterior, seed: int, starts: int, *, sweeps: int = 60, mode: str = "sites"
) -> Fit:
    """Fit by expectation propagation, whose starts hardly differ, from one of them."""
    begin = time.perf_counter()
    random = streams_of(seed, 1)
    is_fixed = not posterior.precision_layout.is_free.any()
    settings = PropagationSettings(
        sweeps=sweeps, mode=mode, spread=0.5, precisions="fixed" if is_fixed else "expected"
    )
    method = Propagation(posterior, settings)
    state, number = method.initial(random), 0
    while not method.is_complete(state) and number < sweeps:
        number += 1
        state, _ = method.step(state, random.at(iteration=number))
    positions, precisions, _ = method.draws(state, random, DRAWS)
    log_evidence = float(method.log_evidence(state)[0]) if mode == "sites" else float("nan")
    return Fit(positions[:1], precisions[:1], log_evidence, time.perf_counter() - begin, number)


METHODS: dict[str, Method] = {
    "laplace": laplace,
    "committee": partial(laplace, members=3),
    "sampled": partial(laplace, kind="sampled"),
    "map": partial(laplace, kind="mode"),
    "bbb": bbb,
    "vep": vep,
    "adf": partial(vep, sweeps=1, mode="adf"),
}


def said_by(
    fit: Fit, posterior: ApproximatedPosterior, store: Store, inputs: Array, targets: Array
) -> Answers:
    """Return the answers of a fit at test cases as on file."""
    standardized = (inputs - store.data.input_center) / store.data.input_scale

    def blocks() -> Iterator[tuple[Array, Array]]:
        for first in range(0, fit.positions.shape[1], AT_ONCE):
            some = slice(first, first + AT_ONCE)
            for member, (positions, precisions) in enumerate(zip(fit.positions, fit.precisions, strict=True)):
                if fit.modes is None:
                    outputs = posterior.outputs(np.ascontiguousarray(positions[some]), standardized)[None]
                else:
                    mode = fit.modes[member : member + 1]
                    outputs = posterior.linear_outputs(mode, positions[None, some], standardized)
                yield outputs, precisions[None, some]

    return answers_of(store, blocks(), targets)


def compare(
    store: Store, fits: dict[str, Fit], posterior: ApproximatedPosterior, cases: tuple[Array, Array]
) -> Comparison:
    """Return the table of fits beside a store, whose halves are the last row."""
    scored: dict[str, list[dict[str, Array]]] = {}
    distant: dict[str, list[dict[str, Array]]] = {}
    for first in range(0, len(cases[0]), PIECE):
        inputs, targets = (part[first : first + PIECE] for part in cases)
        one, other = (answers(half, inputs, targets, memory_bytes=MEMORY_BYTES) for half in halves(store))
        exact = merged(one, other)
        said = {"hmc": (exact, exact), "halves of hmc": (one, other)}
        said |= {name: (said_by(fit, posterior, store, inputs, targets), exact) for name, fit in fits.items()}
        for name, (answer, reference) in said.items():
            scored.setdefault(name, []).append(scores(store, answer, targets))
            distant.setdefault(name, []).append(distances(answer, reference))

    def joined(pieces: list[dict[str, Array]]) -> dict[str, Array]:
        return {key: np.concatenate([piece[key] for piece in pieces]) for key in pieces[0]}

    exact_scores = joined(scored["hmc"])
    rows = {}
    for name in ("hmc", *fits, "halves of hmc"):
        values = averages(joined(scored[name]), joined(distant[name]), exact_scores)
        if name in fits:
            fit = fits[name]
            values |= {"log_evidence": fit.log_evidence, "seconds": fit.seconds, "gradients": fit.gradients}
        rows[name] = Compared(values)
    return Comparison("hmc", rows)


def main(arguments: list[str] | None = None) -> Comparison:
    """Fit, compare and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("exact", type=Path, help="the store of exact draws, whose configuration is fitted")
    parser.add_argument("--data", type=Path, required=True, help="the test cases with their targets")
    parser.add_argument("--methods", default="laplace,sampled,map,bbb,vep,adf")
    parser.add_argument("--starts", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    store = Store.open(options.exact)
    inputs, targets = read_cases(options.data, store.spec)
    data, spec = store.data, store.spec
    posterior = ApproximatedPosterior.from_spec(
        spec.network, spec.model, data.standardized_inputs, data.standardized_targets, dtype="float64"
    )
    fits = {
        name: METHODS[name](posterior, options.seed, options.starts) for name in options.methods.split(",")
    }
    comparison = compare(store, fits, posterior, (inputs, targets))
    print(comparison.to_text())
    return comparison


if __name__ == "__main__":
    main()
