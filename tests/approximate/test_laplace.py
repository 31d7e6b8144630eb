"""Gaussian approximations: exact for linear regressions, known for a logistic regression of one weight."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.optimize

from rayfbnn.approximate import laplace as module
from rayfbnn.approximate.approximation import member_weights
from rayfbnn.approximate.laplace import Laplace, Modes
from rayfbnn.arrays import Array
from rayfbnn.errors import ConfigError
from rayfbnn.model import approximated_precisions
from rayfbnn.model.prior import log_gamma_density
from tests.support.marks import count_calls
from tests.support.model.linear import linear, one_weight
from tests.support.mutants import mutant
from tests.support.problems import streams


def fit(target: Any, *, n_starts: int = 2, source: Any = module, **settings: Any) -> tuple[Any, Any]:
    method = source.LaplaceFit(target, source.Laplace(**settings))
    random = streams("laplace", n_starts)
    state, number = method.initial(random), 0
    while not method.is_complete(state) and number < method.settings.steps:
        number += 1
        state, _ = method.step(state, random.at(iteration=number))
    return method, state


def test_a_linear_regression_has_its_exact_posterior_and_evidence() -> None:
    problem = linear()
    method, state = fit(problem.target, precisions="fixed")
    modes = method.distribution(state)
    np.testing.assert_allclose(modes.mode, np.tile(problem.mean, (2, 1)), rtol=1e-7)
    np.testing.assert_allclose(modes.factor[0] @ modes.factor[0].T, problem.a, rtol=1e-9)
    np.testing.assert_allclose(modes.log_evidence, problem.log_evidence, atol=1e-8)
    assert modes.least_eigenvalue == pytest.approx(np.linalg.eigvalsh(problem.a)[0], rel=1e-6)


FREE = {"io": "0.8:0.5", "noise": "0.5:3"}


def log_evidence(problem: Any, log_tau: Array) -> float:
    """Log evidence of a linear regression plus the log prior of the log precisions of io and noise."""
    tau, beta = np.exp(log_tau)
    total = problem.at(np.array([tau, tau, tau, 1.0]), beta).log_evidence
    for value, alpha, omega in ((tau, 0.5, 0.8**-2), (beta, 3.0, 0.5**-2)):
        total += float(log_gamma_density(np.array(value), alpha, omega) + np.log(value))
    return float(total)


def slope_at_fixed_point(source: Any = approximated_precisions) -> float:
    """Return the largest derivative of the log evidence by the log precisions that a fit ends with."""
    problem = linear(**FREE)
    target = problem.target
    if source is not approximated_precisions:
        target = _with(target, source)
    _, state = fit(target, n_starts=1)
    # The fit ends at changes of 1e-3: some more steps of its fixed point.
    method = module.LaplaceFit(target, Laplace())
    for _ in range(300):
        state = {**method._descend(state, 5)}
        state["precisions"] = method._reestimated(state)[0]
    common = target.precision_layout.common
    at = np.log(state["precisions"][0, [common["io"], common["noise"]]])
    slopes = [
        (log_evidence(problem, at + step) - log_evidence(problem, at - step)) / 2e-4
        for step in 1e-4 * np.eye(2)
    ]
    return float(np.abs(slopes).max())


def _with(target: Any, source: Any) -> Any:
    """Return a target whose precisions are updated by a changed module."""

    class Changed(type(target)):  # type: ignore[misc]
        reestimated = source.reestimated

    return Changed(**{name: getattr(target, name) for name in target.__dataclass_fields__})


def test_the_fixed_point_is_the_greatest_evidence() -> None:
    assert slope_at_fixed_point() < 1e-6


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("gamma = sizes - determined", "gamma = sizes"),  # all cases count for the noise
        ("sizes - tau * of_values", "sizes - 0 * of_values"),  # all values are determined
        ("(gamma + alpha) / (squares", "(gamma + alpha - 2) / (squares"),  # the mode in tau, not in log tau
    ],
)
def test_a_wrong_fixed_point_is_seen(old: str, new: str) -> None:
    assert slope_at_fixed_point(mutant(approximated_precisions, (old, new))) > 1e-2


def test_the_peak_over_log_precisions_has_the_width_of_the_exact_evidence() -> None:
    """With a prior as tight as alpha 400 the integral over log tau is a Gaussian one, to 1 %."""
    problem = linear(noise="0.4:400", io="1", bo="1")
    method, state = fit(problem.target, n_starts=1)
    grid = np.linspace(-0.6, 0.6, 401)
    omega = 0.4**-2
    values = []
    for x in grid:
        beta = omega * np.exp(x)
        values.append(
            problem.at(problem.prior, beta).log_evidence
            + float(log_gamma_density(np.array(beta), 400.0, omega) + np.log(beta))
        )
    exact = np.log(np.trapezoid(np.exp(values), grid))
    assert method.distribution(state).log_evidence[0] == pytest.approx(exact, abs=0.01)


def test_vague_precisions_reach_the_maximum_of_the_evidence_from_every_start() -> None:
    problem = linear(io="1:1e-9", noise="0.4:1e-9")
    _, state = fit(problem.target, n_starts=3)
    common = problem.target.precision_layout.common
    best = scipy.optimize.minimize(
        lambda x: -problem.at(np.array([*[np.exp(x[0])] * 3, 1.0]), np.exp(x[1])).log_evidence,
        [0.0, 2.0],
        tol=1e-10,
    )
    for name, value in zip(("io", "noise"), best.x, strict=True):
        np.testing.assert_allclose(np.log(state["precisions"][:, common[name]]), value, atol=5e-3)


@pytest.mark.parametrize(
    ("precision", "mean", "sd", "log_z"),
    [(1.0, 0.760463, 0.604997, -3.756447), (0.25, 1.092723, 0.825059, -3.832481)],
)
def test_a_logistic_weight_has_its_known_approximation(
    precision: float, mean: float, sd: float, log_z: float
) -> None:
    method, state = fit(one_weight(precision), precisions="fixed")
    modes = method.distribution(state)
    assert modes.mode[0, 0] == pytest.approx(mean, abs=1e-6)
    assert 1 / modes.factor[0, 0, 0] == pytest.approx(sd, abs=1e-6)
    assert modes.log_evidence[0] == pytest.approx(log_z, abs=1e-6)


@pytest.mark.parametrize("precisions", ["fixed", "evidence"])
def test_gradients_and_curvatures_are_counted(precisions: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = linear(**FREE).target
    calls = count_calls(type(target), monkeypatch, "potential_and_gradient", "gauss_newton")
    _, state = fit(target, n_starts=1, precisions=precisions)
    assert state["gradients"].tolist() == [calls["potential_and_gradient"]]
    assert state["curvatures"].tolist() == [calls["gauss_newton"]]


def test_draws_have_the_covariance_and_the_density_of_the_approximation() -> None:
    problem = linear()
    method, state = fit(problem.target, n_starts=1, precisions="fixed")
    positions, precisions, log_q = method.distribution(state).draws(streams("draws", 1), 5000)
    assert positions.shape == (1, 5000, 4)
    assert precisions.shape == (1, 5000, 3)
    white = (positions[0] - problem.mean) @ np.linalg.cholesky(problem.a)
    assert np.abs(white.mean(axis=0)).max() < 4 / np.sqrt(5000)  # 4 means: false alarms 2.5e-4
    assert np.abs(white.T @ white / 5000 - np.eye(4)).max() < 4 * np.sqrt(2 / 5000)
    joint = problem.target.log_joint(positions[0], precisions[0])
    np.testing.assert_allclose(joint - log_q[0], problem.log_evidence, atol=1e-7)  # exact: no draw differs


def modes_of(log_evidence: list[float], least: list[float]) -> Modes:
    n = len(least)
    return Modes(
        np.zeros((n, 1)), np.ones((n, 1)), np.ones((n, 1, 1)), np.array(log_evidence), np.array(least)
    )


def test_a_point_with_a_negative_eigenvalue_may_not_win() -> None:
    modes = modes_of([3.0, 5.0, 2.0, -np.inf], [0.1, -0.2, 0.1, 0.1])
    assert member_weights(modes.log_evidence, modes.least_eigenvalue, 1).tolist() == [1, 0, 0, 0]
    assert member_weights(modes.log_evidence, modes.least_eigenvalue, 2).tolist() == [0.5, 0, 0.5, 0]
    by_evidence = member_weights(modes.log_evidence, modes.least_eigenvalue, 2, "evidence")
    assert by_evidence[0] / by_evidence[2] == pytest.approx(np.e)
    assert by_evidence.sum() == pytest.approx(1)


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="laplace.between: must be a whole number of at least 1, got 0"):
        Laplace(between=0)
