"""The posterior with a power of the likelihood: its energy, gradient, stepsizes and noise updates."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest

from rayfbnn.arrays import Array
from rayfbnn.model import sampled
from rayfbnn.model.architecture import ModelSpec, NetworkSpec, PriorSpec
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.model.updates import gibbs
from rayfbnn.selftest.pivots import is_exact, ks_p_value
from rayfbnn.state import ChainState
from rayfbnn.streams import Purpose, Streams
from tests.support.mutants import mutant, sampled_with
from tests.support.problems import MODELS, PRIORS, chain_streams, network, parse, problem, streams

FACTORS = np.array([0.0, 0.3, 1.0, 2.5])
N_CHAINS = 20_000


@pytest.mark.parametrize("model", MODELS)
def test_gradient_of_a_tempered_posterior_agrees_with_central_differences(model: str) -> None:
    target = problem(model).tempered(FACTORS)
    state = target.initial_state(streams("tempered gradient", len(FACTORS)), sigmas=None)
    _, gradient = target.potential_and_gradient(state.position, state.precisions)
    for parameter in range(target.n_parameters):
        step = np.zeros(target.n_parameters)
        step[parameter] = 1e-6
        ends = [target.potential(state.position + sign * step, state.precisions) for sign in (1, -1)]
        difference = (ends[0] - ends[1]) / 2e-6
        scale = np.maximum(1, np.abs(gradient).max(axis=1))
        assert np.all(np.abs(gradient[:, parameter] - difference) < 1e-6 * scale)


@pytest.mark.parametrize("model", MODELS)
def test_potential_is_the_prior_and_the_data_times_the_inverse_temperature(model: str) -> None:
    target = problem(model)
    state = target.initial_state(streams("tempered potential", len(FACTORS)), sigmas=None)
    at = (state.position, state.precisions)
    data = -target.log_likelihood(*at)
    expected = target.potential(*at) + (FACTORS - 1) * data
    assert np.allclose(target.tempered(FACTORS).potential(*at), expected, rtol=1e-12)
    assert np.allclose(target.tempered(FACTORS).data_energy(*at), FACTORS * data, rtol=1e-12)


@pytest.mark.parametrize("model", MODELS)
def test_partial_gradients_of_a_tempered_posterior_sum_to_the_whole(model: str) -> None:
    target = problem(model).tempered(FACTORS)
    state = target.initial_state(streams("tempered parts", len(FACTORS)), sigmas=None)
    at = (state.position, state.precisions)
    parts = [
        target.potential_and_gradient(*at, partition=np.full(len(FACTORS), k), n_partitions=3)
        for k in range(3)
    ]
    for part, whole in zip(zip(*parts, strict=True), target.potential_and_gradient(*at), strict=True):
        assert np.allclose(sum(part) / 3, whole, rtol=1e-12)


@pytest.mark.parametrize("model", MODELS)
def test_temperatures_of_their_own_leave_chains_independent_of_their_batch(model: str) -> None:
    target, random = problem(model), streams("own temperature", len(FACTORS))
    state = target.initial_state(random, sigmas=None)
    together = evaluated(target.tempered(FACTORS), state, random.at(iteration=1))
    for chain, factor in enumerate(FACTORS):
        one = slice(chain, chain + 1)
        state_of_one = ChainState(state.position[one], state.momentum[one], state.precisions[one])
        random_of_one = replace(random, chains=random.chains[one], iteration=1)
        alone = evaluated(target.tempered(FACTORS[one]), state_of_one, random_of_one)
        common = evaluated(target.tempered(float(factor)), state_of_one, random_of_one)
        for a, b, c in zip(together, alone, common, strict=True):
            assert np.array_equal(a[one], b)
            assert np.allclose(a[one], c, rtol=1e-10)


def evaluated(target: SampledPosterior, state: ChainState, random: Streams) -> list[Array]:
    after, _ = target.sample_sigmas(state, random)
    at = (state.position, state.precisions)
    return [*target.potential_and_gradient(*at), target.stepsizes(state.precisions), after.precisions]


def test_inverse_temperature_one_changes_no_bit() -> None:
    target, random = problem("t by target"), streams("temperature one", 3)
    state = target.initial_state(random, sigmas=None)
    for one, other in zip(
        evaluated(target, state, random), evaluated(target.tempered(np.ones(3)), state, random), strict=True
    ):
        assert np.array_equal(one, other)


def test_stepsizes_at_inverse_temperature_b_are_those_of_b_copies_of_the_cases() -> None:
    target = problem("gaussian by target")
    inputs, targets = target.inputs[:-1].T, target.targets.T
    thrice = SampledPosterior.from_spec(
        target.network, target.model, np.tile(inputs, (3, 1)), np.tile(targets, (3, 1))
    )
    precisions = target.initial_state(streams("copies", 4), sigmas=None).precisions
    assert np.allclose(target.tempered(3.0).stepsizes(precisions), thrice.stepsizes(precisions), rtol=1e-12)


def test_without_likelihood_stepsizes_are_the_prior_s() -> None:
    target = problem("gaussian", spec=network(dict.fromkeys(("ih0", "bh0", "ho1", "h0h1", "bo"), "0.5:3")))
    state = target.initial_state(streams("prior stepsizes", 4), sigmas=None)
    columns = target.precision_layout.parameter_columns
    stepsizes = target.tempered(0.0).stepsizes(state.precisions)
    assert np.allclose(stepsizes, state.precisions[:, columns] ** -0.5, rtol=1e-12)


# One target with one free level of noise, so that its conditional can be integrated numerically.
NOISES = {"common": "0.5:4", "unit": "0.5::3", "common of t": "0.5:4::5", "unit of t": "0.5::3:2.5"}


def noise_stays_exact(name: str, factor: float, *, gibbs_module: ModuleType = gibbs) -> bool:
    """Noise precisions drawn from prior times tempered likelihood by inversion keep that distribution."""
    changed = sampled if gibbs_module is gibbs else sampled_with(gibbs_module)
    spec = NetworkSpec(1, 1, (), parse({"bo": "1"}))
    targets = np.array([[0.3], [-1.2], [0.1], [2.5], [0.4]])
    model = ModelSpec("real", PriorSpec.parse(NOISES[name], key="noise"))
    target = changed.SampledPosterior.from_spec(spec, model, np.zeros((5, 1)), targets)
    column = int(np.flatnonzero(target.precision_layout.is_free)[-1])
    log_tau = np.linspace(-15, 10, 20_001)
    grid = np.tile(target.initial_state(streams("grid", 1), sigmas=1.0).precisions, (len(log_tau), 1))
    grid[:, column] = np.exp(log_tau)
    at = (np.zeros((len(grid), 1)), grid)
    # Density of the logarithm.
    log_density = target.log_prior(*at) + factor * target.log_likelihood(*at) + log_tau
    density = np.exp(log_density - log_density.max())
    area = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    tempered = target.tempered(factor)

    def p_values(seed: int, n_chains: int) -> list[float]:
        random = chain_streams(seed, n_chains)
        start = np.interp(random.uniform(Purpose.PROPOSAL), area / area[-1], log_tau)
        precisions = np.tile(grid[:1], (n_chains, 1))
        precisions[:, column] = np.exp(start)
        zero = np.zeros((n_chains, 1))
        after, _ = tempered.sample_noise(ChainState(zero, zero, precisions), random)
        return [ks_p_value(np.interp(np.log(after.precisions[:, column]), log_tau, area / area[-1]))]

    return is_exact(p_values, name=f"tempered noise {name} {factor}", n_chains=N_CHAINS)


@pytest.mark.parametrize("factor", [0.0, 0.3, 2.5])
@pytest.mark.parametrize("name", NOISES)
def test_noise_given_a_power_of_the_likelihood_is_drawn_exactly(name: str, factor: float) -> None:
    assert noise_stays_exact(name, factor)


NOISE_MUTANTS = {
    "counts whole cases": ("return self.weights * float(", "return float(", "common"),
    "sums whole squares": ("return self.weights * self.squares.sum(", "return self.squares.sum(", "common"),
    "weight ignored": ("group, noise()", "group, replace(noise(), weights=1.0)", "unit"),
    "value shapes as at one": (
        "weights * (alpha + 1) / 2, purpose",
        "(alpha + 1) / 2, purpose",
        "common of t",
    ),
    "values tempered in their rate": (
        "log_gamma - xp.log((alpha / mean + squares) / 2)",
        "log_gamma - xp.log((alpha / mean + weights * squares) / 2)",
        "common of t",
    ),
    "upper level counts whole cases": (
        "(below, sums.counts, alpha",
        "(below, sums.squares.shape[2], alpha",
        "unit of t",
    ),
}


@pytest.mark.parametrize("name", NOISE_MUTANTS)
def test_a_wrong_tempered_noise_update_is_seen(name: str) -> None:
    old, new, noise = NOISE_MUTANTS[name]
    assert not noise_stays_exact(noise, 0.3, gibbs_module=mutant(gibbs, (old, new)))


def test_rejection_at_a_temperature_never_accepts_with_more_than_certainty() -> None:
    for model in MODELS:
        _, _, log_acceptance = problem(model).tempered(0.4).rejection_proposal(streams("tempered", 500))
        assert np.all(log_acceptance <= 0)


def test_priors_do_not_depend_on_the_temperature() -> None:
    target = problem("t", spec=network(PRIORS))
    state = target.initial_state(streams("same prior", 5), sigmas=None)
    cold = target.tempered(7.0)
    assert np.array_equal(cold.initial_state(streams("same prior", 5), sigmas=None).position, state.position)
    at = (state.position, state.precisions)
    assert np.array_equal(cold.log_prior(*at), target.log_prior(*at))
    assert np.array_equal(cold.log_likelihood(*at), target.log_likelihood(*at))
