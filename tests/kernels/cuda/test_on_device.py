"""The kernels on a device, or on the stand-in for one, against the array code on the host."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rayfbnn.arrays import Array, copies_to_host, to_host
from rayfbnn.errors import SamplingError
from rayfbnn.kernels import choose
from rayfbnn.kernels.backend import Compiled, NotCovered
from rayfbnn.kernels.cuda import build as cuda
from rayfbnn.kernels.cuda import products as wide
from rayfbnn.kernels.cuda.advance import CudaAdvance
from rayfbnn.kernels.cuda.streams import DeviceStreams
from rayfbnn.mcmc import hybrid as hmc
from rayfbnn.mcmc import leapfrog, schedule
from rayfbnn.mcmc.operations import Heatbath, Hybrid, HybridMarginal, SampleSigmas
from rayfbnn.model.integrated import WithoutOutputs, marginal
from rayfbnn.model.regression import Regression
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.state import Advance, ChainState, Trajectory
from rayfbnn.streams import Purpose, Streams
from tests.support.kernels.backends import on_gpu
from tests.support.kernels.marginals import beginning
from tests.support.kernels.networks import Start, both, end_of, on_device, small
from tests.support.model.marginals import BOTH, COMMON, OUTPUTS, PRECISIONS, conditional
from tests.support.problems import network, problem, streams

pytestmark = pytest.mark.usefixtures("cupy")


@pytest.mark.parametrize("n_partitions", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("model", ["gaussian by target", "t", "binary", "class"])
@pytest.mark.parametrize("units", [(4, 3), (40, 30), (200, 150)])
def test_a_trajectory_is_that_of_the_array_code(
    units: tuple[int, int], model: str, dtype: str, n_partitions: int
) -> None:
    """Networks for which a warp, a block, and products are chosen (in float64 blocks for the first too)."""
    spec = network(units=units, outputs=3 if model == "class" else 2)
    host, there = both(model, dtype, spec, 150)
    compiled = on_gpu(there)
    start = Start.of(host, n_chains=6, n_partitions=n_partitions)
    expected = start.run(leapfrog.advance, host)
    moved = Start(*(on_device(getattr(start, name)) for name in start.__dataclass_fields__))
    end = [to_host(values) for values in moved.run(compiled.advance, there)]
    # The device's fast functions have errors of some 1e-6, and TF32 of 1e-3 of a gradient. The potential
    # belongs to the end of the trajectory, up to float32's own rounding.
    tolerance = 1e-10 if dtype == "float64" else 5e-3 if "products" in compiled.name else 1e-4
    is_tf32 = "TF32" in compiled.name  # whose errors are relative to the largest numbers
    for values, others in zip(end, expected, strict=True):
        scale = np.max(np.abs(others)) if is_tf32 else np.maximum(np.abs(others), 1)
        assert np.max(np.abs(values - others) / scale) < tolerance
    energy = host.potential(end[0], start.precisions)
    assert np.max(np.abs(end[2] - energy) / np.abs(energy)) < (1e-5 if dtype == "float32" else 1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("over", [OUTPUTS, PRECISIONS, BOTH])
@pytest.mark.parametrize("model", ["gaussian", "gaussian by target", "t by target"])
@pytest.mark.parametrize("n_cases", [150, 5], ids=["primal", "dual"])
def test_a_trajectory_without_what_is_integrated_out(
    n_cases: int, model: str, over: tuple[str, ...], dtype: str
) -> None:
    host, there = both(model, dtype, network(COMMON), n_cases)
    state, given = conditional(host, over, "on a device", 6)
    moved = copy_of(given, there, over)
    compiled = on_gpu(moved)
    assert not isinstance(given, WithoutOutputs) or given.regression.is_dual == (n_cases == 5)
    assert "whole trajectories" in compiled.name
    # Slopes magnify the errors of the fast functions.
    compare(compiled.advance, moved, given, state, tolerance=1e-9 if dtype == "float64" else 1e-3)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("over", [OUTPUTS, PRECISIONS, BOTH])
@pytest.mark.parametrize("model", ["gaussian", "t by target"])
@pytest.mark.parametrize("n_cases", [220, 70], ids=["primal", "dual"])
def test_a_trajectory_beyond_the_chip_without_what_is_integrated_out(
    n_cases: int, model: str, over: tuple[str, ...], dtype: str
) -> None:
    priors = {name: prior for name, prior in COMMON.items() if name != "ti"}
    units = (200, 150) if over == PRECISIONS else (200, 3)
    host, there = both(model, dtype, network(priors, units=units), n_cases)
    state, given = conditional(host, over, "beyond the chip", 6)
    moved = copy_of(given, there, over)
    assert not isinstance(given, WithoutOutputs) or given.regression.is_dual == (n_cases == 70)
    compiled = on_gpu(moved)
    assert "products over all chains" in compiled.name
    tolerance = 5e-3 if "TF32" in compiled.name else 1e-3 if dtype == "float32" else 1e-9
    compare(compiled.advance, moved, given, state, tolerance=tolerance, shorter=0.03)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("units", [(4, 3), (40, 30)])
def test_a_whole_update_is_that_of_the_array_code(units: tuple[int, int], dtype: str) -> None:
    """Choices turn on random numbers that are seldom close, so that rounding changes few or none of them."""
    import cupy

    host, there = both("t", dtype, network(units=units), 150)
    n_chains, settings = 50, {"steps": 7, "window": 3, "partitions": 3}
    stepsizes = np.geomspace(0.1, 0.5, n_chains)  # one for each chain, as ladders have them
    random = DeviceStreams(1, cupy.arange(n_chains, dtype=cupy.uint64), 1)
    state = there.initial_state(random, sigmas=0.5)
    here = ChainState(*(to_host(values) for values in vars(state).values()))
    streams_here = Streams(1, np.arange(n_chains, dtype=np.uint64), 1)
    expected, its_info = hmc.hybrid(here, streams_here, target=host, stepsize=stepsizes, **settings)
    advance, moved = on_gpu(there).advance, on_device(stepsizes)
    found, info = hmc.hybrid(state, random, target=there, advance=advance, stepsize=moved, **settings)
    errors = np.abs(to_host(info.energy_change) - its_info.energy_change)
    assert its_info.accepted.any() and not its_info.accepted.all()
    assert errors.max() < (1e-9 if dtype == "float64" else 2e-2)
    same = np.isclose(to_host(found.position), expected.position, rtol=1e-3, atol=1e-3).all(axis=1)
    assert same.mean() >= (1 if dtype == "float64" else 0.9)
    assert np.array_equal(to_host(info.accepted)[same], its_info.accepted[same])


def copy_of(given: Any, there: SampledPosterior, over: tuple[str, ...]) -> Any:
    """Copy a posterior's marginal density from the host to the device."""
    moved = marginal(there, over)
    if isinstance(given, WithoutOutputs):
        data = given.regression
        arrays = (on_device(values) for values in (data.noise, data.targets, data.prior))
        return WithoutOutputs(moved, Regression(*arrays, is_dual=data.is_dual))
    return moved


