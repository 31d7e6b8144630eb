"""The test that a cell keeps the joint distribution: exact draws, the cell's iterations, and the verdict."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.mcmc import leapfrog, schedule
from rayfbnn.model import sampled
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.ring.shared_posterior import RingAdvance
from rayfbnn.run.in_parts import divided
from rayfbnn.selftest.pivots import is_exact, joint_p_values
from rayfbnn.state import Advance, ChainState
from rayfbnn.streams import Purpose, Streams
from tests.correctness.cells import ARCHITECTURES, DATA, N_CASES, Cell
from tests.support.problems import chain_streams


def posterior_of(cell: Cell, module: ModuleType = sampled) -> SampledPosterior:
    """The cell's posterior of the class in `module`, on fixed inputs, with targets still to be drawn."""
    n_inputs = ARCHITECTURES[cell.architecture].n_inputs
    inputs = Streams(5, np.arange(N_CASES, dtype=np.uint64)).normal(Purpose.PROPOSAL, (n_inputs,))
    data = DATA[cell.data]
    posterior: SampledPosterior = module.SampledPosterior.from_spec(
        cell.network(), data.model, inputs, np.ones((N_CASES, data.n_targets))
    )
    return posterior


def exact_start(target: SampledPosterior, cell: Cell, streams: Streams) -> tuple[ChainState, Array]:
    """State and data (n_chains, n_cases, n_targets) from the joint distribution, with data as observed."""
    state = target.initial_state(streams, sigmas=None)
    return state, DATA[cell.data].observe(target.sample_targets(state.position, state.precisions, streams))


@dataclass(frozen=True)
class Found:
    """The p-values of one look, one for each statistic, and how many updates were accepted."""

    p_values: dict[str, float]
    acceptance: float


def look(
    cell: Cell,
    *,
    seed: int,
    n_chains: int,
    n_iterations: int = 5,
    with_new_data: bool = False,
    posterior: ModuleType = sampled,
    schedule: ModuleType = schedule,
) -> Found:
    """Return p-values after the cell's iterations from exact draws, on `posterior`'s class and `schedule`.

    with_new_data  draws data again after each iteration but the last, given the parameters (Geweke, 2004).
                   This sees errors that accumulate, but not a sampler that ignores the data
    Starts, data and statistics are the package's, also if the sampler is a mutant.
    """
    streams = chain_streams(seed, n_chains)
    target = posterior_of(cell)
    state, data = exact_start(target, cell, streams)
    accepted = []
    for number in range(1, n_iterations + 1):
        if number == 1 or with_new_data:
            sampled = posterior_of(cell, posterior).with_targets(data)
            advance: Advance = leapfrog.advance
            if cell.n_parts > 1:
                sampled, advance = divided(sampled, cell.n_parts)[0], RingAdvance()
            iteration = schedule.build_iteration(
                cell.iteration(), target=sampled, updates=sampled.updates, advance=advance
            )
        state, info = iteration(state, streams.at(iteration=number))
        accepted.append(info.accepted.mean())
        if with_new_data and number < n_iterations:
            drawn = target.sample_targets(state.position, state.precisions, streams.at(iteration=number))
            data = DATA[cell.data].observe(drawn)
    other = replace(streams, chains=streams.chains + np.uint64(2**31))
    values = joint_p_values(target, (state, data), exact_start(target, cell, other), streams)
    return Found(values, float(np.mean(accepted)))


@dataclass(frozen=True)
class Verdict:
    """The verdict on a cell, Bonferroni's p-value of its first look, and the number of statistics.

    looks  how many looks were needed, each with new chains, four times as many from the second on
    """

    is_exact: bool
    p_value: float
    n_statistics: int
    acceptance: float
    looks: int


def judged(cell: Cell, *, n_chains: int, name: str = "", **options: Any) -> Verdict:
    """Apply the sequential test at level 1e-5 to everything that a cell must keep.

    `name` chooses the seed.
    """
    looks: list[Found] = []

    def p_values(seed: int, n: int) -> list[float]:
        looks.append(look(cell, seed=seed, n_chains=n, **options))
        return list(looks[-1].p_values.values())

    verdict = is_exact(p_values, name=f"cell {cell}{name}", n_chains=n_chains)
    first = looks[0]
    n = len(first.p_values)
    smallest = min(first.p_values.values())
    return Verdict(verdict, min(1.0, n * smallest), n, first.acceptance, len(looks))
