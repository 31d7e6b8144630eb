"""Exact draws of parameters and data stay exact under the sampler, for the further data models.

The statistics are those of tests/correctness/test_joint.py, with the functions that each data model makes
uniform.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Literal

import numpy as np
import pytest
import scipy.special

from rayfbnn.arrays import Array
from rayfbnn.mcmc import schedule
from rayfbnn.model import cases, sampled
from rayfbnn.model.architecture import ModelSpec, NetworkSpec, PriorSpec
from rayfbnn.model.likelihood import count, dispersed_count, heteroscedastic, survival
from rayfbnn.model.likelihood.registry import data_model_from_spec
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.model.updates import gibbs
from rayfbnn.selftest.pivots import (
    chi2_uniform,
    gamma_uniform,
    is_exact,
    ks_p_value,
    ks_two_sample_p_value,
    randomised_uniforms,
    value_uniforms,
)
from rayfbnn.state import ChainState
from rayfbnn.streams import Purpose, Streams
from tests.support.joint import FEW, N_CHAINS, N_ITERATIONS, Problem, noise, outputs
from tests.support.marks import some_long
from tests.support.model.data_models import distribution_functions
from tests.support.mutants import mutant, sampled_with
from tests.support.problems import chain_streams


@dataclass(frozen=True)
class Model(Problem):
    """A problem whose data are seen through `observe` and tested by `uniforms` (both chain axis first)."""

    def posterior(
        self, *, dtype: Literal["float32", "float64"] = "float64", xp: Any = np
    ) -> SampledPosterior:
        priors = {
            name: PriorSpec.parse(text, key=name, two_levels=name[0] in "bt")
            for name, text in self.priors.items()
        }
        model = data_model_from_spec(self.model)
        n_inputs = len(model.added_inputs) + self.n_inputs
        n_outputs = model.n_outputs(self.n_targets)
        network = NetworkSpec(n_inputs, n_outputs, self.hidden, priors)
        targets = np.zeros((len(self.inputs), self.n_targets))
        return SampledPosterior.from_spec(network, self.model, self.inputs, targets, dtype=dtype, xp=xp)

    observe: Callable[[Array], Array] = lambda data: data
    uniforms: Callable[[SampledPosterior, ChainState, Array, Streams], dict[str, Array]] = lambda *_: {}


def hidden(*cells: tuple[int, int]) -> Callable[[Array], Array]:
    """Data (n_chains, n_cases, n_targets) with the same cells missing in all chains."""

    def hide(data: Array) -> Array:
        data = data.copy()
        for case, target in cells:
            data[:, case, target] = np.nan
        return data

    return hide


def noise_uniforms(target: SampledPosterior, state: ChainState, data: Array, _: Streams) -> dict[str, Array]:
    """Standardised residuals of each target, and each level of the noise precisions."""
    group = next(group for group in target.precision_layout.groups if group.name == "noise")
    alpha_common, alpha_unit, alpha_value = group.prior.alphas
    common = state.precisions[:, group.common]
    uniform = {"noise common": gamma_uniform(alpha_common, common / group.mean)}
    tau = common[:, None]
    if group.units is not None:
        tau = state.precisions[:, group.units]
        uniform["noise unit"] = gamma_uniform(alpha_unit, tau / common[:, None])
    for number in range(target.n_targets):
        rows = (data - outputs(target, state))[:, None, :, number]
        rows = rows[:, :, ~np.isnan(rows[0, 0])]
        scale = np.sqrt(tau[:, min(number, tau.shape[1] - 1)])[:, None, None]
        uniform |= value_uniforms(f"noise {number}", rows * scale, alpha_value)
    return uniform


def label_uniforms(
    target: SampledPosterior, state: ChainState, data: Array, streams: Streams
) -> dict[str, Array]:
    """Observed labels, spread uniformly between the steps of their distribution functions."""
    is_observed = ~np.isnan(data[0])
    uniform = randomised_uniforms(target, outputs(target, state), np.nan_to_num(data), streams)
    return {"data": uniform[:, is_observed]}


CENSORED_AT = np.array([0.3, 0.9, 5.0, 0.6, 5.0, 1.2, 2.0])[:, None]  # of each case
PIECES = (0.4, 1.0)


def censored(data: Array) -> Array:
    """Times (n_chains, 7, 1), negative where observation ended before them."""
    return np.where(data > CENSORED_AT, -CENSORED_AT, data)


def function_uniforms(
    target: SampledPosterior, state: ChainState, data: Array, streams: Streams
) -> dict[str, Array]:
    """Targets by their distribution functions; a censored time gets a uniform part of the remainder."""
    between = streams.at(iteration=99)
    if target.model.kind != "survival":
        is_observed = ~np.isnan(data[0])
        uniform = distribution_functions(
            target, state.position, state.precisions, np.nan_to_num(data), between
        )
        return {"data": uniform[:, is_observed]}
    left = distribution_functions(target, state.position, state.precisions, np.abs(data), between)
    part = between.uniform(Purpose.PROPOSAL, left.shape[1:])
    return {"data": np.where(data[:, :, 0] < 0, left * part, left)}


MILD = {"ih0": "1:4", "bh0": "0.7:4", "ho0": "x0.8:5", "bo": "0.5:6"}
MODELS = {
    "count": Model(1, 2, MILD, ModelSpec("count"), uniforms=function_uniforms),
    "count, missing": Model(
        1,
        2,
        MILD,
        ModelSpec("count"),
        observe=hidden((0, 0), (2, 1), (3, 0), (3, 1)),
        uniforms=function_uniforms,
    ),
    "count, dispersion": Model(
        1,
        2,
        MILD,
        ModelSpec("count", dispersion=noise("1.5:4")),
        observe=hidden((0, 0), (2, 1), (3, 0), (3, 1)),
        uniforms=function_uniforms,
    ),
    "count, dispersion of each target": Model(
        1, 2, MILD, ModelSpec("count", dispersion=noise("0.7:4:5")), uniforms=function_uniforms
    ),
    "constant hazard, censored": Model(
        2, 1, {**MILD, "io": "0.3:5"}, ModelSpec("survival"), observe=censored, uniforms=function_uniforms
    ),
    "hazard of pieces, censored": Model(
        1,
        1,
        {**MILD, "io": "0.5:5:6"},
        ModelSpec("survival", times=PIECES),
        observe=censored,
        uniforms=function_uniforms,
    ),
    "hazard of pieces, log time": Model(
        1, 1, MILD, ModelSpec("survival", times=PIECES, log_time=True), uniforms=function_uniforms
    ),
    "heteroscedastic": Model(1, 1, MILD, ModelSpec("heteroscedastic"), uniforms=function_uniforms),
    "heteroscedastic, floor and missing": Model(
        1,
        2,
        MILD,
        ModelSpec("heteroscedastic", noise_floor=0.4),
        observe=hidden((0, 0), (2, 1), (3, 0), (3, 1)),
        uniforms=function_uniforms,
    ),
    "missing, Gaussian noise": Model(
        1,
        2,
        {"ih0": "1.5:3", "bh0": "0.7:4", "ho0": "x2:5", "bo": "0.8"},
        ModelSpec("real", noise=noise("0.5:3")),
        observe=hidden((0, 0), (2, 1), (3, 0), (3, 1)),
        uniforms=noise_uniforms,
    ),
    "missing, t noise of each target": Model(
        1,
        2,
        {"ih0": "1.5:3", "bh0": "0.7:4", "ho0": "x2:5", "bo": "0.8"},
        ModelSpec("real", noise=noise("0.5:4:5:6")),
        observe=hidden((0, 0), (2, 1), (3, 0), (3, 1), (6, 0)),
        uniforms=noise_uniforms,
    ),
    "missing labels": Model(
        2,
        2,
        {"ih0": "2:3:5", "bh0": "0.7:4", "ho0": "x3:4", "io": "0.5:5", "bo": "0.8"},
        ModelSpec("binary"),
        observe=hidden((0, 0), (2, 1), (3, 0), (3, 1)),
        uniforms=label_uniforms,
    ),
    "missing classes": Model(
        2,
        1,
        {"ih0": "2:4", "bh0": "0.7:4", "ho0": "x3:4", "bo": "0.8"},
        ModelSpec("class", classes=3),
        observe=hidden((1, 0), (6, 0)),
        uniforms=label_uniforms,
    ),
}


def exact_start(target: SampledPosterior, model: Model, streams: Streams) -> tuple[ChainState, Array]:
    state = target.initial_state(streams, sigmas=None)
    return state, model.observe(target.sample_targets(state.position, state.precisions, streams))


def p_values(model: Model, *, seed: int, n_chains: int, posterior: ModuleType = sampled) -> dict[str, float]:
    """One p-value for each statistic after the iterations, which run on `posterior`'s class."""
    streams = chain_streams(seed, n_chains)
    target = model.posterior()
    state, data = exact_start(target, model, streams)
    # Only the class: statistics and starts are the package's also if the sampler is a mutant.
    of = posterior.SampledPosterior.from_spec
    zeros = np.zeros((len(model.inputs), model.n_targets))
    sampled = of(target.network, model.model, model.inputs, zeros).with_targets(data)
    updates = {"sample-sigmas": sampled.sample_sigmas, "sample-noise": sampled.sample_noise}
    iteration = schedule.build_iteration(model.operations, target=sampled, updates=updates)
    for _, after, _ in schedule.run(state, streams, iteration=iteration, first=1, count=N_ITERATIONS):
        state = after
    uniform = {
        **parameter_uniforms(target, state),
        **model.uniforms(target, state, data, streams),
        "momentum": scipy.special.ndtr(state.momentum),
        "kinetic energy": chi2_uniform((state.momentum**2).sum(axis=1), target.n_parameters),
    }
    values = {name: ks_p_value(u) for name, u in uniform.items()}
    other = replace(streams, chains=streams.chains + np.uint64(2**31))
    expected = products(target, *exact_start(target, model, other))
    for name, sample in products(target, state, data).items():
        values[name] = ks_two_sample_p_value(sample, expected[name])
    return values


