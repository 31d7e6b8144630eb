"""Compiled kernels of a CPU agree with array code where outputs or common precisions are integrated out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rayfbnn.arrays import Array
from rayfbnn.kernels import choose
from rayfbnn.kernels.cpu.advance import CompiledAdvance
from rayfbnn.kernels.cpu.compiled_module import BLAS_FROM, LARGE_FROM, instruction_sets
from rayfbnn.mcmc import leapfrog
from rayfbnn.model import integrated
from rayfbnn.state import Advance, Trajectory
from tests.support.joint import FEW, stays_exact
from tests.support.kernels.backends import on_cpu
from tests.support.kernels.marginals import JOINT, NOT_COVERED, beginning, largest_error, operations
from tests.support.kernels.networks import assert_end_is_a_start, end_of, potential_and_gradient, small
from tests.support.kernels.strategies import RandomTrajectory, without_outputs, without_precisions
from tests.support.marks import long_but, some_long
from tests.support.model.marginals import (
    BOTH,
    N_CASES,
    NETWORKS,
    OUTPUTS,
    PRECISIONS,
    REAL,
    conditional,
    coordinates,
    made,
)
from tests.support.problems import parse, problem

SETS = instruction_sets()
pytestmark = pytest.mark.skipif(not SETS, reason="installed without a C++ compiler: no compiled kernels")
TOLERANCES = {"float64": 1e-11, "float32": 3e-4}
TOLERANCES_OF_RANDOM = {"float64": 1e-10, "float32": 3e-4}
COVERED = sorted(set(NETWORKS) - set(NOT_COVERED))
DUAL = ("adjustments", "common precisions", "every level", "one output", "t output weights")
FORMS = [(name, "primal") for name in COVERED] + [(name, "dual") for name in DUAL]


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("model", REAL)
@pytest.mark.parametrize(("name", "form"), FORMS)
def test_energies_gradients_and_trajectories_are_those_of_the_array_code(
    name: str, form: str, model: str, dtype: str
) -> None:
    for is_missing in (False, True):
        target = made(name, model, form, is_missing=is_missing, dtype=dtype)
        # Output weights drawn from a vague prior give energies of 1e20.
        for over in (OUTPUTS, BOTH) if name == "vague" or form == "dual" else (OUTPUTS, PRECISIONS, BOTH):
            state, given = conditional(target, over, f"kernel {name} {model}", 5)
            assert over == PRECISIONS or given.regression.is_dual == (form == "dual")
            start = beginning(given, state)
            expected = (
                *given.potential_and_gradient(start.position, state.precisions),
                *end_of(leapfrog.advance, given, start, n_steps=5),
            )
            for instruction_set in SETS:
                advance = on_cpu(given, instruction_set)
                found = (
                    *potential_and_gradient(advance, given, start.position, state.precisions),
                    *end_of(advance, given, start, n_steps=5),
                )
                assert_end_is_a_start(advance, given, found[2:], start.precisions, start.stepsizes)
                for a, b in zip(found, expected, strict=True):
                    assert a.dtype == b.dtype and a.shape == b.shape
                    assert largest_error(a, b) < TOLERANCES[dtype], (over, is_missing, instruction_set)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("model", ["gaussian", "t"])
def test_matrices_of_the_cases_of_every_size(model: str, dtype: str) -> None:
    """Tiles have every height and width: one to five packs of cases, and every remainder."""
    spec = replace(small((83,)), priors=parse(dict.fromkeys(("ih0", "bh0", "ho0"), "0.7:3") | {"bo": "1"}))
    for n_cases in (*range(1, 20), 24, 31, 40, 48, 49, 65, 81):
        target = problem(model, spec=spec, n_cases=n_cases, dtype=dtype)
        state, given = conditional(target, BOTH, f"kernel {n_cases} cases", 2)
        assert given.regression.is_dual and len(given.marginal.moved) == 1
        position = coordinates(state, given)
        expected = given.potential_and_gradient(position, state.precisions)
        for instruction_set in SETS:
            advance = on_cpu(given, instruction_set)
            found = potential_and_gradient(advance, given, position, state.precisions)
            for a, b in zip(found, expected, strict=True):
                assert largest_error(a, b) < TOLERANCES[dtype], (n_cases, instruction_set)


@settings(max_examples=150)
@given(
    made=st.one_of(
        without_precisions(most_cases=60),
        without_outputs(form="primal", most_cases=60),
        without_outputs(form="dual", most_cases=60),
    ),
    instruction_set=st.sampled_from(SETS),
)
def test_random_networks_are_those_of_the_array_code(made: RandomTrajectory, instruction_set: str) -> None:
    advance = CompiledAdvance(instruction_set)
    assume(advance.covers(made.target))
    found = made.start.run(advance, made.target, n_steps=made.n_steps)
    expected = made.start.run(leapfrog.advance, made.target, n_steps=made.n_steps)
    for a, b in zip(found, expected, strict=True):
        assert largest_error(a, b) < TOLERANCES_OF_RANDOM[made.made_for.dtype]


@pytest.mark.parametrize("form", N_CASES)
@pytest.mark.parametrize("over", [OUTPUTS, BOTH])
def test_binary_targets_with_their_auxiliary_variables(over: tuple[str, ...], form: str) -> None:
    target = made("common precisions", "binary", form, dtype="float32")
    state, given = conditional(target, over, "kernel binary", 5)
    start = beginning(given, state)
    found = end_of(on_cpu(given), given, start, n_steps=5)
    for a, b in zip(found, end_of(leapfrog.advance, given, start, n_steps=5), strict=True):
        assert largest_error(a, b) < TOLERANCES["float32"]


@pytest.mark.parametrize("model", ["gaussian", "t"])
def test_cases_in_several_blocks(model: str) -> None:
    """Products of 50 to 60 features over 2,000 cases are summed block by block."""
    spec = replace(small((50,)), priors=parse(dict.fromkeys(("ih0", "bh0", "ho0"), "0.7:3") | {"bo": "1"}))
    target = problem(model, spec=spec, n_cases=2_001)
    state, given = conditional(target, BOTH, "several blocks", 2)
    assert not given.regression.is_dual
    position = coordinates(state, given)
    expected = given.potential_and_gradient(position, state.precisions)
    for instruction_set in SETS:
        advance = on_cpu(given, instruction_set)
        found = potential_and_gradient(advance, given, position, state.precisions)
        for a, b in zip(found, expected, strict=True):
            assert largest_error(a, b) < TOLERANCES["float64"], instruction_set


@pytest.mark.parametrize("n_cases", [250, 30], ids=["primal", "dual"])
@pytest.mark.parametrize("units", [(64,), (40, 130)])
def test_wide_layers_with_large_matrices(units: tuple[int, ...], n_cases: int) -> None:
    """The regression begins sums of slopes that other functions continue."""
    spec = small(units, inputs=300)
    spec = replace(spec, priors=spec.priors | {"ho0": spec.priors["bo"]})
    target = problem(spec=spec, n_cases=n_cases)
    state, given = conditional(target, OUTPUTS, "kernel wide", 2)
    start = beginning(given, state)
    expected = end_of(leapfrog.advance, given, start, n_steps=3)
    for own, blas in ((1, BLAS_FROM), (LARGE_FROM, BLAS_FROM), (1, 1), (LARGE_FROM, 6000)):
        advance = on_cpu(given, large_from=own, blas_from=blas)
        found = end_of(advance, given, start, n_steps=3)
        for a, b in zip(found, expected, strict=True):
            assert largest_error(a, b) < 1e-10


@pytest.mark.parametrize("form", N_CASES)
def test_what_is_covered_is_run_by_the_kernel(form: str) -> None:
    target = made("common precisions", "gaussian", form, dtype="float32")
    state, given = conditional(target, BOTH, "chosen", 3)
    start = beginning(given, state)
    found = end_of(choose.advance_for(target)[0], given, start, n_steps=2)
    kernel = end_of(on_cpu(given), given, start, n_steps=2)
    assert all(np.array_equal(a, b) for a, b in zip(found, kernel, strict=True))


def test_one_of_the_joint_problems_is_in_the_dual_form() -> None:
    forms = {name: each.posterior().marginal(BOTH).layer.is_dual for name, each in JOINT.items()}
    assert forms == {name: name == "dual" for name in JOINT}


@pytest.mark.parametrize("over", [OUTPUTS, PRECISIONS, BOTH])
@pytest.mark.parametrize("name", JOINT)
def test_the_kernel_covers_the_joint_problems(name: str, over: tuple[str, ...]) -> None:
    _, given = conditional(JOINT[name].posterior(), over, "joint", 1)
    assert CompiledAdvance(SETS[0]).covers(given)


QUICK = [*((name, BOTH) for name in JOINT), ("real", OUTPUTS), ("real", PRECISIONS)]


@pytest.mark.parametrize("instruction_set", some_long(SETS, SETS[1:]))
@pytest.mark.parametrize("name, over", long_but(QUICK, JOINT, [OUTPUTS, PRECISIONS, BOTH]))
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.long)])
@pytest.mark.parametrize("n_chains", [FEW, pytest.param(5_000, marks=pytest.mark.long)])
def test_joint_distribution_stays_through_the_kernel(
    name: str, over: tuple[str, ...], dtype: Any, instruction_set: str, n_chains: int
) -> None:
    assert stays_exact(
        replace(JOINT[name], operations=operations(over)),
        f"{name} without {' and '.join(over)} compiled {dtype} {instruction_set}, {n_chains} chains",
        advance_for=partial(on_cpu, instruction_set=instruction_set),
        dtype=dtype,
        n_chains=n_chains,
    )


def wrong_energy(end: Trajectory, potential: Array, target: Any) -> Array:
    return 0.8 * potential


def without_log_of_the_matrix(end: Trajectory, potential: Array, target: Any) -> Array:
    _, phi = target._features(end.position)
    given = target.regression_at(end.position)
    n_each = given.targets.shape[2]
    if given.is_dual:
        solved = integrated.regression._solve_dual(phi, phi[:, None] / given.prior[:, :, :, None], given)
    else:
        solved = integrated.regression._solve_primal(phi, given)
    return potential - 0.5 * n_each * solved.log_determinant.sum(axis=1)


@pytest.mark.parametrize("name", ["real", "dual"])
@pytest.mark.parametrize("change", [wrong_energy, without_log_of_the_matrix])
def test_a_kernel_that_gives_another_energy_is_killed(
    change: Callable[[Trajectory, Array, Any], Array], name: str
) -> None:
    def wrong(posterior: Any) -> Advance:
        def advance(target: Any, start: Trajectory, **options: Any) -> tuple[Trajectory, Array]:
            end, potential = on_cpu(posterior)(target, start, **options)
            return end, change(end, potential, target)

        return advance

    mutant = f"{name} marginal {change.__name__}"
    assert not stays_exact(JOINT[name], mutant, advance_for=wrong, n_chains=FEW)
