"""The model gives the same results on a device as on the host."""

from __future__ import annotations

import numpy as np
import pytest

from rayfbnn.arrays import to_host
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.streams import Streams
from tests.support.model.data_models import MODELS as DATA_MODELS
from tests.support.model.data_models import problem as data_problem
from tests.support.model.data_models import targets_of
from tests.support.problems import MODELS, covariates_of, problem

pytestmark = pytest.mark.usefixtures("cupy")


@pytest.mark.parametrize("model", MODELS)
def test_device_and_host_agree(model: str) -> None:
    import cupy

    host = problem(model, n_cases=50)
    targets = host.targets.T
    if model == "class":
        targets = targets.argmax(axis=1)[:, None].astype(float)
    device = SampledPosterior.from_spec(host.network, host.model, host.inputs[:-1].T, targets, xp=cupy)
    state = host.initial_state(Streams(1, np.arange(8, dtype=np.uint64)), sigmas=None)
    other = device.initial_state(Streams(1, cupy.arange(8, dtype=cupy.uint64)), sigmas=None)
    assert np.allclose(to_host(other.position), state.position, rtol=1e-10)
    assert np.allclose(to_host(other.precisions), state.precisions, rtol=1e-10)
    partition = np.arange(8) % 3
    for options, device_options in (
        ({}, {}),
        (
            {"partition": partition, "n_partitions": 3},
            {"partition": cupy.asarray(partition), "n_partitions": 3},
        ),
    ):
        energy, gradient = host.potential_and_gradient(state.position, state.precisions, **options)
        got, got_gradient = device.potential_and_gradient(
            cupy.asarray(state.position), cupy.asarray(state.precisions), **device_options
        )
        assert np.allclose(to_host(got), energy, rtol=1e-10)
        scale = np.abs(gradient).max(axis=1, keepdims=True)
        assert np.max(np.abs(to_host(got_gradient) - gradient) / scale) < 1e-10
    stepsizes = device.stepsizes(cupy.asarray(state.precisions))
    assert np.allclose(to_host(stepsizes), host.stepsizes(state.precisions), rtol=1e-10)
    after, _ = host.sample_sigmas(state, Streams(1, np.arange(8, dtype=np.uint64), 1))
    after_device, _ = device.sample_sigmas(other, Streams(1, cupy.arange(8, dtype=cupy.uint64), 1))
    assert np.allclose(to_host(after_device.precisions), after.precisions, rtol=1e-8)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("name", DATA_MODELS)
def test_device_and_host_agree_on_data_models(name: str, missing: bool) -> None:
    import cupy

    host, targets = data_problem(name, missing=missing), targets_of(name, missing=missing)
    device = SampledPosterior.from_spec(host.network, host.model, covariates_of(host), targets, xp=cupy)
    streams = [Streams(1, xp.arange(8, dtype=xp.uint64)) for xp in (np, cupy)]
    results = []
    for target, random in zip((host, device), streams, strict=True):
        state = target.initial_state(random, sigmas=None)
        drawn = target.sample_targets(state.position, state.precisions, random.at(iteration=1))
        conditioned = target.with_targets(drawn)
        partition = random.chains.astype(int) % 3
        values = [
            drawn,
            *target.potential_and_gradient(state.position, state.precisions),
            *conditioned.potential_and_gradient(
                state.position, state.precisions, partition=partition, n_partitions=3
            ),
            target.stepsizes(state.precisions),
            target.rejection_proposal(random)[2],
        ]
        results.append([to_host(value) for value in values])
    for on_host, on_device in zip(*results, strict=True):
        np.testing.assert_allclose(on_device, on_host, rtol=1e-8, atol=1e-9)
