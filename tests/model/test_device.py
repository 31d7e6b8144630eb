"""The model on a device computes what it computes on the host."""

from __future__ import annotations

import numpy as np
import pytest

from rayfbnn.arrays import to_host
from rayfbnn.model.posterior import Posterior
from rayfbnn.streams import Streams
from tests.model.problems import MODELS, problem

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("model", MODELS)
def test_device_and_host_agree(model: str) -> None:
    import cupy

    host = problem(model, n_cases=50)
    targets = host.targets.T
    if model == "class":
        targets = targets.argmax(axis=1)[:, None].astype(float)
    device = Posterior.of(host.network, host.model, host.inputs[:-1].T, targets, xp=cupy)
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
