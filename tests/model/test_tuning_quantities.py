"""The quantities by which lengths of trajectories are chosen."""

from __future__ import annotations

import numpy as np
import pytest

from rayfbnn.arrays import Array
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.state import ChainState
from tests.support import problems
from tests.support.problems import covariates_of, problem, streams

ONE_LAYER = {"ti": "0.5", "ih0": "0.7:3:4", "bh0": "0.7:3", "ho0": "x1:3", "bo": "1"}
N_CHAINS = 3


def made(model: str, n_cases: int) -> tuple[SampledPosterior, ChainState]:
    outputs = 3 if model == "class" else 2
    network = problems.network(ONE_LAYER, units=(4,), activations=("tanh",), outputs=outputs)
    target = problem(model, spec=network, n_cases=n_cases)
    return target, target.initial_state(streams("quantities", N_CHAINS), sigmas=None)


def test_sigmas_are_looked_at_by_mean_squares_and_outputs_in_standard_deviations() -> None:
    target, state = made("gaussian", 19)
    values = target.quantities(state.position, state.precisions)
    views = target.parameter_layout.views(state.position)
    means = {group.name: group.mean for group in target.precision_layout.groups}
    expected = [np.log(np.mean(means["ih0"] * views["ih0"] ** 2, axis=(1, 2)) + 1e-6)[:, None]]
    expected.append(np.log(np.mean(means["ih0"] * views["ih0"] ** 2, axis=2) + 1e-6))  # of each input
    expected.append(np.log(np.mean(means["bh0"] * views["bh0"] ** 2, axis=1) + 1e-6)[:, None])
    expected.append(np.log(np.mean(means["ho0"] * views["ho0"] ** 2, axis=(1, 2)) + 1e-6)[:, None])
    cases = np.linspace(0, 18, 8).round().astype(int)
    outputs = target.outputs(state.position, covariates_of(target))[:, cases]
    expected.append((outputs / target.targets.std()).swapaxes(1, 2).reshape(N_CHAINS, -1))
    assert values == pytest.approx(np.concatenate(expected, axis=1), rel=1e-12)


def test_outputs_of_class_targets_are_looked_at_as_they_are() -> None:
    target, state = made("class", 5)
    outputs = target.outputs(state.position, covariates_of(target))
    values = target.quantities(state.position, state.precisions)[:, -15:]
    assert values == pytest.approx(outputs.swapaxes(1, 2).reshape(N_CHAINS, -1), rel=1e-12)


def test_weights_of_zero_are_finite() -> None:
    target, state = made("gaussian", 5)
    assert np.isfinite(target.quantities(np.zeros_like(state.position), state.precisions)).all()


@pytest.mark.parametrize("n_cases", [19, 4], ids=["primal", "dual"])
def test_outputs_that_are_integrated_out_are_looked_at_at_their_means(n_cases: int) -> None:
    """The mean solves grad E = 0 for the output parameters, in which E is quadratic."""
    target, state = made("gaussian", n_cases)
    density = target.marginal(("outputs",)).given(state, streams("given", N_CHAINS))
    n_kept = density.n_kept
    position = state.position.copy()
    position[:, n_kept:] = output_means(target, state, n_kept)
    n_sigmas = 1 + 3 + 1  # of ih0, its units, and bh0
    values = density.quantities(state.position[:, :n_kept], state.precisions)
    expected = target.quantities(position, state.precisions)
    assert values[:, :n_sigmas] == pytest.approx(expected[:, :n_sigmas], rel=1e-12)
    assert values[:, n_sigmas:] == pytest.approx(
        expected[:, n_sigmas + 1 :], rel=1e-7, abs=1e-7
    )  # except ho0


def test_precisions_that_move_along_are_looked_at() -> None:
    network = problems.network(ONE_LAYER | {"bo": "1:3"}, units=(4,), activations=("tanh",))
    target = problem("gaussian", spec=network, n_cases=19)
    state = target.initial_state(streams("moved", N_CHAINS), sigmas=None)
    over = ("outputs", "precisions")
    density = target.marginal(over).given(state, streams("given", N_CHAINS))
    start = density.start(state, streams("start", N_CHAINS))
    values = density.quantities(start.position, state.precisions)
    common = {group.name: group.common for group in target.precision_layout.groups}
    expected = np.log(state.precisions[:, [common["ho0"], common["bo"]]])
    assert values[:, 5:7] == pytest.approx(expected, rel=1e-12)  # after ih0, its units, and bh0
    without = target.marginal(("outputs",)).given(state, streams("given", N_CHAINS))
    fewer = without.quantities(state.position[:, : density.n_kept], state.precisions)
    assert np.delete(values, [5, 6], axis=1) == pytest.approx(fewer, rel=1e-9)


def output_means(target: SampledPosterior, state: ChainState, n_kept: int) -> Array:
    def gradient(values: Array) -> Array:
        position = state.position.copy()
        position[:, n_kept:] = values
        return target.potential_and_gradient(position, state.precisions)[1][:, n_kept:]

    n = state.position.shape[1] - n_kept
    origin = gradient(np.zeros(n))
    matrix = np.stack([gradient(row) - origin for row in np.eye(n)], axis=2)
    return -np.linalg.solve(matrix, origin[:, :, None])[:, :, 0]
