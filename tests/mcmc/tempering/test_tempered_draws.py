"""Exact draws of cold and warm posteriors, by rejection, stay exact under operations at that temperature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rayfbnn.mcmc import schedule
from rayfbnn.mcmc.operations import Heatbath, Hybrid, Negate, SampleSigmas
from rayfbnn.model import posterior
from rayfbnn.model.posterior import Posterior
from rayfbnn.model.updates import gibbs
from rayfbnn.state import ChainState
from rayfbnn.streams import Purpose, Streams
from tests.support.exact_draws import MODELS, exact_draws, quantities, target_of
from tests.support.exactness import is_exact, ks_two_sample_p_value
from tests.support.mutants import mutant

N_DRAWS = 4_000
OPERATIONS = (SampleSigmas(), Heatbath(decay=0.5), Hybrid(steps=3, stepsize=1.0, partitions=2), Negate())


def stays_exact(
    name: str, factor: float, prepare: Callable[[Posterior], Posterior] = lambda target: target
) -> bool:
    target = target_of(name).tempered(factor)
    sampled = prepare(target)
    iteration = schedule.build_iteration(OPERATIONS, target=sampled, updates=sampled.updates)

    def p_values(seed: int, n_chains: int) -> list[float]:
        positions, precisions = exact_draws(target, seed=seed, draws=2 * n_chains)
        streams = Streams(seed, np.arange(n_chains, dtype=np.uint64))
        momentum = streams.normal(Purpose.MOMENTUM, (target.n_parameters,))
        state = ChainState(positions[:n_chains], momentum, precisions[:n_chains])
        *_, (_, state, _) = schedule.run(state, streams, iteration=iteration, first=1, count=3)
        others = quantities(target, positions[n_chains:], precisions[n_chains:])
        ours = quantities(target, state.position, state.precisions)
        return [ks_two_sample_p_value(a, b) for a, b in zip(ours, others, strict=True)]

    return is_exact(p_values, name=f"tempered draws {name} {factor}", n_chains=N_DRAWS)


@pytest.mark.parametrize("factor", [0.25, pytest.param(2.0, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", MODELS)
def test_exact_draws_of_a_tempered_posterior_stay_exact(name: str, factor: float) -> None:
    assert stays_exact(name, factor)


def not_tempered(target: Posterior) -> Posterior:
    return replace(target, inverse_temperature=1.0)


def with_whole_noise(target: Posterior) -> Posterior:
    """Its noise is drawn as at inverse temperature one."""
    changed = mutant(posterior)
    wrong = mutant(gibbs, ("_OF_NOISE,\n                weights=weights", "_OF_NOISE"))
    changed.__dict__["gibbs"] = wrong
    return changed.Posterior(**vars_of(target))


def with_whole_potential(target: Posterior) -> Posterior:
    """It decides on the potential of inverse temperature one, though its gradient is tempered."""
    changed = mutant(
        posterior,
        ("return -self.inverse_temperature * self.log_likelihood", "return -self.log_likelihood"),
    )
    return changed.Posterior(**vars_of(target))


def vars_of(target: Posterior) -> dict[str, Any]:
    return {name: getattr(target, name) for name in target.__dataclass_fields__}


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("real", not_tempered), ("binary", not_tempered), ("real", with_whole_noise), ("t", with_whole_noise)],
)
def test_a_wrong_temperature_is_seen(name: str, wrong: Callable[[Posterior], Posterior]) -> None:
    assert not stays_exact(name, 0.25, wrong)


def test_deciding_on_the_potential_at_another_temperature_is_seen() -> None:
    assert not stays_exact("class", 0.25, with_whole_potential)