def compare(
    advance: Advance,
    moved: Any,
    given: Any,
    state: ChainState,
    *,
    tolerance: float,
    shorter: float = 1.0,
) -> None:
    """Compare a trajectory with the host's array code, and its potential with that at its end."""
    start = beginning(given, state)
    dtype = start.stepsizes.dtype
    start, exact = replace(start, stepsizes=start.stepsizes * dtype.type(shorter)), dtype == np.float64
    expected = end_of(leapfrog.advance, given, start, n_steps=5)
    there = Trajectory(*map(on_device, vars(start).values()))
    drawn = [to_host(values) for values in end_of(advance, moved, there, n_steps=5)]
    for values, others in zip(drawn, expected, strict=True):
        assert np.max(np.abs(values - others) / np.maximum(np.abs(others), 1)) < tolerance
    energy = given.potential(drawn[0], state.precisions)
    assert np.max(np.abs(drawn[2] - energy) / np.abs(energy)) < (1e-11 if exact else 1e-5)


@pytest.mark.parametrize("model", ["gaussian", "binary"])
def test_an_iteration_of_hybrid_marginal(model: str) -> None:
    import cupy

    _, there = both(model, "float32", network(COMMON), 100)
    random = DeviceStreams(1, cupy.arange(500, dtype=cupy.uint64), 1)
    state = there.initial_state(random, sigmas=0.5)
    operations = (SampleSigmas(), Heatbath(), HybridMarginal(BOTH, steps=5, stepsize=0.5, window=2))
    advance = choose.advance_for(there)[0]
    assert isinstance(advance, CudaAdvance)
    assert isinstance(advance.chosen(there.marginal(BOTH).given(state, random)), Compiled)
    iteration = schedule.build_iteration(operations, target=there, updates=there.updates, advance=advance)
    after, info = iteration(state, random)
    assert np.isfinite(to_host(after.position)).all() and not to_host(info.diverged).any()
    assert to_host(info.accepted).mean() > 0.5


