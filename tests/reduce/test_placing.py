"""Places of targets within predictive distributions that leave their case out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.stats

from rayfbnn.answers.loo import leave_out
from rayfbnn.answers.measures import places
from rayfbnn.arrays import Array
from rayfbnn.draws.outputs import posterior_of
from rayfbnn.draws.view import committed
from rayfbnn.model.prior import noise_precisions
from rayfbnn.reduce.importance import Placed, place, smoothed
from rayfbnn.reduce.passes import TasksInProcess
from rayfbnn.store.store import Store
from tests.support.model.linear import RUN_CASES, RUN_NOISE, linear_run
from tests.support.store.standin_store import OTHER_MODELS, make_data, make_run, make_spec, run_of


def placed(run: Any, **settings: Any) -> Placed:
    """The training cases of a run, left out."""
    data = run.data
    settings = {"leaves_out": True, "executor": TasksInProcess(), **settings}
    return place([run], data.standardized_inputs, data.standardized_targets, **settings)


def log_densities(run: Any) -> Array:
    """Log density of each case's targets in each draw, (n_cases, n_draws), one draw at a time."""
    posterior, data = posterior_of(run), run.data
    positions = run.store.positions.reshape(-1, posterior.n_parameters)
    precisions = run.store.precisions.reshape(len(positions), -1)
    noise = noise_precisions(precisions, run.precision_layout)
    model = run.spec.data_model
    outputs = posterior.outputs(positions, model.cell_inputs(data.standardized_inputs))
    outputs = outputs.reshape(len(positions), data.n_cases, -1)
    return np.asarray(model.log_density(outputs, data.standardized_targets, noise).T)


@pytest.mark.parametrize("model", OTHER_MODELS, ids=lambda model: model.get("hazard", model["kind"]))
def test_places_with_equal_weights_are_those_of_all_draws(model: dict[str, Any]) -> None:
    run, inputs, targets = run_of(model)
    targets[1, -1] = np.nan
    found = place([run], inputs, targets, leaves_out=False, executor=TasksInProcess())
    expected = places([run], inputs, targets)
    np.testing.assert_allclose(found.low, expected.low, atol=1e-12)
    np.testing.assert_allclose(found.high, expected.high, atol=1e-12)
    assert (found.p == 0).all() and np.isnan(found.pareto_k).all()


@pytest.mark.parametrize("kind", ["binary", "class"])
def test_probabilities_of_labels_are_weighted_means(kind: str) -> None:
    run = make_run(make_spec(kind))
    found = placed(run)
    weights = np.exp(smoothed(-log_densities(run))[0])
    weights /= weights.sum(axis=1, keepdims=True)
    posterior = posterior_of(run)
    outputs = posterior.outputs(
        run.store.positions.reshape(-1, posterior.n_parameters), run.data.standardized_inputs
    )
    probability = run.spec.data_model.probabilities(outputs)  # (n_draws, n_cases, n_labels)
    np.testing.assert_allclose(found.probability, np.einsum("cd,dcl->cl", weights, probability), rtol=1e-9)
    assert np.isnan(found.low).all()


@pytest.mark.parametrize("kind", ["real", "class", "binary"])
def test_means_and_deviations_are_those_of_the_mixture_of_all_draws(kind: str) -> None:
    run = make_run(make_spec(kind))
    posterior, model = posterior_of(run), run.spec.data_model
    positions = run.store.positions.reshape(-1, posterior.n_parameters)
    noise = noise_precisions(run.store.precisions.reshape(len(positions), -1), run.precision_layout)
    outputs = posterior.outputs(positions, run.data.standardized_inputs).transpose(1, 2, 0)
    mean, variance = model.moments(outputs, (noise**-0.5).T[None])  # (n_cases, n_targets, n_draws)
    found = placed(run)
    np.testing.assert_allclose(found.mean, mean.mean(axis=2), rtol=1e-5, atol=1e-6)
    expected = np.sqrt(variance.mean(axis=2) + mean.var(axis=2))
    np.testing.assert_allclose(found.sd, expected, rtol=1e-4)


