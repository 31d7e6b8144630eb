"""Compiled kernels of a CPU agree with array code, refuse unsuitable arrays, and keep draws exact."""

from __future__ import annotations

import resource
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayfbnn.arrays import Array
from rayfbnn.kernels.cpu.compiled_module import BLAS_FROM, LARGE_FROM, instruction_sets
from rayfbnn.kernels.network_plan import ACTIVATION_CODES
from rayfbnn.mcmc import leapfrog
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.state import Advance, Trajectory
from tests.support.joint import FEW, PROBLEMS, stays_exact
from tests.support.kernels.backends import on_cpu
from tests.support.kernels.networks import (
    Start,
    assert_close,
    assert_end_is_a_start,
    potential_and_gradient,
    small,
)
from tests.support.kernels.strategies import RandomTrajectory, trajectories
from tests.support.marks import some_long
from tests.support.problems import MODELS, PRIORS, network, problem

SETS = instruction_sets()
pytestmark = pytest.mark.skipif(not SETS, reason="installed without a C++ compiler: no compiled kernels")
ACTIVATIONS = sorted(ACTIVATION_CODES)


def full_problem(
    model: str, dtype: str = "float64", *, n_cases: int = 37, activation: str = "tanh"
) -> SampledPosterior:
    """A problem with every group of parameters that a network of two hidden layers can have."""
    outputs = 3 if model == "class" else 2
    spec = network(outputs=outputs, activations=(activation, activation))
    return problem(model, spec=spec, dtype=dtype, n_cases=n_cases)


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("model", MODELS)
def test_a_trajectory_is_that_of_the_array_code(model: str, dtype: str, instruction_set: str) -> None:
    for activation in ACTIVATIONS:
        target = full_problem(model, dtype, activation=activation)
        advance = on_cpu(target, instruction_set)
        for n_partitions in (1, 3):
            start = Start.of(target, n_partitions=n_partitions)
            assert_close(start.run(advance, target), start.run(leapfrog.advance, target), dtype)


@settings(max_examples=150)
@given(
    made=trajectories(),
    instruction_set=st.sampled_from(SETS),
    block_bytes=st.sampled_from([0, 1, 3000]),
    large_from=st.sampled_from([1, 20, LARGE_FROM]),
    blas_from=st.sampled_from([1, 20, BLAS_FROM]),
)
def test_random_networks_are_those_of_the_array_code(
    made: RandomTrajectory, instruction_set: str, block_bytes: int, large_from: int, blas_from: int
) -> None:
    target, start = made.target, made.start
    options = {"block_bytes": block_bytes, "large_from": large_from, "blas_from": blas_from}
    advance = on_cpu(made.made_for, instruction_set, **options)
    expected = start.run(leapfrog.advance, target, n_steps=made.n_steps)
    got = start.run(advance, target, n_steps=made.n_steps)
    without_copy = on_cpu(made.made_for, instruction_set, **options, rows_from=0)
    for ours, other in zip(start.run(without_copy, target, n_steps=made.n_steps), got, strict=True):
        np.testing.assert_array_equal(ours, other)
    assert_close(got, expected, target.dtype)
    assert_end_is_a_start(advance, target, got, start.precisions, start.stepsizes, order=start.order)
    if target.dtype == "float64":
        assert np.abs(got[2] / expected[2] - 1).max() < 1e-9
    expected = target.potential_and_gradient(start.position, start.precisions)
    assert_near(potential_and_gradient(advance, target, start.position, start.precisions), expected)


