"""Energies of noise without a closed integral, and proposals of its precision, against scipy."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from rayfbnn.arrays import Array
from rayfbnn.model.ladder_path import path_of
from rayfbnn.model.noise_ladder import Joint, Proposal, Squares, TResiduals, energy_of
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.selftest.pivots import ks_p_value
from rayfbnn.streams import Purpose
from tests.support.ladder.posteriors import posterior_of
from tests.support.problems import streams_on_array

_NOISES = {"1:10::4": 1, "0.7::3:2": 2, "0.7:3::2": 2, "0.7:5:3": 2}
_U = np.linspace(-3.0, 3.0, 7)


def _posterior(noise: str, *, is_missing: bool = False) -> SampledPosterior:
    posterior = posterior_of("tiny7.csv", noise=noise, n_targets=_NOISES[noise])
    if not is_missing:
        return posterior
    targets = np.array(posterior.targets).T
    targets[2, 0] = targets[4, -1] = math.nan
    return SampledPosterior.from_spec(
        posterior.network, posterior.model, np.array(posterior.inputs[:-1]).T, targets
    )


def _position(posterior: SampledPosterior, n: int) -> Array:
    return path_of(posterior).prior_draw(streams_on_array(1, np.arange(n, dtype=np.uint64))).position


@pytest.mark.parametrize("is_missing", [False, True])
@pytest.mark.parametrize("noise", _NOISES)
def test_energies_of_held_noise_are_those_of_the_likelihood(noise: str, is_missing: bool) -> None:
    posterior = _posterior(noise, is_missing=is_missing)
    of_each = posterior.precision_layout.groups[-1].units is not None
    path = path_of(posterior).with_multipliers((0.5, 2.0) if of_each else ())
    streams = streams_on_array(1, np.arange(len(_U), dtype=np.uint64))
    state = path.prior_draw(streams)
    _, energies = path.offered(state, streams.at(iteration=1), is_below=np.ones(len(_U), dtype=bool))
    held = path.placed(state, _U)
    exact = -posterior.log_likelihood(held.position, held.precisions)
    assert np.allclose(energies.at(_U), exact, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("noise", ["1:10::4", "0.7::3:2", "0.7:3::2"])
def test_joint_density_of_t_noise_is_that_of_scipy(noise: str) -> None:
    posterior = _posterior(noise, is_missing=True)
    group = posterior.precision_layout.groups[-1]
    position = _position(posterior, 3)
    values = posterior.residuals(position)
    alpha, degrees = (alpha for alpha in group.prior.alphas if math.isfinite(alpha))
    joint = TResiduals.of(posterior, position).joint(group)
    n_units = 1 if group.units is None else _NOISES[noise]
    for u in _U:
        terms = scipy.stats.t.logpdf(np.sqrt(values.squares), degrees, scale=math.exp(-u / 2))
        prior = u + scipy.stats.gamma.logpdf(math.exp(u), alpha / 2, scale=2 * group.mean / alpha)
        exact = (values.weights * terms).reshape(3, n_units, -1).sum(axis=2) + prior
        assert np.allclose(joint.log_density(np.full((3, n_units), u)), exact, rtol=1e-11, atol=1e-11)


def test_joint_density_of_two_levels_is_that_of_scipy() -> None:
    """With the precision of a target integrated out, its residuals have a multivariate t distribution."""
    posterior = _posterior("0.7:5:3")
    group = posterior.precision_layout.groups[-1]
    position = _position(posterior, 3)
    residuals = np.sqrt(posterior.residuals(position).squares)
    joint = Squares.of(posterior, position).joint(group)
    for u in _U:
        prior = u + scipy.stats.gamma.logpdf(math.exp(u), 2.5, scale=group.mean / 2.5)
        shape = math.exp(-u) * np.eye(posterior.n_cases)
        exact = prior + scipy.stats.multivariate_t.logpdf(residuals, shape=shape, df=3).sum(axis=1)
        assert np.allclose(joint.log_density(np.full((3, 1), u))[:, 0], exact, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("noise", ["0.7:5", "0.7::3"])
def test_energy_without_noise_is_that_of_scipy(noise: str) -> None:
    """Residuals have a multivariate t distribution: of both targets together if these share a sigma."""
    posterior = posterior_of("tiny7.csv", noise=noise, n_targets=2)
    group = posterior.precision_layout.groups[-1]
    position = _position(posterior, 3)
    residuals = np.sqrt(posterior.residuals(position).squares)
    is_shared = noise == "0.7:5"
    assert (group.units is None) == is_shared
    each = residuals.reshape(3, 1 if is_shared else 2, -1)
    shape = np.eye(each.shape[2]) / group.mean
    log_density = scipy.stats.multivariate_t.logpdf(each, shape=shape, df=5 if is_shared else 3)
    exact = -log_density.reshape(3, -1).sum(axis=1)
    energy = Squares.of(posterior, position).energy_without_noise(group)
    assert np.allclose(energy, exact, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("n", [1, 3, 10, 300])
@pytest.mark.parametrize("degrees", [0.5, 2.0, 30.0])
@pytest.mark.parametrize("alpha, omega", [(0.001, 1e20), (0.5, 25.0), (12.0, 1.5)])
def test_proposal_has_the_mode_and_covers_the_density(
    n: int, degrees: float, alpha: float, omega: float
) -> None:
    """From 10 residuals on, an exchange of u alone is accepted with probability 0.85 or more.

    Residuals are of sizes 0, 1e-8, 1 and 1e6, with and without an outlier 10,000 times as large.
    """
    streams = streams_on_array(n, np.arange(8, dtype=np.uint64))
    mixing = streams.log_gamma(degrees / 2, Purpose.TARGET_VALUE, (1, n), index=1) - math.log(degrees / 2)
    residuals = streams.normal(Purpose.TARGET_VALUE, (1, n)) * np.exp(-mixing / 2)
    residuals *= np.tile([0.0, 1e-8, 1.0, 1e6], 2)[:, None, None]
    residuals[4:, 0, 0] *= 1e4
    counts, nothing = np.full((1, 1), float(n)), np.zeros((1, 1))
    joint = Joint(residuals**2 / degrees, (degrees + 1) / 2, counts, nothing, alpha, omega)
    proposal = joint.proposal()
    step = 1e-3 / np.sqrt(proposal.curvature)
    below, at, above = (joint.log_density(proposal.mode + k * step) for k in (-1, 0, 1))
    assert np.allclose((above - below) / 2e-3, 0.0, atol=0.002)  # in units of the scale
    curvature = -(above + below - 2 * at) / 1e-6
    assert (curvature < 1.01).all()  # less where the scale is bounded
    if n >= 10:
        assert np.allclose(curvature, 1.0, atol=0.01)
        assert (_acceptance(joint, proposal) > 0.85).all()


def _acceptance(joint: Joint, proposal: Proposal) -> Array:
    """Return the mean of min(1, r) for u from the density and v from the proposal, (n_rows,), by sums."""
    grid = np.linspace(-40.0, 40.0, 8001)
    found = []
    for row in range(len(joint.s)):
        fitted = Proposal(proposal.mode[row, 0], proposal.curvature[row, 0])
        u = fitted.mode + grid / np.sqrt(fitted.curvature)
        one = replace(joint, s=np.repeat(joint.s[row : row + 1], len(u), axis=0))
        log_p, log_q = one.log_density(u[:, None])[:, 0], fitted.log_density(u)
        p, q = np.exp(log_p - log_p.max()), np.exp(log_q)
        order = np.argsort(log_p - log_q)
        p, q = p[order] / p.sum(), q[order] / q.sum()
        found.append((p * (1 - np.cumsum(q)) + q * np.cumsum(p)).sum())
    return np.array(found)


def test_mean_of_the_energy_over_proposals_is_the_integral() -> None:
    """Every |z| is below 4, 1 in 16,000 each if correct; the seed is fixed."""
    posterior = _posterior("1:10::4")
    group, n = posterior.precision_layout.groups[-1], 20_000
    for position in _position(posterior, 3):
        joint = TResiduals.of(posterior, position[None]).joint(group)
        one = joint.proposal()
        largest = joint.log_density(one.mode)
        exact, _ = scipy.integrate.quad(
            lambda u, joint=joint, largest=largest: np.exp(joint.log_density(u + 0 * largest) - largest)[
                0, 0
            ],
            -40,
            40,
            points=[one.mode[0, 0]],
        )
        many = replace(joint, s=np.repeat(joint.s, n, axis=0))
        proposal = Proposal(np.repeat(one.mode, n, axis=0), np.repeat(one.curvature, n, axis=0))
        streams = streams_on_array(5, np.arange(n, dtype=np.uint64))
        u = proposal.drawn(streams, Purpose.NOISE_COMMON)
        weights = np.exp(-energy_of(many, proposal, u) - largest[0, 0]) / exact
        assert abs(weights.mean() - 1) < 4 * weights.std() / math.sqrt(n)
        place = (u - proposal.mode) * np.sqrt(proposal.curvature)
        assert ks_p_value(scipy.stats.t.cdf(place[:, 0], 8)) > 1e-4
        values = np.exp(proposal.log_density(u) - np.log(proposal.curvature) / 2)
        assert np.allclose(values, scipy.stats.t.pdf(place, 8), rtol=1e-10)


def test_state_that_overflows_has_an_infinite_energy() -> None:
    posterior = _posterior("1:10::4")
    path, streams = path_of(posterior), streams_on_array(1, np.arange(3, dtype=np.uint64))
    state = path.prior_draw(streams)
    state.position[1] = 1e200
    after, energies = path.offered(state, streams.at(iteration=1), is_below=np.ones(3, dtype=bool))
    at_top = energies.at(np.full(3, math.inf))
    assert np.isfinite(at_top).tolist() == [True, False, True]
    assert np.isfinite(energies.at(np.zeros(3))).tolist() == [True, False, True]
    assert np.isfinite(after.precisions).all()


def test_precision_beyond_its_limits_has_no_density() -> None:
    joint = Joint(np.ones((2, 1, 3)), 2.5, np.full((1, 1), 3.0), np.zeros((1, 1)), 1.0, 1.0)
    energy = energy_of(joint, joint.proposal(), np.array([[-601.0], [601.0]]))
    assert (energy == math.inf).all()


def test_proposals_of_a_row_do_not_depend_on_other_rows() -> None:
    streams = streams_on_array(3, np.arange(6, dtype=np.uint64))
    squares = streams.normal(Purpose.PROPOSAL, (2, 40)) ** 2 * 10.0 ** np.arange(6)[:, None, None]
    joint = Joint(squares, 2.5, np.full((1, 2), 40.0), np.zeros((1, 2)), 0.5, 25.0)
    whole, alone = joint.proposal(), replace(joint, s=squares[4:5]).proposal()
    assert (whole.mode[4:5] == alone.mode).all() and (whole.curvature[4:5] == alone.curvature).all()
