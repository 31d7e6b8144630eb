"""Exact draws of cold and warm posteriors, by rejection, stay exact under operations at that temperature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rayfbnn.mcmc import schedule
from rayfbnn.mcmc.operations import (
    Heatbath,
    Hybrid,
    HybridMarginal,
    Negate,
    Operation,
    RandomGrid,
    SampleSigmas,
)
from rayfbnn.model import posterior
from rayfbnn.model.likelihood import real
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.model.updates import gibbs
from rayfbnn.selftest.pivots import is_exact, ks_two_sample_p_value
from rayfbnn.state import ChainState
from rayfbnn.streams import Purpose
from tests.support.exact_draws import MODELS, exact_draws, quantities, target_of
from tests.support.mutants import mutant, sampled_with
from tests.support.problems import chain_streams

N_DRAWS = 4_000
OPERATIONS: dict[str, tuple[Operation, ...]] = {
    "hybrid": (SampleSigmas(), Heatbath(decay=0.5), Hybrid(steps=3, stepsize=1.0, partitions=2), Negate()),
    "marginal": (
        SampleSigmas(),
        Heatbath(decay=0.5),
        HybridMarginal(("outputs", "precisions"), steps=3, stepsize=1.0),
        Negate(),
    ),
    "random-grid": (
        RandomGrid(stepsize=1.5),
        SampleSigmas(level="lower"),
        Heatbath(decay=0.5),
        Hybrid(steps=3, stepsize=1.0),
        Negate(),
    ),
}


def stays_exact(
    name: str,
    factor: float,
    prepare: Callable[[SampledPosterior], SampledPosterior] = lambda target: target,
    *,
    operations: str = "hybrid",
) -> bool:
    target = target_of(name).tempered(factor)
    sampled = prepare(target)
    iteration = schedule.build_iteration(OPERATIONS[operations], target=sampled, updates=sampled.updates)

    def p_values(seed: int, n_chains: int) -> list[float]:
        positions, precisions = exact_draws(target, seed=seed, draws=2 * n_chains)
        streams = chain_streams(seed, n_chains)
        momentum = streams.normal(Purpose.MOMENTUM, (target.n_parameters,))
        state = ChainState(positions[:n_chains], momentum, precisions[:n_chains])
        *_, (_, state, _) = schedule.run(state, streams, iteration=iteration, first=1, count=3)
        others = quantities(target, positions[n_chains:], precisions[n_chains:])
        ours = quantities(target, state.position, state.precisions)
        return [ks_two_sample_p_value(a, b) for a, b in zip(ours, others, strict=True)]

    others = "" if operations == "hybrid" else f" {operations}"
    return is_exact(p_values, name=f"tempered draws {name} {factor}{others}", n_chains=N_DRAWS)


@pytest.mark.parametrize("factor", [0.25, pytest.param(2.0, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", MODELS)
def test_exact_draws_of_a_tempered_posterior_stay_exact(name: str, factor: float) -> None:
    assert stays_exact(name, factor)


@pytest.mark.parametrize("operations", ["marginal", "random-grid"])
def test_exact_draws_under_tempered_t_noise_stay_exact(operations: str) -> None:
    assert stays_exact("t", 0.25, operations=operations)


def not_tempered(target: SampledPosterior) -> SampledPosterior:
    return replace(target, inverse_temperature=1.0)


def with_whole_noise(target: SampledPosterior) -> SampledPosterior:
    """A bug: the noise is drawn as at inverse temperature one."""
    changed = sampled_with(mutant(gibbs, ("group, noise()", "group, replace(noise(), weights=1.0)")))
    return changed.SampledPosterior(**vars_of(target))  # type: ignore[no-any-return]


def with_whole_potential(target: SampledPosterior) -> SampledPosterior:
    """A bug: decisions use the potential at inverse temperature one, with a tempered gradient."""
    bug = ("return -self.inverse_temperature * self.log", "return -self.log")
    changed = sampled_with(mutant(posterior, bug))
    return changed.SampledPosterior(**vars_of(target))  # type: ignore[no-any-return]


def with_whole_auxiliary_precisions(target: SampledPosterior) -> SampledPosterior:
    """A bug: auxiliary precisions of hybrid-marginal are drawn as at inverse temperature one."""
    old = "weights = xp.broadcast_to(weights, squares.shape)"
    wrong: Any = mutant(real, (old, "weights = xp.ones(squares.shape)"))
    model = wrong.RealTargets.from_spec(MODELS["t"][0])
    return replace(target, data_model=model)


def with_whole_t_values(target: SampledPosterior) -> SampledPosterior:
    """A bug: upper levels of the noise are updated as at inverse temperature one."""
    changed = sampled_with(mutant(gibbs, ("(self.weights * terms).sum(axis=2)", "terms.sum(axis=2)")))
    return changed.SampledPosterior(**vars_of(target))  # type: ignore[no-any-return]


def vars_of(target: SampledPosterior) -> dict[str, Any]:
    return {name: getattr(target, name) for name in target.__dataclass_fields__}


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("real", not_tempered), ("binary", not_tempered), ("real", with_whole_noise), ("t", with_whole_noise)],
)
def test_a_wrong_temperature_is_seen(
    name: str, wrong: Callable[[SampledPosterior], SampledPosterior]
) -> None:
    assert not stays_exact(name, 0.25, wrong)


def test_deciding_on_the_potential_at_another_temperature_is_seen() -> None:
    assert not stays_exact("class", 0.25, with_whole_potential)


@pytest.mark.parametrize(
    ("operations", "wrong"),
    [("marginal", with_whole_auxiliary_precisions), ("random-grid", with_whole_t_values)],
)
def test_t_noise_at_another_temperature_is_seen(
    operations: str, wrong: Callable[[SampledPosterior], SampledPosterior]
) -> None:
    assert not stays_exact("t", 0.25, wrong, operations=operations)
