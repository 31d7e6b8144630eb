"""Tests that need a real device: recorded graphs, cuBLAS by address, and exactness of the kernels."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest

from rayfbnn.arrays import to_host
from rayfbnn.kernels.backend import NotCovered
from rayfbnn.kernels.cuda import cublas
from rayfbnn.kernels.cuda import products as wide
from rayfbnn.kernels.cuda.graphs import Recordings
from rayfbnn.kernels.cuda.streams import DeviceStreams
from rayfbnn.mcmc import schedule
from rayfbnn.mcmc.operations import Heatbath, Hybrid, SampleSigmas
from rayfbnn.selftest.pivots import joint_p_values
from rayfbnn.state import ChainState
from rayfbnn.streams import Purpose
from tests.support.kernels.backends import on_gpu
from tests.support.kernels.networks import Start, both, on_device
from tests.support.problems import network, streams

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype, uses_tf32", [("float32", True), ("float32", False), ("float64", False)])
@pytest.mark.parametrize("model", ["gaussian by target", "class"])
def test_recorded_gradients_are_those_launched_one_by_one(model: str, dtype: str, uses_tf32: bool) -> None:
    """Two states and two posteriors take turns; a recording that fails would warn."""
    spec = network(units=(400, 300), outputs=3 if model == "class" else 2)
    recordings = Recordings()
    for number, n_cases in enumerate((150, 90, 150)):
        host, there = both(model, dtype, spec, n_cases)
        start = Start.of(host, n_chains=6, name=str(number))
        start = replace(start, stepsizes=start.stepsizes / 8)  # 20 steps would otherwise end far away
        moved = Start(*(on_device(getattr(start, name)) for name in start.__dataclass_fields__))
        results = []
        for kept in (recordings, None):
            advance = wide.compile_for(there, uses_tf32=uses_tf32, recordings=kept)
            assert not isinstance(advance, NotCovered)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                results.append([to_host(values) for values in moved.run(advance, there, n_steps=20)])
        tolerance = 1e-10 if dtype == "float64" else 1e-2 if uses_tf32 else 1e-4
        for values, others in zip(*results, strict=True):
            assert np.max(np.abs(values - others) / np.maximum(np.abs(others), 1)) < tolerance


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-5), ("float64", 1e-13)])
def test_products_by_address_are_those_of_cupy(dtype: str, tolerance: float) -> None:
    import cupy

    values = streams("products", 1).normal(Purpose.PROPOSAL, (3, 40, 50))[0].astype(dtype)
    stack = cupy.asarray(values)
    pairs = [(stack, stack.swapaxes(1, 2)), (stack[:, :7].swapaxes(1, 2), stack[:, :7, :9])]
    pairs += [(stack[0], stack[1].T), (stack[0, :, 5:9], stack[1, 2:6, 3:20])]
    for a, b in pairs:
        expected = to_host(a).astype(np.float64) @ to_host(b).astype(np.float64)
        results = to_host(cublas.product(a, b, uses_tf32=False))
        assert np.max(np.abs(results - expected)) < tolerance * np.max(np.abs(expected))


@pytest.mark.parametrize("units", [(2,), (120,)])
def test_joint_distribution_through_the_kernels(units: tuple[int, ...]) -> None:
    """Exact starts stay exact (selftest.pivots), by a warp or a block for each chain.

    Level 1e-5, Bonferroni.
    """
    import cupy

    spec = network(
        {"ih0": "0.7:3", "bh0": "0.7:3", "ho0": "x1:5", "bo": "1"},
        inputs=1,
        outputs=1,
        units=units,
        activations=("tanh",),
    )
    host, there = both("gaussian", "float64", spec, 6)
    random = DeviceStreams(11, cupy.arange(20_000, dtype=cupy.uint64))
    state = there.initial_state(random, sigmas=None)
    targets = there.sample_targets(state.position, state.precisions, random)
    alone = there.with_targets(targets)
    compiled = on_gpu(there)
    operations = (SampleSigmas(), Heatbath(), Hybrid(steps=8, window=2, partitions=3, stepsize=0.3))
    iteration = schedule.build_iteration(
        operations, target=alone, updates=alone.updates, advance=compiled.advance
    )
    info = None
    for number in range(1, 4):
        state, info = iteration(state, random.at(iteration=number))
    assert info is not None and 0.2 < float(info.accepted.mean()) < 0.999
    other = host.initial_state(streams("other", 20_000), sigmas=None)
    other_targets = host.sample_targets(other.position, other.precisions, streams("other", 20_000))
    after = ChainState(*(to_host(values) for values in (state.position, state.momentum, state.precisions)))
    p_values = joint_p_values(host, (after, to_host(targets)), (other, other_targets), streams("p", 20_000))
    assert min(p_values.values()) * len(p_values) > 1e-5, p_values
