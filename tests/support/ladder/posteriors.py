"""Posteriors of small tables for ladders, and joint tests of ladders."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.kernels import choose
from rayfbnn.mcmc.ladder.iteration import build
from rayfbnn.mcmc.ladder.records import LadderSettings, started
from rayfbnn.mcmc.operation import Operation
from rayfbnn.mcmc.operations import Heatbath, Hybrid, HybridMarginal, Rescale, SampleSigmas
from rayfbnn.model.architecture import LayerSpec, ModelSpec, NetworkSpec, PriorSpec
from rayfbnn.model.ladder_path import path_of
from rayfbnn.model.prior import noise_precisions
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.selftest.pivots import joint_p_values
from rayfbnn.state import ChainState
from rayfbnn.streams import Purpose, Streams
from tests.support.joint import Problem, exact_start, noise
from tests.support.problems import parse, streams_on_array

TABLES = Path(__file__).parents[2] / "data/tables"
_PRIORS = {"ih0": "0.35:4:4", "bh0": "1:4", "ho0": "x4:4", "io": "0.71:2:4", "bo": "1"}  # the default ones
_PROBE = np.array([[-1.0, 0.3], [0.2, -0.5]])  # inputs of outputs that are compared
_AT_ONCE = 50_000


def posterior_of(
    table: str,
    kind: Literal["real", "binary"] = "real",
    *,
    noise: str = "1:10",
    n_targets: int = 1,
    xp: Any = np,
) -> SampledPosterior:
    """Return the posterior of three tanh units given a table, or given the signs of its targets.

    n_targets  the second of two targets is the first in the opposite order of cases
    """
    rows = np.loadtxt(TABLES / table, delimiter=",", skiprows=1)
    columns = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    inputs, targets = columns[:, :2], columns[:, 2:]
    if n_targets == 2:
        targets = np.hstack([targets, targets[::-1]])
    if kind == "binary":
        model, targets = ModelSpec("binary"), (targets > 0).astype(float)
    else:
        model = ModelSpec("real", PriorSpec.parse(noise, key="noise"))
    network = NetworkSpec(2, n_targets, (LayerSpec(3, "tanh"),), parse(_PRIORS))
    return SampledPosterior.from_spec(network, model, inputs, targets, xp=xp)


def quantities(posterior: SampledPosterior, position: Array, precisions: Array) -> Array:
    """Return the log sigmas of weights and noise, and outputs at two inputs, (n_rows, n_quantities)."""
    is_free = np.asarray(posterior.precision_layout.is_free)
    outputs = posterior.outputs(position, _PROBE).reshape(len(position), -1)
    return np.concatenate([-0.5 * np.log(precisions[:, is_free]), outputs], axis=1)


@dataclass(frozen=True)
class Weighted:
    """Means of quantities with their standard errors, and the log of the mean weight with its error."""

    means: Array
    errors: Array
    log_evidence: float
    error_of_evidence: float


def weighted(posterior: SampledPosterior, n: int, *, seed: int) -> Weighted:
    """Return what importance sampling from the prior gives, with the noise integrated out or proposed."""
    path = path_of(posterior)
    parts = []
    for first in range(0, n, _AT_ONCE):
        streams: Streams = streams_on_array(seed, np.arange(first, first + _AT_ONCE, dtype=np.uint64))
        drawn = path.prior_draw(streams.at(iteration=0))
        everywhere = np.ones(_AT_ONCE, dtype=bool)
        state, energies = path.offered(drawn, streams.at(iteration=1), is_below=everywhere)
        log_weights = -energies.at(np.full(_AT_ONCE, path.ends.top))
        parts.append((log_weights, quantities(posterior, state.position, state.precisions)))
    logs, values = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    largest = logs.max()
    weights = np.exp(logs - largest)
    shares = weights / weights.sum()
    means = shares @ values
    errors = np.sqrt(shares**2 @ (values - means) ** 2)
    relative = weights.std() / weights.mean() / np.sqrt(len(weights))
    return Weighted(means, errors, float(largest + np.log(weights.mean())), float(relative))


N_ITERATIONS = 5  # odd, so that the last one tries to exchange with the top
_MOST_ROUNDS = 1000
_JOINT_AT_ONCE = 4000  # proposals
_STEPS = 3
# Outputs and noise without far tails, because levels far from the data of a ladder have no exact draws.
_PRIORS_JOINT = {"ih0": "1:4", "bh0": "0.7:4", "ho0": "x1:10", "io": "0.4", "bo": "0.5"}
_MARGINAL = (
    SampleSigmas(),
    Rescale(along="incoming", stepsize=0.5),
    Heatbath(),
    HybridMarginal(over=("outputs", "precisions"), steps="auto", stepsize="auto", stepsize_jitter=-0.2),
)
_HYBRID = (SampleSigmas(), Heatbath(), Hybrid(steps=_STEPS, stepsize="auto", window=2))


@dataclass(frozen=True)
class LadderProblem:
    """A small posterior and the two levels below it."""

    problem: Problem
    levels: tuple[float, float]
    operations: tuple[Operation, ...]
    multipliers: tuple[float, ...] = ()


def _few(n_targets: int, model: ModelSpec) -> Problem:
    """Return a problem with so few cases that levels near the top still have exact draws."""
    return Problem(n_targets, n_targets, _PRIORS_JOINT, model, n_cases=3)


_POWERS = (math.log(0.2), math.log(0.6))
PROBLEMS = {
    "noise": LadderProblem(_few(1, ModelSpec("real", noise=noise("0.8:12"))), (-2.2, -1.2), _MARGINAL),
    "noise of each target": LadderProblem(
        _few(2, ModelSpec("real", noise=noise("0.8::12"))), (-2.5, -1.5), _MARGINAL, (0.5, 2.0)
    ),
    "fixed noise": LadderProblem(_few(1, ModelSpec("real", noise=noise("0.8"))), (-2.2, -1.2), _HYBRID),
    "powers": LadderProblem(_few(2, ModelSpec("binary")), _POWERS, _HYBRID),
    "t noise": LadderProblem(_few(1, ModelSpec("real", noise=noise("0.8:12::8"))), (-2.2, -1.2), _MARGINAL),
    "t noise of each target": LadderProblem(
        _few(2, ModelSpec("real", noise=noise("0.8::12:8"))), (-3.5, -2.3), _HYBRID, (0.5, 2.0)
    ),
    "noise with two levels": LadderProblem(
        _few(2, ModelSpec("real", noise=noise("0.8:10:24"))), (-3.5, -2.2), _MARGINAL, (0.5, 2.0)
    ),
    "powers with t noise": LadderProblem(
        _few(1, ModelSpec("real", noise=noise("0.8:24:24:16"))), _POWERS, _HYBRID
    ),
}


def p_values(name: str, *, seed: int, n_ladders: int) -> list[float]:
    """Return the p-values of the top after the iterations."""
    ladder = PROBLEMS[name]
    target = ladder.problem.posterior()
    streams = streams_on_array(seed, np.arange(3 * n_ladders, dtype=np.uint64))
    chain, data = exact_start(target, streams)  # rows of the top keep these states
    top = np.arange(2, 3 * n_ladders, 3)
    shared = np.repeat(data[top], 3, axis=0)
    posterior = target.with_targets(shared)
    path = path_of(posterior).with_multipliers(ladder.multipliers)
    x = np.tile([*ladder.levels, path.ends.top], n_ladders)
    for level in (0, 1):
        chain = _with_level(posterior, ladder, chain, shared, level, seed)
    chain = path.placed(chain, x)
    settings = LadderSettings(ladder.levels, (0.8, 0.8, 0.8), (_STEPS,) * 3, multipliers=ladder.multipliers)
    advance, _ = choose.advance_for(target)
    iteration = build(path, ladder.operations, settings, n_ladders=n_ladders, advance=advance)
    state = started(chain, 3)
    for number in range(1, N_ITERATIONS + 1):
        state, _ = iteration(state, streams.at(iteration=number))
    after = ChainState(state.chain.position[top], state.chain.momentum[top], state.chain.precisions[top])
    other = replace(streams, chains=streams.chains[:n_ladders] + np.uint64(2**31))
    values = joint_p_values(
        target, (after, data[top]), exact_start(target, other), replace(streams, chains=streams.chains[top])
    )
    return list(values.values())


def _with_level(
    posterior: SampledPosterior, ladder: LadderProblem, chain: ChainState, data: Array, level: int, seed: int
) -> ChainState:
    """Return the chain with the rows of a level below the top drawn from it, by rejection from the prior."""
    position, precisions = chain.position.copy(), chain.precisions.copy()
    pending = np.arange(level, len(position), 3)
    for attempt in range(1, _MOST_ROUNDS):
        if len(pending) == 0:
            return ChainState(position, chain.momentum, precisions)
        copies = max(1, _JOINT_AT_ONCE // len(pending))
        rows = np.repeat(pending, copies)
        random = streams_on_array(
            seed ^ (2 * attempt + level) << 16, np.arange(2**30, 2**30 + len(rows), dtype=np.uint64)
        )
        drawn_position, drawn_precisions, log_probability = _proposal(
            posterior.with_targets(data[rows]), ladder, random, ladder.levels[level]
        )
        is_accepted = np.log(random.uniform(Purpose.REJECTION_ACCEPT)) < log_probability
        by_row = is_accepted.reshape(-1, copies)
        chosen = copies * np.arange(len(pending)) + by_row.argmax(axis=1)  # the first that is accepted
        accepted = by_row.any(axis=1)
        position[pending[accepted]] = drawn_position[chosen[accepted]]
        precisions[pending[accepted]] = drawn_precisions[chosen[accepted]]
        pending = pending[~accepted]
    raise AssertionError(f"{len(pending)} rows without an exact draw")


def _proposal(
    posterior: SampledPosterior, ladder: LadderProblem, streams: Streams, x: float
) -> tuple[Array, Array, Array]:
    """Draw from the prior; return positions, precisions, and the logs of probabilities to accept them."""
    if path_of(posterior).ends.kind == "powers":
        return posterior.tempered(math.exp(x)).rejection_proposal(streams)
    drawn = posterior.initial_state(streams, sigmas=None)
    path = path_of(posterior).with_multipliers(ladder.multipliers)
    held = noise_precisions(
        path.placed(drawn, np.full(len(drawn.position), x)).precisions, posterior.precision_layout
    )
    # No term is positive.
    terms, _ = posterior.data_model.terms_and_gradient(
        posterior.training_outputs(drawn.position), posterior.targets, held
    )
    return drawn.position, drawn.precisions, terms.sum(axis=(1, 2))