@pytest.mark.parametrize("units", [(16,), (100,)])
def test_the_same_bits_every_time_and_in_every_batch(units: tuple[int, ...]) -> None:
    host, there = both("gaussian", "float32", small(units), 200)
    start = Start.of(host, n_chains=64)
    names = ("position", "momentum", "precisions", "stepsizes")
    compiled = on_gpu(there)

    def ends(chains: slice) -> list[Array]:
        part = replace(start, **{name: on_device(getattr(start, name)[chains]) for name in names})
        return [to_host(values) for values in part.run(compiled.advance, there, n_steps=50)]

    whole, again, some = ends(slice(0, 64)), ends(slice(0, 64)), ends(slice(7, 20))
    for values, same, part in zip(whole, again, some, strict=True):
        assert np.array_equal(values, same)
        assert np.array_equal(values[7:20], part)


def test_trajectories_return_with_the_fast_functions() -> None:
    host, there = both("gaussian", "float32", small((16,)), 200)
    start = Start.of(host, n_chains=32)
    moved = Start(*(on_device(getattr(start, name)) for name in start.__dataclass_fields__))
    compiled = on_gpu(there)
    position, momentum, _ = moved.run(compiled.advance, there, n_steps=20)
    back = replace(moved, position=position, momentum=-momentum)
    returned = to_host(back.run(compiled.advance, there, n_steps=20)[0])
    assert np.max(np.abs(returned - start.position)) < 1e-4


def test_energies_of_products_are_not_in_tf32() -> None:
    host, there = both("class", "float32", small((300, 300), inputs=200, outputs=3), 500)
    start = Start.of(host)
    moved = Start(*(on_device(getattr(start, name)) for name in start.__dataclass_fields__))
    advance = wide.compile_for(there)
    assert not isinstance(advance, NotCovered)
    position, _, potential = moved.run(advance, there)
    exact = problem("class", spec=host.network, dtype="float64", n_cases=500)
    expected = exact.potential(to_host(position).astype(np.float64), start.precisions)
    assert np.max(np.abs(to_host(potential) - expected) / np.abs(expected)) < 1e-6


def test_the_devices_random_numbers_are_the_hosts() -> None:
    import cupy

    here = Streams(7, np.arange(1_000, dtype=np.uint64), 3, 2)
    there = DeviceStreams(7, cupy.arange(1_000, dtype=cupy.uint64), 3, 2)
    uniform = to_host(there.uniform(Purpose.MOMENTUM, (33,)))
    assert np.array_equal(uniform, here.uniform(Purpose.MOMENTUM, (33,)))
    for drawn, expected in (
        (there.normal(Purpose.MOMENTUM, (33,)), here.normal(Purpose.MOMENTUM, (33,))),
        (there.log_gamma(0.3, Purpose.GRID, (5,)), here.log_gamma(0.3, Purpose.GRID, (5,))),
    ):
        assert np.max(np.abs(to_host(drawn) - expected)) < 1e-9


def test_a_start_that_is_not_finite_is_told_with_the_results() -> None:
    host, there = both("gaussian", "float32", small((4,)), 20)
    import cupy

    random = DeviceStreams(1, cupy.arange(4, dtype=cupy.uint64), 1)
    state = there.initial_state(random, sigmas=0.5)
    state.position[2] = cupy.nan
    operations = (Heatbath(), Hybrid(steps=3, stepsize=0.1))
    compiled = on_gpu(there)
    iteration = schedule.build_iteration(
        operations, target=there, updates=there.updates, advance=compiled.advance
    )
    _, info = iteration(state, random)
    assert np.isnan(to_host(info.diverged)).tolist() == [False, False, True, False]
    with pytest.raises(SamplingError):
        start = host.initial_state(streams("bad", 4), sigmas=0.5)
        start.position[2] = np.nan
        hmc.hybrid(start, streams("bad", 4), target=host, steps=3, stepsize=0.1)


def test_copies_are_of_what_was_there_when_they_began() -> None:
    import cupy

    values = cupy.arange(1_000_000, dtype=cupy.float64)
    arrived = copies_to_host({"values": values})
    values = cupy.full(1_000_000, 7.0)  # in other memory: the first array is held until it has arrived
    assert np.array_equal(arrived()["values"], np.arange(1_000_000.0))


def test_programs_are_compiled_once() -> None:
    _, there = both("gaussian", "float32", small((3,)), 20)
    compiled = on_gpu(there)
    start = Start.of(problem(spec=small((3,)), dtype="float32", n_cases=20))
    moved = Start(*(on_device(getattr(start, name)) for name in start.__dataclass_fields__))
    moved.run(compiled.advance, there)
    before = cuda._module.cache_info().misses
    moved.run(compiled.advance, there)
    assert cuda._module.cache_info().misses == before