def assert_near(got: tuple[Array, Array], expected: tuple[Array, Array]) -> None:
    """Check that potential and gradient agree up to rounding, relative to the largest component."""
    tolerance = 1e-5 if expected[1].dtype == np.float32 else 1e-12
    assert got[1].dtype == expected[1].dtype
    assert (np.abs(got[0] - expected[0]) <= tolerance * np.maximum(1, np.abs(expected[0]))).all()
    assert (np.abs(got[1] - expected[1]).max() <= tolerance * max(1, np.abs(expected[1]).max())).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_units_far_from_zero_are_those_of_the_array_code(activation: str, dtype: str) -> None:
    """Summed inputs go from 1e-6 to 1e6, of both signs, through the saturation of every activation."""
    spec = small((5,), inputs=1, outputs=1, activation=activation)
    target = problem(spec=spec, dtype=dtype, n_cases=60)
    start = Start.of(target)
    for size in 10.0 ** np.arange(-6, 7):
        position = start.position.copy()
        position[:, :10] *= size
        start = replace(start, position=position)
        got = potential_and_gradient(on_cpu(target), target, position, start.precisions)
        expected = target.potential_and_gradient(position, start.precisions)
        scale = np.abs(expected[1]).max() if dtype == "float32" and activation == "sin" else 1
        # Beyond, the rounding of a sine's argument is too large.
        if size * scale <= 1e5 or activation != "sin":
            assert_near(got, expected)


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_narrow_networks_are_those_of_the_array_code(outputs: int, dtype: str, instruction_set: str) -> None:
    """Networks with the special pass through tanh units, for each number of inputs, and some without it."""
    for inputs in range(1, 13):
        for units in ((7,), (4, 9)):
            target = problem(spec=small(units, inputs=inputs, outputs=outputs), n_cases=37, dtype=dtype)
            start = Start.of(target)
            advance = on_cpu(target, instruction_set)
            assert_close(start.run(advance, target), start.run(leapfrog.advance, target), dtype)
            expected = target.potential_and_gradient(start.position, start.precisions)
            assert_near(potential_and_gradient(advance, target, start.position, start.precisions), expected)


@pytest.mark.parametrize("n_cases", [5, 20, 1_100])  # register tiles of one pack, of two, and two blocks
@pytest.mark.parametrize("instruction_set", SETS)
def test_large_matrices_are_those_of_the_array_code(instruction_set: str, n_cases: int) -> None:
    target = problem(spec=small((131, 142), inputs=50), n_cases=n_cases, dtype="float32")
    start = Start.of(target)
    advance = on_cpu(target, instruction_set)
    assert_close(start.run(advance, target), start.run(leapfrog.advance, target), "float32")


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_matrices_beyond_the_second_cache_are_those_of_the_array_code(
    dtype: str, instruction_set: str
) -> None:
    """Their cases are taken in several runs of columns, and their gradients some columns at a time."""
    target = problem(spec=small((700, 703), inputs=300, outputs=2), n_cases=410, dtype=dtype)
    start = Start.of(target)
    advance = on_cpu(target, instruction_set)
    expected = target.potential_and_gradient(start.position, start.precisions)
    assert_near(potential_and_gradient(advance, target, start.position, start.precisions), expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_chain_does_not_depend_on_its_batch(dtype: str) -> None:
    target = problem(spec=small((20, 130), inputs=130), n_cases=61, dtype=dtype)
    for n_partitions in (1, 2):
        start = Start.of(target, n_chains=5, n_partitions=n_partitions)
        together = start.run(on_cpu(target), target)
        for chain in range(5):
            arrays = {
                name: None if values is None else values[chain : chain + 1]
                for name, values in vars(start).items()
            }
            alone = Start(**arrays).run(on_cpu(target), target)
            for values, others in zip(alone, together, strict=True):
                assert np.array_equal(values[0], others[chain])


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("model", ["gaussian", "t", "binary", "class"])
def test_a_chain_that_blows_up_ends_with_an_infinite_potential(model: str, activation: str) -> None:
    for dtype in ("float32", "float64"):
        target = full_problem(model, dtype, activation=activation)
        start = Start.of(target)
        position = start.position.copy()
        position[1, 7] = np.nan
        *_, potential = replace(start, position=position).run(on_cpu(target), target)
        assert np.isfinite(potential).tolist() == [True, False, True]
        assert potential[1] == np.inf
        stepsizes = start.stepsizes * np.array([[1], [1e30], [1]], dtype=dtype)
        *_, potential = replace(start, stepsizes=stepsizes).run(on_cpu(target), target, n_steps=20)
        assert np.isfinite(potential).tolist() == [True, False, True]
        assert potential[1] == np.inf


def test_energies_in_float32_are_as_right_as_those_of_the_array_code() -> None:
    """Errors of both against float64 at the same positions, root mean square over 200 states."""
    spec = small((16,))
    exact = problem(spec=spec, n_cases=200)
    rounded = problem(spec=spec, n_cases=200, dtype="float32")
    start = Start.of(rounded, n_chains=200)
    expected = exact.potential(start.position.astype(float), start.precisions)
    plain = rounded.potential(start.position, start.precisions) - expected
    *_, potential = start.run(on_cpu(rounded), rounded, n_steps=0)
    ours = potential - expected
    assert np.sqrt((ours**2).mean()) < 1.5 * np.sqrt((plain**2).mean())


def arguments(n_partitions: int = 1) -> tuple[SampledPosterior, dict[str, Any]]:
    target = full_problem("gaussian", "float32")
    return target, dict(vars(Start.of(target, n_partitions=n_partitions)))


def test_the_posterior_of_another_network_has_a_kernel_of_its_own() -> None:
    """This holds even if it shares the inputs, by which kernels are cached."""
    target, advance = full_problem("gaussian"), on_cpu(full_problem("gaussian"))
    other = problem(spec=network(dict(list(PRIORS.items())[1:])), n_cases=37)
    other = replace(other, inputs=target.inputs)
    for posterior in (target, other, target):
        start = Start.of(posterior)
        assert_close(start.run(advance, posterior), start.run(leapfrog.advance, posterior), "float64")


def test_orders_that_are_none_are_refused() -> None:
    target, given_arrays = arguments(3)
    with pytest.raises(ValueError, match="order"):
        Start(**given_arrays | {"order": given_arrays["order"] + 1}).run(on_cpu(target), target)
    with pytest.raises(ValueError, match="n_partitions"):
        orders = np.tile(np.arange(38), (3, 1))
        Start(**given_arrays | {"order": orders}).run(on_cpu(target), target)


@pytest.mark.parametrize(("rows_from", "is_shared"), [(0, True), (10**6, False)])
def test_large_inputs_are_not_copied(rows_from: int, is_shared: bool) -> None:
    """Change the inputs behind the back of a kernel: it sees the change only if it has no copy."""
    target = problem(n_cases=30)
    start, advance = Start.of(target), on_cpu(target, rows_from=rows_from)
    before = start.run(advance, target, n_steps=0)[2]
    target.inputs[:-1] += 1
    assert (start.run(advance, target, n_steps=0)[2] != before).all() == is_shared


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads its memory as Linux gives it")
def test_a_kernel_without_memory_raises_an_error() -> None:
    """A block of all cases needs 1.6 GB, in a process that may take only 0.3 GB more."""
    target = problem(spec=small((2_000,), inputs=1, outputs=1), n_cases=100_000, dtype="float32")
    start = Start.of(target, n_chains=1)
    advance = on_cpu(target, block_bytes=2**40)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (used + 300_000_000, limits[1]))
        with pytest.raises(MemoryError):
            start.run(advance, target, n_steps=1)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.mark.parametrize("instruction_set", some_long(SETS, SETS[1:]))
