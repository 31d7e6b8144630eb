"""Annealed importance sampling reproduces marginal likelihoods that are known exactly."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.special

from rayfbnn.arrays import Array
from rayfbnn.errors import SamplingError
from rayfbnn.mcmc.operation import Operation
from rayfbnn.mcmc.operations import Heatbath, Hybrid, SampleNoise
from rayfbnn.mcmc.tempering import annealing
from rayfbnn.mcmc.tempering.annealing import inverse_temperatures, normaliser
from rayfbnn.mcmc.tempering.inner import ANNEALING, LAST_STAGE, at_stage
from rayfbnn.model import posterior
from rayfbnn.model.architecture import ModelSpec, NetworkSpec, PriorSpec
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.model.updates import gibbs
from rayfbnn.selftest.pivots import seed_of
from rayfbnn.streams import Purpose, Streams
from tests.support.mutants import mutant, sampled_with
from tests.support.problems import chain_streams, parse

OPERATIONS: tuple[Operation, ...] = (SampleNoise(), Heatbath(), Hybrid(steps=8, stepsize=0.4))
WIDTHS, SIGMA = {"io": 0.8, "bo": 0.5}, 0.4


def linear_problem(noise: str, *, n_cases: int = 10, make: Any = SampledPosterior) -> SampledPosterior:
    """A linear network of two inputs with fixed widths, on made-up data."""
    streams = Streams(seed_of("linear network"), np.arange(n_cases, dtype=np.uint64))
    inputs = streams.normal(Purpose.PROPOSAL, (2,))
    targets = inputs @ [[0.7], [-0.4]] + 0.3 + SIGMA * streams.normal(Purpose.TARGET_VALUE, (1,))
    network = NetworkSpec(2, 1, (), parse({name: str(width) for name, width in WIDTHS.items()}))
    posterior: SampledPosterior = make.from_spec(
        network, ModelSpec("real", PriorSpec.parse(noise, key="noise")), inputs, targets
    )
    return posterior


def log_evidence(target: SampledPosterior, log_precision: Array, b: float = 1.0) -> Array:
    """Log of the integral of prior * likelihood**b over the parameters, for each noise precision.

    The b-th power of Normal(y; f, s) is Normal(y; f, s/b) times (2 pi s)**(n/2 (1-b)) b**(-n/2), and with
    Gaussian weights Normal(y; f, s/b) integrates to Normal(y; 0, s/b + X V X').
    """
    features = np.asarray(target.inputs[:].T)  # inputs and a one
    y, n = target.targets[0], target.n_cases
    spread = features @ np.diag([WIDTHS["io"] ** 2] * 2 + [WIDTHS["bo"] ** 2]) @ features.T
    values = []
    for tau in np.exp(np.atleast_1d(log_precision)):
        factor = scipy.linalg.cholesky(spread + np.eye(n) / (b * tau), lower=True)
        scaled = scipy.linalg.solve_triangular(factor, y, lower=True)
        density = -(scaled @ scaled) / 2 - np.log(np.diag(factor)).sum() - n / 2 * math.log(2 * math.pi)
        values.append(density + n / 2 * ((1 - b) * math.log(2 * math.pi / tau) - math.log(b)))
    return np.array(values)


def log_evidence_of_unknown_noise(target: SampledPosterior, alpha: float, width: float) -> float:
    """Log evidence with the noise precision integrated out, by trapezoids in its logarithm."""
    t = np.linspace(-12, 14, 4_001)
    shape, rate = alpha / 2, alpha / 2 * width**2
    log_prior = shape * math.log(rate) - math.lgamma(shape) + shape * t - rate * np.exp(t)
    values = log_prior + log_evidence(target, t)
    return float(scipy.special.logsumexp(values) + math.log(t[1] - t[0]))


def log_weights(
    target: SampledPosterior,
    *,
    n: int,
    chains: int,
    name: str,
    power: float = 3.0,
    module: ModuleType = annealing,
    operations: tuple[Operation, ...] = OPERATIONS,
) -> Array:
    streams = chain_streams(seed_of(name), chains)
    weights: Array = module.annealed_log_weights(
        target.initial_state(streams, sigmas=None),
        streams,
        target=target,
        operations=operations,
        inverse_temperatures=inverse_temperatures(n, power=power),
    )
    return weights


def test_evidence_of_a_linear_network_is_within_three_standard_errors() -> None:
    target = linear_problem(str(SIGMA))
    estimate = normaliser(log_weights(target, n=200, chains=1_000, name="linear network")[-1])
    exact = float(log_evidence(target, -2 * math.log(SIGMA))[0])
    assert estimate.standard_error < 0.1
    assert abs(estimate.log_value - exact) < 3 * estimate.standard_error  # 1 in 370 if correct; seed fixed


def test_evidence_with_unknown_noise_is_within_three_standard_errors() -> None:
    target = linear_problem("0.5:3")
    estimate = normaliser(log_weights(target, n=100, chains=400, name="unknown noise")[-1])
    assert estimate.standard_error < 0.1
    exact = log_evidence_of_unknown_noise(target, 3, 0.5)
    assert abs(estimate.log_value - exact) < 3 * estimate.standard_error


def test_normalisers_on_the_way_are_those_of_the_tempered_posteriors() -> None:
    target = linear_problem(str(SIGMA))
    weights = log_weights(target, n=100, chains=400, name="on the way")
    for number, b in enumerate(inverse_temperatures(100, power=3.0)):
        if number % 20 == 0 and number > 0:
            estimate = normaliser(weights[number])
            exact = float(log_evidence(target, -2 * math.log(SIGMA), b)[0])
            assert abs(estimate.log_value - exact) < 4 * estimate.standard_error


def mean_is_exact(
    name: str, *, module: ModuleType = annealing, target: SampledPosterior | None = None, n: int = 5
) -> bool:
    """Return True if the mean weight of many runs with few temperatures agrees with the evidence."""
    target = linear_problem("0.5:6", n_cases=3) if target is None else target
    weights = np.exp(log_weights(target, n=n, chains=40_000, name=name, power=2.0, module=module)[-1])
    exact = math.exp(log_evidence_of_unknown_noise(target, 6, 0.5))
    standard_error = weights.std() / math.sqrt(len(weights))
    # 1 in 16,000 if correct; seed fixed. The error must be small too, or a few huge weights would pass.
    return bool(abs(weights.mean() - exact) < 4 * standard_error and standard_error < 0.1 * weights.mean())


@pytest.mark.parametrize("n", [1, 2, 5])
def test_the_mean_weight_is_unbiased_for_any_number_of_temperatures(n: int) -> None:
    assert mean_is_exact(f"unbiased {n}", n=n)


MUTANTS = {
    "whole inverse temperature": ("(b - before) * energy", "b * energy"),
    "step of equal size": ("(b - before) * energy", "energy / (len(inverse_temperatures) - 1)"),
    "updates at the last temperature": ("target.tempered(b)", "target.tempered(before)"),
    "updates of the posterior": ("target.tempered(b)", "target.tempered(1.0)"),
    "sign": ("- (b - before) * energy", "+ (b - before) * energy"),
    "weights of the last step alone": ("log_weights[number - 1, places] -", "-"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_weight_is_seen(name: str) -> None:
    assert not mean_is_exact(f"mutant {name}", module=mutant(annealing, MUTANTS[name]))


MODEL_MUTANTS: dict[str, tuple[ModuleType, str, str]] = {
    "likelihood not normalised": (
        posterior,
        "return terms.sum(axis=(1, 2)) + governing.normaliser",
        "return terms.sum(axis=(1, 2))",
    ),
    "noise updated as at one": (gibbs, "group, noise()", "group, replace(noise(), weights=1.0)"),
}


@pytest.mark.parametrize("name", MODEL_MUTANTS)
def test_a_wrong_model_is_seen(name: str) -> None:
    module, old, new = MODEL_MUTANTS[name]
    changed = sampled_with(mutant(module, (old, new)))
    target = linear_problem("0.5:6", n_cases=3, make=changed.SampledPosterior)
    assert not mean_is_exact(f"mutant {name}", target=target)


def test_standard_errors_are_as_large_as_the_scatter_of_repeated_estimates() -> None:
    target = linear_problem("0.5:6", n_cases=3)
    weights = log_weights(target, n=5, chains=40_000, name="scatter")[-1]
    estimates = [normaliser(part) for part in weights.reshape(200, 200)]
    scatter = np.std([estimate.log_value for estimate in estimates])
    claimed = np.sqrt(np.mean([estimate.standard_error**2 for estimate in estimates]))
    assert 0.8 < claimed / scatter < 1.25  # the scatter of 200 estimates is known to 5 %


def test_effective_runs_are_the_number_of_equal_weights() -> None:
    """Weights 1, 1 and 2, whatever the scale: (1 + 1 + 2)**2 / (1 + 1 + 4)."""
    unequal = normaliser(np.log([1.0, 1.0, 2.0]) - 900)
    assert unequal.effective_runs == pytest.approx(16 / 6)
    assert normaliser(np.full(7, -900.0)).effective_runs == pytest.approx(7)
    assert normaliser(np.array([-900.0, -np.inf, -np.inf])).effective_runs == pytest.approx(1)


def test_runs_do_not_depend_on_their_batch() -> None:
    target = linear_problem("0.5:3")
    streams = Streams(3, np.arange(6, dtype=np.uint64))

    def weights_of(chosen: slice) -> Array:
        some = Streams(3, streams.chains[chosen])
        return annealing.annealed_log_weights(
            target.initial_state(some, sigmas=None),
            some,
            target=target,
            operations=OPERATIONS,
            inverse_temperatures=inverse_temperatures(4, power=2.0),
        )

    together = weights_of(slice(0, 6))
    assert np.array_equal(together[:, 2:5], weights_of(slice(2, 5)))


def test_a_run_whose_likelihood_overflows_has_weight_zero_and_disturbs_no_other() -> None:
    target = linear_problem("0.5:3")
    streams = Streams(3, np.arange(6, dtype=np.uint64))
    state = target.initial_state(streams, sigmas=None)
    options: dict[str, Any] = {
        "target": target,
        "operations": OPERATIONS,
        "inverse_temperatures": inverse_temperatures(4, power=2.0),
    }
    right = annealing.annealed_log_weights(state, streams, **options)
    state.position[2] = 1e300
    weights = annealing.annealed_log_weights(state, streams, **options)
    others = [0, 1, 3, 4, 5]
    assert np.array_equal(weights[:, others], right[:, others])
    assert np.all(weights[1:, 2] == -np.inf)
    with pytest.raises(SamplingError, match="likelihood of every draw from the prior underflows"):
        normaliser(weights[-1, 2:3])


def test_stages_share_no_random_numbers() -> None:
    streams = Streams(1, np.arange(2, dtype=np.uint64))
    numbers = {
        at_stage(streams, stage, first_operation=first).operation + operation
        for stage in (1, 2, LAST_STAGE, ANNEALING)
        for first in (0, 50_000)
        for operation in (0, 49_999)
    }
    assert len(numbers) == 16
    assert min(numbers) > 100_000
    # Rejection draws use the iteration number after the last.
    assert max(numbers) < 2**32 - 1
