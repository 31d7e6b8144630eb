"""What must look as at an exact draw after the iterations of a cell: pivots, pairs of them, and products."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
import scipy.special

from rayfbnn.arrays import Array
from rayfbnn.mcmc import schedule
from rayfbnn.model import posterior
from rayfbnn.model.posterior import Posterior
from rayfbnn.state import ChainState
from rayfbnn.streams import Purpose, Streams
from tests.correctness.cells import ARCHITECTURES, DATA, N_CASES, Cell
from tests.correctness.exactness import is_exact, ks_p_value, ks_two_sample_p_value, square_p_value
from tests.correctness.test_joint import chi2_uniform, gamma_uniform, randomised_uniforms, value_uniforms

N_ITERATIONS = 5


def posterior_of(cell: Cell, module: ModuleType = posterior) -> Posterior:
    """The cell's posterior on fixed inputs, its targets still to be drawn; of `module`'s class."""
    n_inputs = ARCHITECTURES[cell.architecture].n_inputs
    inputs = Streams(5, np.arange(N_CASES, dtype=np.uint64)).normal(Purpose.PROPOSAL, (n_inputs,))
    data = DATA[cell.data]
    made: Posterior = module.Posterior.of(
        cell.network(), data.model, inputs, np.ones((N_CASES, data.n_targets))
    )
    return made


def exact_start(target: Posterior, cell: Cell, streams: Streams) -> tuple[ChainState, Array]:
    """State and data (n_chains, n_cases, n_targets) from the joint distribution, the data as they are seen."""
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
    posterior: ModuleType = posterior,
    schedule: ModuleType = schedule,
) -> Found:
    """Exact draws after the cell's iterations, which run on `posterior`'s class and `schedule`.

    Starts, data and statistics are the package's, also where the sampler is a mutant.
    """
    streams = Streams(seed, np.arange(n_chains, dtype=np.uint64))
    target = posterior_of(cell)
    state, data = exact_start(target, cell, streams)
    sampled = posterior_of(cell, posterior).with_targets(data)
    iteration = schedule.build_iteration(cell.iteration(), target=sampled, updates=sampled.updates)
    accepted = []
    for _, after, info in schedule.run(state, streams, iteration=iteration, first=1, count=N_ITERATIONS):
        state = after
        accepted.append(info.accepted.mean())
    uniform = pivots(target, state, data, streams)
    values = {name: ks_p_value(u) for name, u in uniform.items()}
    # One value or one sum of squares of each level: these are independent of one another.
    doubled = {"kinetic energy"} | {
        name.replace("squares", "values") for name in uniform if "squares" in name
    }
    levels = {
        name: u.reshape(n_chains, -1)[:, 0]
        for name, u in uniform.items()
        if name not in doubled and "along" not in name
    }
    for a, b in itertools.pairwise(levels):
        values[f"{a} with {b}"] = square_p_value(levels[a], levels[b], bins=10)
    other = replace(streams, chains=streams.chains + np.uint64(2**31))
    expected = products(target, *exact_start(target, cell, other))
    for name, sample in products(target, state, data).items():
        values[name] = ks_two_sample_p_value(sample, expected[name])
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


def pivots(target: Posterior, state: ChainState, data: Array, streams: Streams) -> dict[str, Array]:
    """Functions of state and data that are uniform, each (n_chains, ...), whatever the cell."""
    uniform = {
        **precision_uniforms(target, state, data),
        **data_uniforms(target, state, data, streams),
        "momentum": scipy.special.ndtr(state.momentum),
    }
    _, gradient = target.with_targets(data).potential_and_gradient(state.position, state.precisions)
    directions = {"position": state.position, "gradient": gradient * target.stepsizes(state.precisions)}
    for name, direction in directions.items():
        # Far out in a tail a gradient may be infinite: the direction is then its largest components.
        scale = np.abs(direction).max(axis=1, keepdims=True)
        direction = np.where(np.isfinite(scale) & (scale > 0), direction / np.where(scale > 0, scale, 1), 1.0)
        along = (direction * state.momentum).sum(axis=1) / np.linalg.norm(direction, axis=1)
        uniform[f"momentum along {name}"] = scipy.special.ndtr(along)
    uniform["kinetic energy"] = chi2_uniform((state.momentum**2).sum(axis=1), target.n_parameters)
    return uniform


def precision_uniforms(target: Posterior, state: ChainState, data: Array) -> dict[str, Array]:
    """Each level of each group, of parameters and of the noise, by its conditional distribution function."""
    uniform: dict[str, Array] = {}
    values, layout = target.parameter_layout.views(state.position), target.precision_layout
    for adjustments in layout.adjustments:
        drawn = state.precisions[:, adjustments.columns]
        uniform[adjustments.name] = gamma_uniform(adjustments.alpha, drawn)
    for group in layout.groups:
        alpha_common, alpha_unit, alpha_value = group.prior.alphas
        common = state.precisions[:, group.common]
        tau = common[:, None]
        if math.isfinite(alpha_common):
            uniform[f"{group.name} common"] = gamma_uniform(alpha_common, common / group.mean)
        if group.units is not None:
            tau = state.precisions[:, group.units]
            uniform[f"{group.name} unit"] = gamma_uniform(alpha_unit, tau / common[:, None])
        if group.name == "noise":
            uniform |= noise_uniforms(target, state, data, tau, alpha_value)
            continue
        rows = values[group.name].reshape(len(common), group.n_units, -1) * np.sqrt(tau)[:, :, None]
        if group.name in layout.adjusted:
            rows = rows * np.sqrt(state.precisions[:, None, layout.adjusted[group.name][1]])
        uniform |= value_uniforms(group.name, rows, alpha_value)
    return uniform


def noise_uniforms(
    target: Posterior, state: ChainState, data: Array, tau: Array, alpha: float
) -> dict[str, Array]:
    """What the network leaves of the observed targets."""
    uniform: dict[str, Array] = {}
    for number in range(target.n_targets):
        rows = (data - outputs(target, state))[:, None, ~np.isnan(data[0, :, number]), number]
        scale = np.sqrt(tau[:, min(number, tau.shape[1] - 1)])[:, None, None]
        uniform |= value_uniforms(f"noise {number}", rows * scale, alpha)
    return uniform


def outputs(target: Posterior, state: ChainState) -> Array:
    """At every case; of a piecewise hazard at every piece of every case; (n_chains, n_columns, n_outputs)."""
    return target.outputs(state.position, target.with_targets(np.ones((1, N_CASES, 1))).inputs[:-1].T)


def data_uniforms(target: Posterior, state: ChainState, data: Array, streams: Streams) -> dict[str, Array]:
    """The observed targets by their distribution functions, (n_chains, n); none for real ones: the noise's."""
    kind, v = target.model.kind, outputs(target, state)
    random = streams.at(iteration=99).uniform(Purpose.PROPOSAL, data.shape[1:])
    is_observed = ~np.isnan(data[0])
    filled = np.nan_to_num(data)
    if kind == "real":
        return {}
    if kind in ("binary", "class"):
        uniform = randomised_uniforms(target, v, filled, streams)
    elif kind == "count":
        rate = np.exp(v)
        below = np.where(filled > 0, scipy.special.pdtr(filled - 1, rate), 0.0)
        uniform = below + random * (scipy.special.pdtr(filled, rate) - below)
    elif kind == "heteroscedastic":
        mean, s = v[:, :, : target.n_targets], v[:, :, target.n_targets :]
        uniform = scipy.special.ndtr((filled - mean) / np.sqrt(target.model.noise_floor**2 + np.exp(-s)))
    else:
        survived = np.exp(-cumulative_hazard(target, v, np.abs(filled[:, :, 0])))[:, :, None]
        uniform = np.where(filled > 0, survived, random * survived)
    return {"data": uniform[:, is_observed]}


def cumulative_hazard(target: Posterior, v: Array, time: Array) -> Array:
    """The integral of the hazard until each time (n_chains, n_cases), piece by piece."""
    starts = [0.0, *target.model.times]
    ends = [*target.model.times, math.inf]
    hazard = np.exp(v[:, :, 0]).reshape(*time.shape, len(starts))
    return sum(
        hazard[:, :, piece] * np.clip(time - start, 0, end - start)
        for piece, (start, end) in enumerate(zip(starts, ends, strict=True))
    )


def products(target: Posterior, state: ChainState, data: Array) -> dict[str, Array]:
    """Functions of state and data whose distribution is known by simulation only, (n_chains,) each."""
    v = outputs(target, state)[:, :: target.model.n_pieces]
    given = target.with_targets(data)
    with np.errstate(over="ignore"):
        return {
            "log likelihood": given.log_likelihood(state.position, state.precisions),
            "log prior": given.log_prior(state.position, state.precisions),
            "potential": given.potential(state.position, state.precisions),
            "target times output": np.nansum(data[:, :, 0] * v[:, :, 0], axis=1),
            "output": v[:, 0, 0],
        }
