"""The joint test of ladders: exact draws of the data and of every level stay exact.

The state at the top and the data are drawn from their joint distribution. The states below the top are drawn
by rejection from their levels given these data. Every ladder has data of its own. After any number of
iterations the data and the state at the top must still have their joint distribution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.kernels import choose
from rayfbnn.mcmc.ladder.iteration import build
from rayfbnn.mcmc.ladder.records import LadderSettings, started
from rayfbnn.mcmc.operation import Operation
from rayfbnn.mcmc.operations import Heatbath, Hybrid, HybridMarginal, Rescale, SampleSigmas
from rayfbnn.model.architecture import ModelSpec
from rayfbnn.model.ladder_path import path_of
from rayfbnn.model.prior import noise_precisions
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.selftest.pivots import joint_p_values
from rayfbnn.state import ChainState
from rayfbnn.streams import Purpose, Streams
from tests.support.joint import Problem, exact_start, noise
from tests.support.model.chain_streams import streams_on_array

N_ITERATIONS = 5  # odd, so that the last one tries to exchange with the top
_MOST_ROUNDS = 1000
_AT_ONCE = 4000  # proposals
_STEPS = 3
# Outputs and noise without far tails, because levels far from the data of a ladder have no exact draws.
_PRIORS = {"ih0": "1:4", "bh0": "0.7:4", "ho0": "x1:10", "io": "0.4", "bo": "0.5"}
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
    return Problem(n_targets, n_targets, _PRIORS, model, n_cases=3)


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
        copies = max(1, _AT_ONCE // len(pending))
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