def parameter_uniforms(target: SampledPosterior, state: ChainState) -> dict[str, Array]:
    """Conditional distribution function of each level of each group of parameters."""
    uniform: dict[str, Array] = {}
    values = target.parameter_layout.views(state.position)
    for group in target.precision_layout.groups:
        if group.name == "noise":
            continue
        alpha_common, alpha_unit, alpha_value = group.prior.alphas
        common = state.precisions[:, group.common]
        tau = common[:, None]
        if math.isfinite(alpha_common):
            uniform[f"{group.name} common"] = gamma_uniform(alpha_common, common / group.mean)
        if group.units is not None:
            tau = state.precisions[:, group.units]
            uniform[f"{group.name} unit"] = gamma_uniform(alpha_unit, tau / common[:, None])
        if group.name == "dispersion":
            continue
        rows = values[group.name].reshape(len(common), group.n_units, -1)
        uniform |= value_uniforms(group.name, rows * np.sqrt(tau)[:, :, None], alpha_value)
    return uniform


def products(target: SampledPosterior, state: ChainState, data: Array) -> dict[str, Array]:
    """Functions of state and data whose distribution is known only by simulation, (n_chains,) each."""
    v = outputs(target, state)[:, :: max(1, target.inputs.shape[-1] // data.shape[1])]
    conditioned = target.with_targets(data)
    return {
        "log likelihood": conditioned.log_likelihood(state.position, state.precisions),
        "log prior": conditioned.log_prior(state.position, state.precisions),
        "potential": conditioned.potential(state.position, state.precisions),
        "target times output": np.nansum(data[:, :, 0] * v[:, :, 0], axis=1),
        "output": v[:, 0, 0],
    }


def stays_exact(model: Model, name: str, *, n_chains: int = N_CHAINS, **options: Any) -> bool:
    return is_exact(
        lambda seed, n: list(p_values(model, seed=seed, n_chains=n, **options).values()),
        name=f"joint {name}",
        n_chains=n_chains,
    )


# Each of these has a neighbour above that runs every time and differs in one setting.
LONG = ["count", "heteroscedastic", "missing classes", "missing labels", "missing, t noise of each target"]


@pytest.mark.parametrize("name", some_long(MODELS, LONG))
def test_joint_distribution_stays(name: str) -> None:
    assert stays_exact(MODELS[name], f"{name}, few chains", n_chains=FEW)


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_joint_distribution_stays_with_many_chains(name: str) -> None:
    assert stays_exact(MODELS[name], name)


# Bugs in one module, (old, new) in its source, and the model that must show it.
MUTANTS: dict[str, tuple[ModuleType, str, str, str]] = {
    "count: twice the rate": (count, "- rate + rows", "- 2 * rate + rows", "count"),
    "count: missing counts are zeros": (
        cases,
        "    if weights is not None:\n        terms *= weights",
        "    if False:\n        terms *= weights",
        "count, missing",
    ),
    "dispersion: the prior left out": (
        dispersed_count,
        "lambda x: log_prior(x, alpha, mean) + of_targets(x),",
        "lambda x: of_targets(x),",
        "count, dispersion",
    ),
    "dispersion: the counts left out": (
        dispersed_count,
        "lambda x: log_prior(x, alpha, mean) + of_targets(x),",
        "lambda x: log_prior(x, alpha, mean),",
        "count, dispersion of each target",
    ),
    "dispersion: points beyond the slice": (
        dispersed_count,
        "inside = bounded(point) >= level",
        "inside = bounded(point) >= level - 1",
        "count, dispersion",
    ),
    "dispersion: the density of a shape for that of its logarithm": (
        dispersed_count,
        "log_prior(x, alpha, mean) + of_targets(x),",
        "log_prior(x, alpha, mean) - x + of_targets(x),",
        "count, dispersion",
    ),
    "dispersion: twice the mean of the shape above those of the targets": (
        gibbs,
        ".full((len(precisions), 1), group.mean)",
        ".full((len(precisions), 1), 2 * group.mean)",
        "count, dispersion of each target",
    ),
    "dispersion: counts of zero say nothing": (
        dispersed_count,
        "-((y + by_case) * excess * w)",
        "-(y * excess * w)",
        "count, dispersion",
    ),
    "survival: censored times are events": (
        survival,
        "has_event = (targets > 0) &",
        "has_event = (targets != 0) &",
        "constant hazard, censored",
    ),
    "survival: censored times count for nothing": (
        survival,
        "time = xp.abs(xp.nan_to_num(targets, nan=0.0))",
        "time = xp.maximum(xp.nan_to_num(targets, nan=0.0), 0.0)",
        "hazard of pieces, censored",
    ),
    "survival: the whole time in every piece": (
        survival,
        "xp.maximum(xp.minimum(time, ends) - starts, 0.0)",
        "xp.where(time > starts, time, 0.0)",
        "hazard of pieces, censored",
    ),
    "survival: time in place of log time": (
        survival,
        "math.log(time) if self.log_time else time",
        "time",
        "hazard of pieces, log time",
    ),
    "heteroscedastic: half the normaliser": (
        heteroscedastic,
        "0.5 * (log_tau - z - _LOG_2_PI)",
        "0.25 * log_tau - 0.5 * (z - _LOG_2_PI)",
        "heteroscedastic",
    ),
    "heteroscedastic: the floor forgotten": (
        heteroscedastic,
        "if floor == 0:",
        "if True:",
        "heteroscedastic, floor and missing",
    ),
    "missing targets count in the noise": (
        sampled,
        "weights = weights * self.observed",
        "pass",
        "missing, Gaussian noise",
    ),
    "missing t targets count in the noise": (
        sampled,
        "weights = weights * self.observed",
        "pass",
        "missing, t noise of each target",
    ),
    "missing labels count as zeros": (
        cases,
        "    if weights is not None:\n        terms *= weights",
        "    if False:\n        terms *= weights",
        "missing labels",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_killed(name: str) -> None:
    module, old, new, model = MUTANTS[name]
    assert not stays_exact(
        MODELS[model], name, n_chains=FEW // 2, posterior=sampled_with(mutant(module, (old, new)))
    )
