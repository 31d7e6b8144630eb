"""The error of an average over chains: its formula, and its rates of error by simulation.

The simulated chains differ by a known amount, in one direction common to all cases or in each case by
itself; real chains are in between.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from rayfbnn.answers.judging.chain_average import (
    MAX_ERROR,
    AverageError,
    average_error,
    bound_factor,
    error_of_moments,
)
from rayfbnn.answers.predict import predict_from_draws
from rayfbnn.arrays import Array
from rayfbnn.draws.quantities import quantities
from rayfbnn.draws.subsets import first_draws
from tests.support.store.standin_store import make_data, make_run, make_spec, normal

RUNS = 400
CASES = 20


def simulated(seed: int, n_chains: int, error: float, *, is_common: bool, drift: float = 0.0) -> AverageError:
    """Chains whose average has the standard error `error`, with predictive variances of one."""
    numbers = normal(seed, (n_chains, 1 if is_common else CASES))
    means = error * math.sqrt(n_chains) * numbers * np.ones(CASES)
    changes = drift * normal(seed + 10**6, (n_chains, CASES))
    within = 1 - error**2 * (n_chains - 1)  # with the variance between chains the predictive variance is one
    variances = np.full((n_chains, CASES), within)
    return error_of_moments(np.stack([means - changes / 2, means + changes / 2]), variances, n_cases=CASES)


def share_of(found: list[bool]) -> float:
    return sum(found) / len(found)


def assert_rate(found: list[bool], rate: float) -> None:
    z = (share_of(found) - rate) / math.sqrt(rate * (1 - rate) / len(found))
    assert abs(z) < 4, (share_of(found), rate)  # 1 in 16,000 if correct; seeds fixed


@pytest.mark.parametrize("n_chains", [4, 8, 16])
def test_bound_misses_one_in_twenty_if_chains_differ_in_one_direction(n_chains: int) -> None:
    true = 0.01
    errors = [simulated(seed, n_chains, true, is_common=True) for seed in range(RUNS)]
    assert_rate([error.mean_bound < true for error in errors], 0.05)


def test_bound_misses_less_often_if_each_case_differs_by_itself() -> None:
    errors = [simulated(seed, 8, 0.01, is_common=False) for seed in range(RUNS)]
    assert share_of([error.mean_bound < 0.01 for error in errors]) < 0.05


def test_estimate_is_unbiased_in_its_square() -> None:
    squares = [simulated(seed, 8, 0.05, is_common=True).mean ** 2 for seed in range(RUNS)]
    z = (np.mean(squares) - 0.05**2) / (np.std(squares) / math.sqrt(RUNS))
    assert abs(z) < 4


@pytest.mark.parametrize(("n_chains", "error"), [(4, 0.042), (8, 0.078), (16, 0.108)])
def test_false_alarms_are_one_in_twenty_at_the_documented_errors(n_chains: int, error: float) -> None:
    """The table of docs/diagnostics.md: averages this good are found good 19 times of 20."""
    errors = [simulated(seed, n_chains, error, is_common=True) for seed in range(RUNS)]
    assert share_of([not each.is_small for each in errors]) < 0.05 + 4 * math.sqrt(0.05 * 0.95 / RUNS)
    assert share_of([not each.is_small for each in errors]) > 0.05 - 5 * math.sqrt(0.05 * 0.95 / RUNS)


@pytest.mark.parametrize("is_common", [True, False])
def test_an_error_at_the_limit_is_called_small_at_most_one_time_in_twenty(*, is_common: bool) -> None:
    errors = [simulated(seed, 8, MAX_ERROR, is_common=is_common) for seed in range(RUNS)]
    assert share_of([error.is_small for error in errors]) < 0.05 + 4 * math.sqrt(0.05 * 0.95 / RUNS)


def test_a_drift_by_chance_is_reported_at_most_one_time_in_a_hundred() -> None:
    errors = [simulated(seed, 4, 0.01, is_common=True, drift=1.0) for seed in range(RUNS)]
    assert share_of([error.has_drift for error in errors]) < 0.01 + 4 * math.sqrt(0.01 * 0.99 / RUNS)


def test_a_drift_common_to_all_chains_is_seen() -> None:
    halves = np.stack([np.zeros((8, CASES)), np.ones((8, CASES))]) + 0.1 * normal(5, (2, 8, CASES))
    error = error_of_moments(halves, np.ones((8, CASES)), n_cases=CASES)
    assert error.has_drift and not error.is_small
    assert error.drift == pytest.approx(1, rel=0.1)


def test_three_chains_are_too_few_and_four_enough() -> None:
    few, enough = (simulated(1, n, 1e-6, is_common=True) for n in (3, 4))
    assert not few.is_known and not few.is_small
    assert enough.is_known and enough.is_small


def test_bounds_are_those_of_the_chi_square_distribution() -> None:
    found = [bound_factor(n_chains) for n_chains in (4, 8, 16)]
    np.testing.assert_allclose(found, [2.92, 1.797, 1.437], rtol=1e-3)  # tables: 0.3518, 2.1673, 7.2609


@pytest.mark.parametrize("n_chains", [7, 8])
def test_as_many_chains_as_it_says_would_do_and_ladders_accept_their_number(n_chains: int) -> None:
    for error in (simulated(3, n_chains, scale, is_common=True) for scale in (0.25, 0.3, 0.4, 0.6)):
        needed = error.chains_that_would_do
        assert needed is not None and needed > n_chains and needed % 2 == 0
        share = max(error.mean, math.sqrt(2) * error.sd)
        bounds = [share * math.sqrt(n_chains / n) * bound_factor(n) for n in (needed - 2, needed)]
        assert [bound <= MAX_ERROR for bound in bounds] == [False, True]


def chain_means(run: Any, prefix: str) -> Array:
    """Means of functions by chain, (n_chains, n_cases)."""
    found = quantities(run, cases=run.data.n_cases)
    return np.stack(
        [values.mean(axis=1) for name, values in found.items() if name.startswith(prefix)], axis=1
    )


def test_error_of_a_real_prediction_is_its_share_of_the_predictive_standard_deviation() -> None:
    spec = make_spec(data__standardize='["inputs", "targets"]')
    run = make_run(spec, n_draws=30)
    table = predict_from_draws([run], run.data.inputs).table
    shares = []
    for target in ("y1", "y2"):
        errors = chain_means(run, f"{target}[").std(axis=0, ddof=1) / math.sqrt(run.n_chains)
        shares.append(errors / table[f"{target}_sd"])
    expected = math.sqrt(np.mean(np.square(shares)))
    assert average_error([run]).mean == pytest.approx(expected, rel=1e-9)


def test_error_of_probabilities_is_measured_by_what_it_costs_in_log_probability() -> None:
    run = make_run(make_spec("class"), n_draws=30)
    means = np.stack([chain_means(run, f"p_{label}[") for label in range(3)], axis=2)
    squares = means.var(axis=0, ddof=1) / run.n_chains / means.mean(axis=0)
    expected = math.sqrt(squares.sum(axis=1).mean())
    error = average_error([run])
    assert error.mean == pytest.approx(expected, rel=1e-9) and math.isnan(error.sd)


def test_error_of_binary_targets_and_of_two_classes_agree() -> None:
    p = np.array([[0.2, 0.3, 0.25, 0.4]]).T
    variances = p * (1 - p)
    binary = error_of_moments(np.stack([p, p]), variances, n_cases=1, labels=1)
    both = np.concatenate([p, 1 - p], axis=1)
    classes = error_of_moments(np.stack([both, both]), both * (1 - both), n_cases=1, labels=2)
    assert binary.mean == pytest.approx(classes.mean, rel=1e-9)


def test_chains_that_disagree_on_the_noise_have_an_error_of_the_deviation() -> None:
    halves, variances = np.zeros((2, 8, 1)), np.array([[1.0], [1], [1], [1], [4], [4], [4], [4]])
    error = error_of_moments(halves, variances, n_cases=1)
    expected = math.sqrt(variances.var(ddof=1) / 8) / (2 * 2.5)  # d sd / sd = d variance / 2 variance
    assert error.mean == 0 and error.sd == pytest.approx(expected)
    assert not error.is_small


def test_runs_of_which_one_has_few_draws_are_averaged_without_a_test_of_their_parts() -> None:
    spec = make_spec()
    runs = [make_run(spec, make_data(spec), seed=seed) for seed in (11, 50)]
    short = first_draws(runs[0], 5)  # too few for eighths
    both = average_error([short, runs[1]])
    assert both.chains == 8 and both.is_known and not both.is_on_its_way


@pytest.mark.parametrize("what", ["all means", "one mean", "one variance"])
def test_moments_that_overflow_leave_the_error_unknown(what: str) -> None:
    halves, variances = np.zeros((2, 8, 2)), np.ones((8, 2))
    assert error_of_moments(halves, variances, n_cases=2).is_known
    where = {"all means": halves, "one mean": halves[1, 3, :1], "one variance": variances[3, :1]}[what]
    where[...] = np.inf
    assert not error_of_moments(halves, variances, n_cases=2).is_known