def test_weights_at_a_temperature_are_powers() -> None:
    """Two cases are the same at a temperature of 2 as if their density were its root."""
    run = make_run(make_spec("binary"))
    warm = replace(run, spec=run.spec.model_copy(update={"temperature": 2.0}))
    _, k = smoothed(-log_densities(run) / 2)
    np.testing.assert_allclose(placed(warm).pareto_k, k, rtol=1e-6)
    assert not np.allclose(placed(run).pareto_k, k)


@pytest.fixture(scope="module")
def linear(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run of a linear network; its posterior is Gaussian."""
    return committed(Store.open(linear_run(tmp_path_factory.mktemp("linear"))))


def closed_form(data: Any) -> Array:
    """P(Y <= y_i | all other cases) of the Gaussian regression, (30,)."""
    x, y = np.column_stack([data.inputs, np.ones(RUN_CASES)]), data.targets[:, 0]
    found = np.empty(RUN_CASES)
    for case in range(RUN_CASES):
        others = np.arange(RUN_CASES) != case
        covariance = np.linalg.inv(np.eye(3) + x[others].T @ x[others] / RUN_NOISE**2)
        mean = covariance @ x[others].T @ y[others] / RUN_NOISE**2
        found[case] = scipy.stats.norm.cdf(
            y[case], x[case] @ mean, np.sqrt(RUN_NOISE**2 + x[case] @ covariance @ x[case])
        )
    return found


def test_places_are_those_of_the_closed_form(linear: Any) -> None:
    """Places with the case itself are closer to the middle, by more than the error of 3,200 draws."""
    found, exact = placed(linear), closed_form(linear.data)
    np.testing.assert_allclose(found.low[:, 0], exact, atol=0.01)
    np.testing.assert_array_equal(found.low, found.high)
    inside = placed(linear, leaves_out=False)
    assert np.abs(inside.low - 0.5).sum() < np.abs(exact - 0.5).sum() - 0.1


def test_parameters_are_those_of_loo(linear: Any) -> None:
    """The tails that are smoothed differ by the autocorrelation, which only `loo` allows for."""
    expected = leave_out(linear)
    np.testing.assert_allclose(placed(linear).p, expected.p, atol=0.02)


def test_places_do_not_depend_on_the_tiles(linear: Any) -> None:
    at_once, in_tiles = placed(linear), placed(linear, memory_bytes=4e6)
    for name, values in vars(at_once).items():
        np.testing.assert_allclose(getattr(in_tiles, name), values, rtol=1e-9, err_msg=name)


def test_tiles_are_as_large_as_the_memory_allows(linear: Any) -> None:
    """Three values of each of 3,200 draws, and of two targets two more: 179,200 bytes of each case."""
    sizes: list[int] = []

    class Recorded(TasksInProcess):
        def map(self, task: Any, runs: Any, jobs: Any) -> Any:
            sizes.extend(len(job.targets) for job in jobs)
            return super().map(task, runs, jobs)

    assert linear.total == 3200
    placed(linear, memory_bytes=4e6, executor=Recorded())
    assert sizes == [11, 11, 8]
    sizes.clear()
    placed(linear, memory_bytes=1.0, executor=Recorded())
    assert sizes == [1] * 30


def test_several_runs_are_pooled() -> None:
    first, second = make_run(make_spec()), make_run(make_spec(seed=2), seed=5)
    data = make_data(first.spec, 5, seed=41)
    arguments = data.inputs, data.targets
    both = place([first, second], *arguments, leaves_out=False, executor=TasksInProcess())
    each = [place([run], *arguments, leaves_out=False, executor=TasksInProcess()) for run in (first, second)]
    np.testing.assert_allclose(both.low, (each[0].low + each[1].low) / 2)


def test_cases_where_networks_are_not_finite_are_named() -> None:
    run = make_run(make_spec())
    inputs = run.data.standardized_inputs.copy()
    inputs[3] = np.inf
    with np.errstate(all="ignore"):
        found = place(
            [run], inputs, run.data.standardized_targets, leaves_out=True, executor=TasksInProcess()
        )
    assert np.flatnonzero(~found.is_finite).tolist() == [3]
    assert np.isfinite(found.low[found.is_finite]).all()
