"""A chain's bits do not depend on the other chains of its batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rayfbnn.model.architecture import ACTIVATIONS
from rayfbnn.model.posterior import Posterior
from tests.support import problems
from tests.support.problems import MODELS, problem, streams

BATCHES = [range(1), range(2), range(3), range(5), range(8), range(3, 4), range(5, 8), range(8, 16)]
DTYPES = ["float32", "float64"]


def everything(target: Posterior, chains: range) -> dict[str, Any]:
    """All that a posterior computes, for these chains."""
    random = replace(streams("batches", 16), chains=np.arange(16, dtype=np.uint64)[chains])
    state = target.initial_state(random, sigmas=None)
    position, precisions = state.position, state.precisions
    partition = np.arange(16)[chains] % 3
    after, _ = target.sample_sigmas(state, random.at(iteration=1))
    noise, _ = target.sample_noise(state, random.at(iteration=1))
    energy, gradient = target.potential_and_gradient(position, precisions)
    part_energy, part_gradient = target.potential_and_gradient(
        position, precisions, partition=partition, n_partitions=3
    )
    proposal, proposed_precisions, log_acceptance = target.rejection_proposal(random)
    return {
        "position": position,
        "momentum": state.momentum,
        "precisions": precisions,
        "energy": energy,
        "gradient": gradient,
        "energy of a block": part_energy,
        "gradient of a block": part_gradient,
        "potential": target.potential(position, precisions),
        "log likelihood": target.log_likelihood(position, precisions),
        "log prior": target.log_prior(position, precisions),
        "stepsizes": target.stepsizes(precisions),
        "sampled sigmas": after.precisions,
        "sampled noise": noise.precisions,
        "outputs": target.outputs(position, np.linspace(-1, 1, 15).reshape(5, 3)),
        "proposal": proposal,
        "proposed precisions": proposed_precisions,
        "log acceptance": log_acceptance,
        "targets": target.sample_targets(position, precisions, random),
    }


def assert_independent(target: Posterior) -> None:
    whole = everything(target, range(16))
    for batch in BATCHES:
        for name, values in everything(target, batch).items():
            expected = whole[name][batch.start : batch.stop]
            assert np.array_equal(values, expected, equal_nan=True), f"{name}, chains {batch}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_do_not_depend_on_the_batch(activation: str, dtype: str) -> None:
    spec = problems.network(activations=(activation, activation), units=(5, 17))
    assert_independent(problem(spec=spec, dtype=dtype, n_cases=203))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("model", MODELS)
def test_models_do_not_depend_on_the_batch(model: str, dtype: str) -> None:
    assert_independent(problem(model, dtype=dtype, n_cases=50))


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
    # A float32 output near 10 is good to 1e-6, and the likelihood's slope is up to the energy's root.
    assert np.all(np.abs(energy - expected) < 1e-4 * np.maximum(np.abs(expected), 1))
    scale = np.abs(expected_gradient).max(axis=1, keepdims=True)
    assert np.max(np.abs(gradient - expected_gradient) / scale) < 1e-4