@pytest.mark.parametrize("name", some_long(PROBLEMS, ["class"]))
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.long)])
@pytest.mark.parametrize("n_chains", [FEW, pytest.param(10_000, marks=pytest.mark.long)])
def test_joint_distribution_stays_through_the_kernel(
    name: str, dtype: Any, instruction_set: str, n_chains: int
) -> None:
    assert stays_exact(
        PROBLEMS[name],
        f"{name} compiled {dtype} {instruction_set}, {n_chains} chains",
        advance_for=partial(on_cpu, instruction_set=instruction_set),
        dtype=dtype,
        n_chains=n_chains,
    )


@pytest.mark.parametrize("name", ["real", "binary"])
def test_a_kernel_that_gives_another_energy_is_killed(name: str) -> None:
    def wrong(target: SampledPosterior) -> Advance:
        def advance(*arguments: Any, **options: Any) -> tuple[Trajectory, Array]:
            end, potential = on_cpu(target)(*arguments, **options)
            return end, 0.9 * potential

        return advance

    assert not stays_exact(PROBLEMS[name], "compiled wrong energy", advance_for=wrong, n_chains=20_000)


def test_a_kernel_with_data_of_another_chain_is_killed() -> None:
    def wrong(target: SampledPosterior) -> Advance:
        def advance(posterior: Any, start: Trajectory, **options: Any) -> tuple[Trajectory, Array]:
            rolled = replace(posterior, targets=np.roll(posterior.targets, 1, axis=0))
            return on_cpu(target)(rolled, start, **options)

        return advance

    assert not stays_exact(PROBLEMS["real"], "compiled other data", advance_for=wrong, n_chains=FEW)
