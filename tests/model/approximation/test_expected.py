"""Distributions of precisions under an approximation, against quadrature and against draws' bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.integrate
import scipy.special

from rayfbnn.model import approximated_precisions as module
from rayfbnn.model.approximated_posterior import ApproximatedPosterior
from rayfbnn.model.approximated_precisions import precision_moments
from rayfbnn.model.architecture import ModelSpec, PriorSpec
from rayfbnn.streams import Purpose
from tests.support.mutants import mutant
from tests.support.problems import network, problem, streams


@pytest.mark.parametrize(
    ("k", "sums", "v0", "mean"),
    [(1, 1.0, 1.0, 0.866280), (10, 4.0, 4.0, 2.269289), (100, 25.0, 100.0, 4.066512)],
)
def test_a_rectified_gaussian_prior_has_its_known_means(k: int, sums: float, v0: float, mean: float) -> None:
    moments = precision_moments(np.array(k / 2 + 1), rate=np.array(sums / 2), square_rate=1 / (2 * v0))
    assert float(moments.mean) == pytest.approx(mean, abs=1e-6)


def test_moments_are_those_of_gamma_and_inverse_gaussian_variables() -> None:
    a, b = np.array([0.1, 3.0, 400.0]), np.array([2.0, 0.01, 7.0])
    gamma = precision_moments(a, rate=b)
    np.testing.assert_allclose(gamma.mean, a / b, rtol=1e-9)
    np.testing.assert_allclose(gamma.log_mean, scipy.special.digamma(a) - np.log(b), rtol=1e-9)
    log_normaliser = scipy.special.gammaln(a) - a * np.log(b)
    np.testing.assert_allclose(gamma.log_normaliser, log_normaliser, rtol=1e-9)
    order, c = np.array([-3.0, -0.5, 2.0]), np.array([5.0, 0.001, 3.0])
    inverse = precision_moments(order, rate=b, inverse_rate=c)
    bessel = [scipy.special.kve(order + n, 2 * np.sqrt(b * c)) for n in (-1, 0, 1)]
    np.testing.assert_allclose(inverse.mean, np.sqrt(c / b) * bessel[2] / bessel[1], rtol=1e-9)
    np.testing.assert_allclose(inverse.inverse_mean, np.sqrt(b / c) * bessel[0] / bessel[1], rtol=1e-9)


def targeted(prior: str, noise: str = "0.3:4") -> Any:
    spec = network({"ih0": prior, "bh0": "0.5", "ho0": "x1", "bo": "1"}, units=(2,), activations=("tanh",))
    return problem("gaussian", spec=spec, posterior=_with_noise(noise))


def _with_noise(noise: str) -> Any:
    class WithNoise:
        @staticmethod
        def from_spec(spec: Any, model: Any, inputs: Any, values: Any, dtype: Any) -> Any:
            changed = ModelSpec("real", PriorSpec.parse(noise, key="noise"))
            return ApproximatedPosterior.from_spec(spec, changed, inputs, values, dtype=dtype)

    return WithNoise


def bound_of(target: Any, q: Any, squares: Any, residuals: Any) -> float:
    """The part of the bound that depends on the precisions of ih0 and noise, at the precisions E tau."""
    total = float(q.bound[0])
    for name, sums, n in (("ih0", squares, 1), ("noise", residuals, 7)):
        group = next(group for group in target.precision_layout.groups if group.name == name)
        rows = sums if name == "noise" else sums[:, target.parameter_layout.slices[name]]
        rows = rows.reshape(1, group.n_units, -1)
        columns = (
            [group.common] * group.n_units
            if group.units is None
            else range(group.units.start, group.units.stop)
        )
        for unit, column in enumerate(columns):
            tau, values = q.mean[0, column], rows[0, unit]
            total += 0.5 * n * values.size * np.log(tau) - 0.5 * tau * values.sum()
    return total


def statistics(target: Any) -> tuple[Any, Any, Any]:
    _, precisions = target.start(streams("start", 1))
    squares = 0.2 + streams("squares", 1).uniform(1, (target.n_parameters,))  # type: ignore[arg-type]
    return precisions, squares, np.array([[0.9, 1.7]])


def test_one_level_has_the_exact_bound() -> None:
    """For a Gamma precision the best q(tau) is exact: the bound is the log of the integral over tau."""
    target = targeted("0.7:3", "0.3:4")
    precisions, squares, residuals = statistics(target)
    q = target.expected_precisions(precisions, squares, residuals)
    exact = 0.0
    for alpha, omega, n, s in (
        (3, 0.7**-2, 6, squares[:, target.parameter_layout.slices["ih0"]].sum()),
        (4, 0.3**-2, 14, residuals.sum()),
    ):
        a, b, c, d = alpha / 2, alpha / 2 / omega, (alpha + n) / 2, (alpha / omega + s) / 2
        exact += a * np.log(b) - scipy.special.gammaln(a) + scipy.special.gammaln(c) - c * np.log(d)
    assert bound_of(target, q, squares, residuals) == pytest.approx(exact, rel=1e-12)


def two_level_bounds(source: Any = module) -> tuple[float, float]:
    """The bound of two levels, and the log of the integral over all precisions, which is above it."""
    target = targeted("0.7:3:4", "0.3")
    precisions, squares, residuals = statistics(target)
    q = source.expected_precisions(target, precisions, squares, residuals)
    ours = bound_of(target, q, squares, residuals)
    fixed = 0.5 * 14 * np.log(0.3**-2) - 0.5 * 0.3**-2 * residuals.sum()
    rows = squares[0, target.parameter_layout.slices["ih0"]].reshape(3, 2).sum(axis=1)

    def density(x: float) -> float:
        tau = np.exp(x)
        log_p = 1.5 * np.log(1.5 * 0.49) - scipy.special.gammaln(1.5) + 1.5 * x - 1.5 * 0.49 * tau
        units = (
            2 * np.log(2 / tau)
            - scipy.special.gammaln(2.0)
            + scipy.special.gammaln(3.0)
            - 3 * np.log(2 / tau + rows / 2)
        )
        return float(np.exp(log_p + units.sum()))

    exact = np.log(scipy.integrate.quad(density, -8, 8, epsabs=1e-13)[0])
    return ours - fixed, float(exact)


def test_two_levels_have_a_bound_just_below_the_exact_integral() -> None:
    bound, exact = two_level_bounds()
    assert exact - 0.5 < bound < exact


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("a1 * common.inverse_mean[:, None] + sums", "a1 / common.mean[:, None] + sums"),
        ("(alpha - group.n_units * alpha_unit) / 2", "(alpha + group.n_units * alpha_unit) / 2"),
    ],
)
def test_a_wrong_distribution_of_units_is_seen(old: str, new: str) -> None:
    """q(tau) is the best of its family: with any other the bound is lower, or is none."""
    right, exact = two_level_bounds()
    wrong, _ = two_level_bounds(mutant(module, (old, new)))
    assert wrong < right - 1e-4 or wrong > exact


def test_t_values_under_free_precisions_and_adjustments_are_refused() -> None:
    assert "ih0 has t values" in targeted("0.7:3::4").why_not_expected
    assert targeted("0.7:::4").why_not_expected is None
    assert targeted("0.7:3:4").why_not_expected is None


def with_dispersion(text: str) -> ApproximatedPosterior:
    """The posterior of a small network with two counts as targets."""
    model = ModelSpec("count", dispersion=PriorSpec.parse(text, key="dispersion"))
    priors = {"ih0": "0.7:3", "bh0": "0.5", "ho0": "x0.7:4"}
    spec = network(priors, inputs=2, outputs=2, units=(3,), activations=("tanh",))
    inputs = streams("dispersion", 1).normal(Purpose.PROPOSAL, (9, 2))[0]
    return ApproximatedPosterior.from_spec(spec, model, inputs, np.arange(9.0)[:, None] * np.ones(2))


@pytest.mark.parametrize("text", ["0.5:3", "0.5:3:4", "0.5::4"])
def test_a_dispersion_that_varies_is_refused(text: str) -> None:
    posterior = with_dispersion(text)
    for reason in (posterior.why_not_expected, posterior.why_not_curved):
        assert 'a dispersion that varies is not covered; fix it, as in dispersion = "0.5"' in str(reason)


def test_a_fixed_dispersion_stays_fixed() -> None:
    posterior = with_dispersion("0.5")
    assert posterior.why_not_expected is None and posterior.why_not_curved is None
    position, precisions = posterior.start(streams("dispersion", 2))
    squares, determined = position**2, np.zeros((2, 1))
    found = posterior.expected_precisions(precisions, squares, posterior.residual_squares(position))
    moved = posterior.reestimated(position, precisions, squares, determined, is_integrated=False)
    column = posterior.precision_layout.common["dispersion"]
    np.testing.assert_array_equal(found.mean[:, column], 4.0)
    np.testing.assert_array_equal(moved.precisions[:, column], 4.0)
    assert np.isfinite(posterior.gauss_newton(position, precisions)).all()
