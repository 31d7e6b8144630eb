"""Whether a cell keeps the joint distribution: exact draws, the cell's iterations, and the verdict."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.mcmc import schedule
from rayfbnn.model import sampled
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.selftest.pivots import joint_p_values
from rayfbnn.state import ChainState
from rayfbnn.streams import Purpose, Streams
from tests.correctness.cells import ARCHITECTURES, DATA, N_CASES, Cell
from tests.support.exactness import is_exact


def posterior_of(cell: Cell, module: ModuleType = sampled) -> SampledPosterior:
    """The cell's posterior on fixed inputs, its targets still to be drawn; of `module`'s class."""
    n_inputs = ARCHITECTURES[cell.architecture].n_inputs
    inputs = Streams(5, np.arange(N_CASES, dtype=np.uint64)).normal(Purpose.PROPOSAL, (n_inputs,))
    data = DATA[cell.data]
    made: SampledPosterior = module.SampledPosterior.from_spec(
        cell.network(), data.model, inputs, np.ones((N_CASES, data.n_targets))
    )
    return made


def exact_start(target: SampledPosterior, cell: Cell, streams: Streams) -> tuple[ChainState, Array]:
    """State and data (n_chains, n_cases, n_targets) from the joint distribution, data as observed."""
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
    """Exact draws after the cell's iterations, which run on `posterior`'s class and `schedule`.

    with_new_data  draws data anew after each iteration but the last, given the parameters: Geweke (2004);
                   it sees what adds up, and forgives a sampler that ignores the data
    Starts, data and statistics are the package's, also where the sampler is a mutant.
    """
    streams = Streams(seed, np.arange(n_chains, dtype=np.uint64))
    target = posterior_of(cell)
    state, data = exact_start(target, cell, streams)
    accepted = []
    for number in range(1, n_iterations + 1):
        if number == 1 or with_new_data:
            sampled = posterior_of(cell, posterior).with_targets(data)
            iteration = schedule.build_iteration(cell.iteration(), target=sampled, updates=sampled.updates)
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
    """Whether a cell is exact, and its first look: Bonferroni's p-value, of how many statistics.

    looks  how many were needed: of new chains each, four times as many from the second on
    """

    is_exact: bool
    p_value: float
    n_statistics: int
    acceptance: float
    looks: int


def judged(cell: Cell, *, n_chains: int, name: str = "", **options: Any) -> Verdict:
    """The sequential test at level 1e-5 of everything that a cell must keep; `name` chooses the seed."""
    found: list[Found] = []

    def p_values(seed: int, n: int) -> list[float]:
        found.append(look(cell, seed=seed, n_chains=n, **options))
        return list(found[-1].p_values.values())

    verdict = is_exact(p_values, name=f"cell {cell}{name}", n_chains=n_chains)
    first = found[0]
    n = len(first.p_values)
    smallest = min(first.p_values.values())
    return Verdict(verdict, min(1.0, n * smallest), n, first.acceptance, len(found))
