"""Expectation propagation: exact means of linear regressions, and known numbers for one logistic weight."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rayfbnn.approximate import propagation as module
from rayfbnn.approximate.propagation import Propagation, _bytes_of_sites
from rayfbnn.arrays import Array
from rayfbnn.errors import ConfigError
from rayfbnn.model import approximated_posterior as approximated
from rayfbnn.model.approximated_posterior import ApproximatedPosterior
from rayfbnn.model.architecture import ModelSpec
from rayfbnn.streams import Purpose
from tests.support.model.linear import linear, one_weight
from tests.support.mutants import mutant
from tests.support.problems import network, streams


def fit(
    target: Any, *, n_starts: int = 2, source: Any = module, **settings: Any
) -> tuple[Any, Any, list[Any]]:
    method = source.PropagationFit(target, source.Propagation(**settings))
    random = streams("propagation", n_starts)
    state, infos = method.initial(random), []
    while not method.is_complete(state) and len(infos) < method.settings.sweeps:
        state, info = method.step(state, random.at(iteration=len(infos) + 1))
        infos.append(info)
    return method, state, infos


def moments_of(state: Any) -> tuple[Array, Array]:
    return state["shift"] / state["precision"], state["precision"] ** -0.5


def errors_of_linear(source: Any = module) -> tuple[float, Array]:
    """Return the largest error of a mean of a linear regression, and the ratios of sds to exact ones."""
    problem = linear(correlation=0.0)
    with np.errstate(all="ignore"):
        _, state, _ = fit(problem.target, source=source, damping=1.0, sweeps=30, tolerance=1e-15)
        mean, sd = moments_of(state)
        exact = np.sqrt(np.diag(np.linalg.inv(problem.a)))
        return float(np.abs(mean - problem.mean).max()), sd / exact


def test_a_linear_regression_gets_its_exact_means() -> None:
    """It is Gaussian belief propagation, whose means are exact."""
    error, ratios = errors_of_linear()
    assert error < 1e-10
    assert np.abs(ratios - 1).max() < 0.08  # the variances of belief propagation are not exact


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('q["precision"] - site, q["shift"] - site_shift', 'q["precision"], q["shift"]'),  # no cavity
        ("1 / variance - left, site)", "1 / variance, site)"),  # what is left not taken out of the site
        ("variance - variance**2 * (", "variance + variance**2 * ("),
        ("2 * by_variance)", "by_variance)"),
        ("mean + variance * by_mean", "mean + variance**0.5 * by_mean"),
    ],
)
def test_a_wrong_site_is_seen(old: str, new: str) -> None:
    error, ratios = errors_of_linear(mutant(module, (old, new)))
    assert not (error < 1e-3 and np.abs(ratios - 1).max() < 0.1)


def sd_ratio_after(passes: int, mode: Any) -> float:
    problem = linear(correlation=0.0)
    _, state, _ = fit(problem.target, mode=mode, sweeps=passes, damping=1.0, n_starts=1, tolerance=1e-300)
    exact = np.sqrt(np.diag(np.linalg.inv(problem.a)))
    return float(np.mean(moments_of(state)[1] / exact))


def test_filtering_counts_the_data_in_each_pass_and_sites_do_not() -> None:
    assert sd_ratio_after(10, "adf") == pytest.approx(10**-0.5, rel=0.1)
    assert sd_ratio_after(10, "sites") == pytest.approx(1.0, rel=0.06)


KNOWN = [(1.0, 0.8006174, 0.5659037, -3.8359421), (0.25, 1.2066619, 0.6947408, -4.0289419)]
"""Precision of the prior of one logistic weight; mean, sd and log Z of its approximation."""


def error_of_known(precision: float, *expected: float) -> float:
    """Return the largest error of mean, sd and log Z of a logistic weight."""
    with np.errstate(all="ignore"):
        method, state, _ = fit(one_weight(precision), damping=1.0, sweeps=300, tolerance=1e-12)
        found = [*moments_of(state), method.log_evidence(state)[:, None]]
    return max(np.abs(values - value).max() for values, value in zip(found, expected, strict=True))


@pytest.mark.parametrize("known", KNOWN)
def test_a_logistic_weight_has_its_known_approximation(known: tuple[float, ...]) -> None:
    assert error_of_known(*known) < 1e-6
    assert known[3] < {1.0: -3.7370282, 0.25: -3.7924221}[known[0]]  # the exact log Z: it is a bound


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("xp.tanh(safe / 2) / (4 * safe)", "xp.tanh(safe / 2) / (2 * safe)"),
        ("(y - 0.5 - 2 * lam * m) / spread", "(y - 0.5 - lam * m) / spread"),
        ("0.5 * (by_mean**2 - 2 * lam / spread)", "0.5 * (by_mean**2 - lam / spread)"),
        ("- 0.5 * xp.log(spread)", "+ 0.5 * xp.log(spread)"),
        ("((m + v * (y - 0.5)) / spread) ** 2 + v / spread)", "((m + v * (y - 0.5)) / spread) ** 2)"),
    ],
)
def test_a_wrong_bound_is_seen(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approximated, "logistic_factor", mutant(approximated, (old, new)).logistic_factor)
    assert not error_of_known(*KNOWN[0]) < 1e-3


def test_the_evidence_of_one_gaussian_weight_is_exact() -> None:
    problem = linear()
    spec = network({"bo": "1"}, inputs=3, outputs=1, units=(), activations=())
    target = ApproximatedPosterior.from_spec(
        spec, problem.target.model, problem.design[:, :3], problem.y[:, None]
    )
    method, state, _ = fit(target, damping=1.0, sweeps=50)
    covariance = np.ones((25, 25)) + np.eye(25) / problem.beta
    exact = -0.5 * (
        problem.y @ np.linalg.solve(covariance, problem.y)
        + np.linalg.slogdet(covariance)[1]
        + 25 * np.log(2 * np.pi)
    )
    np.testing.assert_allclose(method.log_evidence(state), exact, rtol=1e-9)


def hidden(units: int = 3, activation: str = "relu") -> Any:
    random = streams("hidden", 1)
    inputs = random.normal(Purpose.PROPOSAL, (12, 2))[0]
    targets = (inputs[:, :1] * inputs[:, 1:] > 0).astype(float)
    spec = network(
        {"ih0": "1:2", "bh0": "1", "ho0": "x1:2", "bo": "1"},
        inputs=2,
        outputs=1,
        units=(units,),
        activations=(activation,),
    )
    return ApproximatedPosterior.from_spec(spec, ModelSpec("binary"), inputs, targets)


def test_units_that_start_alike_stay_alike() -> None:
    target = hidden()
    _, state, _ = fit(target, spread=0.0, sweeps=4)
    mean, _ = moments_of(state)
    assert np.ptp(mean[0, target.parameter_layout.slices["ho0"]]) < 1e-9


def difference_of_units(source: Any = module) -> float:
    """Return how far the weights out of the units are apart after a start that should part them."""
    target = hidden()
    _, state, _ = fit(target, source=source, spread=0.5, sweeps=4)
    return float(np.ptp(moments_of(state)[0][0, target.parameter_layout.slices["ho0"]]))


def test_a_start_that_parts_no_units_is_seen() -> None:
    assert difference_of_units(mutant(module, ("spread * normal *", "spread *"))) < 1e-3


def test_units_differ_after_a_random_start() -> None:
    assert difference_of_units() > 1e-3


def test_starts_do_not_depend_on_each_other() -> None:
    target = hidden()
    _, together, _ = fit(target, n_starts=2, sweeps=2)
    _, alone, _ = fit(target, n_starts=1, sweeps=2)
    np.testing.assert_allclose(alone["shift"][0], together["shift"][0], rtol=1e-12)


def test_precisions_are_those_expected_under_the_parameters() -> None:
    target = hidden()
    _, state, _ = fit(target, sweeps=3, n_starts=1)
    mean, sd = moments_of(state)
    part = target.parameter_layout.slices["ih0"]
    column = target.precision_layout.common["ih0"]
    # The prior's site was changed after the moments: take it out again.
    before = state["precision"] - state["prior"]
    assert state["shape"][0, column] == pytest.approx((2 + 6) / 2)
    assert (state["prior"][0, part] == state["precisions"][0, column]).all()
    assert (before[0, part] > -state["prior"][0, part]).all()
    assert np.isfinite(mean).all() and np.isfinite(sd).all()


def test_draws_are_those_of_the_gaussian() -> None:
    method, state, _ = fit(linear().target, sweeps=5)
    positions, precisions, log_q = method.distribution(state).draws(streams("draws", 2), 4000)
    mean, sd = moments_of(state)
    z = (positions - mean[:, None]) / sd[:, None]
    assert np.abs(z.mean(axis=1)).max() < 4 / np.sqrt(4000)  # 8 means: false alarms 5e-4
    assert precisions.shape == (2, 4000, 3)
    expected = -0.5 * (z**2).sum(axis=2) - np.log(sd).sum(axis=1)[:, None] - 2 * np.log(2 * np.pi)
    np.testing.assert_allclose(log_q, expected)


def test_the_bound_is_below_the_logistic_factor_and_touches_it() -> None:
    m, v = np.array([0.7, -2.0, 0.0]), np.array([1.3, 0.2, 1e-8])
    points, weights = np.polynomial.hermite_e.hermegauss(80)
    f = m[:, None] + np.sqrt(v)[:, None] * points
    for y in (0.0, 1.0):
        exact = np.log((np.exp(y * f - np.logaddexp(0, f)) * weights).sum(axis=1) / weights.sum())
        ours = approximated.logistic_factor(np.full(3, y), m, v).log_z
        assert (ours <= exact + 1e-12).all()
        assert ours[2] == pytest.approx(exact[2], abs=1e-6)


def test_the_factor_at_a_point_has_the_numbers_of_the_corrected_formulas() -> None:
    """At zeta = 1.1, m = 0.7, v = 1.3, y = 1."""
    lam = float(approximated.curvature_of_bound(np.array(1.1)))
    by_mean = (1 - 0.5 - 2 * lam * 0.7) / (1 + 2 * lam * 1.3)
    assert by_mean == pytest.approx(0.262968, abs=1e-6)
    assert 0.5 * (by_mean**2 - 2 * lam / (1 + 2 * lam * 1.3)) == pytest.approx(-0.053214, abs=1e-6)


def test_the_memory_of_the_sites_is_counted() -> None:
    _, state, _ = fit(hidden(), sweeps=1, n_starts=1)
    n_cases, n_parameters = state["site_shift"].shape[1:]
    sites = state["site_shift"].nbytes + state["site_precision"].nbytes
    assert _bytes_of_sites(n_cases, n_parameters) == sites


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sweeps": 0}, "sweeps: must be a whole number of at least 1"),
        ({"damping": 0.0}, "damping: must be a number above 0"),
        ({"spread": -1.0}, "spread: must be a number of at least 0"),
    ],
)
def test_wrong_settings_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"methods.vep.{message}"):
        Propagation(**settings)


def test_the_curvature_of_the_bound_has_no_step_where_a_series_takes_over() -> None:
    zeta = np.array([0.0, 1e-6, 5e-4, 0.999e-3, 1e-3, 1.001e-3, 0.1, 5.0])
    series = 1 / 8 - zeta[:6] ** 2 / 96
    found = approximated.curvature_of_bound(zeta)
    np.testing.assert_allclose(found[:6], series, rtol=1e-11)
    np.testing.assert_allclose(found[6:], np.tanh(zeta[6:] / 2) / (4 * zeta[6:]), rtol=1e-14)
