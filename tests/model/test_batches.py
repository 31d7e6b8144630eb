"""A chain's bits do not depend on the other chains of its batch."""

from __future__ import annotations

import numpy as np
import pytest

from rayfbnn.model.architecture import ACTIVATIONS
from tests.support import problems
from tests.support.model.architectures import assert_independent
from tests.support.problems import MODELS, problem, streams

DTYPES = ["float32", "float64"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_do_not_depend_on_the_batch(activation: str, dtype: str) -> None:
    spec = problems.network(activations=(activation, activation), units=(5, 17))
    assert_independent(problem(spec=spec, dtype=dtype, n_cases=203))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("units, outputs, n_cases", [(16, 2, 200), (100, 1, 101), (1, 1, 6), (64, 3, 3)])
def test_shapes_do_not_depend_on_the_batch(units: int, outputs: int, n_cases: int, dtype: str) -> None:
    spec = problems.network(
        {"ih0": "1:0.2", "bh0": "1:0.2", "ho0": "x1:0.2", "bo": "1"},
        outputs=outputs,
        units=(units,),
        activations=("tanh",),
    )
    target = problem(spec=spec, dtype=dtype, n_cases=n_cases)
    assert_independent(target)


@pytest.mark.parametrize("model", MODELS)
def test_single_precision_is_close_to_double(model: str) -> None:
    double, single = problem(model, n_cases=50), problem(model, n_cases=50, dtype="float32")
    state = single.initial_state(streams("single", 20), sigmas=None)
    energy, gradient = single.potential_and_gradient(state.position, state.precisions)
    expected, expected_gradient = double.potential_and_gradient(
        state.position.astype(np.float64), state.precisions
    )
    assert energy.dtype == np.float64 and gradient.dtype == np.float32
    # A float32 output near 10 is accurate to 1e-6, and the likelihood's slope is at most the root of the
    # energy.
    assert np.all(np.abs(energy - expected) < 1e-4 * np.maximum(np.abs(expected), 1))
    scale = np.abs(expected_gradient).max(axis=1, keepdims=True)
    assert np.max(np.abs(gradient - expected_gradient) / scale) < 1e-4
