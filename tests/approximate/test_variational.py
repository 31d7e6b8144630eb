"""Bayes by Backprop on linear regressions, whose best factorised Gaussian has a closed form."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rayfbnn.approximate import variational as module
from rayfbnn.approximate.distributions import log_density_diagonal, pruned
from rayfbnn.approximate.variational import Variational, VariationalFit
from rayfbnn.arrays import Array
from rayfbnn.errors import ConfigError
from tests.support.model.linear import linear, one_weight
from tests.support.mutants import mutant
from tests.support.problems import streams

STEPS = 500


def fit(source: Any = module, n_starts: int = 2, problem: Any = None, **settings: Any) -> tuple[Any, Any]:
    """Return a fit and the state at its end."""
    problem = linear() if problem is None else problem
    options = {"steps": STEPS, "samples": 20, "rate": 0.05, "initial_sd": 0.3, **settings}
    method = source.VariationalFit(problem.target, source.Variational(**options))
    random = streams("variational", n_starts)
    state = method.initial(random)
    for number in range(1, options["steps"] + 1):
        state, _ = method.step(state, random.at(iteration=number))
    return method, state


def is_the_best_gaussian(source: Any = module) -> bool:
    """Return True if mean and standard deviations are those of the closed form: mean, A_ii^-1/2.

    After these steps a ratio of standard deviations has one of 0.016 itself, and a bias of up to 0.005; the
    mean of 20 starts is within 0.02 of 1 but for one time in 10,000.
    """
    problem = linear()
    _, state = fit(source, n_starts=20)
    best = np.diag(problem.a) ** -0.5
    errors = np.abs(state["mean"] - problem.mean) / best
    ratios = module.sigma(state["rho"]) / best
    return bool(errors.max() < 0.01 and np.abs(ratios.mean(axis=0) - 1).max() < 0.02)


def test_a_linear_regression_gets_its_best_factorised_gaussian() -> None:
    assert is_the_best_gaussian()


def test_the_gap_of_the_bound_is_that_of_the_closed_form() -> None:
    """Log evidence minus the bound is (sum log A_ii - log|A|)/2."""
    problem = linear()
    method, state = fit()
    bound, error = method.bound(state, streams("bound", 2), n=20_000)
    gap = (np.log(np.diag(problem.a)).sum() - np.linalg.slogdet(problem.a)[1]) / 2
    assert (np.abs(problem.log_evidence - bound - gap) < 4 * error + 0.005).all()
    assert (error < 0.02).all()


@pytest.mark.parametrize(
    ("precision", "mean", "sd", "bound"),
    [(1.0, 0.855234, 0.622320, -3.742872), (0.25, 1.361537, 0.857043, -3.816849)],
)
def test_a_logistic_weight_has_its_known_approximation(
    precision: float, mean: float, sd: float, bound: float
) -> None:
    """Means over 200 starts, with 40 draws a step, agree with what is known.

    The standard deviations of the starts have one of 0.013, so that their mean is within 0.004 but for one
    time in 10,000.
    """
    settings = {"samples": 40, "steps": 600, "rate": 0.1}
    method, state = fit(n_starts=200, problem=SimpleNamespace(target=one_weight(precision)), **settings)
    assert state["mean"].mean() == pytest.approx(mean, abs=0.004)
    assert module.sigma(state["rho"]).mean() == pytest.approx(sd, abs=0.004)
    found, error = method.bound(state, streams("bound", 200), n=500)
    assert abs(found.mean() - bound) < 4 * error.mean() / np.sqrt(200) + 1e-4
    assert bound < {1.0: -3.7370282, 0.25: -3.7924221}[precision]  # the exact log Z


def error_of_gradient(source: Any = module, *, antithetic: bool = True) -> float:
    """Plain descent moves by the gradient; return its largest relative difference from central ones."""
    method = source.VariationalFit(
        linear().target,
        source.Variational(steps=10, samples=4, optimizer="sgd", rate=1.0, antithetic=antithetic),
    )
    random = streams("differences", 1).at(iteration=1)
    state = dict(method.initial(random))
    state["rho"] = state["rho"] + np.linspace(1, 4, 4)
    after, _ = method.step(state, random)
    worst = 0.0
    for name in ("mean", "rho"):
        for index in range(4):
            moved = []
            for sign in (1e-5, -1e-5):
                there = {**state, name: state[name].copy()}
                there[name][0, index] += sign
                moved.append(-VariationalFit.step(method, there, random)[1][0])
            difference = (moved[0] - moved[1]) / 2e-5
            worst = max(worst, abs((state[name][0, index] - after[name][0, index]) / difference - 1))
    return worst


@pytest.mark.parametrize("antithetic", [True, False])
def test_the_gradient_is_that_of_the_objective_at_fixed_draws(antithetic: bool) -> None:
    assert error_of_gradient(antithetic=antithetic) < 1e-6


MUTANTS = {
    "derivative of sigma": ("/ (1 + xp.exp(-rho))", "/ (1 + xp.exp(rho))"),
    "entropy of half": ("- 1 / sd)", "- 0.5 / sd)"),
    "sign of the entropy": ("- 1 / sd)", "+ 1 / sd)"),
    "draws without sd": ("(gradient * normal).mean(axis=1)", "gradient.mean(axis=1)"),
    "sigma for its square": ("- 1 / sd)", "- 1 / sd**2)"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_gradient_is_seen(name: str) -> None:
    assert error_of_gradient(mutant(module, MUTANTS[name])) > 1e-2


def test_a_batch_without_its_weight_is_seen() -> None:
    """All batches of a pass together have the gradient of all cases."""
    problem = linear()

    def moves(source: Any, batch: int | None) -> Array:
        settings = source.Variational(steps=10, samples=2, optimizer="sgd", rate=1.0, batch=batch)
        method = source.VariationalFit(problem.target, settings)
        random = streams("pass", 1)
        state = {**method.initial(random), "rho": np.full((1, 4), -40.0)}  # no noise from the draws
        steps = range(1, 6) if batch else range(1, 2)
        ends = [method.step(state, random.at(iteration=number))[0]["mean"] for number in steps]
        return np.mean(ends, axis=0) - state["mean"]

    np.testing.assert_allclose(moves(module, 5), moves(module, None), rtol=1e-6)
    changed = mutant(module, ("self.target.n_cases / cases.shape[1]", "1.0"))
    assert np.abs(moves(changed, 5) / moves(module, None) - 1).max() > 0.1


def test_batches_lead_to_the_same_gaussian() -> None:
    problem = linear()
    # Batches widen one of the four by 0.22; one start's ratio has a standard deviation of up to 0.04.
    _, state = fit(batch=13, rate=0.02, n_starts=20)
    best = np.diag(problem.a) ** -0.5
    assert (np.abs(state["mean"].mean(axis=0) - problem.mean) / best).max() < 0.2
    assert np.abs((module.sigma(state["rho"]) / best).mean(axis=0) - 1).max() < 0.27


def test_precisions_reach_a_fixed_point_of_their_distributions() -> None:
    """Coordinate ascent in closed form: E tau given the mean-field Gaussian, the Gaussian given E tau."""
    problem = linear(io="1:2", noise="0.4:2")
    _, state = fit(problem=problem, n_starts=1, steps=800)
    target = problem.target
    tau, beta = 1.0, problem.beta
    for _ in range(200):
        now = problem.at(np.array([tau, tau, tau, 1.0]), beta)
        variance = 1 / np.diag(now.a)
        squares = now.mean**2 + variance
        residuals = ((now.y - now.design @ now.mean) ** 2).sum() + (now.design**2 * variance).sum()
        tau = (2 + 3) / (2 + squares[:3].sum())
        beta = (2 + 25) / (2 / problem.beta + residuals)
    columns = target.precision_layout.common
    assert state["precisions"][0, columns["io"]] == pytest.approx(tau, rel=0.02)
    assert state["precisions"][0, columns["noise"]] == pytest.approx(beta, rel=0.02)


@pytest.mark.parametrize(("precisions", "due"), [("expected", [15, 20, 25]), ("fixed", [])])
def test_precisions_are_updated_at_each_refresh_after_a_quarter_of_the_steps(
    precisions: str, due: list[int]
) -> None:
    settings = module.Variational(steps=41, samples=2, refresh=5, precisions=precisions)
    method = VariationalFit(linear(io="1:2", noise="0.4:2").target, settings)
    random, updated = streams("refresh", 2), []
    state = method.initial(random)
    for number in range(1, 28):
        before, (state, _) = state["precisions"], method.step(state, random.at(iteration=number))
        updated += [number] if (state["precisions"] != before).any() else []
    assert updated == due


def test_a_fit_is_complete_only_after_all_its_steps() -> None:
    method, state = fit(steps=20, rate=1e-9)
    assert not method.is_complete(state)


def test_draws_have_the_density_that_is_given_with_them() -> None:
    method, state = fit(steps=40)
    positions, precisions, log_q = method.distribution(state).draws(streams("draws", 2), 4000)
    sd = module.sigma(state["rho"])
    assert positions.shape == (2, 4000, 4)
    assert precisions.shape == (2, 4000, 3)
    z = (positions - state["mean"][:, None]) / sd[:, None]
    assert np.abs(z.mean(axis=1)).max() < 4 / np.sqrt(4000)  # 8 means: false alarms 5e-4
    assert np.abs((z**2).mean(axis=1) - 1).max() < 4 * np.sqrt(2 / 4000)
    np.testing.assert_allclose(log_q, log_density_diagonal(positions, state["mean"], sd))


def test_standard_deviations_stay_positive_in_single_precision() -> None:
    assert (module.sigma(np.array([-20.0, -80.0], dtype=np.float32)) > 0).all()


def test_pruning_sets_the_least_certain_parameters_to_zero() -> None:
    mean, sd = np.array([[1.0, -0.1, 0.5, 2.0]]), np.array([[1.0, 1.0, 0.1, 1.0]])
    half_mean, half_sd = pruned(mean, sd, 0.5)
    assert half_mean.tolist() == [[0, 0, 0.5, 2.0]]
    assert half_sd.tolist() == [[0, 0, 0.1, 1.0]]
    n_kept = [np.count_nonzero(pruned(mean, sd, share)[0]) for share in (0.0, 0.25, 0.75)]
    assert n_kept == [4, 3, 1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"samples": 3}, "samples: must be even"),
        ({"batch": 0}, "batch: must be a whole number of at least 1"),
        ({"rate": 0.0}, "rate: must be a positive number"),
        ({"prune": 1.0}, "prune: must be a number of at least 0 and below 1"),
        ({"steps": 0}, "steps: must be a whole number of at least 1"),
    ],
)
def test_wrong_settings_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"methods.bbb.{message}"):
        Variational(**settings)
