"""Densities of the hierarchy of precisions and parameters, and draws from it."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from rayfbnn.model import prior, sampled
from rayfbnn.model.architecture import ModelSpec, PriorSpec
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.selftest.pivots import is_exact, ks_p_value
from tests.support import problems
from tests.support.model.hierarchy import HIERARCHIES, uniforms_of
from tests.support.mutants import mutant, sampled_with
from tests.support.problems import MODELS, chain_streams, problem, streams


@pytest.mark.parametrize("model", MODELS)
def test_draws_from_the_prior_follow_every_level(model: str) -> None:
    target = problem(model, spec=problems.network(HIERARCHIES, outputs=3 if model == "class" else 2))

    def p_values(seed: int, n: int) -> list[float]:
        random = chain_streams(seed, n)
        state = target.initial_state(random, sigmas=None)
        targets = target.sample_targets(state.position, state.precisions, random)
        return [ks_p_value(values) for values in uniforms_of(target, state, targets)]

    assert is_exact(p_values, name=f"prior draws {model}", n_chains=4_000)


def log_prior_by_scipy(target: SampledPosterior, position: np.ndarray, precisions: np.ndarray) -> float:
    """Log prior of one chain, term by term: Neal (2022) eqs. 13, 14, 16, 17."""
    values = target.parameter_layout.views(position)
    total = 0.0
    for group in target.precision_layout.groups:
        alpha, alpha_unit, alpha_value = group.prior.alphas
        common = precisions[group.common]
        if math.isfinite(alpha):
            total += scipy.stats.gamma.logpdf(common, alpha / 2, scale=2 * group.mean / alpha)
        rule = np.full(group.n_units, common)
        if group.units is not None:
            rule = precisions[group.units]
            total += scipy.stats.gamma.logpdf(rule, alpha_unit / 2, scale=2 * common / alpha_unit).sum()
        if group.name == "noise":
            continue
        rows = values[group.name].reshape(group.n_units, -1)
        scale = rule[:, None] ** -0.5
        if math.isinf(alpha_value):
            total += scipy.stats.norm.logpdf(rows, scale=scale).sum()
        else:
            total += scipy.stats.t.logpdf(rows, alpha_value, scale=scale).sum()
    return float(total)


@pytest.mark.parametrize("model", MODELS)
def test_log_prior_is_the_sum_of_its_terms(model: str) -> None:
    target = problem(model, spec=problems.network(HIERARCHIES, outputs=3 if model == "class" else 2))
    state = target.initial_state(streams("terms", 5), sigmas=None)
    got = target.log_prior(state.position, state.precisions)
    expected = [
        log_prior_by_scipy(target, *chain) for chain in zip(state.position, state.precisions, strict=True)
    ]
    assert np.allclose(got, expected, rtol=1e-12)


def t_density_error(module: ModuleType, alpha: float) -> float:
    """Error of the t density at some values, against Gaussians integrated over Gamma precisions."""
    tau = 2.5
    worst = 0.0
    for value in (0.0, 0.3, 4.0):

        def integrand(precision_: float, value: float = value) -> float:
            gaussian = math.sqrt(precision_ / (2 * math.pi)) * math.exp(-precision_ * value**2 / 2)
            return gaussian * float(scipy.stats.gamma.pdf(precision_, alpha / 2, scale=2 * tau / alpha))

        integrated = scipy.integrate.quad(integrand, 0, np.inf, epsabs=1e-12)[0]
        z = tau * value**2
        log_t = module.log_scale_free_normaliser(alpha) + 0.5 * math.log(tau)
        log_t -= (alpha + 1) / 2 * math.log1p(z / alpha)
        worst = max(worst, abs(log_t - math.log(integrated)))
    return worst


def test_t_density_is_the_gaussian_integrated_over_its_precision() -> None:
    for alpha in (2.5, 4.0, 30.0):
        assert t_density_error(prior, alpha) < 1e-8


def test_the_normaliser_as_printed_is_seen() -> None:
    wrong = mutant(prior, ("0.5 * math.log(math.pi * alpha)", "0.5 * math.log(math.pi) - math.log(alpha)"))
    assert t_density_error(wrong, 4.0) > 0.1


def test_energy_leaves_out_only_what_depends_on_precisions_alone() -> None:
    target = problem("t by target")
    state = target.initial_state(streams("energy", 5), sigmas=None)
    other = target.initial_state(streams("energy, other position", 5), sigmas=None).position

    def left_out(position: Any) -> Any:
        full = target.log_prior(position, state.precisions) + target.log_likelihood(
            position, state.precisions
        )
        return full + target.potential(position, state.precisions)

    assert np.allclose(left_out(state.position), left_out(other), rtol=1e-12)


def test_vague_precisions_are_clipped_not_lost() -> None:
    spec = problems.network({"io": "0.05:0.0005", "bo": "1"}, units=(), activations=())
    target = problem(spec=spec)
    state = target.initial_state(streams("vague", 2000), sigmas=None)
    log_precisions = np.log(state.precisions)
    assert np.all(np.abs(log_precisions) <= 600.0000001)
    # log tau is below -600 when log U < -0.00025 * (600 + log 400): 86 % of draws
    share = np.mean(log_precisions[:, target.precision_layout.common["io"]] < -599)
    expected = math.exp(scipy.stats.loggamma.logcdf(-600 - math.log(400) + math.log(0.00025), 0.00025))
    assert abs(share - expected) < 5 * math.sqrt(expected * (1 - expected) / 2000)  # 1 in 1.7 million
    after, _ = target.sample_sigmas(state, streams("vague", 2000, iteration=1))
    assert np.all(np.isfinite(after.precisions)) and np.all(after.precisions > 0)


def test_widths_scale_with_the_number_of_sources() -> None:
    # Neal (2022) eq. 26 by hand, for 3 inputs.
    means = {
        "x0.5": 4 * 3,
        "x0.5:2": 4 * 3,
        "x0.5:2:4": 4 * 3 * 2,
        "x0.5:2::6": 4 * 3 * 1.5,
        "x0.5:2:4:6": 4 * 3 * 1.5,
        "x0.5:2::2": 4 * 3 * math.log(3),
        "x0.5:2::1": 4 * 3**2,
        "0.5:2::1": 4,
    }
    for text, mean in means.items():
        spec = problems.network({"io": text}, units=(), activations=())
        assert problem(spec=spec).precision_layout.groups[0].mean == pytest.approx(mean, rel=1e-14)


BIASED = {
    "gaussian": "0.3:4",
    "by target": "0.3:4:5",
    "t": "0.3:4::5",
    "t by target": "0.3:4:5:6",
    "fixed": "0.3",
    "fixed common": "0.3::5",
}


def proposal_errors(module: ModuleType, noise: str) -> tuple[float, float]:
    """Error of rejection sampling against p(precisions, position) p(targets | ...), up to a constant.

    The first number is the spread of log prior + log likelihood - log proposal - log acceptance over
    proposals, with the noise precisions' proposal densities of Neal (2022) eq. 69 by scipy. The second is the
    Kolmogorov and Smirnov p-value of the noise precisions against these densities.
    """
    copy = sampled if module is prior else sampled_with(module)
    spec = PriorSpec.parse(noise, key="noise")
    known = problem("gaussian")
    target = copy.SampledPosterior.from_spec(
        known.network, ModelSpec("real", spec), known.inputs[:-1].T, known.targets.T
    )
    n, m = target.n_cases, target.n_targets
    position, precisions, log_acceptance = target.rejection_proposal(streams(f"proposal {noise}", 4000))
    assert np.all(log_acceptance <= 0)
    group = target.precision_layout.groups[-1]
    alpha, alpha_unit, _ = spec.alphas
    common = precisions[:, group.common]
    log_bias, uniforms = np.zeros(4000), []  # log of the proposal's density over the prior's
    if math.isfinite(alpha):
        proposal = scipy.stats.gamma((alpha + n * m) / 2, scale=2 * group.mean / alpha)
        log_bias += proposal.logpdf(common)
        log_bias -= scipy.stats.gamma.logpdf(common, alpha / 2, scale=2 * group.mean / alpha)
        uniforms.append(proposal.cdf(common))
    if group.units is not None:
        units, scale = precisions[:, group.units], 2 * common[:, None] / alpha_unit
        log_bias += scipy.stats.gamma.logpdf(units, (alpha_unit + n) / 2, scale=scale).sum(axis=1)
        log_bias -= scipy.stats.gamma.logpdf(units, alpha_unit / 2, scale=scale).sum(axis=1)
        uniforms.append(scipy.stats.gamma.cdf(units, (alpha_unit + n) / 2, scale=scale))
    spread = np.ptp(target.log_likelihood(position, precisions) - log_bias - log_acceptance)
    return float(spread), min([ks_p_value(values) for values in uniforms], default=1.0)


@pytest.mark.parametrize("name", BIASED)
def test_rejection_sampling_is_from_the_posterior(name: str) -> None:
    spread, p_value = proposal_errors(prior, BIASED[name])
    assert spread < 1e-8
    assert p_value > 1e-5  # seed fixed


@pytest.mark.parametrize(
    "replacement",
    [
        ("in_all = extra * group.n_units if", "in_all = extra if"),
        ("(alpha_unit + extra) / 2", "alpha_unit / 2"),
        ("shape = (alpha_common + in_all) / 2", "shape = alpha_common / 2"),
    ],
)
def test_a_wrong_bias_of_the_proposal_is_seen(replacement: tuple[str, str]) -> None:
    _, p_value = proposal_errors(mutant(prior, replacement), "0.3:4:5")
    assert p_value < 1e-5


@pytest.mark.parametrize("model", ["binary", "class"])
def test_rejection_sampling_of_discrete_targets_accepts_by_the_likelihood(model: str) -> None:
    target = problem(model)
    position, precisions, log_acceptance = target.rejection_proposal(streams("discrete", 50))
    assert np.all(log_acceptance <= 0)
    assert np.array_equal(log_acceptance, target.log_likelihood(position, precisions))


@pytest.mark.parametrize("model", MODELS)
def test_initial_sigmas_are_what_was_asked_for(model: str) -> None:
    target = problem(model, dtype="float32")
    random = streams("start", 3)
    state = target.initial_state(random.at(iteration=7, operation=2), sigmas=0.5)
    layout = target.precision_layout
    assert np.all(state.precisions[:, layout.is_free] == 4)
    for group in layout.groups:
        if math.isinf(group.prior.alphas[0]):
            assert np.all(state.precisions[:, group.common] == group.mean)
    assert np.all(state.position == 0)
    assert state.position.dtype == state.momentum.dtype == np.float32
    assert state.position.flags.c_contiguous and state.precisions.flags.c_contiguous
    again = target.initial_state(random, sigmas=None)
    assert np.array_equal(again.momentum, state.momentum)
